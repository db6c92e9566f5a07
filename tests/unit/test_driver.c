#include "rendezvous/driver.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/store_mem.h"

/* One node, driven by hand on a virtual clock. */
struct fixture {
    struct er_store *store;
    struct er_driver *driver;
    uint64_t now_us;
    unsigned starts, stops, verdicts, notes[8];
    struct er_assignment a;
    uint64_t stop_generation;
    char stop_reason[64];
    struct er_verdict v;
    bool obedient; /* answers stop with left at once */
    int kv_rc;
    unsigned kv_n;
    char kv_value[64];
};

static void on_start(void *user, const struct er_assignment *a)
{
    struct fixture *f = user;

    f->starts++;
    f->a = *a;
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct fixture *f = user;

    f->stops++;
    f->stop_generation = generation;
    snprintf(f->stop_reason, sizeof(f->stop_reason), "%s", reason);
    if (f->obedient)
        er_driver_left(f->driver, generation);
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    struct fixture *f = user;

    f->verdicts++;
    f->v = *v;
}

static void on_note(void *user, const struct er_note *note)
{
    struct fixture *f = user;

    f->notes[note->kind]++;
}

static void on_kv(void *user, int rc, const void *value, size_t n)
{
    struct fixture *f = user;

    f->kv_n++;
    f->kv_rc = rc;
    snprintf(f->kv_value, sizeof(f->kv_value), "%.*s", (int)n, n ? (const char *)value : "");
}

static const struct er_driver_callbacks callbacks = {on_start, on_stop, on_verdict, on_note};

static struct er_driver_opts options(void)
{
    return (struct er_driver_opts){
        .job = "job",
        .node_id = "n0",
        .host = "host",
        .prefix = "/elastic-run",
        .address = "10.0.0.1",
        .slots = 2,
        .preferred_rank = -1,
        .min_nodes = 1,
        .max_nodes = 1,
        .restart_max = 3,
        .restart_window_us = 3600 * ER_US_PER_S,
        .backoff_max_us = 60 * ER_US_PER_S,
        .join_timeout_us = 600 * ER_US_PER_S,
        .last_call_us = 30 * ER_US_PER_S,
        .exit_timeout_us = 300 * ER_US_PER_S,
        .lease_ttl_us = 5 * ER_US_PER_S,
        .death_grace_us = ER_US_PER_S,
        .stop_grace_us = 30 * ER_US_PER_S,
        .spec = "command=train\nnnodes=1\n",
        .incarnation = 7,
        .boot_id_hash = 9,
        .seed = 42,
        .now_us = 1000,
    };
}

static void open_with(struct fixture *f, const struct er_driver_opts *o)
{
    memset(f, 0, sizeof(*f));
    f->obedient = true;
    f->now_us = o->now_us;
    cr_assert_eq(er_store_mem_new(&f->store, NULL), 0);
    cr_assert_eq(er_driver_new(&f->driver, f->store, o, &callbacks, f, NULL), 0);
}

static void close_all(struct fixture *f)
{
    er_driver_free(f->driver);
    f->store->ops->free(f->store);
}

/* Everything that can happen now. */
static void run(struct fixture *f)
{
    for (unsigned i = 0; i < 100; i++) {
        if (!er_driver_pending(f->driver) && er_driver_deadline(f->driver) > f->now_us)
            return;
        er_driver_dispatch(f->driver, f->now_us);
    }
    cr_assert_fail("it never comes to rest");
}

static void advance(struct fixture *f, uint64_t us)
{
    uint64_t until = f->now_us + us;

    for (unsigned i = 0; i < 1000; i++) {
        uint64_t at = er_driver_deadline(f->driver);

        run(f);
        at = er_driver_deadline(f->driver);
        if (at > until)
            break;
        f->now_us = at > f->now_us ? at : f->now_us;
    }
    f->now_us = until;
    run(f);
}

static struct er_cause failure(int code)
{
    return (struct er_cause){
        .rank = 1, .local_rank = 1, .pid = 99, .kind = ER_EXIT_EXITED, .code = code};
}

static void fail(struct fixture *f, const struct er_cause *cause)
{
    er_driver_result(f->driver, f->a.generation, cause);
    run(f);
}

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

Test(driver, kv_put_get_and_missing)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    er_driver_kv_get(f.driver, 1, "a/b", 0, on_kv, &f);
    cr_assert_eq(f.kv_n, 0u);
    run(&f);
    cr_assert_eq(f.kv_rc, 1);
    er_driver_kv_put(f.driver, 1, "a/b", "hello", 5, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    er_driver_kv_get(f.driver, 1, "a/b", 0, on_kv, &f);
    run(&f);
    cr_assert_str_eq(f.kv_value, "hello");
    er_driver_kv_get(f.driver, 1, "", 0, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EINVAL);
    cr_assert_eq(f.kv_n, 4u);
    close_all(&f);
}

