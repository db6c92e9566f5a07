/* Exit codes and signals of elastic-run, with real processes. */
#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)

static void check_code(const char *const args[], int code, const char *in_summary)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, args) == code);
    if (in_summary)
        ERR_HAS(&c, in_summary);
    case_note(er_test_err(&c.p));
    case_end(&c);
}

static void success_is_silent(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    setenv("OMP_NUM_THREADS", "1", 1); /* a line tells of it where there are processors to spare */
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", "3", "true")) == 0);
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    er_tap_check(er_test_err(&c.p)[0] == '\0');
    case_end(&c);
}

static void worker_code_is_passed_on(void)
{
    check_code(ARGS("--nproc-per-node", "2", SH("[ $RANK = 0 ] || exit 7; exec sleep 100")), 7,
               "rank 1 (local rank 1");
}

static void signal_death_is_128_plus_n(void)
{
    check_code(ARGS(SH("kill -KILL $$")), 137, "died by signal 9 (SIGKILL)");
    check_code(ARGS(SH("kill -SEGV $$")), 139, "died by signal 11");
}

static void missing_program_is_127(void)
{
    check_code(ARGS("no-such-program-here"), 127, "'no-such-program-here' not found in PATH");
    check_code(ARGS("/nowhere/program"), 127, "'/nowhere/program' not found");
}

static void program_that_cannot_run_is_126(void)
{
    struct agent_case c = {0};

    check_code(ARGS("/etc/passwd"), 126, "not an executable file");
    case_begin(&c);
    er_test_write_file(case_path(&c, "empty"), "\n");
    chmod(case_path(&c, "empty"), 0755);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node", "2", case_path(&c, "empty"))) == 126);
    ERR_HAS(&c, "cannot run the program");
    case_end(&c);
}

static void missing_interpreter_is_127(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "script"), "#!/no/such/interpreter\n");
    chmod(case_path(&c, "script"), 0755);
    er_tap_check(case_run(&c, ARGS(case_path(&c, "script"))) == 127);
    case_end(&c);
}

static void failure_is_restarted_within_the_budget(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--max-restarts", "2", "--nproc-per-node", "2",
                                   SH("echo gen $ELASTIC_GENERATION restarts "
                                      "$TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] && exec sleep "
                                      "0.1; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3"))) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "restarts 2") != NULL);
    case_end(&c);
}

static void spent_budget_keeps_the_workers_code(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--max-restarts", "1", SH("echo x >> $CASE/starts; exit 9"))) ==
                 9);
    char *starts = er_test_read_file(case_path(&c, "starts"));

    er_tap_check(starts && strcmp(starts, "x\nx\n") == 0);
    free(starts);
    ERR_HAS(&c, "1 of 1 used");
    case_end(&c);
}

static void fatal_code_is_not_restarted(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run_job(&c, case_job(&c, "[sh, -c, 'echo x >> $CASE/starts; exit 93']",
                                           "restart: {max: 5}\nlog: {dir: none}\n")) == 93);
    char *starts = er_test_read_file(case_path(&c, "starts"));

    er_tap_check(starts && strcmp(starts, "x\n") == 0);
    free(starts);
    case_end(&c);
}

/* A port that somebody holds costs no restart at first, and is not tried for ever. */
static void failed_bind_costs_no_restart_at_first(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS(SH("echo x >> $CASE/starts; echo '{\"message\": \"bind: Address "
                                      "already in use\"}' > $TORCHELASTIC_ERROR_FILE; exit 8"))) ==
                 8);
    char *starts = er_test_read_file(case_path(&c, "starts"));

    er_tap_check(starts && strcmp(starts, "x\nx\nx\nx\n") == 0);
    free(starts);
    case_end(&c);
}

