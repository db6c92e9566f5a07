#include "rendezvous/rdzv.h"

#include <string.h>

#include "tests/unit/rdzv_case.h"

/* Requests, hand-over of leadership, nodes set aside, and what is cleaned up. */

static int asked_rc;

static void on_asked(void *user, int rc, const void *value, size_t n)
{
    asked_rc = rc;
}

static void ask(int i, const char *id, const struct er_ask *ctl)
{
    asked_rc = -1;
    er_driver_request(nodes[i].driver, id, ctl, on_asked, NULL);
    settle();
    cr_assert_eq(asked_rc, 0);
}

static bool there(const char *key)
{
    char text[128];

    snprintf(text, sizeof(text), "/elastic-run/job/%s", key);
    return er_store_mem_peek(root, (struct er_bytes){text, strlen(text)}) != NULL;
}

static void on_all(void *user, int rc, const struct er_store_reply *reply)
{
    *(size_t *)user = reply ? reply->kv_n : 0;
}

static size_t count_keys(const char *prefix)
{
    struct er_store_op op = {.kind = ER_OP_RANGE, .key = {prefix, strlen(prefix)}, .prefix = true};
    struct er_store_txn txn = {.then_ops = &op, .then_n = 1};
    size_t n = SIZE_MAX;

    root->ops->txn(root, &txn, on_all, &n);
    root->ops->dispatch(root, now_us);
    return n;
}

static void on_kv(void *user, int rc, const void *value, size_t n) {}

Test(rdzv_request, old_generations_leave_nothing_in_the_store)
{
    size_t keys = 0;

    begin(1, 1);
    base.restart_max = UINT32_MAX;
    form(1);
    for (int i = 0; i < 3000; i++) {
        er_driver_kv_put(nodes[0].driver, nodes[0].running, "k", "v", 1, on_kv, NULL);
        er_driver_kv_add(nodes[0].driver, nodes[0].running, "n", 1, on_kv, NULL);
        settle();
        fail(0);
        if (i == 10)
            keys = count_keys("/elastic-run/");
    }
    cr_assert_eq(nodes[0].starts, 3001u);
    cr_assert_eq(count_keys("/elastic-run/"), keys);
    end();
}

Test(rdzv_request, many_keys_of_several_nodes_are_cleaned_up_after_a_while)
{
    begin(3, 3);
    form(3);
    for (int i = 0; i < 900; i++) {
        char key[16];

        snprintf(key, sizeof(key), "k%d", i);
        er_driver_kv_put(nodes[i % 3].driver, 1, key, "v", 1, on_kv, NULL);
    }
    settle();
    fail(0);
    cr_assert_eq(count_keys("/elastic-run/job/kv/"), 900u);
    pass(6 * ER_US_PER_S);
    cr_assert_eq(count_keys("/elastic-run/job/kv/"), 0u);
    cr_assert_eq(count_keys("/elastic-run/job/j/r/"), 0u);
    end();
}

Test(rdzv_request, stop_ends_the_job_with_79_everywhere)
{
    begin(2, 2);
    form(2);
    ask(1, "q1", &(struct er_ask){.kind = ER_ASK_STOP, .reason = "enough"});
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].v.kind, ER_VERDICT_STOPPED);
        cr_assert_eq(nodes[i].v.exit_code, 79);
        cr_assert_str_eq(nodes[i].v.reason, "enough");
    }
    cr_assert_not(there("j/ctl/q1"));
    end();
}

static uint64_t deadline_of(int i)
{
    struct er_look look;

    er_driver_look(nodes[i].driver, &look);
    return look.deadline_us;
}

Test(rdzv_request, stop_gives_every_node_the_time_that_it_was_given)
{
    begin(2, 2);
    form(2);
    cr_assert_eq(deadline_of(0), 0u);
    ask(1, "q1", &(struct er_ask){.kind = ER_ASK_STOP, .deadline_us = 60 * ER_US_PER_S});
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].v.exit_code, 79);
        cr_assert_eq(deadline_of(i), now_us + 60 * ER_US_PER_S);
    }
    end();
}

static int committed_rc;

static void on_committed(void *user, int rc, const void *value, size_t n)
{
    committed_rc = rc;
}

static int commit(int i, uint64_t step)
{
    committed_rc = -1;
    er_driver_commit(nodes[i].driver, 1, step, "00", "/ckpt", on_committed, NULL);
    settle();
    return committed_rc;
}

