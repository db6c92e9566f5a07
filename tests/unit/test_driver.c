#include "rendezvous/driver.h"

#include <errno.h>

#include "rendezvous/codec.h"
#include "tests/unit/driver_case.h"

Test(driver, single_node_starts_in_one_dispatch_without_timers)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    er_driver_port(f.driver, 4321);
    cr_assert(er_driver_pending(f.driver));
    er_driver_dispatch(f.driver, f.now_us);
    cr_assert_eq(f.starts, 1u);
    cr_assert_eq(f.a.generation, 1u);
    cr_assert_eq(f.a.world_size, 2);
    cr_assert_eq(f.a.nnodes, 1);
    cr_assert_eq(f.a.node_rank, 0);
    cr_assert_eq(f.a.first_rank, 0);
    cr_assert_eq(f.a.local_size, 2);
    cr_assert_eq(f.a.master_port, 4321);
    cr_assert_str_eq(f.a.master_addr, "10.0.0.1");
    cr_assert_str_eq(f.a.reason, "formed");
    cr_assert_eq(strlen(f.a.run), 32u);
    cr_assert_str_eq(er_driver_phase(f.driver), "running");
    cr_assert_eq(er_driver_generation(f.driver), 1u);
    cr_assert_not(er_driver_pending(f.driver));
    cr_assert_eq(er_driver_deadline(f.driver), ER_FOREVER);
    cr_assert_eq(f.notes[ER_NOTE_SEALED], 1u);
    cr_assert_eq(f.notes[ER_NOTE_FORMING], 1u);
    cr_assert_eq(f.notes[ER_NOTE_NODE_JOINED], 1u);
    close_all(&f);
}

Test(driver, success_ends_the_job_with_zero)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    fail(&f, NULL);
    cr_assert_eq(f.stops, 1u);
    cr_assert_eq(f.verdicts, 1u);
    cr_assert_eq(f.v.kind, ER_VERDICT_SUCCEEDED);
    cr_assert_eq(f.v.exit_code, 0);
    cr_assert_str_eq(er_driver_phase(f.driver), "succeeded");
    cr_assert_not(er_driver_pending(f.driver));
    close_all(&f);
}

Test(driver, failure_restarts_until_the_budget_is_spent)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(3);
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    for (uint32_t i = 1; i <= 3; i++) {
        fail(&f, &c);
        cr_assert_eq(f.starts, i + 1);
        cr_assert_eq(f.a.restarts, i);
        cr_assert_str_eq(f.a.reason, "worker_failed");
        cr_assert_eq(f.verdicts, 0u);
        cr_assert_eq(f.notes[ER_NOTE_RESTART_COUNTED], i);
    }
    fail(&f, &c);
    cr_assert_eq(f.verdicts, 1u);
    cr_assert_eq(f.v.kind, ER_VERDICT_FAILED);
    cr_assert_eq(f.v.exit_code, 3);
    cr_assert_eq(f.v.restarts, 3u);
    cr_assert_eq(f.v.cause.rank, 1);
    cr_assert_eq(f.v.cause.generation, 4u);
    cr_assert_str_eq(f.v.cause.node_id, "n0");
    cr_assert_str_eq(f.v.reason, "budget spent (3 of 3 in 1h)");
    cr_assert_eq(f.notes[ER_NOTE_RESTART_DENIED], 1u);
    close_all(&f);
}

