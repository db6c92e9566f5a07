#include "rendezvous/rdzv.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/rdzv_case.h"

/* Runs of a job, the store out of reach, and agents of other releases. */

static void on_put(void *user, int rc, const struct er_store_reply *reply) {}

static void finish_first(void)
{
    begin(1, 2);
    base.last_call_us = 0;
    form(1);
    er_driver_result(nodes[0].driver, 1, NULL);
    settle();
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_SUCCEEDED);
    down(0);
}

Test(rdzv_run, a_finished_job_stays_finished)
{
    finish_first();
    up(0);
    settle();
    cr_assert_eq(nodes[0].starts, 0u);
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_SUCCEEDED);
    end();
}

Test(rdzv_run, a_new_run_follows_when_asked_for_and_numbers_go_on)
{
    finish_first();
    base.new_run = ER_NEW_RUN_AUTO;
    up(0);
    up(1);
    pass(120 * ER_US_PER_S);
    cr_assert_gt(nodes[0].a.generation, 1u);
    cr_assert_eq(nodes[0].a.generation, nodes[1].a.generation);
    cr_assert_str_eq(nodes[0].a.run, nodes[1].a.run); /* two runs were not begun */
    cr_assert_eq(nodes[0].a.restarts, 0u);
    end();
}

Test(rdzv_run, an_older_end_that_is_seen_beside_the_own_new_record_is_not_ours)
{
    static const char WORLD[] = "/elastic-run/job/j/world";

    finish_first();
    base.new_run = ER_NEW_RUN_AUTO;
    up(0);
    er_store_mem_delay(nodes[0].client, 2 * ER_US_PER_S, 0); /* watches tell first */
    er_store_mem_lag(nodes[0].client, (struct er_bytes){WORLD, sizeof(WORLD) - 1}, ER_US_PER_S);
    pass(120 * ER_US_PER_S);
    cr_assert_not(nodes[0].over);
    cr_assert_gt(nodes[0].running, 1u);
    end();
}

Test(rdzv_run, a_running_job_is_joined_whatever_was_asked)
{
    begin(1, 2);
    base.last_call_us = 0;
    form(1);
    base.new_run = ER_NEW_RUN_FRESH;
    up(1);
    pass(120 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    cr_assert_eq(nodes[1].running, nodes[0].running);
    cr_assert_str_eq(nodes[0].a.run, nodes[1].a.run);
    end();
}

Test(rdzv_run, a_run_without_nodes_is_followed_or_taken_up)
{
    char run[ER_RUN_TEXT_MAX];

    begin(1, 2);
    base.last_call_us = 0;
    form(1);
    snprintf(run, sizeof(run), "%s", nodes[0].a.run);
    down(0);
    pass(10 * ER_US_PER_S);
    up(0);
    pass(20 * ER_US_PER_S);
    cr_assert_str_eq(nodes[0].a.run, run);
    down(0);
    pass(10 * ER_US_PER_S);
    base.new_run = ER_NEW_RUN_AUTO;
    up(0);
    pass(20 * ER_US_PER_S);
    cr_assert_str_neq(nodes[0].a.run, run);
    cr_assert_gt(nodes[0].a.generation, 2u);
    end();
}

Test(rdzv_run, a_node_without_its_store_gives_up_after_the_limit)
{
    begin(1, 2);
    base.store_loss_limit_us = 3600 * ER_US_PER_S;
    form(2);
    er_store_mem_cut(nodes[1].client, true);
    pass(3599 * ER_US_PER_S);
    cr_assert_eq(nodes[1].running, 1u);
    pass(20 * ER_US_PER_S);
    cr_assert_eq(nodes[1].running, 0u);
    cr_assert(nodes[1].over);
    cr_assert_eq(nodes[1].v.exit_code, 69);
    end();
}

Test(rdzv_run, workers_can_be_stopped_before_the_lease_ends)
{
    begin(1, 2);
    base.store_loss_stop = true;
    base.lease_ttl_us = 50 * ER_US_PER_S;
    form(2);
    er_store_mem_cut(nodes[1].client, true);
    pass(18 * ER_US_PER_S - 1);
    cr_assert_eq(nodes[1].running, 1u);
    pass(1);
    cr_assert_eq(nodes[1].running, 0u); /* the grace and more before it could end */
    er_store_mem_cut(nodes[1].client, false);
    pass(60 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[1].running, nodes[0].running);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    end();
}

static uint64_t held_until_us;

static uint64_t until(const struct er_store *store, uint64_t lease)
{
    return held_until_us;
}

/* What was answered last was no keep-alive: the lease is older than that. */
Test(rdzv_run, workers_are_stopped_before_the_lease_ends_that_is_held)
{
    struct er_store_ops ops;

    begin(1, 2);
    base.store_loss_stop = true;
    base.lease_ttl_us = 50 * ER_US_PER_S;
    form(2);
    ops = *nodes[1].client->ops;
    ops.lease_until = until;
    nodes[1].client->ops = &ops;
    er_store_mem_cut(nodes[1].client, true);
    held_until_us = now_us + 35 * ER_US_PER_S;
    er_driver_port(nodes[1].driver, 4321); /* so that it looks */
    pass(3 * ER_US_PER_S - 1);
    cr_assert_eq(nodes[1].running, 1u);
    pass(2);
    cr_assert_eq(nodes[1].running, 0u);
    end();
}

Test(rdzv_run, a_lease_too_short_to_stop_in_is_refused)
{
    const struct er_driver_callbacks none = {on_start, on_stop, on_verdict, on_note};
    struct er_driver_opts o;
    struct er_driver *d = NULL;

    begin(1, 2);
    o = base;
    o.store_loss_stop = true;
    o.incarnation = 1;
    o.lease_ttl_us = er_driver_stop_lease_us(o.stop_grace_us);
    cr_assert_eq(o.lease_ttl_us, 49500 * ER_US_PER_MS); /* keep-alives come at 16.5 s */
    o.lease_ttl_us--;
    snprintf(o.node_id, sizeof(o.node_id), "x");
    cr_assert_eq(er_driver_new(&d, root, &o, &none, NULL, NULL), ER_E_CONFIG);
    end();
}

Test(rdzv_run, an_agent_of_a_far_release_names_both_protocols)
{
    char key[] = "/elastic-run/job/j/world";
    unsigned char bytes[ER_WORLD_BYTES_MAX];
    struct er_job_record w = {.protocol_low = ER_PROTOCOL + 2, .protocol_high = ER_PROTOCOL + 3};
    struct er_store_op op = {.kind = ER_OP_PUT, .key = {key, sizeof(key) - 1}};
    struct er_store_txn txn = {.then_ops = &op, .then_n = 1};

    begin(1, 2);
    op.value = (struct er_bytes){bytes, er_job_record_encode(&w, bytes)};
    root->ops->txn(root, &txn, on_put, NULL);
    up(0);
    settle();
    cr_assert_eq(nodes[0].v.exit_code, 76);
    cr_assert(strstr(nodes[0].v.reason, "protocol 4 to 5, this agent 2"), "%s", nodes[0].v.reason);
    end();
}
