/* Kernels and sandboxes that lack system calls: the same job without them. */
#include "tests/integration/agent_case.h"

/* Fails once, and says what it sees of the agent's descriptors; leaves a daemon behind. */
static const char SCRIPT[] = "ls -l /proc/self/fd | grep -c socket: >$CASE/sockets-$LOCAL_RANK; "
                             "setsid sleep 1000 & echo $! >$CASE/daemon-$LOCAL_RANK; "
                             "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3; echo done";

static void run_without(const char *const calls[])
{
    struct agent_case c = {0};
    const char *argv[32] = {er_test_bin("tests/integration/without")};
    char env[ER_TEST_PATH_MAX + 8];
    size_t n = 1;

    case_begin(&c);
    while (*calls)
        argv[n++] = *calls++;
    for (const char *const *more = ARGS("--", er_test_bin("elastic-run"), "--rdzv-id", c.name,
                                        "--nproc-per-node=2", "--max-restarts=1", SH(SCRIPT));
         *more; more++)
        argv[n++] = *more;
    snprintf(env, sizeof(env), "CASE=%s", c.dir);
    er_test_start(&c.p, argv, (const char *const[]){env, NULL});
    if (!er_tap_check(case_finish(&c) == 0))
        case_note(er_test_err(&c.p));
    er_tap_check(strcmp(er_test_out(&c.p), "done\ndone\n") == 0);
    for (int i = 0; i < 2; i++) {
        char file[32], *text;
        pid_t daemon;

        snprintf(file, sizeof(file), "sockets-%d", i);
        text = er_test_read_file(case_path(&c, file));
        er_tap_check(text && atoi(text) == 0);
        free(text);
        snprintf(file, sizeof(file), "daemon-%d", i);
        daemon = case_pid(&c, file);
        er_tap_check(er_test_wait_until(process_gone, &daemon, ER_TEST_DEADLINE_MS));
    }
    case_end(&c);
}

static void nothing_missing(void)
{
    run_without(ARGS("pidfd_getfd")); /* which nobody calls */
}

/* Before 5.3, and gVisor. */
static void no_clone3(void)
{
    run_without(ARGS("clone3"));
}

/* Docker before 20.10.10. */
static void clone3_refused(void)
{
    run_without(ARGS("clone3=EPERM"));
}

/* Before 5.9. */
static void no_close_range(void)
{
    run_without(ARGS("close_range"));
}

static void none_of_them(void)
{
    run_without(ARGS("clone3", "close_range", "renameat2", "faccessat2", "pidfd_getfd"));
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"nothing_missing", nothing_missing, 0}, {"no_clone3", no_clone3, 0},
        {"clone3_refused", clone3_refused, 0},   {"no_close_range", no_close_range, 0},
        {"none_of_them", none_of_them, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
