/* What a stop says and does: ladder, stragglers, Ctrl-Z, the summary's words. */
#include <jansson.h>

#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)
#define STUBBORN         "trap '' TERM; echo up; while :; do sleep 0.05; done"

static void each_signal_says_what_it_does(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--nproc-per-node", "2", SH(STUBBORN)));
    er_tap_require(er_test_wait_out(&c.p, "up\nup\n", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGINT);
    er_tap_check(er_test_wait_err(&c.p,
                                  "SIGINT: stopping 2 workers with SIGTERM; KILL after 30s; Ctrl-C "
                                  "again shortens that to 5s\n",
                                  ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(er_test_wait_err(&c.p, "grace shortened to 5s; once more kills at once\n",
                                  ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGHUP);
    er_tap_check(er_test_wait_err(&c.p, "killing 2 workers now\n", ER_TEST_DEADLINE_MS));
    er_tap_check(case_finish(&c) == 130);
    ERR_HAS(&c, "2 of 2 stopped had to be killed");
    case_end(&c);
}

static void slow_peers_of_a_failure_are_named(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", "3", "--shutdown-timeout", "2.5",
                                   SH("[ $RANK = 0 ] || { trap '' TERM; touch "
                                      "$CASE/$RANK; while :; do sleep 0.05; done; }; while [ ! -e "
                                      "$CASE/1 ] || [ ! -e $CASE/2 ]; do sleep 0.01; done; exit "
                                      "4"))) == 4);
    ERR_HAS(&c, "waiting for ranks 1, 2 to stop (KILL in ");
    ERR_HAS(&c, "2 stopped after it, 2 of them had to be killed (on this node)");
    case_end(&c);
}

struct growth {
    const struct agent_case *c;
    size_t more_than;
};

static size_t ticks(const struct agent_case *c)
{
    char *text = er_test_read_file(case_path(c, "ticks"));
    size_t n = text ? strlen(text) : 0;

    free(text);
    return n;
}

static bool has_grown(void *user)
{
    const struct growth *g = user;

    return ticks(g->c) > g->more_than;
}

static bool is_suspended(void *user)
{
    const struct agent_case *c = user;
    char path[64], *text, *state;
    bool stopped;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)c->p.pid);
    text = er_test_read_file(path);
    state = text ? strrchr(text, ')') : NULL;
    stopped = state && state[2] == 'T';
    free(text);
    return stopped;
}

