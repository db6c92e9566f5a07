/*
 * Parts of parameter servers from one generation to the next: the plan by itself, and against a
 * model in which ranks are killed, leave and come at every point of a change.
 */
#include <criterion/criterion.h>

#include <string.h>

#include "base/cleanup.h"
#include "trainer/ps_plan.h"

enum { RANKS_MAX = 4, LINE = 16, LINES_MAX = 13 };

static const size_t sizes[] = {1, 3, 8, LINES_MAX}; /* lines: also fewer than servers */

/* ---- a rank's memory: which state each line is of that it holds ---- */

struct memory {
    struct er_ps_held held;
    uint64_t line[LINES_MAX]; /* of its pieces: the state's bits; 0: none */
};

static uint64_t bits_of(uint64_t lineage, uint64_t updates, size_t line)
{
    return (lineage * 1000 + updates) * 1000 + line + 1;
}

static void add_piece(struct memory *m, struct er_ps_extent extent, uint64_t lineage,
                      uint64_t updates)
{
    m->held.lineage = lineage;
    m->held.updates = updates;
    m->held.piece[m->held.n++] = extent;
    for (size_t l = extent.first / LINE; l < (extent.first + extent.count) / LINE; l++)
        m->line[l] = bits_of(lineage, updates, l);
}

/* A generation that has run: rank i < servers holds its part. */
static void ran(struct memory *ranks, int size, int servers, size_t lines, uint64_t lineage,
                uint64_t updates)
{
    memset(ranks, 0, RANKS_MAX * sizeof(*ranks));
    for (int i = 0; i < servers && i < size; i++)
        add_piece(&ranks[i], er_ps_extent_of(lines * LINE, i, servers), lineage, updates);
}

static bool is_newer(const struct er_ps_held *a, const struct er_ps_held *b)
{
    return a->lineage > b->lineage || (a->lineage == b->lineage && a->updates > b->updates);
}

/* By the letter: the newest state, and whether every line of it is held by somebody. */
static bool is_whole(const struct memory *ranks, int n, size_t lines, struct er_ps_held *ret_newest)
{
    *ret_newest = (struct er_ps_held){0};
    for (int i = 0; i < n; i++) {
        if (ranks[i].held.lineage > 0 && is_newer(&ranks[i].held, ret_newest))
            *ret_newest = ranks[i].held;
    }
    for (size_t l = 0; l < lines && ret_newest->lineage > 0; l++) {
        bool found = false;

        for (int i = 0; i < n; i++)
            found =
                found || ranks[i].line[l] == bits_of(ret_newest->lineage, ret_newest->updates, l);
        if (!found)
            return false;
    }
    return ret_newest->lineage > 0;
}

/* ---- the moves carried out ---- */

struct carrying {
    const struct memory *ranks;
    struct memory *next; /* what the servers of the new generation hold */
};

static int carry(void *user, const struct er_ps_move *move, struct er_error *err)
{
    struct carrying *c = user;
    size_t first = move->extent.first / LINE;

    cr_assert(move->extent.count > 0 && move->extent.count % LINE == 0);
    for (size_t l = first; l < first + move->extent.count / LINE; l++) {
        cr_assert_eq(c->next[move->to].line[l], 0, "a line moves once");
        cr_assert_neq(c->ranks[move->from].line[l], 0, "from somebody who has it");
        c->next[move->to].line[l] = c->ranks[move->from].line[l];
        if (move->from != move->to) /* else it would not move */
            cr_assert_neq(c->ranks[move->to].line[l], c->next[move->to].line[l]);
    }
    return 0;
}

static unsigned long checked;

/* All `n` ranks plan. False: everybody loads a checkpoint. Else `next` is what the servers hold. */
static bool recover(const struct memory *ranks, int n, int servers, size_t lines,
                    struct memory *next)
{
    struct er_ps_held held[RANKS_MAX], newest;
    struct carrying c = {ranks, next};
    bool whole = is_whole(ranks, n, lines, &newest);
    int source;

    for (int i = 0; i < n; i++)
        held[i] = ranks[i].held;
    source = er_ps_plan_source(held, n, lines * LINE);
    cr_assert_eq(source >= 0, whole);
    checked++;
    if (!whole)
        return false;
    memset(next, 0, RANKS_MAX * sizeof(*next));
    cr_assert_eq(er_ps_plan_moves(held, n, source, lines * LINE, servers, carry, &c, NULL), 0);
    for (int i = 0; i < servers; i++) {
        struct er_ps_extent extent = er_ps_extent_of(lines * LINE, i, servers);

        for (size_t l = 0; l < lines; l++) {
            bool mine = l * LINE >= extent.first && l * LINE < extent.first + extent.count;

            cr_assert_eq(next[i].line[l], mine ? bits_of(newest.lineage, newest.updates, l) : 0);
        }
        next[i].held.lineage = newest.lineage;
        next[i].held.updates = newest.updates;
        next[i].held.piece[next[i].held.n++] = extent;
    }
    return true;
}

