/* Who stands in for whom: every subset of ranks that fail, are gone, hold something alone or
 * nothing at all. */
#include <criterion/criterion.h>
#include <string.h>

#include "ckpt/cover.h"

enum { RANKS_MAX = 6 };

struct world {
    int size;
    unsigned failing, gone, sole, empty; /* sets of ranks */
};

static bool in(unsigned set, int rank)
{
    return set >> rank & 1;
}

static size_t members_of(const struct world *w, struct er_cover_member *members)
{
    size_t n = 0;

    for (int rank = 0; rank < w->size; rank++) {
        int spare = er_cover_spare(rank, w->size);

        if (in(w->gone, rank))
            continue;
        members[n++] =
            (struct er_cover_member){.rank = rank,
                                     .code = in(w->failing, rank) ? -5 : 0,
                                     .empty = in(w->empty, rank),
                                     .sole = in(w->sole, rank),
                                     .spare = spare,
                                     .spare_state = spare < 0             ? ER_SPARE_NONE
                                                    : in(w->empty, spare) ? ER_SPARE_WRITTEN
                                                                          : ER_SPARE_KEPT};
    }
    return n;
}

/* What must come out, said another way. */
static bool can_be_whole(const struct world *w, int *ret_first_lost)
{
    for (int rank = 0; rank < w->size; rank++) {
        bool works = !in(w->failing, rank) && !in(w->gone, rank), helped = false;

        for (int holder = 0; holder < w->size; holder++)
            helped =
                helped || (w->size > 1 && (holder + w->size / 2) % w->size == rank &&
                           !in(w->gone, holder) && (in(w->empty, rank) || !in(w->failing, holder)));
        if (works || (in(w->empty, rank) && !in(w->gone, rank)))
            continue;
        if (helped && !(in(w->sole, rank) && !in(w->gone, rank)))
            continue;
        *ret_first_lost = rank;
        return false;
    }
    return true;
}

static void check_world(const struct world *w)
{
    struct er_cover_member members[RANKS_MAX];
    size_t n = members_of(w, members);
    bool write[RANKS_MAX];
    int lost = -1, want_lost = -1;
    bool whole = can_be_whole(w, &want_lost);
    enum er_cover cover = er_cover_judge(members, n, w->size, write, &lost);

    if (cover == ER_COVER_GOES_ON) {
        for (size_t i = 0; i < n; i++) {
            cr_assert(!write[i] || members[i].code == 0, "a failing rank is asked");
            if (write[i])
                members[i].spare_state = ER_SPARE_WRITTEN;
        }
        cover = er_cover_judge(members, n, w->size, write, &lost);
        cr_assert_neq(cover, ER_COVER_GOES_ON, "one more round is enough");
    }
    cr_assert_eq(cover == ER_COVER_WHOLE, whole, "%d ranks, failing %x gone %x sole %x empty %x",
                 w->size, w->failing, w->gone, w->sole, w->empty);
    if (!whole)
        cr_assert_eq(lost, want_lost);
    for (int rank = 0; whole && rank < w->size; rank++) {
        bool spare = false;
        int holder = er_cover_holder(members, n, rank, &spare);

        cr_assert(holder >= 0 || in(w->empty, rank));
        cr_assert(holder < 0 || spare || members[holder].rank == rank);
        cr_assert(holder < 0 || !spare || members[holder].spare == rank);
    }
    if (whole)
        cr_assert(members[er_cover_leader(members, n)].code == 0 || w->empty);
}

Test(cover, every_subset_of_ranks_that_fail_or_are_gone)
{
    size_t worlds = 0;

    for (int size = 1; size <= RANKS_MAX; size++)
        for (unsigned failing = 0; failing < 1u << size; failing++)
            for (unsigned gone = 0; gone < (1u << size) - 1; gone++) /* somebody is here */
                for (unsigned k = 0; k < 4; k++) {
                    const unsigned all = (1u << size) - 1;
                    const struct world w = {.size = size,
                                            .failing = failing,
                                            .gone = gone,
                                            .sole = k & 1 ? all : 0,
                                            .empty = k & 2 ? all & ~1u : 0};
                    check_world(&w);
                    worlds++;
                }
    cr_assert_gt(worlds, 10000);
}

Test(cover, one_copy_of_every_part_lies_far_away)
{
    cr_assert_eq(er_cover_spare(0, 1), -1);
    for (int size = 2; size <= 64; size++) {
        unsigned char copies[64] = {0};

        for (int rank = 0; rank < size; rank++) {
            int spare = er_cover_spare(rank, size);

            cr_assert(spare != rank);
            copies[spare]++;
            if (size % 8 == 0 && size > 8) /* nodes of eight ranks */
                cr_assert_neq(spare / 8, rank / 8);
        }
        for (int rank = 0; rank < size; rank++)
            cr_assert_eq(copies[rank], 1);
    }
}