static void suspended_job_stands_still_and_goes_on(void)
{
    struct agent_case c = {0};
    struct growth g = {.c = &c};
    size_t before;

    case_begin(&c);
    case_start(&c, ARGS(SH("echo up; while :; do printf x >> $CASE/ticks; sleep 0.01; done")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTSTP);
    er_tap_require(er_test_wait_until(is_suspended, &c, ER_TEST_DEADLINE_MS));
    before = ticks(&c);
    usleep(200 * 1000); /* a worker that ran would have written twenty times */
    er_tap_check(ticks(&c) == before);
    kill(c.p.pid, SIGCONT);
    g.more_than = before + 5;
    er_tap_check(er_test_wait_until(has_grown, &g, ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

static void json_summary_is_one_line(void)
{
    struct agent_case c = {0};
    json_t *summary;
    const json_t *cause;
    char *line;

    case_begin(&c);
    er_tap_check(case_run_job(&c, case_job(&c, "[sh, -c, 'echo bad >&2; exit 5']",
                                           "log: {dir: none, format: json, tee: \"2\", console: "
                                           "none}\nrestart: {max: 0}\n")) == 5);
    line = strstr(er_test_err(&c.p), "{\"ts\"");
    er_tap_require(line != NULL);
    summary = json_loads(line, 0, NULL);
    cause = json_object_get(summary, "root_cause");
    er_tap_check(json_integer_value(json_object_get(summary, "exit_code")) == 5);
    er_tap_check(json_integer_value(json_object_get(cause, "code")) == 5);
    er_tap_check(json_array_size(json_object_get(summary, "stderr_tail")) == 1);
    er_tap_check(json_is_string(json_object_get(summary, "next")));
    json_decref(summary);
    case_end(&c);
}

static void logs_are_named_at_start_and_end(void)
{
    struct agent_case c = {0};
    char log[ER_TEST_PATH_MAX + 64], text[2 * ER_TEST_PATH_MAX + 200];

    case_begin(&c);
    snprintf(log, sizeof(log), "log: {dir: %s}\nrestart: {max: 0}\n", c.dir);
    er_tap_check(case_run_job(&c, case_job(&c, "[sh, -c, 'exit $RANK']", log)) == 0);
    snprintf(text, sizeof(text), "job '%s': logs are in %s/%s\n", c.name, c.dir, c.name);
    ERR_HAS(&c, text);
    snprintf(text, sizeof(text), "\n  logs        %s/%s\n", c.dir, c.name);
    ERR_HAS(&c, text);
    er_test_done(&c.p);
    er_tap_check(case_run_job(&c, case_job(&c, "[sh, -c, 'exit 3']", log)) == 3);
    snprintf(text, sizeof(text), "\n  logs        %s/%s/gen-1/rank-0/stderr.log\n", c.dir, c.name);
    ERR_HAS(&c, text);
    case_end(&c);
}

static void next_step_fits_what_failed(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "script"), "echo x\n");
    chmod(case_path(&c, "script"), 0755);
    er_tap_check(case_run(&c, ARGS(case_path(&c, "script"))) == 126);
    ERR_HAS(&c, "a line such as #!/bin/sh");
    case_end(&c);
}

/* Longer than the pipe, shorter than what the agent holds. */
static void late_reader_misses_nothing(void)
{
    struct agent_case c = {0};
    char command[ER_TEST_PATH_MAX * 4];

    case_begin(&c);
    snprintf(command, sizeof(command),
             "%s --rdzv-id %s --log-dir %s -t 3 seq 100000 | (while [ ! -e "
             "%s/%s/gen-1/rank-0/stdout.log ]; do sleep 0.01; done; sleep 0.5; wc -l)",
             er_test_bin("elastic-run"), c.name, c.dir, c.dir, c.name);
    er_tap_check(er_test_run(&c.p, ARGS(SH(command)), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(atoi(er_test_out(&c.p)) == 100000);
    er_test_done(&c.p);
    case_end(&c);
}

static void closed_console_is_called_closed(void)
{
    struct agent_case c = {0};
    char command[ER_TEST_PATH_MAX * 4];

    case_begin(&c);
    snprintf(command, sizeof(command),
             "%s --rdzv-id %s --log-dir %s -t 3 sh -c 'seq 10; while [ ! -e %s/go ]; do sleep "
             "0.01; done; seq 100000; seq 100000' | (head -n 1; exec 0<&-; touch %s/go)",
             er_test_bin("elastic-run"), c.name, c.dir, c.dir, c.dir);
    er_tap_check(er_test_run(&c.p, ARGS(SH(command)), NULL, ER_TEST_DEADLINE_MS) == 0);
    ERR_HAS(&c, "console closed");
    ERR_HAS(&c, "gen-1/rank-0/stdout.log");
    er_tap_check(strstr(er_test_err(&c.p), "too slow") == NULL);
    case_end(&c);
}

static void taken_master_port_is_told(void)
{
    struct agent_case c = {0}, other = {0};
    char port[16];

    case_begin(&c);
    /* The held port of one job is the other's fixed one. */
    case_start(&c, ARGS(SH("echo $MASTER_PORT > $CASE/port; python3 -c 'import os, socket, time; s "
                           "= socket.create_server((\"127.0.0.1\", "
                           "int(os.environ[\"MASTER_PORT\"]))); print(\"up\", flush=True); "
                           "time.sleep(1000)'")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    snprintf(port, sizeof(port), "%d", (int)case_pid(&c, "port"));
    case_begin(&other);
    snprintf(other.name, sizeof(other.name), "case-other-%d", (int)getpid());
    er_tap_check(case_run(&other, ARGS("--master-port", port, SH("echo $MASTER_PORT"))) == 0);
    er_tap_check(atoi(er_test_out(&other.p)) == atoi(port));
    ERR_HAS(&other, "master_port is in use");
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&other);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"each_signal_says_what_it_does", each_signal_says_what_it_does, 0},
        {"slow_peers_of_a_failure_are_named", slow_peers_of_a_failure_are_named, 0},
        {"suspended_job_stands_still_and_goes_on", suspended_job_stands_still_and_goes_on, 0},
        {"json_summary_is_one_line", json_summary_is_one_line, 0},
        {"logs_are_named_at_start_and_end", logs_are_named_at_start_and_end, 0},
        {"next_step_fits_what_failed", next_step_fits_what_failed, 0},
        {"late_reader_misses_nothing", late_reader_misses_nothing, 0},
        {"closed_console_is_called_closed", closed_console_is_called_closed, 0},
        {"taken_master_port_is_told", taken_master_port_is_told, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
