/* The event file has, in each kind of run, the events that belong there with all their fields. */
#include "tests/integration/agent_case.h"
#include "tests/lib/event_schema.h"

static char keys[ER_TEST_PATH_MAX + 1024];

static const char *job(struct agent_case *c, const char *command, const char *more)
{
    snprintf(keys, sizeof(keys), "log: {dir: %s/logs}\nnode: {id: n1}\n%s", c->dir, more);
    return case_job(c, command, keys);
}

/* Each of `wanted` must have occurred. */
static void check(struct agent_case *c, const char *const wanted[])
{
    char path[2 * ER_TEST_PATH_MAX], seen[2048], word[64];

    snprintf(path, sizeof(path), "%s/logs/%s/events-n1.jsonl", c->dir, c->name);
    er_tap_check(er_test_events_check(path, seen) > 0);
    for (size_t i = 0; wanted[i]; i++) {
        snprintf(word, sizeof(word), " %s ", wanted[i]);
        if (!er_tap_check(strstr(seen, word) != NULL))
            er_tap_note("missing: %s; there are%s", wanted[i], seen);
    }
}

static void a_good_run(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run_job(&c, job(&c, "[sh, -c, 'exit 0']", "nproc_per_node: 2\n")) == 0);
    check(&c, ARGS("agent_started", "node_joined", "generation_forming", "generation_sealed",
                   "worker_started", "worker_exited", "job_succeeded", "agent_exited"));
    case_end(&c);
}

static void a_restart_and_a_refused_one(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run_job(&c, job(&c, "[sh, -c, 'echo \"a \\\"b\\\" \\t c\" >&2; exit 5']",
                                      "restart: {max: 1}\n")) == 5);
    check(&c, ARGS("restart_counted", "restart_denied", "recovered", "job_failed", "agent_exited"));
    case_end(&c);
}

static void a_program_that_is_not_there(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run_job(&c, job(&c, "[/no/such/program]", "")) == 127);
    check(&c, ARGS("agent_started", "job_failed", "agent_exited"));
    case_end(&c);
}

static void a_signal(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_start(
        &c.p, ARGS(er_test_bin("elastic-run"), job(&c, "[sh, -c, 'echo up; exec sleep 100']", "")),
        NULL);
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    check(&c, ARGS("worker_exited", "job_stopped", "agent_exited"));
    case_end(&c);
}

/* A worker that speaks libelastic, with checkpoints. */
static void a_trainer_with_checkpoints(void)
{
    struct agent_case c = {0};
    char more[ER_TEST_PATH_MAX + 64];

    case_begin(&c);
    snprintf(more, sizeof(more), "checkpoint: {dir: %s/ck}\n", c.dir);
    er_tap_check(case_run_job(&c, job(&c, er_test_bin("examples/epoch_loop"), more)) == 0);
    check(&c, ARGS("checkpoint_committed", "job_succeeded"));
    er_test_done(&c.p);
    case_end(&c);
}

/* Lines of 64 KiB of unprintable bytes still make a JSON line that is short enough. */
static void last_words_of_any_kind(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run_job(&c, job(&c, "[sh, -c, 'head -c 200000 /dev/urandom >&2; exit 3']",
                                      "restart: {max: 0}\n")) == 3);
    check(&c, ARGS("worker_exited", "job_failed"));
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"a_good_run", a_good_run, 0},
        {"a_restart_and_a_refused_one", a_restart_and_a_refused_one, 0},
        {"a_program_that_is_not_there", a_program_that_is_not_there, 0},
        {"a_signal", a_signal, 0},
        {"a_trainer_with_checkpoints", a_trainer_with_checkpoints, 0},
        {"last_words_of_any_kind", last_words_of_any_kind, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
