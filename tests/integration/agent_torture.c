/* Workers that do what programs should not, and deaths at any moment: nothing stays. */
#include <ctype.h>
#include <dirent.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)

static bool is_of_case(const struct agent_case *c, const char *pid)
{
    char path[300], mark[ER_TEST_PATH_MAX + 8], *text;
    size_t n = strlen(c->dir);
    FILE *file;
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%s/environ", pid);
    snprintf(mark, sizeof(mark), "CASE=%s", c->dir);
    file = fopen(path, "r");
    text = file ? malloc(1 << 20) : NULL;
    n = text ? fread(text, 1, (1 << 20) - 1, file) : 0;
    for (size_t at = 0; text && at < n; at += strlen(text + at) + 1) {
        text[n] = '\0';
        found = found || strcmp(text + at, mark) == 0;
    }
    free(text);
    if (file)
        fclose(file);
    return found;
}

/* Processes whose environment names the case's folder. */
static int count_left(const struct agent_case *c)
{
    DIR *dir = opendir("/proc");
    int n = 0;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (isdigit((unsigned char)entry->d_name[0]))
            n += is_of_case(c, entry->d_name);
    }
    if (dir)
        closedir(dir);
    return n;
}

static bool state_is_there(const struct agent_case *c)
{
    char path[ER_TEST_PATH_MAX];

    er_test_job_folder(c->name, path);
    return access(path, F_OK) == 0;
}

static void check_nothing_left(const struct agent_case *c)
{
    er_tap_check(count_left(c) == 0);
    er_tap_check(!state_is_there(c));
}

/* The worker that printed `name` and its pid. */
static bool stands_still(struct agent_case *c, const char *name)
{
    return er_test_wait_out(&c->p, name, ER_TEST_DEADLINE_MS) &&
           er_test_wait_stopped(atoi(strstr(er_test_out(&c->p), name) + strlen(name)));
}

static void one_that_stops_itself_is_stopped(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS("--nproc-per-node", "2", "--shutdown-timeout", "1000",
                        SH("echo rank-$RANK $$; kill -STOP $$; exec sleep 1000")));
    er_tap_require(stands_still(&c, "rank-0 ") && stands_still(&c, "rank-1 "));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    check_nothing_left(&c);
    case_end(&c);
}

static void one_that_closes_its_pipes_is_still_watched(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--log-dir", c.dir, "-t", "3",
                                   SH("exec >&- 2>&- <&-; sleep 0.2; exit 4"))) == 4);
    check_nothing_left(&c);
    case_end(&c);
}

static void a_stderr_without_newline_is_kept_whole(void)
{
    struct agent_case c = {0};
    struct stat st = {0};
    char path[2 * ER_TEST_PATH_MAX];

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--log-dir", c.dir, "-r", "3",
                                   SH("head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 6"))) == 6);
    snprintf(path, sizeof(path), "%s/%s/gen-1/rank-0/stderr.log", c.dir, c.name);
    er_tap_check(stat(path, &st) == 0 && st.st_size == 3000000);
    er_tap_check(strlen(er_test_err(&c.p)) < 65536); /* the summary shows the end of it */
    case_end(&c);
}

static void workers_that_end_at_once_are_all_judged(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    for (int i = 0; i < 10; i++) {
        er_tap_check(case_run(&c, ARGS("--nproc-per-node", "16", "true")) == 0);
        er_test_done(&c.p);
        er_tap_check(case_run(&c, ARGS("--nproc-per-node", "16", "false")) == 1);
        er_test_done(&c.p);
    }
    er_tap_check(case_run(&c, ARGS("--max-restarts", "20", "--nproc-per-node", "4", "false")) == 1);
    ERR_HAS(&c, "20 of 20");
    check_nothing_left(&c);
    case_end(&c);
}

static void a_missing_interpreter_is_not_found(void)
{
    struct agent_case c = {0};
    const char *script;

    case_begin(&c);
    script = case_path(&c, "script");
    er_test_write_file(script, "#!/no/such/interpreter\n");
    chmod(script, 0755);
    er_tap_check(case_run(&c, ARGS("--max-restarts", "5", "--nproc-per-node", "4", script)) == 127);
    ERR_HAS(&c, "cannot run the program '");
    check_nothing_left(&c);
    case_end(&c);
}

#define DAEMON(what) "(setsid sh -c '" what "' &) ; "

static void one_that_holds_the_pipe_delays_nobody(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(
        case_run(&c,
                 ARGS("--log-dir", c.dir, "-t", "3",
                      SH(DAEMON(
                          "echo held; touch $CASE/up; exec sleep 1000") "while [ ! -e $CASE/up ]; "
                                                                        "do sleep 0.01; done; echo "
                                                                        "done"))) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "held\n") != NULL);
    er_tap_check(strstr(er_test_out(&c.p), "done\n") != NULL);
    check_nothing_left(&c);
    case_end(&c);
}