Test(rdzv_request, what_is_saved_within_the_time_of_a_stop_is_committed)
{
    begin(2, 2);
    base.retention_us = 100 * ER_US_PER_S;
    form(2);
    nodes[0].slow = nodes[1].slow = true;
    ask(1, "q1", &(struct er_ask){.kind = ER_ASK_STOP, .deadline_us = 60 * ER_US_PER_S});
    cr_assert_eq(commit(1, 5), 0);
    committed_rc = -1;
    er_driver_kv_get(nodes[0].driver, 1, "saved", ER_FOREVER, on_committed, NULL);
    settle();
    cr_assert_eq(committed_rc, -1); /* it waits for the other */
    er_driver_kv_put(nodes[1].driver, 1, "saved", "1", 1, on_kv, NULL);
    settle();
    cr_assert_eq(committed_rc, 0);
    er_driver_left(nodes[0].driver, 1); /* the leader is gone, the other one goes on */
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].v.exit_code, 79);
    cr_assert(there("fence"));
    cr_assert_eq(commit(1, 6), 0);
    er_driver_left(nodes[1].driver, 1);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[1].v.exit_code, 79);
    cr_assert_not(there("fence"));
    cr_assert_eq(count_keys("/elastic-run/job/a/"), 0u);
    cr_assert(there("j/world") && there("ckpt/latest"));
    end();
}

/* Each of them finds nobody left. */
Test(rdzv_request, who_goes_last_together_leaves_one_lease)
{
    begin(3, 3);
    base.retention_us = 100 * ER_US_PER_S;
    form(3);
    for (int i = 0; i < 3; i++)
        nodes[i].slow = true;
    ask(1, "q1", &(struct er_ask){.kind = ER_ASK_STOP, .deadline_us = 60 * ER_US_PER_S});
    for (int i = 0; i < 3; i++)
        er_store_mem_delay(nodes[i].client, 100000, 0);
    for (int i = 0; i < 3; i++)
        er_driver_left(nodes[i].driver, 1);
    pass(5 * ER_US_PER_S);
    cr_assert_eq(er_store_mem_leases(root), 1u);
    cr_assert(there("j/world"));
    pass(101 * ER_US_PER_S);
    cr_assert_eq(er_store_mem_leases(root), 0u);
    cr_assert_eq(count_keys("/elastic-run/"), 0u);
    end();
}

Test(rdzv_request, a_plain_stop_commits_nothing_more)
{
    begin(2, 2);
    form(2);
    nodes[1].slow = true;
    ask(1, "q1", &(struct er_ask){.kind = ER_ASK_STOP});
    cr_assert_eq(commit(1, 5), ER_E_STALE);
    cr_assert_not(there("fence"));
    end();
}

Test(rdzv_request, drain_gives_the_node_the_time_that_it_was_given)
{
    begin(1, 2);
    form(2);
    ask(0, "q1",
        &(struct er_ask){.kind = ER_ASK_DRAIN, .node = "n1", .deadline_us = 60 * ER_US_PER_S});
    cr_assert_eq(deadline_of(0), 0u);
    cr_assert_eq(deadline_of(1), now_us + 60 * ER_US_PER_S);
    end();
}

Test(rdzv_request, drain_takes_the_named_incarnation_out)
{
    begin(1, 2);
    form(2);
    ask(0, "q1", &(struct er_ask){.kind = ER_ASK_DRAIN, .node = "n1", .incarnation = 99});
    cr_assert_not(there("j/ctl/q1")); /* refused: not that one */
    cr_assert_eq(nodes[1].starts, 1u);
    ask(0, "q2", &(struct er_ask){.kind = ER_ASK_DRAIN, .node = "n1", .incarnation = 2});
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[1].v.kind, ER_VERDICT_STOPPED);
    cr_assert_eq(nodes[1].v.exit_code, 0);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[0].a.nnodes, 1);
    cr_assert_str_eq(nodes[0].a.reason, "drained");
    down(1);
    up(1); /* comes back as another incarnation: the request is over */
    pass(120 * ER_US_PER_S);
    cr_assert_eq(nodes[1].a.nnodes, 2);
    end();
}

Test(rdzv_request, scale_changes_the_bounds_in_force)
{
    begin(1, 2);
    form(4);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    ask(0, "up", &(struct er_ask){.kind = ER_ASK_SCALE, .min_nodes = 1, .max_nodes = 4});
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 4);
    cr_assert_str_eq(nodes[0].a.reason, "scaled");
    ask(3, "down", &(struct er_ask){.kind = ER_ASK_SCALE, .min_nodes = 1, .max_nodes = 3});
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    cr_assert_eq(nodes[3].running, 0u);
    ask(0, "bad", &(struct er_ask){.kind = ER_ASK_SCALE, .min_nodes = 5, .max_nodes = 3});
    cr_assert_not(there("j/ctl/bad"));
    cr_assert_eq(nodes[0].a.restarts, 0u);
    end();
}

