#include "rendezvous/rdzv.h"

#include <string.h>

#include "tests/unit/rdzv_case.h"

/* The store is away for a while: nobody is blamed for what nobody could have told. */

static void outage(bool out)
{
    er_store_mem_outage(root, out);
    for (int i = 0; i < N; i++) {
        if (nodes[i].client)
            er_store_mem_cut(nodes[i].client, out);
    }
}

Test(rdzv_outage, victims_of_a_node_whose_lease_it_prolonged_cost_nothing)
{
    begin(2, 3);
    base.restart_max = 0;
    form(3);
    down(1);
    fail(2); /* its peer was gone, which nobody knows yet */
    outage(true);
    pass(60 * ER_US_PER_S); /* longer than workers are given to stop */
    outage(false);
    pass(60 * ER_US_PER_S);
    for (int i = 0; i < 3; i += 2) {
        cr_assert_not(nodes[i].over);
        cr_assert_eq(nodes[i].starts, 2u);
        cr_assert_str_eq(nodes[i].a.reason, "node_lost");
        cr_assert_eq(nodes[i].a.restarts, 0u);
    }
    cr_assert_eq(nodes[0].lost_notes, 0u); /* nothing was declared: the generation had ended */
    end();
}

Test(rdzv_outage, who_could_not_hear_of_the_end_is_not_late)
{
    begin(1, 3);
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    form(3);
    nodes[1].slow = nodes[2].slow = true;
    er_store_mem_delay(nodes[1].client, 0, ER_US_PER_S); /* their watches are behind */
    er_store_mem_delay(nodes[2].client, 0, ER_US_PER_S);
    fail(0);
    outage(true);
    pass(100 * ER_US_PER_S);
    outage(false);
    pass(30 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u); /* they have the whole time again */
    for (int i = 1; i < 3; i++) {
        nodes[i].slow = false;
        on_stop(&nodes[i], nodes[i].running, "");
    }
    pass(5 * ER_US_PER_S);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(nodes[i].starts, 2u);
        cr_assert_eq(nodes[i].a.nnodes, 3);
        cr_assert_eq(nodes[i].a.restarts, 1u);
    }
    end();
}

Test(rdzv_outage, exit_timeout_begins_anew)
{
    begin(2, 2);
    form(2);
    er_driver_result(nodes[0].driver, 1, NULL);
    settle();
    outage(true);
    pass(400 * ER_US_PER_S);
    er_driver_result(nodes[1].driver, 1, NULL);
    pass(ER_US_PER_S);
    outage(false);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_SUCCEEDED);
    cr_assert_eq(nodes[1].v.kind, ER_VERDICT_SUCCEEDED);
    end();
}

Test(rdzv_outage, join_timeout_begins_anew)
{
    begin(2, 2);
    form(1);
    pass(500 * ER_US_PER_S);
    outage(true);
    pass(200 * ER_US_PER_S);
    outage(false);
    pass(300 * ER_US_PER_S);
    cr_assert_not(nodes[0].over);
    up(1);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    end();
}

/* Leases of nodes that live may end with it. */
Test(rdzv_outage, nobody_is_lost_within_two_ttl_of_its_end)
{
    begin(1, 3);
    form(3);
    er_store_mem_cut(nodes[0].client, true);
    pass(ER_US_PER_S);
    er_store_mem_cut(nodes[0].client, false); /* the leader's session; its lease held */
    down(2);
    pass(9 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_str_eq(nodes[0].a.reason, "node_lost");
    end();
}

/* A dead node whose lease the store keeps longer than anybody may take to stop. */
Test(rdzv_outage, a_member_that_neither_left_nor_spoke_is_the_cause)
{
    begin(1, 3);
    base.restart_max = 0;
    form(3);
    nodes[1].slow = true;
    fail(2);
    pass(50 * ER_US_PER_S);
    for (int i = 0; i < 3; i += 2) {
        cr_assert_not(nodes[i].over);
        cr_assert_eq(nodes[i].starts, 2u);
        cr_assert_str_eq(nodes[i].a.reason, "node_lost");
        cr_assert_eq(nodes[i].a.nnodes, 2);
    }
    end();
}

Test(rdzv_outage, a_member_that_failed_and_stays_is_charged)
{
    begin(1, 3);
    form(3);
    nodes[1].slow = true;
    fail(1);
    pass(50 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    cr_assert_str_eq(nodes[0].a.reason, "worker_failed");
    end();
}
