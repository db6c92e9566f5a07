/* What a worker finds when it starts, and what elastic-ctl shows of it. */
#include <fcntl.h>
#include <jansson.h>

#include "tests/integration/agent_case.h"

static void environment_is_complete(void)
{
    static const char *const WANTED[] = {"\nRANK=1\n",
                                         "\nLOCAL_RANK=1\n",
                                         "\nWORLD_SIZE=2\n",
                                         "\nLOCAL_WORLD_SIZE=2\n",
                                         "\nGROUP_RANK=0\n",
                                         "\nGROUP_WORLD_SIZE=1\n",
                                         "\nROLE_NAME=default\n",
                                         "\nROLE_RANK=1\n",
                                         "\nROLE_WORLD_SIZE=2\n",
                                         "\nMASTER_ADDR=127.0.0.1\n",
                                         "\nMASTER_PORT=",
                                         "\nTORCHELASTIC_RESTART_COUNT=0\n",
                                         "\nTORCHELASTIC_MAX_RESTARTS=0\n",
                                         "\nTORCHELASTIC_USE_AGENT_STORE=False\n",
                                         "\nTORCHELASTIC_ERROR_FILE=/",
                                         "\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
                                         "\nOMP_NUM_THREADS=1\n",
                                         "\nELASTIC_RUN=",
                                         "\nELASTIC_GENERATION=1\n",
                                         "\nELASTIC_SOCKET=/",
                                         "\nELASTIC_PAGE_FD=",
                                         "\nELASTIC_CHECKPOINT_DIR=\n"};
    struct agent_case c = {0};
    char job[100];

    case_begin(&c);
    unsetenv("OMP_NUM_THREADS");
    setenv("NOTIFY_SOCKET", "/x", 1);
    setenv("WATCHDOG_USEC", "1", 1);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", "2", SH("[ $RANK = 0 ] || env"))) == 0);
    for (size_t i = 0; i < sizeof(WANTED) / sizeof(WANTED[0]); i++) {
        if (!er_tap_check(strstr(er_test_out(&c.p), WANTED[i]) != NULL))
            er_tap_note("missing: %s", WANTED[i]);
    }
    snprintf(job, sizeof(job), "\nTORCHELASTIC_RUN_ID=%s\n", c.name);
    er_tap_check(strstr(er_test_out(&c.p), job) != NULL);
    er_tap_check(strstr(er_test_out(&c.p), "NOTIFY_SOCKET") == NULL);
    er_tap_check(strstr(er_test_out(&c.p), "WATCHDOG_USEC") == NULL);
    case_end(&c);
}

/* 0, 1, 2, the page, and the one that ls itself opens. */
static void no_descriptor_leaks_into_workers(void)
{
    struct agent_case c = {0};
    unsigned lines = 0;

    case_begin(&c);
    int leak = open("/dev/null", O_RDONLY); /* our caller's own, without close-on-exec */

    er_tap_require(leak > 2);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", "8",
                                   SH("[ $RANK = 7 ] || exit 0; "
                                      "exec ls /proc/self/fd"))) == 0);
    for (const char *at = er_test_out(&c.p); (at = strchr(at, '\n')); at++)
        lines++;
    er_tap_check(lines == 5);
    case_note(er_test_out(&c.p));
    case_end(&c);
}

static void stdin_is_empty_without_a_terminal(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS(SH("readlink /proc/self/fd/0; read x || echo eof"))) == 0);
    er_tap_check(strcmp(er_test_out(&c.p), "/dev/null\neof\n") == 0);
    case_end(&c);
}

static void worker_leads_its_session(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", "2",
                                   SH("[ $(ps -o sid= -p $$) = $$ ] || [ $(cut -d' ' -f6 "
                                      "/proc/$$/stat) = $$ ]"))) == 0);
    case_end(&c);
}

