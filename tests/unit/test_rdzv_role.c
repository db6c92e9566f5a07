/* Jobs whose nodes have roles: how many of each, and ranks within them. */
#include "tests/unit/rdzv_case.h"

#include "rendezvous/plan.h"

enum { TRAINER = 7, EVALUATOR = 9 };

/* min and max of both roles. */
static void begin_roles(uint32_t tmin, uint32_t tmax, uint32_t emin, uint32_t emax)
{
    begin(tmin + emin, tmax + emax);
    base.roles[0] = (struct er_role_bounds){TRAINER, tmin, tmax};
    base.roles[1] = (struct er_role_bounds){EVALUATOR, emin, emax};
    base.roles_n = 2;
}

static void up_as(int i, uint32_t role)
{
    base.role = role;
    up(i);
    settle();
}

Test(rdzv_role, each_role_needs_its_minimum)
{
    begin_roles(2, 2, 1, 1);
    up_as(0, TRAINER);
    up_as(1, TRAINER);
    up_as(2, TRAINER); /* enough nodes, but of one role */
    pass(60 * ER_US_PER_S);
    cr_assert_eq(nodes[0].running, 0u);
    up_as(3, EVALUATOR);
    pass(ER_US_PER_S);
    cr_assert_neq(nodes[0].running, 0u);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    cr_assert_neq(nodes[3].running, 0u);
    cr_assert_eq(nodes[2].running, 0u); /* a spare of its role */
    end();
}

Test(rdzv_role, ranks_within_a_role_follow_the_ranks)
{
    begin_roles(2, 2, 2, 2);
    up_as(0, TRAINER);
    up_as(1, EVALUATOR);
    up_as(2, TRAINER);
    up_as(3, EVALUATOR);
    pass(ER_US_PER_S);
    for (int i = 0; i < 4; i++) {
        cr_assert_neq(nodes[i].running, 0u);
        cr_expect_eq(nodes[i].a.first_rank, 2 * i);
        cr_expect_eq(nodes[i].a.role_first, i < 2 ? 0 : 2);
        cr_expect_eq(nodes[i].a.role_size, 4);
    }
    end();
}

/* Without bounds roles still count apart, as under torchrun. */
Test(rdzv_role, roles_without_bounds_only_number_the_ranks)
{
    begin(3, 3);
    up_as(0, TRAINER);
    up_as(1, EVALUATOR);
    up_as(2, TRAINER);
    cr_assert_eq(nodes[2].a.nnodes, 3);
    cr_expect_eq(nodes[1].a.role_first, 0);
    cr_expect_eq(nodes[1].a.role_size, 2);
    cr_expect_eq(nodes[2].a.role_first, 2);
    cr_expect_eq(nodes[2].a.role_size, 4);
    end();
}

Test(rdzv_role, spare_takes_the_place_in_its_role_only)
{
    begin_roles(1, 1, 1, 1);
    up_as(0, TRAINER);
    up_as(1, EVALUATOR);
    up_as(2, TRAINER);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[2].running, 0u);
    down(1); /* no evaluator is left */
    pass(60 * ER_US_PER_S);
    cr_assert_eq(nodes[0].running, 0u);
    cr_assert_eq(nodes[2].running, 0u);
    up_as(3, EVALUATOR);
    pass(60 * ER_US_PER_S);
    cr_assert_neq(nodes[0].running, 0u);
    cr_assert_neq(nodes[3].running, 0u);
    cr_assert_eq(nodes[2].running, 0u);
    down(0);
    pass(60 * ER_US_PER_S);
    cr_assert_neq(nodes[2].running, 0u);
    cr_assert_eq(nodes[2].a.nnodes, 2);
    end();
}

/* Newcomers whose role is full change nothing, those of another make the world larger. */
Test(rdzv_role, newcomers_of_a_full_role_wait)
{
    begin_roles(1, 1, 1, 2);
    base.last_call_us = ER_US_PER_S;
    up_as(0, TRAINER);
    up_as(1, EVALUATOR);
    pass(5 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    up_as(2, TRAINER);
    pass(600 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    up_as(3, EVALUATOR);
    pass(600 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[2].running, 0u);
    end();
}

Test(rdzv_role, too_few_of_a_role_is_too_few)
{
    begin_roles(1, 2, 1, 1);
    up_as(0, TRAINER);
    up_as(1, TRAINER);
    pass(700 * ER_US_PER_S);
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[0].v.exit_code, 75);
    end();
}