Test(rdzv_request, scaled_beyond_what_the_files_said)
{
    begin(1, 2);
    form(N);
    ask(0, "up", &(struct er_ask){.kind = ER_ASK_SCALE, .min_nodes = 1, .max_nodes = N});
    pass(120 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, N);
    end();
}

Test(rdzv_request, a_node_set_aside_comes_back_after_its_cooldown)
{
    begin(1, 2);
    form(2);
    ask(0, "q",
        &(struct er_ask){.kind = ER_ASK_ASIDE,
                         .node = "n1",
                         .cooldown_us = 300 * ER_US_PER_S,
                         .reason = "slow"});
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 1);
    cr_assert_eq(nodes[1].running, 0u);
    cr_assert_eq(nodes[0].aside_notes, 1u);
    pass(200 * ER_US_PER_S);
    cr_assert_eq(nodes[1].running, 0u);
    pass(200 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    end();
}

Test(rdzv_request, a_node_set_aside_can_be_released)
{
    begin(1, 2);
    form(2);
    ask(0, "q",
        &(struct er_ask){.kind = ER_ASK_ASIDE, .node = "n1", .cooldown_us = 9000 * ER_US_PER_S});
    pass(ER_US_PER_S);
    ask(0, "r", &(struct er_ask){.kind = ER_ASK_RELEASE, .node = "n1"});
    pass(120 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    end();
}

Test(rdzv_request, three_strikes_set_a_node_aside_when_others_are_enough)
{
    begin(1, 2);
    base.restart_max = UINT32_MAX;
    base.strike_max = 3;
    base.strike_window_us = 3600 * ER_US_PER_S;
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    form(2);
    fail(1);
    fail(1);
    cr_assert_eq(nodes[1].starts, 3u);
    fail(1);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 3u);
    cr_assert_eq(nodes[0].a.nnodes, 1);
    for (int i = 0; i < 5; i++)
        fail(0); /* alone: nobody could take its place */
    cr_assert_eq(nodes[0].starts, 9u);
    end();
}

Test(rdzv_request, who_misses_the_ready_deadline_is_set_aside)
{
    begin(1, 2);
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    form(2);
    nodes[1].slow = true;
    fail(0);
    pass(46 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 1);
    cr_assert(there("j/aside/n1"));
    end();
}

/* The leader hears of its own writes late. */
Test(rdzv_request, a_node_is_set_aside_once_for_one_reason)
{
    begin(1, 3);
    base.strike_cooldown_us = 600 * ER_US_PER_S;
    form(3);
    er_store_mem_delay(nodes[0].client, 0, 400000);
    ask(0, "q",
        &(struct er_ask){.kind = ER_ASK_ASIDE, .node = "n2", .cooldown_us = 900 * ER_US_PER_S});
    pass(5 * ER_US_PER_S);
    cr_assert_eq(nodes[0].aside_notes, 1u);
    nodes[1].slow = true;
    fail(0);
    pass(60 * ER_US_PER_S);
    cr_assert(there("j/aside/n1"));
    cr_assert_eq(nodes[0].aside_notes, 2u);
    end();
}

Test(rdzv_request, a_leaving_leader_names_its_successor)
{
    begin(1, 3);
    form(3);
    er_driver_leave(nodes[0].driver, 75, "preempted");
    settle(); /* no time passes */
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[1].a.nnodes, 2);
    cr_assert_eq(nodes[1].starts, 2u);
    end();
}

Test(rdzv_request, workers_that_are_gone_without_a_word_end_the_generation)
{
    begin(2, 2);
    form(2);
    nodes[1].running = 0;
    er_driver_left(nodes[1].driver, 1);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    cr_assert_str_eq(nodes[0].a.reason, "connections_lost");
    end();
}

Test(rdzv_request, who_lost_a_dead_nodes_workers_is_not_the_reason)
{
    begin(2, 3);
    base.restart_max = 0;
    form(3);
    down(2); /* its lease does not know yet */
    for (int i = 0; i < 2; i++) {
        nodes[i].running = 0;
        er_driver_left(nodes[i].driver, 1);
    }
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    cr_assert_str_eq(nodes[0].a.reason, "node_lost");
    end();
}

Test(rdzv_request, who_lost_a_failed_worker_does_not_hide_it)
{
    begin(2, 2);
    form(2);
    nodes[0].running = 0;
    er_driver_left(nodes[0].driver, 1);
    fail(1);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    cr_assert_str_eq(nodes[0].a.reason, "worker_failed");
    end();
}
