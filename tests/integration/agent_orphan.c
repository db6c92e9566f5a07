/* Nothing that a worker leaves behind survives its generation, its agent or the guard. */
#include "tests/integration/agent_case.h"

/* Leaves a grandchild in a session of its own, whose parent has ended; its pid is in $CASE/orphan.
 */
#define LEAVE_ORPHAN                                                                               \
    "(setsid sh -c 'echo $$ > $CASE/new; mv $CASE/new $CASE/orphan; exec sleep 1000' &) ; "        \
    "while [ ! -e $CASE/orphan ]; do sleep 0.01; done; "

static void check_gone(const struct agent_case *c, const char *file)
{
    pid_t pid = case_pid(c, file);

    er_tap_require(pid > 1);
    er_tap_check(er_test_wait_until(process_gone, &pid, ER_TEST_DEADLINE_MS));
}

static void orphan_ends_with_the_job(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS(SH(LEAVE_ORPHAN "exit 0"))) == 0);
    pid_t pid = case_pid(&c, "orphan");

    er_tap_check(pid > 1 && process_gone(&pid)); /* at once, not soon */
    case_end(&c);
}

static void orphan_ends_with_its_generation(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--max-restarts", "1",
                                   SH("if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then " LEAVE_ORPHAN
                                      "kill -KILL $$; fi; "
                                      "kill -0 $(cat $CASE/orphan) 2>/dev/null && exit 5; "
                                      "exit 0"))) == 0);
    case_end(&c);
}

/* The ladder must not wait out the grace for somebody who never got the signal. */
static void orphan_ends_when_the_job_is_stopped(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "1000", SH(LEAVE_ORPHAN "echo up; exec sleep 1000")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    check_gone(&c, "orphan");
    case_end(&c);
}

/* A shell that dies of the stop signal at once leaves its child the rest of the grace. */
static void child_of_a_shell_keeps_the_grace(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "1000",
                        SH("sh -c 'trap \"sleep 0.3; echo > $CASE/clean; exit 0\" TERM; echo up; "
                           "while :; do sleep 0.05; done' & wait")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(case_has(&c, "clean"));
    case_end(&c);
}

/* Descendants in all shapes: the worker, its child, a daemon. */
#define MANY                                                                                       \
    LEAVE_ORPHAN "echo $$ > $CASE/worker; echo $PPID > $CASE/agent; "                              \
                 "sleep 1000 & echo $! > $CASE/child; echo up; wait"

static bool no_state_dir(void *user)
{
    const struct agent_case *c = user;
    char path[ER_TEST_PATH_MAX];

    er_test_job_folder(c->name, path);
    return access(path, F_OK) < 0;
}

static void nothing_survives_the_death_of_the_agent(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--log-dir", c.dir, "-t", "3", SH(MANY)));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    er_tap_require(!no_state_dir(&c));
    kill(case_pid(&c, "agent"), SIGKILL);
    er_tap_check(case_finish(&c) == 70);
    er_tap_check(strstr(er_test_err(&c.p), "the agent died by signal 9 (SIGKILL)") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "  next        run the same command again") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "  logs        ") != NULL);
    check_gone(&c, "worker");
    check_gone(&c, "child");
    check_gone(&c, "orphan");
    er_tap_check(no_state_dir(&c));
    case_end(&c);
}

static void nothing_survives_the_death_of_the_guard(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "1", SH(MANY)));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGKILL);
    er_tap_check(case_finish(&c) == 137);
    check_gone(&c, "worker");
    check_gone(&c, "child");
    check_gone(&c, "orphan");
    check_gone(&c, "agent");
    er_tap_check(er_test_wait_until(no_state_dir, &c, ER_TEST_DEADLINE_MS));
    case_end(&c);
}

static void state_dir_of_a_crash_is_taken_over(void)
{
    struct agent_case c = {0};
    pid_t agent;

    case_begin(&c);
    case_start(&c, ARGS(SH(MANY)));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    agent = case_pid(&c, "agent");
    kill(c.p.pid, SIGSTOP); /* neither does anything about the other's death */
    kill(agent, SIGKILL);
    kill(c.p.pid, SIGKILL);
    er_tap_check(case_finish(&c) == 137);
    er_tap_check(er_test_wait_until(process_gone, &agent, ER_TEST_DEADLINE_MS));
    check_gone(&c, "worker"); /* it is tied to the agent, whoever else has died */
    /* Nobody is left who could: the next start does. */
    er_tap_check(kill(case_pid(&c, "orphan"), 0) == 0);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("true")) == 0);
    er_tap_check(strstr(er_test_err(&c.p), "killed what a run that crashed had left") != NULL);
    check_gone(&c, "orphan");
    check_gone(&c, "child");
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"orphan_ends_with_the_job", orphan_ends_with_the_job, 0},
        {"orphan_ends_with_its_generation", orphan_ends_with_its_generation, 0},
        {"orphan_ends_when_the_job_is_stopped", orphan_ends_when_the_job_is_stopped, 0},
        {"child_of_a_shell_keeps_the_grace", child_of_a_shell_keeps_the_grace, 0},
        {"nothing_survives_the_death_of_the_agent", nothing_survives_the_death_of_the_agent, 0},
        {"nothing_survives_the_death_of_the_guard", nothing_survives_the_death_of_the_guard, 0},
        {"state_dir_of_a_crash_is_taken_over", state_dir_of_a_crash_is_taken_over, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