static void hangup_is_ignored_under_nohup(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    signal(SIGHUP, SIG_IGN); /* as nohup(1) does */
    case_start(&c, ARGS(SH("echo up; while [ ! -e $CASE/go ]; do sleep 0.05; done")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGHUP);
    kill(c.p.pid, SIGUSR2); /* comes after it: when this is told, the other has been ignored */
    er_tap_check(er_test_wait_err(&c.p, "signal ignored", ER_TEST_DEADLINE_MS));
    er_test_write_file(case_path(&c, "go"), "");
    er_tap_check(case_finish(&c) == 0);
    case_end(&c);
}

static void limit_of_descriptors_is_71(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(
        er_test_run(&c.p,
                    ARGS("sh", "-c", "ulimit -n 60; exec \"$0\" --nproc-per-node 64 sleep 100",
                         er_test_bin("elastic-run")),
                    NULL, ER_TEST_DEADLINE_MS) == 71);
    ERR_HAS(&c, "outcome=error");
    case_end(&c);
}

static void stopped_by(int sig, int code)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--nproc-per-node", "2", SH("echo up; exec sleep 100")));
    er_tap_require(er_test_wait_out(&c.p, "up\nup\n", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, sig);
    er_tap_check(case_finish(&c) == code);
    ERR_HAS(&c, "stopped");
    case_end(&c);
}

static void term_is_75_and_int_is_130(void)
{
    stopped_by(SIGTERM, 75);
    stopped_by(SIGINT, 130);
    stopped_by(SIGHUP, 75);
}

static void worker_may_end_well_within_the_grace(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS(SH("trap 'echo clean > $CASE/clean; exit 0' TERM; echo up; "
                           "while :; do sleep 0.05; done")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(case_has(&c, "clean"));
    case_end(&c);
}

/* pkill and process-group kills hit guard and agent. */
static void signal_to_guard_and_agent_counts_once(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "1000",
                        SH("trap 'sleep 0.5; echo > $CASE/clean; exit 0' TERM; echo $PPID > "
                           "$CASE/agent; echo up; while :; do sleep 0.05; done")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(case_pid(&c, "agent"), SIGTERM);
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(case_has(&c, "clean"));
    er_tap_check(strstr(er_test_err(&c.p), "grace shortened") == NULL);
    case_end(&c);
}

/* Says when the first rung has reached it, and stays. */
#define STUBBORN SH("trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done")

static void stubborn_worker_is_killed_after_the_grace(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "0.2", STUBBORN));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

/* Different signals, since equal ones within 200 ms count once. The first one decides the code. */
static void more_signals_shorten_the_grace(unsigned n)
{
    static const int SIGNALS[] = {SIGTERM, SIGINT, SIGHUP};
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--shutdown-timeout", "1000", STUBBORN));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    for (unsigned i = 0; i < n; i++) {
        kill(c.p.pid, SIGNALS[i]);
        if (i == 0)
            er_tap_check(er_test_wait_out(&c.p, "asked", ER_TEST_DEADLINE_MS));
        else
            er_tap_check(er_test_wait_err(&c.p, i == 1 ? "once more kills at once" : "killing",
                                          ER_TEST_DEADLINE_MS));
    }
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

static void second_signal_shortens_the_grace(void)
{
    more_signals_shorten_the_grace(2);
}

static void third_signal_kills_at_once(void)
{
    more_signals_shorten_the_grace(3);
}

static void forwarded_signal_stops_nothing(void)
{
    struct agent_case c = {0};
    char env[ER_TEST_PATH_MAX + 8];

    case_begin(&c);
    const char *job = case_job(&c,
                               "[sh, -c, 'trap \"echo got; exit 0\" USR1; echo up; while :; do "
                               "sleep 0.05; done']",
                               "stop: {forward: [USR1]}\nlog: {dir: none, tee: \"0\"}\n");

    snprintf(env, sizeof(env), "CASE=%s", c.dir);
    er_test_start(&c.p, ARGS(er_test_bin("elastic-run"), job), (const char *const[]){env, NULL});
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGUSR1);
    er_tap_check(case_finish(&c) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "got") != NULL);
    case_end(&c);
}

static void other_signal_is_ignored_with_a_word(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS(SH("echo up; while [ ! -e $CASE/go ]; do sleep 0.05; done")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGUSR2);
    er_tap_check(er_test_wait_err(&c.p, "signal ignored", ER_TEST_DEADLINE_MS));
    er_test_write_file(case_path(&c, "go"), "");
    er_tap_check(case_finish(&c) == 0);
    case_end(&c);
}

static void several_nodes_without_a_store_are_64(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--nnodes", "2", "true")) == 64);
    er_tap_check(strstr(er_test_err(&c.p), "needs a store") != NULL);
    case_end(&c);
}

static void second_job_of_a_name_is_refused(void)
{
    struct agent_case c = {0}, other = {0};

    case_begin(&c);
    case_start(&c, ARGS(SH("echo up; exec sleep 100")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    case_begin(&other);
    er_tap_check(case_run(&other, ARGS("true")) == 73);
    ERR_HAS(&other, "is running on this host already");
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&other);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"success_is_silent", success_is_silent, 0},
        {"worker_code_is_passed_on", worker_code_is_passed_on, 0},
        {"signal_death_is_128_plus_n", signal_death_is_128_plus_n, 0},
        {"missing_program_is_127", missing_program_is_127, 0},
        {"program_that_cannot_run_is_126", program_that_cannot_run_is_126, 0},
        {"missing_interpreter_is_127", missing_interpreter_is_127, 0},
        {"failure_is_restarted_within_the_budget", failure_is_restarted_within_the_budget, 0},
        {"spent_budget_keeps_the_workers_code", spent_budget_keeps_the_workers_code, 0},
        {"fatal_code_is_not_restarted", fatal_code_is_not_restarted, 0},
        {"failed_bind_costs_no_restart_at_first", failed_bind_costs_no_restart_at_first, 0},
        {"hangup_is_ignored_under_nohup", hangup_is_ignored_under_nohup, 0},
        {"limit_of_descriptors_is_71", limit_of_descriptors_is_71, 0},
        {"term_is_75_and_int_is_130", term_is_75_and_int_is_130, 0},
        {"worker_may_end_well_within_the_grace", worker_may_end_well_within_the_grace, 0},
        {"signal_to_guard_and_agent_counts_once", signal_to_guard_and_agent_counts_once, 0},
        {"stubborn_worker_is_killed_after_the_grace", stubborn_worker_is_killed_after_the_grace, 0},
        {"second_signal_shortens_the_grace", second_signal_shortens_the_grace, 0},
        {"third_signal_kills_at_once", third_signal_kills_at_once, 0},
        {"forwarded_signal_stops_nothing", forwarded_signal_stops_nothing, 0},
        {"other_signal_is_ignored_with_a_word", other_signal_is_ignored_with_a_word, 0},
        {"several_nodes_without_a_store_are_64", several_nodes_without_a_store_are_64, 0},
        {"second_job_of_a_name_is_refused", second_job_of_a_name_is_refused, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
