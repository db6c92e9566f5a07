#include "rendezvous/rdzv.h"

#include <string.h>

#include "tests/unit/rdzv_case.h"

/* Planned changes: the next generation is prepared while this one runs. */

static void up_planned(int i)
{
    up(i);
    er_driver_planned(nodes[i].driver, true);
}

static void begin_planned(int count)
{
    begin(1, 3);
    base.resize_grace_us = 60 * ER_US_PER_S;
    base.last_call_us = ER_US_PER_S;
    for (int i = 0; i < count; i++)
        up_planned(i);
    pass(2 * ER_US_PER_S);
}

Test(rdzv_ahead, a_newcomer_is_prepared_before_anybody_stops)
{
    begin_planned(2);
    nodes[0].slow = nodes[1].slow = true; /* they choose the step */
    up_planned(2);
    pass(90 * ER_US_PER_S);
    cr_assert_eq(nodes[2].prepares, 1u);
    cr_assert_eq(nodes[2].starts, 0u);
    cr_assert_eq(nodes[0].notices, 1u);
    cr_assert_eq(nodes[0].running, 1u);
    cr_assert_str_eq(er_driver_phase(nodes[0].driver), "resizing");
    for (int i = 0; i < 2; i++) {
        nodes[i].running = 0;
        er_driver_left(nodes[i].driver, 1);
    }
    settle();
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(nodes[i].a.generation, 2u);
        cr_assert_eq(nodes[i].a.node_rank, i);
        cr_assert_eq(nodes[i].a.nnodes, 3);
        cr_assert_str_eq(nodes[i].a.reason, "node_joined");
        cr_assert_str_eq(er_driver_phase(nodes[i].driver), "running");
    }
    end();
}

Test(rdzv_ahead, a_loss_meanwhile_voids_it)
{
    begin_planned(2);
    nodes[0].slow = nodes[1].slow = true;
    up_planned(2);
    pass(90 * ER_US_PER_S);
    nodes[0].slow = nodes[1].slow = false;
    down(2);
    pass(60 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u); /* they had been told to go: no way back */
    cr_assert_eq(nodes[0].a.nnodes, 2);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    end();
}

Test(rdzv_ahead, a_newcomer_that_dies_before_it_is_up_is_not_waited_for)
{
    begin_planned(2);
    up_planned(2);
    nodes[2].hangs = true;
    pass(90 * ER_US_PER_S);
    cr_assert_eq(nodes[2].prepares, 1u);
    cr_assert_str_eq(er_driver_phase(nodes[0].driver), "resizing");
    down(2);
    pass(10 * ER_US_PER_S); /* its lease; the change as such may take much longer */
    cr_assert_str_eq(er_driver_phase(nodes[0].driver), "running");
    cr_assert_eq(nodes[0].starts, 1u);
    cr_assert_eq(nodes[0].notices, 0u);
    end();
}

Test(rdzv_ahead, who_does_not_leave_in_time_is_stopped)
{
    begin_planned(2);
    nodes[0].slow = true;
    up_planned(2);
    pass(90 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    nodes[0].slow = false;
    nodes[0].running = 0;
    pass(70 * ER_US_PER_S);
    er_driver_left(nodes[0].driver, 1);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    cr_assert_eq(nodes[0].running, nodes[2].running);
    end();
}

Test(rdzv_ahead, a_newcomer_whose_workers_fail_disturbs_nobody)
{
    struct er_cause cause = {.kind = ER_EXIT_EXITED, .code = 1};

    begin_planned(2);
    base.resize_grace_us = 60 * ER_US_PER_S;
    up(2);
    nodes[2].slow = true;
    er_driver_planned(nodes[2].driver, true);
    nodes[0].slow = true;
    pass(63 * ER_US_PER_S);
    if (nodes[2].preparing) {
        er_driver_result(nodes[2].driver, nodes[2].running, &cause);
        nodes[2].slow = false;
    }
    nodes[0].slow = false;
    pass(300 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    end();
}

Test(rdzv_ahead, a_draining_node_stays_until_the_switch)
{
    begin_planned(3);
    for (int i = 0; i < 3; i++)
        nodes[i].slow = true;
    er_driver_drain(nodes[0].driver, 75, "preempted", now_us + 120 * ER_US_PER_S);
    pass(5 * ER_US_PER_S);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(nodes[i].notices, 1u);
        cr_assert_eq(nodes[i].running, 1u);
    }
    for (int i = 0; i < 3; i++) {
        nodes[i].running = 0;
        er_driver_left(nodes[i].driver, 1);
    }
    pass(ER_US_PER_S);
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[0].v.exit_code, 75);
    cr_assert_eq(nodes[1].a.nnodes, 2);
    cr_assert_eq(nodes[1].a.node_rank, 0);
    cr_assert_str_eq(nodes[1].a.reason, "preempted");
    end();
}

