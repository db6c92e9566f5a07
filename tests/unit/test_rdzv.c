#include "rendezvous/rdzv.h"

#include <string.h>

#include "rendezvous/farewell.h"
#include "tests/unit/rdzv_case.h"

Test(rdzv, max_nodes_seal_at_once_with_contiguous_ranks)
{
    begin(2, 3);
    form(3);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(nodes[i].running, 1u);
        cr_assert_eq(nodes[i].a.node_rank, i);
        cr_assert_eq(nodes[i].a.first_rank, 2 * i);
        cr_assert_eq(nodes[i].a.world_size, 6);
        cr_assert_str_eq(nodes[i].a.master_addr, "10.0.0.0");
    }
    end();
}

Test(rdzv, who_is_outrun_as_the_first_node_joins_at_once)
{
    begin(2, 2);
    for (int i = 0; i < 2; i++) {
        up(i);
        er_store_mem_delay(nodes[i].client, ER_US_PER_MS, ER_US_PER_MS);
    }
    pass(15 * ER_US_PER_MS); /* less than a retry that waits */
    cr_assert_eq(nodes[0].running, 1u);
    cr_assert_eq(nodes[1].running, 1u);
    end();
}

Test(rdzv, min_nodes_wait_for_last_call)
{
    begin(2, 3);
    form(1);
    pass(100 * ER_US_PER_S);
    up(1);
    pass(30 * ER_US_PER_S - 1);
    cr_assert_eq(nodes[0].running, 0u);
    pass(1);
    cr_assert_eq(nodes[0].running, 1u);
    cr_assert_eq(nodes[1].running, 1u);
    end();
}

Test(rdzv, too_few_nodes_end_with_tempfail)
{
    begin(2, 2);
    form(1);
    pass(600 * ER_US_PER_S);
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_STOPPED);
    cr_assert_eq(nodes[0].v.exit_code, 75);
    end();
}

Test(rdzv, a_failure_restarts_every_node_and_is_charged_once)
{
    begin(2, 2);
    form(2);
    fail(1);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    cr_assert_eq(nodes[1].a.restarts, 1u);
    cr_assert_str_eq(nodes[0].a.reason, "worker_failed");
    end();
}

Test(rdzv, everybody_gets_the_root_causes_code)
{
    begin(2, 2);
    base.restart_max = 0;
    form(2);
    fail(1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].v.kind, ER_VERDICT_FAILED);
        cr_assert_eq(nodes[i].v.exit_code, 5);
        cr_assert_str_eq(nodes[i].v.cause.node_id, "n1");
        cr_assert_str_eq(nodes[i].v.cause.host, "host1");
    }
    end();
}

Test(rdzv, success_of_all_is_success)
{
    begin(2, 2);
    form(2);
    er_driver_result(nodes[0].driver, 1, NULL);
    settle();
    cr_assert_not(nodes[0].over);
    er_driver_result(nodes[1].driver, 1, NULL);
    settle();
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].v.kind, ER_VERDICT_SUCCEEDED);
        cr_assert(nodes[i].over);
    }
    end();
}

Test(rdzv, survivors_of_a_dead_node_go_on_after_lease_and_grace)
{
    begin(2, 3);
    form(3);
    down(1);
    pass(6 * ER_US_PER_S - 1);
    cr_assert_eq(nodes[0].starts, 1u);
    pass(1);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[2].a.node_rank, 1);
    cr_assert_eq(nodes[2].a.restarts, 0u);
    cr_assert_str_eq(nodes[2].a.reason, "node_lost");
    cr_assert_eq(nodes[0].lost_notes, 1u);
    end();
}

static void on_put(void *user, int rc, const struct er_store_reply *reply) {}

/* Whoever may write to the store, on the record of node 1. */
static void change_assignment(const struct er_assign *to)
{
    static const char key[] = "/elastic-run/job/a/n1";
    char bytes[ER_ASSIGN_BYTES_MAX];
    const struct er_store_op op = {.kind = ER_OP_PUT,
                                   .key = {key, sizeof(key) - 1},
                                   .value = {bytes, er_assign_encode(to, bytes)}};
    const struct er_store_txn txn = {.then_ops = &op, .then_n = 1};

    cr_assert_eq(root->ops->txn(root, &txn, on_put, NULL), 0);
    root->ops->dispatch(root, now_us);
}