/* Who is in `dead` is gone; `newcomers` come behind. Returns how many ranks there are. */
static int rejoin(const struct memory *ranks, int n, unsigned dead, int newcomers,
                  struct memory *ret)
{
    int size = 0;

    memset(ret, 0, RANKS_MAX * sizeof(*ret));
    for (int i = 0; i < n; i++) {
        if (!(dead & 1u << i))
            ret[size++] = ranks[i];
    }
    return size + newcomers < RANKS_MAX ? size + newcomers : RANKS_MAX;
}

/* ---- changes, and what may happen meanwhile ---- */

/* After the barrier each rank goes over to what it has got, or is told of a failure before: `over`.
 * Then those in `dead` are killed, and the others meet again. */
static void killed_in_the_change(const struct memory *ranks, int n, int servers, size_t lines)
{
    struct memory next[RANKS_MAX], now[RANKS_MAX], again[RANKS_MAX], out[RANKS_MAX];

    if (!recover(ranks, n, servers, lines, next))
        return;
    for (unsigned over = 0; over < 1u << n; over++) {
        for (int i = 0; i < n; i++)
            now[i] = over & 1u << i ? next[i] : ranks[i];
        for (unsigned dead = 0; dead < (1u << n) - 1; dead++) {
            int size = rejoin(now, n, dead, 1, again);

            for (int s = 1; s <= size; s++)
                recover(again, size, s, lines, out);
            if (dead == 0 && (over == 0 || over == (1u << n) - 1))
                cr_assert(recover(again, size, 1, lines, out), "nobody was lost");
        }
    }
}

static void unplanned(int size, int servers, size_t lines)
{
    struct memory ranks[RANKS_MAX], now[RANKS_MAX], out[RANKS_MAX];

    ran(ranks, size, servers, lines, 3, 17);
    for (unsigned dead = 0; dead < (1u << size) - 1; dead++) {
        for (int newcomers = 0; newcomers <= 1; newcomers++) {
            int n = rejoin(ranks, size, dead, newcomers, now);

            for (int s = 1; s <= n; s++)
                killed_in_the_change(now, n, s, lines);
            if ((dead & ((1u << servers) - 1)) == 0)
                cr_assert(recover(now, n, 1, lines, out),
                          "workers without a server take nothing along");
        }
    }
}

/* The first `done` of the moves to those who stay have happened when those in `dead` are killed;
 * who leaves is gone in any case. */
static void planned(int size, int servers, size_t lines, unsigned stays_mask)
{
    struct memory ranks[RANKS_MAX], now[RANKS_MAX], out[RANKS_MAX];
    uint8_t stays[RANKS_MAX];
    int from[RANKS_MAX], to[RANKS_MAX], n;
    unsigned leave = ~stays_mask & ((1u << size) - 1);

    for (int i = 0; i < size; i++)
        stays[i] = stays_mask >> i & 1;
    n = er_ps_plan_takers(stays, size, servers, from, to);
    cr_assert_geq(n, 0);
    for (int done = 0; done <= n; done++) {
        ran(ranks, size, servers, lines, 3, 17);
        for (int i = 0; i < done; i++) {
            cr_assert(!stays[from[i]] && stays[to[i]]);
            add_piece(&ranks[to[i]], er_ps_extent_of(lines * LINE, from[i], servers), 3, 17);
        }
        for (unsigned dead = 0; dead < 1u << size; dead++) {
            int left = rejoin(ranks, size, leave | dead, 1, now);

            for (int s = 1; s <= left; s++)
                killed_in_the_change(now, left, s, lines);
            if (done == n && (dead & stays_mask) == 0)
                cr_assert(recover(now, left, 1, lines, out), "a planned change loses nothing");
        }
    }
}

Test(ps_plan, parts_are_whole_lines_and_cover_everything)
{
    for (size_t lines = 0; lines <= 40; lines++) {
        for (int servers = 1; servers <= 9; servers++) {
            size_t at = 0;

            for (int i = 0; i < servers; i++) {
                struct er_ps_extent extent = er_ps_extent_of(lines * LINE, i, servers);

                cr_assert(extent.first == at && extent.count % LINE == 0);
                at += extent.count;
            }
            cr_assert_eq(at, lines * LINE);
        }
    }
}