Test(rdzv_ahead, a_leaver_that_is_gone_first_hurries_nobody)
{
    begin_planned(3);
    for (int i = 0; i < 3; i++)
        nodes[i].slow = true;
    er_driver_drain(nodes[1].driver, 75, "preempted", now_us + 120 * ER_US_PER_S);
    pass(5 * ER_US_PER_S);
    nodes[1].running = 0;
    er_driver_left(nodes[1].driver, 1);
    pass(5 * ER_US_PER_S);
    cr_assert(nodes[1].over);
    cr_assert_eq(nodes[0].running, 1u); /* still at it */
    cr_assert_eq(nodes[2].running, 1u);
    for (int i = 0; i < 3; i += 2) {
        nodes[i].running = 0;
        er_driver_left(nodes[i].driver, 1);
    }
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    cr_assert_eq(nodes[0].a.generation, 2u); /* the one that was planned */
    cr_assert_eq(nodes[0].left_notes + nodes[2].left_notes, 1u);
    end();
}

/* It is set aside, and the others go on as if it had not come; after the cool-down it is taken. */
Test(rdzv_ahead, a_newcomer_that_hangs_is_set_aside)
{
    begin_planned(0);
    base.prepare_us = 30 * ER_US_PER_S;
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    for (int i = 0; i < 2; i++)
        up_planned(i);
    pass(2 * ER_US_PER_S);
    up_planned(2);
    nodes[2].hangs = true;
    pass(120 * ER_US_PER_S);
    cr_assert_eq(nodes[2].prepares, 1u);
    cr_assert_eq(nodes[2].running, 0u);
    cr_assert_eq(nodes[0].aside_notes + nodes[1].aside_notes, 1u);
    cr_assert_eq(nodes[0].notices, 0u);
    cr_assert_str_eq(er_driver_phase(nodes[0].driver), "running");
    nodes[2].hangs = false;
    pass(900 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    cr_assert_eq(nodes[0].notices, 1u);
    end();
}

/* Its time is shorter then, and the change goes on without it. */
Test(rdzv_ahead, a_node_that_leaves_does_not_wait_for_one_that_hangs)
{
    begin_planned(0);
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    for (int i = 0; i < 2; i++)
        up_planned(i);
    pass(2 * ER_US_PER_S);
    up_planned(2);
    nodes[2].hangs = true;
    pass(66 * ER_US_PER_S);
    cr_assert_eq(nodes[2].prepares, 1u);
    er_driver_drain(nodes[1].driver, 75, "preempted", now_us + 90 * ER_US_PER_S);
    pass(40 * ER_US_PER_S);
    cr_assert(nodes[1].over);
    cr_assert_eq(nodes[1].notices, 1u); /* as planned, not for want of time */
    cr_assert_eq(nodes[0].a.nnodes, 1);
    end();
}

Test(rdzv_ahead, a_newcomer_that_keeps_failing_rests_and_is_set_aside)
{
    struct er_cause cause = {.kind = ER_EXIT_EXITED, .code = 1};

    begin_planned(0);
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    for (int i = 0; i < 2; i++)
        up_planned(i);
    pass(2 * ER_US_PER_S);
    up_planned(2);
    nodes[2].hangs = true;
    for (int k = 0; k < 400; k++) {
        pass(ER_US_PER_S);
        if (nodes[2].preparing)
            er_driver_result(nodes[2].driver, nodes[2].running, &cause);
    }
    cr_assert_eq(nodes[2].prepares, 3u);
    cr_assert_eq(nodes[0].aside_notes + nodes[1].aside_notes, 1u);
    cr_assert_eq(nodes[0].notices, 0u);
    end();
}

Test(rdzv_ahead, without_able_workers_everybody_restarts_at_once)
{
    begin_planned(2);
    up(2);
    pass(90 * ER_US_PER_S);
    cr_assert_eq(nodes[2].prepares, 0u);
    cr_assert_eq(nodes[0].notices, 0u);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    end();
}