Test(rdzv, ranks_that_make_no_sense_start_nothing)
{
    static const int WRONG[][2] = {{2, 2}, {-1, 2}, {INT32_MAX, 2}, {1, -1}, {1, 4}};
    static const char key[] = "/elastic-run/job/a/n1";

    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++) {
        const struct er_store_kv *kv;
        struct er_assign a;

        begin(2, 2);
        form(2);
        kv = er_store_mem_peek(root, (struct er_bytes){key, sizeof(key) - 1});
        cr_assert(kv && er_assign_parse(kv->value, &a, NULL) == 0);
        a.group_rank = WRONG[i][0];
        a.first_rank = WRONG[i][1];
        down(1);
        change_assignment(&a);
        incarnations = 1; /* the same agent, to which the assignment is */
        up(1);
        pass(ER_US_PER_S);
        cr_assert_eq(nodes[1].starts, 0u, "case %zu: rank %d of node %d", i, nodes[1].a.first_rank,
                     nodes[1].a.node_rank);
        cr_assert(nodes[1].over);
        cr_assert_eq(nodes[1].v.exit_code, 76);
        end();
    }
}

static void on_farewell(void *user, int rc)
{
    *(int *)user = rc;
}

/* A guard's word, which ends the generation without any grace. */
static void say_farewell(int i, uint64_t incarnation)
{
    char id[16];
    int rc = 1;
    struct er_farewell f = {.store = root,
                            .prefix = "/elastic-run",
                            .job = "job",
                            .node_id = id,
                            .incarnation = incarnation,
                            .generation = 1,
                            .done = on_farewell,
                            .user = &rc};

    snprintf(id, sizeof(id), "n%d", i);
    cr_assert_eq(er_farewell_begin(&f), 0);
    for (int k = 0; k < 3; k++)
        root->ops->dispatch(root, now_us);
    cr_assert_eq(rc, 0);
}

Test(rdzv, who_is_told_dead_is_not_waited_for)
{
    begin(2, 3);
    form(3);
    down(2);
    say_farewell(2, 3);
    settle();
    cr_assert_eq(nodes[0].running, 2u);
    cr_assert_eq(nodes[1].running, 2u);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    cr_assert_str_eq(nodes[0].a.reason, "node_lost");
    end();
}

Test(rdzv, a_leader_told_dead_is_followed_before_its_lease_ends)
{
    begin(2, 3);
    form(3);
    down(0);
    say_farewell(0, 1);
    pass(300 * ER_US_PER_MS);
    cr_assert_eq(nodes[1].running, 2u);
    cr_assert_eq(nodes[2].running, 2u);
    end();
}

Test(rdzv, a_word_about_an_earlier_agent_changes_nothing)
{
    begin(2, 3);
    form(3);
    say_farewell(2, 77);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[2].running, 1u);
    cr_assert_eq(nodes[2].starts, 1u);
    end();
}

Test(rdzv, a_dead_nodes_victims_cost_nothing)
{
    begin(2, 3);
    base.restart_max = 0;
    form(3);
    down(1);
    fail(2); /* its peer was gone */
    cr_assert_not(nodes[2].over);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[0].a.restarts, 0u);
    cr_assert_str_eq(nodes[0].a.reason, "node_lost");
    end();
}

Test(rdzv, another_node_takes_over_when_the_leader_dies)
{
    begin(2, 3);
    form(3);
    down(0); /* the first to join leads */
    pass(20 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[1].a.node_rank, 0);
    cr_assert_eq(nodes[2].a.node_rank, 1);
    fail(2);
    cr_assert_eq(nodes[1].starts, 3u);
    cr_assert_eq(nodes[1].a.restarts, 1u);
    end();
}