/* A port that a grandchild of the last generation holds is free for the next. */
static void one_that_holds_a_port_is_gone_before_the_respawn(void)
{
    static const char BIND[] =
        "import os, socket, sys, time\n"
        "s = socket.socket()\n"
        "s.bind(('127.0.0.1', int(open(os.environ['CASE'] + '/port').read())))\n"
        "s.listen()\n"
        "open(os.environ['CASE'] + '/bound', 'w').close()\n"
        "time.sleep(1000 if len(sys.argv) > 1 else 0)\n";
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "bind.py"), BIND);
    er_tap_check(
        case_run(&c, ARGS("--max-restarts", "1", "--master-port", "0",
                          SH("[ -e $CASE/port ] || echo $MASTER_PORT > $CASE/port; if [ "
                             "$TORCHELASTIC_RESTART_COUNT = 1 ]; then exec python3 $CASE/bind.py; "
                             "fi; (setsid python3 $CASE/bind.py stay &); while [ ! -e $CASE/bound "
                             "]; do sleep 0.01; done; exit 1"))) == 0);
    check_nothing_left(&c);
    case_end(&c);
}

#define THOUSAND "i=0; while [ $i -lt 1000 ]; do sleep 1000 & i=$((i + 1)); done; "

static void a_thousand_children_go_with_their_worker(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS(SH(THOUSAND "exit 7"))) == 7);
    check_nothing_left(&c);
    er_test_done(&c.p);
    case_start(&c, ARGS("--shutdown-timeout", "1000", SH(THOUSAND "echo up; wait")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    er_tap_check(count_left(&c) > 1000);
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    check_nothing_left(&c);
    case_end(&c);
}

#define BUSY                                                                                       \
    "--nproc-per-node", "3", "--max-restarts", "1000",                                             \
        SH(DAEMON("exec sleep 1000") "sleep 1000 & [ $RANK = 1 ] && exit 1; wait")

/* From before the state folder is made to far into a series of restarts. */
static void an_agent_killed_at_any_moment_leaves_nothing(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    for (int i = 0; i < 40; i++) {
        pid_t agent = 0;

        case_start(&c, ARGS(BUSY));
        while ((agent = agent_of(c.p.pid)) <= 1)
            ;
        usleep((useconds_t)(i * i * 100)); /* 0 to 152 ms */
        kill(agent, SIGKILL);
        er_tap_check(case_finish(&c) == 70);
        check_nothing_left(&c);
        er_test_done(&c.p);
    }
    case_end(&c);
}

static void guard_and_agent_killed_together_are_cleaned_up_after(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    for (int i = 0; i < 8; i++) {
        pid_t agent = 0;

        case_start(&c, ARGS(BUSY));
        while ((agent = agent_of(c.p.pid)) <= 1)
            ;
        usleep((useconds_t)(i * i * 2500)); /* 0 to 122 ms */
        kill(c.p.pid, SIGKILL);
        kill(agent, SIGKILL);
        er_tap_check(case_finish(&c) == 137);
        er_tap_check(er_test_wait_until(process_gone, &agent, ER_TEST_DEADLINE_MS));
        er_test_done(&c.p);
        er_tap_check(case_run(&c, ARGS("true")) == 0);
        check_nothing_left(&c);
        er_test_done(&c.p);
    }
    case_end(&c);
}

/* A debugger that does not look keeps the dead worker from being reaped, as the kernel does with
 * one in uninterruptible sleep. */
static void one_that_cannot_be_reaped_wedges_nobody(void)
{
    struct agent_case c = {0};
    pid_t worker;

    case_begin(&c);
    setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0.3", 1);
    case_start(&c, ARGS("--max-restarts", "3", "--nproc-per-node", "2", "--shutdown-timeout", "1",
                        SH("echo $$ > $CASE/pid$RANK; echo up; [ $RANK = 0 ] && exec sleep 1000; "
                           "while [ ! -e $CASE/go ]; do sleep 0.01; done; exit 3")));
    er_tap_require(er_test_wait_out(&c.p, "up\nup\n", ER_TEST_DEADLINE_MS));
    worker = case_pid(&c, "pid0");
    if (ptrace(PTRACE_SEIZE, worker, NULL, NULL) < 0) {
        er_tap_note("this host does not let a process be traced");
    } else {
        er_test_write_file(case_path(&c, "go"), "");
        er_tap_check(case_finish(&c) == 71);
        ERR_HAS(&c, "killed, but it does not end: pid ");
        waitpid(worker, NULL, 0);
    }
    unsetenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"one_that_stops_itself_is_stopped", one_that_stops_itself_is_stopped, 0},
        {"one_that_closes_its_pipes_is_still_watched", one_that_closes_its_pipes_is_still_watched,
         0},
        {"a_stderr_without_newline_is_kept_whole", a_stderr_without_newline_is_kept_whole, 0},
        {"workers_that_end_at_once_are_all_judged", workers_that_end_at_once_are_all_judged, 0},
        {"a_missing_interpreter_is_not_found", a_missing_interpreter_is_not_found, 0},
        {"one_that_holds_the_pipe_delays_nobody", one_that_holds_the_pipe_delays_nobody, 0},
        {"one_that_holds_a_port_is_gone_before_the_respawn",
         one_that_holds_a_port_is_gone_before_the_respawn, 0},
        {"a_thousand_children_go_with_their_worker", a_thousand_children_go_with_their_worker, 0},
        {"an_agent_killed_at_any_moment_leaves_nothing",
         an_agent_killed_at_any_moment_leaves_nothing, 0},
        {"guard_and_agent_killed_together_are_cleaned_up_after",
         guard_and_agent_killed_together_are_cleaned_up_after, 0},
        {"one_that_cannot_be_reaped_wedges_nobody", one_that_cannot_be_reaped_wedges_nobody, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