Test(ps_plan, an_older_state_and_one_of_another_lineage_are_of_no_use)
{
    struct memory ranks[RANKS_MAX] = {{{0}}};
    struct er_ps_held held[3];

    for (int i = 0; i < 3; i++)
        add_piece(&ranks[i], er_ps_extent_of(3 * LINE, i, 3), i == 1 ? 4 : 5, i == 1 ? 99 : 7);
    for (int i = 0; i < 3; i++)
        held[i] = ranks[i].held;
    cr_expect_eq(er_ps_plan_source(held, 3, 3 * LINE), -1);
    held[1].lineage = 5;
    held[1].updates = 6;
    cr_expect_eq(er_ps_plan_source(held, 3, 3 * LINE), -1);
    held[1].updates = 7;
    cr_expect_eq(er_ps_plan_source(held, 3, 3 * LINE), 0);
}

Test(ps_plan, what_a_rank_has_stays_there)
{
    struct memory ranks[RANKS_MAX], next[RANKS_MAX];

    ran(ranks, 3, 3, 13, 1, 1);
    cr_assert(recover(ranks, 3, 3, 13, next)); /* carry() asserts it */
}

Test(ps_plan, too_many_parts_for_those_who_stay_are_refused)
{
    uint8_t stays[ER_PS_PIECES_MAX + 1] = {1};
    int from[ER_PS_PIECES_MAX + 1], to[ER_PS_PIECES_MAX + 1];

    cr_expect_eq(er_ps_plan_takers(stays, ER_PS_PIECES_MAX, ER_PS_PIECES_MAX, from, to),
                 ER_PS_PIECES_MAX - 1);
    cr_expect_eq(er_ps_plan_takers(stays, ER_PS_PIECES_MAX + 1, ER_PS_PIECES_MAX + 1, from, to),
                 -1);
    stays[0] = 0;
    cr_expect_eq(er_ps_plan_takers(stays, 2, 2, from, to), -1, "nobody stays");
}

/* Records come from other processes. */
Test(ps_plan, a_wrong_record_is_no_reason_to_read_beyond)
{
    struct er_ps_held held[2] = {{.lineage = 1, .n = UINT32_MAX}, {.lineage = 1, .n = 1}};

    for (size_t i = 0; i < ER_PS_PIECES_MAX; i++)
        held[0].piece[i] = (struct er_ps_extent){SIZE_MAX - 1, 100};
    held[1].piece[0] = (struct er_ps_extent){0, LINE};
    cr_expect_eq(er_ps_plan_source(held, 2, 2 * LINE), -1);
    held[1].piece[0].count = 2 * LINE;
    cr_expect_geq(er_ps_plan_source(held, 2, 2 * LINE), 0);
}

Test(ps_plan, every_kill_point_of_an_unplanned_change, .timeout = 60)
{
    for (size_t i = 0; i < ER_ARRAY_N(sizes); i++) {
        for (int size = 1; size <= RANKS_MAX; size++) {
            for (int servers = 1; servers <= size; servers++)
                unplanned(size, servers, sizes[i]);
        }
    }
    cr_expect_gt(checked, 1000);
}

Test(ps_plan, every_kill_point_of_a_planned_change, .timeout = 60)
{
    for (size_t i = 0; i < ER_ARRAY_N(sizes); i++) {
        for (int size = 1; size <= RANKS_MAX; size++) {
            for (int servers = 1; servers <= size; servers++) {
                for (unsigned stays = 1; stays < 1u << size; stays++)
                    planned(size, servers, sizes[i], stays);
            }
        }
    }
    cr_expect_gt(checked, 1000);
}

/* ---- what a rank says that lies ---- */

static int see_move(void *user, const struct er_ps_move *move, struct er_error *err)
{
    const size_t *elements = user;

    cr_assert(move->extent.count > 0 && move->extent.first < *elements &&
              move->extent.count <= *elements - move->extent.first);
    return 0;
}

Test(ps_plan, pieces_beyond_all_memory_are_none)
{
    size_t elements = LINES_MAX * LINE;
    struct er_ps_held held[2] = {
        {.lineage = 1, .n = 2, .piece = {{LINE, SIZE_MAX - LINE / 2}, {0, LINE}}},
        {.lineage = 1, .n = UINT32_MAX, .piece = {{LINE, elements - LINE}}}};

    cr_assert_eq(er_ps_plan_source(held, 2, elements), 0);
    cr_assert_eq(er_ps_plan_moves(held, 2, 0, elements, 2, see_move, &elements, NULL), 0);
    held[1].n = 0;
    cr_assert_eq(er_ps_plan_source(held, 2, elements), -1);
}