Test(rdzv, a_spare_takes_the_dead_nodes_place)
{
    begin(2, 2);
    form(3);
    cr_assert_eq(nodes[2].running, 0u);
    down(1);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[2].starts, 1u);
    cr_assert_eq(nodes[2].a.node_rank, 1);
    cr_assert_eq(nodes[0].a.node_rank, 0);
    end();
}

Test(rdzv, a_lost_lease_restarts_nothing)
{
    begin(2, 2);
    form(2);
    for (int i = 0; i < 2; i++) {
        char key[64];

        snprintf(key, sizeof(key), "/elastic-run/job/j/n/n%d", i);
        er_store_mem_drop_lease(
            root, er_store_mem_peek(root, (struct er_bytes){key, strlen(key)})->lease);
        pass(120 * ER_US_PER_S);
        cr_assert_eq(nodes[0].starts, 1u);
        cr_assert_eq(nodes[1].starts, 1u);
    }
    end();
}

static void on_deleted(void *user, int rc, const struct er_store_reply *reply)
{
    cr_assert_eq(rc, 0);
    *(bool *)user = true;
}

/* By hand; its lease lives on. */
Test(rdzv, who_is_deleted_registers_again_and_leads_on)
{
    begin(2, 2);
    form(2);
    for (int i = 0; i < 2; i++) {
        char key[64];
        struct er_store_op op = {.kind = ER_OP_DELETE, .key.data = key};
        struct er_look look;
        bool deleted = false;

        op.key.len = (size_t)snprintf(key, sizeof(key), "/elastic-run/job/j/n/n%d", i);
        root->ops->txn(root, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, on_deleted,
                       &deleted);
        pass(20 * ER_US_PER_S);
        cr_assert(deleted);
        cr_assert_not_null(er_store_mem_peek(root, op.key));
        cr_assert_eq(nodes[0].starts, 1u);
        cr_assert_eq(nodes[1].starts, 1u);
        er_driver_look(nodes[0].driver, &look);
        cr_assert(look.leads);
    }
    for (int i = 0; i < 2; i++)
        er_driver_result(nodes[i].driver, 1, NULL);
    pass(20 * ER_US_PER_S);
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_SUCCEEDED);
    cr_assert_eq(nodes[1].v.kind, ER_VERDICT_SUCCEEDED);
    end();
}

Test(rdzv, a_cut_off_node_keeps_computing_and_stops_when_it_returns)
{
    begin(1, 2);
    form(2);
    er_store_mem_cut(nodes[1].client, true);
    pass(30 * ER_US_PER_S);
    cr_assert_eq(nodes[0].running, 2u);
    cr_assert_eq(nodes[1].running, 1u);
    er_store_mem_cut(nodes[1].client, false);
    pass(5 * ER_US_PER_S);
    cr_assert_eq(nodes[1].running, 0u);
    pass(120 * ER_US_PER_S);
    cr_assert_eq(nodes[0].running, nodes[1].running);
    cr_assert_neq(nodes[0].running, 0u);
    cr_assert_str_eq(nodes[0].a.reason, "node_joined");
    end();
}

Test(rdzv, a_restarted_agent_never_adopts_its_old_assignment)
{
    begin(2, 2);
    form(2);
    down(1);
    up(1);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 1u);
    cr_assert_eq(nodes[1].a.generation, nodes[0].a.generation);
    cr_assert_gt(nodes[1].a.generation, 1u);
    cr_assert_eq(nodes[1].a.restarts, 0u);
    end();
}

Test(rdzv, nobody_starts_before_the_slowest_has_left)
{
    begin(2, 2);
    form(2);
    nodes[0].slow = true;
    fail(1);
    pass(20 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 1u);
    nodes[0].running = 0;
    er_driver_left(nodes[0].driver, 1);
    settle();
    cr_assert_eq(nodes[1].starts, 2u);
    end();
}

Test(rdzv, a_node_that_misses_the_ready_deadline_is_left_out)
{
    begin(1, 2);
    form(2);
    nodes[0].slow = true;
    fail(1);
    pass(45 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[1].a.nnodes, 1);
    end();
}

