/* What ends elastic-run, whatever state it or its reader is in; who may use a job's name. */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)

/* Starters in a loop: a job of the name runs alone, sees its own socket to its end, and whoever
 * comes meanwhile is refused. */
static void overlapping_starts_run_one_at_a_time(void)
{
    struct agent_case c = {0};
    char script[8 * ER_TEST_PATH_MAX];

    case_begin(&c);
    snprintf(script, sizeof(script),
             "one() { while [ ! -e $CASE/end ]; do %s --rdzv-id %s sh -c 'test -S "
             "\"$ELASTIC_SOCKET\" || exit 55; mkdir $CASE/both || exit 57; sleep 0.005; rmdir "
             "$CASE/both; test -S \"$ELASTIC_SOCKET\" || exit 56' 2>/dev/null; echo \"code $?\"; "
             "done; }; one & one & one & sleep 4; touch $CASE/end; wait",
             er_test_bin("elastic-run"), c.name);
    char env[ER_TEST_PATH_MAX + 8];

    snprintf(env, sizeof(env), "CASE=%s", c.dir);
    er_test_start(&c.p, ARGS(SH(script)), (const char *const[]){env, NULL});
    er_tap_require(er_test_wait_exit(&c.p, 3 * ER_TEST_DEADLINE_MS));
    er_tap_check(strstr(er_test_out(&c.p), "code 0\n") != NULL);
    for (const char *at = er_test_out(&c.p); (at = strstr(at, "code ")) != NULL; at++) {
        if (strncmp(at, "code 0\n", 7) != 0 && strncmp(at, "code 73\n", 8) != 0) {
            er_tap_note("%.8s", at);
            er_tap_check(false);
        }
    }
    case_end(&c);
}

static int fifo_fd;

static bool has_reader(void *user)
{
    fifo_fd = open(user, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return fifo_fd >= 0;
}

/* elastic-run is reading its job file, which does not end. */
static void start_with_endless_spec(struct agent_case *c, char *fifo)
{
    strcpy(fifo, case_path(c, "job.yaml"));
    er_tap_require(mkfifo(fifo, 0600) == 0);
    er_test_start(&c->p, ARGS(er_test_bin("elastic-run"), fifo), NULL);
    er_tap_require(er_test_wait_until(has_reader, fifo, ER_TEST_DEADLINE_MS));
}

static void signals_end_it_while_the_spec_is_read(void)
{
    static const struct {
        int sig, code;
    } CASES[] = {{SIGINT, 130}, {SIGTERM, 75}, {SIGHUP, 75}, {SIGQUIT, 75}};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct agent_case c = {0};
        char fifo[2 * ER_TEST_PATH_MAX];

        case_begin(&c);
        start_with_endless_spec(&c, fifo);
        kill(c.p.pid, CASES[i].sig);
        er_tap_check(case_finish(&c) == CASES[i].code);
        close(fifo_fd);
        case_end(&c);
    }
}

static void death_of_the_guard_ends_it_while_the_spec_is_read(void)
{
    struct agent_case c = {0};
    char fifo[2 * ER_TEST_PATH_MAX];
    pid_t agent;

    case_begin(&c);
    start_with_endless_spec(&c, fifo);
    agent = agent_of(c.p.pid);
    er_tap_require(agent > 1);
    kill(c.p.pid, SIGKILL);
    er_tap_check(case_finish(&c) == 137);
    er_tap_check(er_test_wait_until(process_gone, &agent, ER_TEST_DEADLINE_MS));
    close(fifo_fd);
    case_end(&c);
}