Test(driver, exit_code_is_the_root_causes_own)
{
    static const struct {
        enum er_exit_kind kind;
        int code, signal, want;
    } cases[] = {
        {ER_EXIT_EXITED, 42, 0, 42}, {ER_EXIT_SIGNALED, 0, 11, 139},     {ER_EXIT_OOM, 0, 9, 137},
        {ER_EXIT_HUNG, 0, 9, 124},   {ER_EXIT_EXEC_FAILED, 127, 0, 127}, {ER_EXIT_EXITED, 0, 0, 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct er_driver_opts o = options();
        struct er_cause c = failure(cases[i].code);
        struct fixture f;

        o.restart_max = 0;
        c.kind = cases[i].kind;
        c.signal = cases[i].signal;
        open_with(&f, &o);
        run(&f);
        fail(&f, &c);
        cr_assert_eq(f.v.exit_code, cases[i].want);
        cr_assert_str_eq(f.v.reason, "no restarts allowed");
        close_all(&f);
    }
}

Test(driver, fatal_cause_ends_the_job_at_once)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(93);
    struct fixture f;

    c.fatal = true;
    open_with(&f, &o);
    run(&f);
    fail(&f, &c);
    cr_assert_eq(f.starts, 1u);
    cr_assert_eq(f.v.exit_code, 93);
    cr_assert_str_eq(f.v.reason, "exit code 93 is fatal");
    close_all(&f);
}

Test(driver, failures_outside_the_window_no_longer_count)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;

    o.restart_max = 1;
    o.restart_window_us = 60 * ER_US_PER_S;
    open_with(&f, &o);
    run(&f);
    for (unsigned i = 1; i <= 5; i++) {
        fail(&f, &c);
        cr_assert_eq(f.starts, i + 1);
        advance(&f, 61 * ER_US_PER_S);
    }
    fail(&f, &c);
    fail(&f, &c);
    cr_assert_eq(f.verdicts, 1u);
    cr_assert_eq(f.v.restarts, 6u);
    cr_assert_str_eq(f.v.reason, "budget spent (1 of 1 in 1m)");
    close_all(&f);
}

Test(driver, uncounted_failures_cost_nothing_three_times_in_a_row)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;

    o.restart_max = 1;
    c.uncounted = true;
    open_with(&f, &o);
    run(&f);
    for (unsigned i = 0; i < 3; i++) {
        fail(&f, &c);
        cr_assert_eq(f.a.restarts, 0u);
    }
    fail(&f, &c);
    cr_assert_eq(f.a.restarts, 1u);
    cr_assert_eq(f.verdicts, 0u);
    for (unsigned i = 0; i < 3; i++)
        fail(&f, &c);
    cr_assert_eq(f.verdicts, 0u);
    fail(&f, &c);
    cr_assert_eq(f.verdicts, 1u);
    close_all(&f);
}

Test(driver, backoff_doubles_until_there_is_progress)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;

    o.restart_max = UINT32_MAX;
    o.backoff_initial_us = ER_US_PER_S;
    o.backoff_max_us = 3 * ER_US_PER_S;
    open_with(&f, &o);
    run(&f);
    for (unsigned i = 0; i < 4; i++) {
        static const uint64_t waits[] = {1, 2, 3, 3};

        fail(&f, &c);
        cr_assert_eq(f.starts, i + 1);
        advance(&f, waits[i] * ER_US_PER_S - 1);
        cr_assert_eq(f.starts, i + 1);
        advance(&f, 1);
        cr_assert_eq(f.starts, i + 2);
    }
    er_driver_progress(f.driver, f.a.generation);
    fail(&f, &c);
    advance(&f, ER_US_PER_S);
    cr_assert_eq(f.starts, 6u);
    close_all(&f);
}

Test(driver, no_restart_before_the_workers_are_gone)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;

    open_with(&f, &o);
    f.obedient = false;
    run(&f);
    fail(&f, &c);
    cr_assert_eq(f.stops, 1u);
    cr_assert_str_eq(f.stop_reason, "worker_failed");
    advance(&f, 10 * ER_US_PER_S);
    cr_assert_eq(f.starts, 1u);
    er_driver_left(f.driver, 99);
    run(&f);
    cr_assert_eq(f.starts, 1u);
    er_driver_left(f.driver, 1);
    run(&f);
    cr_assert_eq(f.starts, 2u);
    close_all(&f);
}

