#include "rendezvous/plan.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/rand.h"

static int rank_of(const struct er_plan_node *v, size_t n, const char *id)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(v[i].id, id) == 0)
            return v[i].rank;
    }
    return -2;
}

#define NODE(name, old, pref, slot_n)                                                              \
    {                                                                                              \
        .id = name, .old_rank = old, .preferred = pref, .slots = slot_n                            \
    }

Test(plan, newcomers_come_in_natural_order)
{
    struct er_plan_node v[] = {NODE("n10", -1, -1, 4), NODE("n2", -1, -1, 2),
                               NODE("n1", -1, -1, 1)};
    uint32_t world = 0;

    cr_assert_eq(er_plan_make(v, 3, 3, &world), 3u);
    cr_assert_eq(world, 7u);
    cr_assert_str_eq(v[0].id, "n1");
    cr_assert_str_eq(v[1].id, "n2");
    cr_assert_str_eq(v[2].id, "n10");
    cr_assert_eq(v[1].first_rank, 1);
    cr_assert_eq(v[2].first_rank, 3);
}

Test(plan, survivors_keep_their_order_and_newcomers_follow)
{
    struct er_plan_node v[] = {NODE("a", -1, -1, 1), NODE("z", 0, -1, 1), NODE("y", 2, -1, 1),
                               NODE("x", 3, -1, 1)};
    uint32_t world;

    er_plan_make(v, 4, 4, &world);
    cr_assert_eq(rank_of(v, 4, "z"), 0);
    cr_assert_eq(rank_of(v, 4, "y"), 1);
    cr_assert_eq(rank_of(v, 4, "x"), 2);
    cr_assert_eq(rank_of(v, 4, "a"), 3);
}

Test(plan, preferred_ranks_are_given_when_free)
{
    struct er_plan_node v[] = {NODE("a", -1, 2, 1), NODE("b", -1, 0, 1), NODE("c", -1, -1, 1),
                               NODE("d", -1, 2, 1), NODE("e", -1, 9, 1)};
    uint32_t world;

    er_plan_make(v, 5, 5, &world);
    cr_assert_eq(rank_of(v, 5, "b"), 0);
    cr_assert_eq(rank_of(v, 5, "a"), 2);
    cr_assert_eq(rank_of(v, 5, "c"), 1);
    cr_assert_eq(rank_of(v, 5, "d"), 3);
    cr_assert_eq(rank_of(v, 5, "e"), 4);
}

Test(plan, beyond_max_are_spares_and_survivors_are_not)
{
    struct er_plan_node v[] = {NODE("a", -1, -1, 1), NODE("b", -1, -1, 1), NODE("c", 1, -1, 1),
                               NODE("d", 0, -1, 1)};
    uint32_t world;

    cr_assert_eq(er_plan_make(v, 4, 3, &world), 3u);
    cr_assert_eq(world, 3u);
    cr_assert_eq(rank_of(v, 4, "d"), 0);
    cr_assert_eq(rank_of(v, 4, "c"), 1);
    cr_assert_eq(rank_of(v, 4, "a"), 2);
    cr_assert_eq(rank_of(v, 4, "b"), -1);
}

Test(plan, ranks_are_a_permutation_whatever_the_input)
{
    struct er_rand r;

    er_rand_init(&r, 3);
    for (unsigned run = 0; run < 3000; run++) {
        char ids[12][4];
        struct er_plan_node v[12];
        bool taken[12] = {false};
        size_t n = 1 + er_rand_below(&r, 12), max = 1 + er_rand_below(&r, 12), members;
        int first = 0, last_old = -1;
        uint32_t world;

        for (size_t i = 0; i < n; i++) {
            ids[i][0] = (char)('a' + i);
            ids[i][1] = 0;
            v[i] = (struct er_plan_node)NODE(ids[i], er_rand_below(&r, 2) ? -1 : (int)i,
                                             (int)er_rand_below(&r, 14) - 2,
                                             1 + (int)er_rand_below(&r, 8));
        }
        members = er_plan_make(v, n, max, &world);
        cr_assert_eq(members, n < max ? n : max);
        for (size_t i = 0; i < members; i++) {
            cr_assert_eq(v[i].rank, (int)i);
            cr_assert_eq(v[i].first_rank, first);
            cr_assert_not(taken[v[i].id[0] - 'a']);
            taken[v[i].id[0] - 'a'] = true;
            first += v[i].slots;
            if (v[i].old_rank >= 0) {
                cr_assert_gt(v[i].old_rank, last_old);
                last_old = v[i].old_rank;
            }
        }
        cr_assert_eq(world, (uint32_t)first);
    }
}

Test(plan, natural_order_is_total)
{
    static const char *const sorted[] = {"", "a", "a1", "a01", "a2", "a10", "a10b", "ab", "b"};
    size_t n = sizeof(sorted) / sizeof(sorted[0]);

    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            int c = er_natural_cmp(sorted[i], sorted[k]);

            if (strcmp(sorted[i], "a01") == 0 || strcmp(sorted[k], "a01") == 0) {
                cr_assert_eq(c == 0, i == k);
                continue;
            }
            cr_assert_eq(c < 0, i < k, "%s %s", sorted[i], sorted[k]);
            cr_assert_eq(c == 0, i == k);
        }
    }
}