Test(rdzv, a_leaving_node_is_not_waited_for)
{
    begin(1, 2);
    form(2);
    er_driver_leave(nodes[0].driver, 75, "preempted"); /* it leads, too */
    pass(ER_US_PER_S);
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_STOPPED);
    cr_assert_eq(nodes[0].v.exit_code, 75);
    cr_assert_eq(nodes[1].starts, 2u);
    cr_assert_eq(nodes[1].a.restarts, 0u);
    cr_assert_str_eq(nodes[1].a.reason, "preempted");
    end();
}

Test(rdzv, a_different_spec_is_refused_and_named)
{
    begin(1, 2);
    form(1);
    base.spec = "command=train\nnproc=4\n";
    up(1);
    settle();
    cr_assert(nodes[1].over);
    cr_assert_eq(nodes[1].v.exit_code, 76);
    cr_assert(strstr(nodes[1].v.reason, "in nproc (the job's is '2')"), "%s", nodes[1].v.reason);
    end();
}

Test(rdzv, a_name_in_use_on_another_host_is_refused)
{
    begin(1, 2);
    form(1);
    base.boot_id_hash = 77;
    /* the same name again, from elsewhere */
    nodes[3] = nodes[0];
    memset(&nodes[0], 0, sizeof(nodes[0]));
    up(0);
    pass(11 * ER_US_PER_S);
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[0].v.exit_code, 78);
    cr_assert(strstr(nodes[0].v.reason, "host0"));
    down(0);
    down(3);
    end();
}

Test(rdzv, a_late_node_of_a_finished_job_gets_its_verdict)
{
    begin(1, 2);
    base.restart_max = 0;
    base.last_call_us = 0;
    form(1);
    fail(0);
    up(1);
    settle();
    cr_assert(nodes[1].over);
    cr_assert_eq(nodes[1].v.kind, ER_VERDICT_FAILED);
    cr_assert_eq(nodes[1].v.exit_code, 5);
    end();
}

Test(rdzv, many_nodes_vanishing_at_once_are_given_time)
{
    begin(1, 4);
    form(4);
    for (int i = 1; i < 4; i++)
        er_store_mem_cut(nodes[i].client, true);
    pass(14 * ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    for (int i = 1; i < 4; i++)
        er_store_mem_cut(nodes[i].client, false);
    pass(120 * ER_US_PER_S);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(nodes[i].starts, 1u);
    end();
}

Test(rdzv, a_plan_of_many_nodes_goes_out_in_batches)
{
    begin(N, N);
    form(N);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(nodes[i].running, 1u);
        cr_assert_eq(nodes[i].a.node_rank, i); /* natural order: n2 before n10 */
        cr_assert_eq(nodes[i].a.first_rank, 2 * i);
        cr_assert_eq(nodes[i].a.world_size, 2 * N);
    }
    fail(N - 1);
    for (int i = 0; i < N; i++)
        cr_assert_eq(nodes[i].starts, 2u);
    end();
}

/* Or a generation would be sealed whose nodes never learn of their ranks. */
Test(rdzv, a_batch_whose_fate_is_unknown_is_never_sealed)
{
    static const enum er_store_mem_fault faults[] = {ER_FAULT_LOST, ER_FAULT_LOST_REPLY,
                                                     ER_FAULT_LATE};

    for (size_t k = 0; k < sizeof(faults) / sizeof(faults[0]); k++) {
        begin(3, 3);
        form(2);
        /* The leader's next transaction is a batch, and it looks again before the answer comes. */
        er_store_mem_delay(nodes[0].client, 50 * ER_US_PER_MS, 0);
        er_store_mem_fault(nodes[0].client, faults[k], ER_US_PER_S);
        up(2);
        settle();
        er_driver_dispatch(nodes[0].driver, now_us);
        er_store_mem_delay(nodes[0].client, 0, 0);
        pass(10 * ER_US_PER_S);
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(nodes[i].starts, 1u);
            cr_assert_gt(nodes[i].running, 1u);
            cr_assert_eq(nodes[i].running, nodes[0].running);
            cr_assert_eq(nodes[i].a.node_rank, i);
        }
        end();
    }
}