Test(driver, leaving_stops_the_workers_and_keeps_the_code)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    f.obedient = false;
    run(&f);
    er_driver_leave(f.driver, 130, "interrupted");
    run(&f);
    cr_assert_eq(f.stops, 1u);
    cr_assert_eq(f.verdicts, 0u);
    er_driver_left(f.driver, f.a.generation);
    run(&f);
    cr_assert_eq(f.verdicts, 1u);
    cr_assert_eq(f.v.kind, ER_VERDICT_STOPPED);
    cr_assert_eq(f.v.exit_code, 130);
    cr_assert_str_eq(f.v.reason, "interrupted");
    cr_assert_str_eq(er_driver_phase(f.driver), "stopped");
    close_all(&f);
}

Test(driver, leaving_before_anything_started)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    er_driver_leave(f.driver, 75, "preempted");
    run(&f);
    cr_assert_eq(f.verdicts, 1u);
    cr_assert_eq(f.starts, 0u);
    cr_assert_eq(f.v.exit_code, 75);
    close_all(&f);
}

Test(driver, generations_start_above_the_checkpoints)
{
    struct er_driver_opts o = options();
    struct fixture f;

    o.first_generation = 41;
    open_with(&f, &o);
    run(&f);
    cr_assert_eq(f.a.generation, 42u);
    close_all(&f);
}

Test(driver, job_goes_on_in_a_store_that_has_lost_it)
{
    struct er_driver_opts o = options();
    struct fixture f;
    uint64_t first;

    open_with(&f, &o);
    advance(&f, ER_US_PER_S);
    cr_assert_eq(f.starts, 1u);
    first = f.a.generation;
    er_store_mem_wipe(f.store);
    advance(&f, ER_US_PER_S);
    cr_assert_eq(f.stops, 1u);
    cr_assert_eq(f.starts, 2u);
    cr_assert_gt(f.a.generation, first); /* of another run, and above what this node has seen */
    close_all(&f);
}

static void ignore_txn(void *user, int rc, const struct er_store_reply *reply)
{
    cr_assert_eq(rc, 0);
}

/* The record that the leader writes for this node, or that it ends. */
static void write_aside(struct fixture *f, const struct er_aside *aside)
{
    static const char key[] = "/elastic-run/job/j/aside/n0";
    char bytes[ER_ASIDE_BYTES_MAX];
    struct er_store_op op = {.kind = aside ? ER_OP_PUT : ER_OP_DELETE,
                             .key = {key, strlen(key)},
                             .value = {bytes, aside ? er_aside_encode(aside, bytes) : 0}};

    cr_assert_eq(f->store->ops->txn(f->store, &(struct er_store_txn){.then_ops = &op, .then_n = 1},
                                    ignore_txn, NULL),
                 0);
    advance(f, ER_US_PER_S);
}

Test(driver, node_knows_why_it_is_set_aside)
{
    static const struct er_aside aside = {.reason = "its workers keep failing"};
    struct er_driver_opts o = options();
    struct er_look look;
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    er_driver_look(f.driver, &look);
    cr_assert_str_empty(look.aside);
    write_aside(&f, &aside);
    er_driver_look(f.driver, &look);
    cr_assert_str_eq(look.aside, "its workers keep failing");
    write_aside(&f, NULL);
    er_driver_look(f.driver, &look);
    cr_assert_str_empty(look.aside);
    close_all(&f);
}

Test(driver, bad_options_are_named)
{
    struct er_driver_opts o = options();
    struct er_error err = ER_ERROR_INIT;
    struct er_driver *d = NULL;

    snprintf(o.node_id, sizeof(o.node_id), "a/b");
    cr_assert_eq(er_driver_new(&d, NULL, &o, &callbacks, NULL, &err), ER_E_CONFIG);
    cr_assert(strstr(err.text, "a/b"));
    o = options();
    o.min_nodes = 2;
    cr_assert_eq(er_driver_new(&d, NULL, &o, &callbacks, NULL, &err), ER_E_CONFIG);
    cr_assert_null(d);
}
