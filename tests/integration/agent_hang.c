/* A worker of a job of one node stands still. */
#include "tests/integration/hang_case.h"

#define STEPPER "echo $$ > $CASE/pid; exec $STEPPER 1000000"

static void start(struct agent_case *c, const char *script, const char *limit, const char *more)
{
    static int nth;
    char logs[ER_TEST_PATH_MAX + 32];

    case_begin(c);
    snprintf(c->name, sizeof(c->name), "hang-%d-%d", (int)getpid(), nth++);
    er_tap_require(setenv("STEPPER", er_test_bin("tests/integration/stepper"), 1) == 0);
    snprintf(logs, sizeof(logs), "--log-dir=%s/logs", c->dir);
    case_start(c, ARGS("--node-id=n0", logs, limit, more, SH(script)));
}

/* The stepper has made steps, and is stopped. */
static pid_t stop_worker(struct agent_case *c)
{
    struct er_test_proc p;
    pid_t pid;
    bool steps = false;

    er_tap_require(er_test_wait_path(case_path(c, "pid"), ER_TEST_DEADLINE_MS));
    for (int i = 0; i < 1000 && !steps; i++) {
        const char *step;

        er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", c->name, "status", "--json"),
                    NULL, ER_TEST_DEADLINE_MS);
        step = strstr(er_test_out(&p), "\"step\":");
        steps = step && atoi(step + 7) > 20;
        er_test_done(&p);
    }
    er_tap_require(steps);
    pid = case_pid(c, "pid");
    kill(pid, SIGSTOP);
    return pid;
}

static void spent_budget_is_124(void)
{
    struct agent_case c;
    json_t *event;

    start(&c, STEPPER, "--set=hang.floor=2s", "--max-restarts=0");
    stop_worker(&c);
    if (!er_tap_check(case_finish(&c) == 124))
        case_note(er_test_err(&c.p));
    er_tap_check(strstr(er_test_err(&c.p), "hung in forward after step") != NULL);
    event = hang_event(hang_events(&c, "n0"), "job_failed", 0);
    er_tap_check(event && hang_number(event, "exit_code") == 124);
    er_tap_check(strcmp(hang_text(json_object_get(event, "root_cause"), "kind"), "hung") == 0);
    json_decref(event);
    case_end(&c);
}

static void report_leaves_it_alone_and_tells_again(void)
{
    struct agent_case c;
    json_t *event;
    pid_t pid;

    start(&c, STEPPER, "--set=hang.floor=1s", "--set=hang.action=report");
    pid = stop_worker(&c);
    for (int nth = 0; nth < 2; nth++) {
        event = hang_wait_event(hang_events(&c, "n0"), "worker_hung", nth);
        er_tap_check(event && hang_number(event, "pid") == pid);
        json_decref(event);
    }
    er_tap_check(kill(pid, SIGCONT) == 0); /* it is there */
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

/* Another job, whose program reports, is told of three times meanwhile: deadlines pass. */
static void a_program_that_does_not_report_is_never_touched(void)
{
    struct agent_case c, other;
    pid_t pid;
    json_t *event;

    start(&c, "echo $$ > $CASE/pid; kill -STOP $$; echo woke > $CASE/woke",
          "--set=hang.floor=100ms", "--set=hang.startup=100ms");
    start(&other, STEPPER, "--set=hang.floor=1s", "--set=hang.action=report");
    stop_worker(&other);
    event = hang_wait_event(hang_events(&other, "n0"), "worker_hung", 2);
    er_tap_check(event != NULL);
    json_decref(event);
    kill(case_pid(&other, "pid"), SIGCONT);
    kill(other.p.pid, SIGTERM);
    er_tap_check(case_finish(&other) == 75);
    case_end(&other);
    pid = case_pid(&c, "pid");
    er_tap_require(pid > 0 && kill(pid, SIGCONT) == 0);
    er_tap_check(case_finish(&c) == 0);
    er_tap_check(case_has(&c, "woke"));
    event = hang_event(hang_events(&c, "n0"), "worker_hung", 0);
    er_tap_check(!event);
    json_decref(event);
    case_end(&c);
}

/* Before its time is over, and without the store. */
static void explain_names_who_is_stopped(void)
{
    struct er_test_proc p;
    struct agent_case c;
    char advice[64];
    pid_t pid;

    start(&c, STEPPER, "--set=hang.floor=10m", "--max-restarts=0");
    pid = stop_worker(&c);
    er_tap_check(er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", c.name, "explain"), NULL,
                             ER_TEST_DEADLINE_MS) == 0);
    snprintf(advice, sizeof(advice), "kill -CONT %d", (int)pid);
    er_tap_check(strstr(er_test_out(&p), " 1. wrong  rank 0 (pid ") != NULL);
    if (!er_tap_check(strstr(er_test_out(&p), advice) != NULL))
        case_note(er_test_out(&p));
    er_test_done(&p);
    er_tap_check(er_test_run(&p,
                             ARGS(er_test_bin("elastic-ctl"), "--job", c.name, "explain", "--json"),
                             NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(strncmp(er_test_out(&p), "[{\"code\":\"rank_stopped\"", 23) == 0);
    er_test_done(&p);
    kill(pid, SIGCONT);
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

/* Any program of that name on PATH. */
static void the_stack_is_in_the_event(void)
{
    char path[2 * ER_TEST_PATH_MAX], tools[ER_TEST_PATH_MAX];
    struct agent_case c;
    json_t *event;

    er_test_tempdir(tools);
    snprintf(path, sizeof(path), "%s/gdb", tools);
    er_test_write_file(path, "#!/bin/sh\necho \"the stack as gdb tells: $*\"\n");
    er_tap_require(chmod(path, 0755) == 0);
    snprintf(path, sizeof(path), "%s:%s", tools, getenv("PATH"));
    er_tap_require(setenv("PATH", path, 1) == 0);
    start(&c, STEPPER, "--set=hang.floor=1s", "--set=hang.stacks=true");
    stop_worker(&c);
    er_tap_check(case_finish(&c) == 124);
    event = hang_event(hang_events(&c, "n0"), "worker_hung", 0);
    er_tap_check(event && strstr(hang_text(event, "stack"), "as gdb tells") != NULL);
    er_tap_check(event && strstr(hang_text(event, "stack"), "thread apply all") != NULL);
    json_decref(event);
    case_end(&c);
    er_test_rmtree(tools);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"spent_budget_is_124", spent_budget_is_124, 0},
        {"report_leaves_it_alone_and_tells_again", report_leaves_it_alone_and_tells_again, 0},
        {"a_program_that_does_not_report_is_never_touched",
         a_program_that_does_not_report_is_never_touched, 0},
        {"explain_names_who_is_stopped", explain_names_who_is_stopped, 0},
        {"the_stack_is_in_the_event", the_stack_is_in_the_event, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