static void on_kv(void *user, int rc, const void *value, size_t n)
{
    *(int *)user = rc;
}

/* It hears too late that the others have gone on without it. */
Test(rdzv, who_does_not_know_that_it_is_superseded_is_told_by_the_store)
{
    int got = 1, put = 1;

    begin(2, 3);
    form(3);
    er_driver_kv_put(nodes[2].driver, 1, "k", "v", 1, NULL, NULL);
    settle();
    er_store_mem_delay(nodes[2].client, 0, 600 * ER_US_PER_S); /* what it watches */
    fail(0);
    for (int s = 0; s < 120 && nodes[0].starts < 2; s++)
        pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 2u);
    cr_assert_eq(nodes[2].running, 1u);
    er_driver_kv_get(nodes[2].driver, 1, "k", 0, on_kv, &got);
    er_driver_kv_put(nodes[2].driver, 1, "k", "w", 1, on_kv, &put);
    settle();
    cr_assert_eq(got, ER_E_STALE);
    cr_assert_eq(put, ER_E_STALE);
    end();
}

Test(rdzv, a_node_keeps_its_lease_as_long_as_it_lives)
{
    static const char key[] = "/elastic-run/job/j/n/n1";
    struct er_bytes name = {key, sizeof(key) - 1};
    uint64_t rev, created;

    begin(2, 2);
    form(2);
    cr_assert_not_null(er_store_mem_peek(root, name));
    created = er_store_mem_peek(root, name)->create_rev;
    rev = er_store_mem_revision(root);
    pass(60 * ER_US_PER_S);
    cr_assert_not_null(er_store_mem_peek(root, name));
    cr_assert_eq(er_store_mem_peek(root, name)->create_rev, created);
    cr_assert_eq(er_store_mem_revision(root), rev); /* nobody wrote anything */
    end();
}

Test(rdzv, who_never_reports_after_the_first_success_is_a_hang)
{
    begin(2, 2);
    form(2);
    er_driver_result(nodes[0].driver, 1, NULL);
    pass(300 * ER_US_PER_S - 1);
    cr_assert_not(nodes[0].over);
    pass(1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].v.kind, ER_VERDICT_FAILED);
        cr_assert_eq(nodes[i].v.exit_code, 124);
        cr_assert_str_eq(nodes[i].v.cause.node_id, "n1");
    }
    end();
}

Test(rdzv, a_node_lost_after_its_success_is_not_missed)
{
    begin(2, 2);
    form(2);
    er_driver_result(nodes[0].driver, 1, NULL);
    settle();
    down(0);
    pass(20 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 1u);
    er_driver_result(nodes[1].driver, 1, NULL);
    settle();
    cr_assert_eq(nodes[1].v.kind, ER_VERDICT_SUCCEEDED);
    end();
}

/* Its record says so at once, which ends nothing; ranks that lost each other by it meet there. */
Test(rdzv, a_node_with_a_new_address_is_reached_there)
{
    struct er_node_look list[2];

    begin(2, 2);
    form(2);
    cr_assert_str_eq(nodes[1].a.master_addr, "10.0.0.0");
    er_driver_address(nodes[0].driver, "10.0.7.7");
    settle();
    cr_assert_eq(er_driver_look_nodes(nodes[0].driver, list, 2), 2u);
    cr_assert_str_eq(list[0].address, "10.0.7.7");
    cr_assert_eq(nodes[1].starts, 1u);
    nodes[0].running = 0;
    er_driver_left(nodes[0].driver, 1);
    settle();
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(nodes[i].running, 2u);
        cr_assert_str_eq(nodes[i].a.master_addr, "10.0.7.7");
        cr_assert_eq(nodes[i].a.restarts, 0u);
        cr_assert_eq(nodes[i].lost_notes, 0u);
    }
    end();
}
