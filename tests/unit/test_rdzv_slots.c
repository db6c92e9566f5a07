#include "rendezvous/rdzv.h"

#include <string.h>

#include "tests/unit/rdzv_case.h"

/* Nodes that go on with another number of workers than they began with. */

static void begin_two(void)
{
    begin(2, 2);
    base.resize_grace_us = 60 * ER_US_PER_S;
    base.last_call_us = 0;
    for (int i = 0; i < 2; i++) {
        up(i);
        er_driver_planned(nodes[i].driver, true);
    }
    pass(ER_US_PER_S);
}

/* Ranks follow each other without a gap, and all nodes say the same. */
static void expect_sizes(int first, int second)
{
    int sizes[] = {first, second};

    cr_assert_eq(nodes[0].a.generation, nodes[1].a.generation);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].running, nodes[i].a.generation);
        cr_expect_eq(nodes[i].a.local_size, sizes[i]);
        cr_expect_eq(nodes[i].a.first_rank, i ? first : 0);
        cr_expect_eq(nodes[i].a.world_size, first + second);
        cr_expect_eq(nodes[i].a.role_first, nodes[i].a.first_rank);
        cr_expect_eq(nodes[i].a.role_size, first + second);
        cr_expect_eq(nodes[i].a.nnodes, 2);
    }
}

/* The first node's worker dies, and it goes on with one fewer. */
static void shrink(void)
{
    er_driver_slots(nodes[0].driver, 1);
    fail(0);
    pass(ER_US_PER_S);
}

Test(rdzv_slots, who_left_with_fewer_goes_on_with_fewer)
{
    begin_two();
    expect_sizes(2, 2);
    shrink();
    expect_sizes(1, 2);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    fail(1); /* said once, it holds */
    pass(ER_US_PER_S);
    expect_sizes(1, 2);
    end();
}

Test(rdzv_slots, more_lead_to_a_planned_change)
{
    begin_two();
    shrink();
    er_driver_slots(nodes[0].driver, 2);
    pass(4 * ER_US_PER_S); /* others may be about to come back, too */
    expect_sizes(1, 2);
    pass(2 * ER_US_PER_S);
    expect_sizes(2, 2);
    cr_assert_eq(nodes[0].notices, 1u);
    cr_assert_eq(nodes[1].notices, 1u);
    cr_assert_eq(nodes[1].a.restarts, 1u);
    cr_assert_str_eq(nodes[1].a.reason, "node_joined");
    pass(300 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 3u);
    end();
}

Test(rdzv_slots, a_single_node_grows_back_too)
{
    begin(1, 1);
    form(1);
    shrink();
    cr_assert_eq(nodes[0].a.local_size, 1);
    er_driver_slots(nodes[0].driver, 2);
    pass(6 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.local_size, 2);
    cr_assert_eq(nodes[0].a.world_size, 2);
    end();
}

Test(rdzv_slots, a_wish_that_is_taken_back_disturbs_nobody)
{
    begin_two();
    shrink();
    er_driver_slots(nodes[0].driver, 2);
    pass(ER_US_PER_S);
    er_driver_slots(nodes[0].driver, 1);
    pass(300 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[1].notices, 0u);
    end();
}

Test(rdzv_slots, a_change_is_planned_anew_when_a_node_leaves_with_others)
{
    begin_two();
    shrink();
    nodes[0].slow = nodes[1].slow = true;
    er_driver_slots(nodes[0].driver, 2);
    pass(6 * ER_US_PER_S);
    cr_assert_eq(nodes[0].notices, 1u);
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            er_driver_slots(nodes[i].driver, 1); /* who was to join has died */
        nodes[i].running = 0;
        er_driver_left(nodes[i].driver, nodes[i].a.generation);
    }
    pass(ER_US_PER_S);
    expect_sizes(1, 2);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    end();
}

/* What the plan rests on does not move under it. */
Test(rdzv_slots, a_wish_waits_for_the_change_that_is_under_way)
{
    struct er_node_look list[3];

    begin(1, 3);
    base.resize_grace_us = 600 * ER_US_PER_S;
    base.last_call_us = 0;
    for (int i = 0; i < 2; i++) {
        up(i);
        er_driver_planned(nodes[i].driver, true);
        settle();
    }
    pass(120 * ER_US_PER_S);
    shrink();
    up(2);
    nodes[2].hangs = true;
    er_driver_planned(nodes[2].driver, true);
    pass(70 * ER_US_PER_S);
    cr_assert(nodes[2].preparing);
    er_driver_slots(nodes[0].driver, 2);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(er_driver_look_nodes(nodes[0].driver, list, 3), 3u);
    cr_assert_eq(list[0].slots, 1);
    er_driver_prepared(nodes[2].driver, nodes[2].running);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].running, nodes[2].running);
    cr_assert_eq(nodes[0].a.world_size, 6);
    end();
}

Test(rdzv_slots, an_agent_that_comes_anew_has_all_its_workers)
{
    begin_two();
    shrink();
    down(0);
    pass(ER_US_PER_S);
    up(0);
    er_driver_planned(nodes[0].driver, true);
    pass(60 * ER_US_PER_S);
    cr_assert_eq(nodes[0].running, nodes[1].running);
    cr_assert_eq(nodes[0].a.local_size, 2);
    cr_assert_eq(nodes[0].a.first_rank, 2); /* behind who stayed */
    cr_assert_eq(nodes[1].a.world_size, 4);
    end();
}

Test(rdzv_slots, numbers_stay_within_what_the_node_has)
{
    begin_two();
    er_driver_slots(nodes[0].driver, 0);
    er_driver_slots(nodes[1].driver, 9);
    fail(0);
    pass(10 * ER_US_PER_S);
    expect_sizes(2, 2);
    end();
}