static void status_shows_the_running_job(void)
{
    struct agent_case c = {0};
    struct er_test_proc ctl;
    const char *bin = er_test_bin("elastic-ctl");
    json_t *state;

    case_begin(&c);
    case_start(&c, ARGS("--nproc-per-node", "2", "--max-restarts", "2",
                        SH("echo up; while [ ! -e $CASE/go ]; do sleep 0.05; done; exit 6")));
    er_tap_require(er_test_wait_out(&c.p, "up\nup\n", ER_TEST_DEADLINE_MS));
    er_tap_check(er_test_run(&ctl, ARGS(bin, "--job", c.name, "status", "--json"), NULL,
                             ER_TEST_DEADLINE_MS) == 0);
    state = json_loads(er_test_out(&ctl), 0, NULL);
    er_tap_require(state != NULL);
    er_tap_check(strcmp(json_string_value(json_object_get(state, "phase")), "running") == 0);
    er_tap_check(json_array_size(json_object_get(state, "workers")) == 2);
    er_tap_check(json_integer_value(json_object_get(state, "restart_max")) == 2);
    json_decref(state);
    er_test_done(&ctl);
    er_tap_check(
        er_test_run(&ctl, ARGS(bin, "--job", c.name, "status"), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(strstr(er_test_out(&ctl), "restarts   0 of 2") != NULL);
    er_test_done(&ctl);
    er_test_start(&ctl, ARGS(bin, "--job", c.name, "status", "--json", "--wait"), NULL);
    er_test_write_file(case_path(&c, "go"), "");
    er_tap_check(case_finish(&c) == 6);
    er_tap_check(er_test_wait_exit(&ctl, ER_TEST_DEADLINE_MS));
    case_note(er_test_err(&ctl));
    er_test_done(&ctl);
    er_tap_check(
        er_test_run(&ctl, ARGS(bin, "--job", c.name, "status"), NULL, ER_TEST_DEADLINE_MS) == 66);
    er_test_done(&ctl);
    er_tap_check(er_test_run(&ctl, ARGS(bin, "dance"), NULL, ER_TEST_DEADLINE_MS) == 64);
    er_test_done(&ctl);
    er_tap_check(er_test_run(&ctl, ARGS(bin, "scale"), NULL, ER_TEST_DEADLINE_MS) == 64);
    er_test_done(&ctl);
    er_tap_check(er_test_run(&ctl, ARGS(bin, "--job", c.name, "set"), NULL, ER_TEST_DEADLINE_MS) ==
                 64);
    er_tap_check(strstr(er_test_err(&ctl), "set: which key?") != NULL);
    er_test_done(&ctl);
    case_end(&c);
}

static int ctl(const struct agent_case *c, struct er_test_proc *p, const char *const args[])
{
    const char *argv[16] = {er_test_bin("elastic-ctl")};

    for (size_t i = 0; args[i] && i < 14; i++)
        argv[i + 1] = args[i];
    er_test_done(p);
    return er_test_run(p, argv, NULL, ER_TEST_DEADLINE_MS);
}

static void elastic_ctl_stops_a_job(void)
{
    struct agent_case c = {0};
    struct er_test_proc p = {0};

    case_begin(&c);
    case_start(&c, ARGS(SH("echo up; exec sleep 100")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    er_tap_check(ctl(&c, &p, ARGS("--job", c.name, "status")) == 0);
    er_tap_check(strstr(er_test_out(&p), "RUNTIME\n") != NULL);
    er_tap_check(strstr(er_test_out(&p), " up        -            - ") != NULL);
    case_note(er_test_out(&p));
    er_tap_check(ctl(&c, &p, ARGS("--job", c.name, "stop", "--wait")) == 0);
    er_tap_check(strstr(er_test_out(&p), "exit code 79 (canceled)") != NULL);
    er_tap_check(case_finish(&c) == 79);
    er_tap_check(ctl(&c, &p, ARGS("--job", c.name, "stop")) == 66);
    er_tap_check(ctl(&c, &p, ARGS("--version")) == 0);
    er_test_done(&p);
    case_end(&c);
}

/* The job file's own log.dir, and one that hangs on the environment. */
static void ended_job_is_told_from_its_events(void)
{
    struct agent_case c = {0};
    struct er_test_proc p = {0};
    char log[ER_TEST_PATH_MAX + 64];
    const char *path;

    case_begin(&c);
    setenv("XDG_STATE_HOME", c.dir, 1);
    for (int i = 0; i < 2; i++) {
        snprintf(log, sizeof(log),
                 i ? "restart: {max: 0}\n" : "log: {dir: %s}\nrestart: {max: 0}\n", c.dir);
        path = case_job(&c, "[sh, -c, 'exit 4']", log);
        er_tap_check(case_run_job(&c, path) == 4);
        er_test_done(&c.p);
        er_tap_check(ctl(&c, &p, ARGS("-f", path, "status", "--wait")) == 1);
        er_tap_check(strstr(er_test_out(&p), "exit code 4 (failed)") != NULL);
        er_tap_check(ctl(&c, &p, ARGS("-f", path, "status")) == 66);
    }
    er_tap_check(ctl(&c, &p, ARGS("--job", c.name, "status", "--wait")) == 1);
    er_tap_check(ctl(&c, &p, ARGS("--job", "no-such-job", "status", "--wait")) == 66);
    er_tap_check(strstr(er_test_err(&p), "-f JOB.yaml") != NULL);
    unsetenv("XDG_STATE_HOME");
    er_test_done(&p);
    case_end(&c);
}

/* Descriptors of the agent, counted by a worker in each generation. */
static void restarts_leak_nothing(void)
{
    struct agent_case c = {0};
    int first = 0, last = 0;

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--max-restarts", "30", "--tee", "3", "--log-dir", c.dir,
                                   "--nproc-per-node", "2",
                                   SH("[ $RANK = 0 ] || exec sleep 100; ls /proc/$PPID/fd | wc -l "
                                      ">> $CASE/fds; exit 4"))) == 4);
    char *text = er_test_read_file(case_path(&c, "fds"));

    er_tap_require(text != NULL);
    first = atoi(text);
    for (char *at = text; *at; at = strchr(at, '\n') + 1)
        last = atoi(at);
    /* A few more or less, as the other worker is being started; 30 restarts would add up. */
    er_tap_check(first > 0 && last < first + 10);
    er_tap_note("%d descriptors, then %d", first, last);
    free(text);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"environment_is_complete", environment_is_complete, 0},
        {"no_descriptor_leaks_into_workers", no_descriptor_leaks_into_workers, 0},
        {"stdin_is_empty_without_a_terminal", stdin_is_empty_without_a_terminal, 0},
        {"worker_leads_its_session", worker_leads_its_session, 0},
        {"status_shows_the_running_job", status_shows_the_running_job, 0},
        {"elastic_ctl_stops_a_job", elastic_ctl_stops_a_job, 0},
        {"ended_job_is_told_from_its_events", ended_job_is_told_from_its_events, 0},
        {"restarts_leak_nothing", restarts_leak_nothing, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