static void deaf_agent_is_killed_at_the_third_signal(void)
{
    struct agent_case c = {0};
    pid_t agent, worker;

    case_begin(&c);
    case_start(&c, ARGS(SH("echo $$ > $CASE/worker; echo up; exec sleep 1000")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    agent = agent_of(c.p.pid);
    worker = case_pid(&c, "worker");
    er_tap_require(agent > 1 && worker > 1);
    er_tap_require(er_test_stop(agent));
    kill(c.p.pid, SIGTERM);
    kill(c.p.pid, SIGINT);
    kill(c.p.pid, SIGHUP);
    er_tap_check(case_finish(&c) == 75 || er_test_exit_code(&c.p) == 130);
    ERR_HAS(&c, "did not look at its signals");
    er_tap_check(process_gone(&worker));
    case_end(&c);
}

static void term_counts_before_int(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS(SH("echo up; exec sleep 1000")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    er_tap_require(er_test_stop(c.p.pid)); /* both wait when it looks */
    kill(c.p.pid, SIGINT);
    kill(c.p.pid, SIGTERM);
    kill(c.p.pid, SIGCONT);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

struct unread {
    pid_t pid;
    int status;
};

static bool is_reaped(void *user)
{
    struct unread *u = user;

    return waitpid(u->pid, &u->status, WNOHANG) == u->pid;
}

/* elastic-run with a full pipe that nobody reads as its stdout and stderr. */
static pid_t start_unread(struct agent_case *c, int pipe_fds[2], const char *script)
{
    char env[ER_TEST_PATH_MAX + 8];
    pid_t pid;

    er_tap_require(pipe(pipe_fds) == 0);
    snprintf(env, sizeof(env), "%s", c->dir);
    pid = fork();
    er_tap_require(pid >= 0);
    if (pid == 0) {
        setenv("CASE", env, 1);
        dup2(pipe_fds[1], 1);
        dup2(pipe_fds[1], 2);
        execl(er_test_bin("elastic-run"), "elastic-run", "--rdzv-id", c->name, "--log-dir", c->dir,
              "-t", "3", "--nproc-per-node", "2", "sh", "-c", script, (char *)NULL);
        _exit(99);
    }
    return pid;
}

static bool is_full(void *user)
{
    return case_has(user, "flood");
}

static void three_signals_end_it_when_nobody_reads(void)
{
    struct agent_case c = {0};
    struct unread u = {0};
    int pipe_fds[2];

    case_begin(&c);
    u.pid = start_unread(&c, pipe_fds,
                         "trap '' TERM INT; seq 200000; seq 200000 >&2; touch $CASE/flood; while "
                         ":; do seq 1000 >&2; sleep 0.05; done");
    er_tap_check(er_test_wait_until(is_full, &c, ER_TEST_DEADLINE_MS));
    for (int i = 0; i < 3; i++) {
        kill(u.pid, SIGTERM);
        usleep(300 * 1000); /* signals closer to each other than 200 ms count as one */
    }
    er_tap_check(er_test_wait_until(is_reaped, &u, ER_TEST_DEADLINE_MS));
    er_tap_check(WIFEXITED(u.status) && WEXITSTATUS(u.status) == 75);
    kill(u.pid, SIGKILL);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    case_end(&c);
}

static void summary_shows_the_end_of_a_huge_traceback(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(
        case_run(&c, ARGS(SH("(printf '{\"message\":{\"message\":\"ValueError: no\",\"extraInfo\":"
                             "{\"py_callstack\":\"'; seq -f 'line number %g' 8000 | tr '\\n' "
                             "'@' | sed 's/@/\\\\n/g'; printf 'ValueError: no\"}}}') > "
                             "$TORCHELASTIC_ERROR_FILE; exit 3"))) == 3);
    ERR_HAS(&c, "message     ValueError: no\n");
    ERR_HAS(&c, "  traceback, the end of it\n");
    ERR_HAS(&c, "    | line number 8000\n    | ValueError: no\n");
    ERR_HAS(&c, "  next        ");
    er_tap_check(strstr(er_test_err(&c.p), "| line number 1\n") == NULL);
    case_end(&c);
}

/* RLIMIT_FSIZE: a log that may not grow is like a full disk, not the agent's death. */
static void log_at_its_size_limit_does_not_end_the_job(void)
{
    struct agent_case c = {0};
    char script[4 * ER_TEST_PATH_MAX];

    case_begin(&c);
    snprintf(script, sizeof(script),
             "ulimit -f 8; exec %s --rdzv-id %s --log-dir %s -r 3 sh -c 'seq 100000; exit 0'",
             er_test_bin("elastic-run"), c.name, c.dir);
    er_tap_check(er_test_run(&c.p, ARGS(SH(script)), NULL, ER_TEST_DEADLINE_MS) == 0);
    ERR_HAS(&c, "File too large");
    er_test_done(&c.p);
    /* A worker has the default again. */
    er_tap_check(case_run(&c, ARGS(SH("ulimit -c 0; ulimit -f 8; exec head -c 1000000 /dev/zero > "
                                      "$CASE/big"))) == 153);
    case_end(&c);
}

static void status_of_a_stopped_agent_ends(void)
{
    struct agent_case c = {0};
    struct er_test_proc ctl = {0};
    pid_t agent;

    case_begin(&c);
    case_start(&c, ARGS(SH("echo up; exec sleep 1000")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    agent = agent_of(c.p.pid);
    er_tap_require(er_test_stop(agent));
    er_tap_check(er_test_run(&ctl, ARGS(er_test_bin("elastic-ctl"), "--job", c.name, "status"),
                             NULL, 2 * ER_TEST_DEADLINE_MS) == 69);
    er_tap_check(strstr(er_test_err(&ctl), "does not answer") != NULL);
    er_test_done(&ctl);
    kill(agent, SIGCONT);
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"overlapping_starts_run_one_at_a_time", overlapping_starts_run_one_at_a_time, 0},
        {"signals_end_it_while_the_spec_is_read", signals_end_it_while_the_spec_is_read, 0},
        {"death_of_the_guard_ends_it_while_the_spec_is_read",
         death_of_the_guard_ends_it_while_the_spec_is_read, 0},
        {"deaf_agent_is_killed_at_the_third_signal", deaf_agent_is_killed_at_the_third_signal, 0},
        {"term_counts_before_int", term_counts_before_int, 0},
        {"three_signals_end_it_when_nobody_reads", three_signals_end_it_when_nobody_reads, 0},
        {"summary_shows_the_end_of_a_huge_traceback", summary_shows_the_end_of_a_huge_traceback, 0},
        {"status_of_a_stopped_agent_ends", status_of_a_stopped_agent_ends, 0},
        {"log_at_its_size_limit_does_not_end_the_job", log_at_its_size_limit_does_not_end_the_job,
         0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