Test(driver, kv_get_waits_until_put_or_deadline)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    cr_assert_neq(er_driver_kv_get(f.driver, 1, "k", f.now_us + ER_US_PER_S, on_kv, &f), 0u);
    run(&f);
    cr_assert_eq(f.kv_n, 0u);
    er_driver_kv_put(f.driver, 1, "k", "v", 1, NULL, NULL);
    run(&f);
    cr_assert_eq(f.kv_n, 1u);
    cr_assert_str_eq(f.kv_value, "v");
    er_driver_kv_get(f.driver, 1, "never", f.now_us + ER_US_PER_S, on_kv, &f);
    advance(&f, ER_US_PER_S - 1);
    cr_assert_eq(f.kv_n, 1u);
    advance(&f, 1);
    cr_assert_eq(f.kv_rc, -ETIMEDOUT);
    close_all(&f);
}

Test(driver, kv_cancelled_wait_is_silent)
{
    struct er_driver_opts o = options();
    struct fixture f;
    uint64_t id;

    open_with(&f, &o);
    run(&f);
    id = er_driver_kv_get(f.driver, 1, "k", ER_FOREVER, on_kv, &f);
    run(&f);
    er_driver_kv_cancel(f.driver, id);
    er_driver_kv_put(f.driver, 1, "k", "v", 1, NULL, NULL);
    run(&f);
    cr_assert_eq(f.kv_n, 0u);
    close_all(&f);
}

Test(driver, kv_of_a_superseded_generation_is_stale)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    er_driver_kv_get(f.driver, 1, "k", ER_FOREVER, on_kv, &f);
    run(&f);
    fail(&f, &c);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_kv_put(f.driver, 1, "k", "v", 1, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_n, 2u);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_kv_put(f.driver, 2, "k", "v", 1, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    close_all(&f);
}

Test(driver, kv_add_counts_once_when_the_answer_is_lost)
{
    static const enum er_store_mem_fault faults[] = {ER_FAULT_LOST_REPLY, ER_FAULT_LOST,
                                                     ER_FAULT_LATE, ER_FAULT_REFUSED};
    struct er_driver_opts o = options();
    struct fixture f;
    int want = 0;

    open_with(&f, &o);
    run(&f);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        char text[16];

        er_driver_kv_add(f.driver, 1, "n", 5, on_kv, &f);
        er_driver_dispatch(f.driver, f.now_us); /* the read; the write goes out in the same call */
        run(&f);
        er_driver_kv_add(f.driver, 1, "n", -2, on_kv, &f);
        er_store_mem_fault(f.store, faults[i], 1000);
        advance(&f, ER_US_PER_S);
        want += 3;
        snprintf(text, sizeof(text), "%d", want);
        cr_assert_str_eq(f.kv_value, text);
    }
    cr_assert_eq(f.kv_n, 8u);
    er_driver_kv_put(f.driver, 1, "n", "x", 1, NULL, NULL);
    er_driver_kv_add(f.driver, 1, "n", 1, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EINVAL);
    close_all(&f);
}

Test(driver, commits_grow_and_are_fenced)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;
    uint64_t step = 0;

    open_with(&f, &o);
    run(&f);
    cr_assert_not(er_driver_latest(f.driver, &step));
    er_driver_commit(f.driver, 1, 10, "d10", "step-10", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    cr_assert(er_driver_latest(f.driver, &step));
    cr_assert_eq(step, 10u);
    er_driver_commit(f.driver, 1, 10, "other", "step-10", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EEXIST);
    er_store_mem_fault(f.store, ER_FAULT_LOST_REPLY, 0);
    er_driver_commit(f.driver, 1, 20, "d20", "step-20", on_kv, &f);
    advance(&f, ER_US_PER_S);
    cr_assert_eq(f.kv_rc, 0);
    fail(&f, &c);
    er_driver_commit(f.driver, 1, 30, "d30", "step-30", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_latest(f.driver, &step);
    cr_assert_eq(step, 20u);
    /* the next generation found that 20 does not verify, and went on from 10 */
    er_driver_commit(f.driver, er_driver_generation(f.driver), 20, "d20b", "step-20", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    er_driver_commit(f.driver, er_driver_generation(f.driver), 15, "d15", "step-15", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EEXIST);
    cr_assert_eq(f.kv_n, 6u);
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
