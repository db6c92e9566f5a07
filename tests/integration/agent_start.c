/* What a start finds: earlier checkpoints, earlier logs, scripts that are not there. */
#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)

static void make_dir(const struct agent_case *c, const char *name)
{
    struct er_test_proc p;

    er_tap_require(
        er_test_run(&p, ARGS("mkdir", "-p", case_path(c, name)), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_test_done(&p);
}

static int run_with_checkpoints(struct agent_case *c, const char *option)
{
    char set[2 * ER_TEST_PATH_MAX + 32];

    snprintf(set, sizeof(set), "checkpoint.dir=%s", case_path(c, "ck"));
    return case_run(c, ARGS(option, "--set", set, SH("ls $ELASTIC_CHECKPOINT_DIR")));
}

static void fresh_moves_checkpoints_aside_whole(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    make_dir(&c, "ck.before-1");
    make_dir(&c, "ck/step-000000000007");
    make_dir(&c, "ck/more");
    er_tap_check(run_with_checkpoints(&c, "--fresh") == 0);
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    ERR_HAS(&c, "are now in ");
    ERR_HAS(&c, "ck.before-2\n");
    er_tap_check(case_has(&c, "ck.before-2/step-000000000007"));
    er_tap_check(case_has(&c, "ck.before-2/more"));
    case_end(&c);
}

static void fresh_without_checkpoints_moves_nothing(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    make_dir(&c, "ck/mine");
    er_tap_check(run_with_checkpoints(&c, "--fresh") == 0);
    er_tap_check(case_has(&c, "ck/mine") && !case_has(&c, "ck.before-1"));
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--fresh", "true")) == 0);
    er_tap_check(er_test_err(&c.p)[0] == '\0');
    case_end(&c);
}

static void resume_needs_a_checkpoint(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--resume", "true")) == 78);
    ERR_HAS(&c, "checkpoint.dir is not set");
    er_test_done(&c.p);
    make_dir(&c, "ck");
    er_tap_check(run_with_checkpoints(&c, "--resume") == 78);
    ERR_HAS(&c, "holds no checkpoint");
    er_test_done(&c.p);
    make_dir(&c, "ck/step-000000000007");
    er_tap_check(run_with_checkpoints(&c, "--resume") == 0);
    er_tap_check(strcmp(er_test_out(&c.p), "step-000000000007\n") == 0);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--fresh", "--resume", "true")) == 64);
    case_end(&c);
}

static void earlier_logs_are_kept_apart(void)
{
    static const char *const SCRIPTS[] = {"echo one", "echo two"};
    struct agent_case c = {0};
    struct er_test_proc p;
    char find[ER_TEST_PATH_MAX + 200];

    case_begin(&c);
    for (int i = 0; i < 2; i++) {
        er_tap_check(
            case_run(&c, ARGS("--log-dir", case_path(&c, "logs"), "-r", "3", SH(SCRIPTS[i]))) == 0);
        er_test_done(&c.p);
    }
    snprintf(find, sizeof(find),
             "cd %s/logs/%s && cat gen-1/rank-0/stdout.log current/rank-0/stdout.log && cd runs/* "
             "&& cat gen-1/rank-0/stdout.log current/rank-0/stdout.log",
             c.dir, c.name);
    er_tap_check(er_test_run(&p, ARGS(SH(find)), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(strcmp(er_test_out(&p), "two\ntwo\none\none\n") == 0);
    case_note(er_test_out(&p));
    er_test_done(&p);
    case_end(&c);
}

/* The logs of a job that runs stay where they are, also when its name is tried again. */
static void refused_second_job_moves_nothing(void)
{
    struct agent_case c = {0}, other = {0};
    char gen[200];

    case_begin(&c);
    case_start(&c, ARGS("--log-dir", c.dir, "-t", "3", SH("echo up; exec sleep 100")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    case_begin(&other);
    er_tap_check(case_run(&other, ARGS("--log-dir", c.dir, "-t", "3", "true")) == 73);
    snprintf(gen, sizeof(gen), "%s/gen-1/rank-0", c.name);
    er_tap_check(case_has(&c, gen));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&other);
    case_end(&c);
}

/* Two jobs at once would remove each other's checkpoints; one after the other is fine. */
static void a_checkpoint_folder_in_use_by_another_job_is_refused(void)
{
    struct agent_case c = {0}, other = {0};
    char set[2 * ER_TEST_PATH_MAX + 32], text[ER_TEST_PATH_MAX];

    case_begin(&c);
    snprintf(set, sizeof(set), "checkpoint.dir=%s", case_path(&c, "ck"));
    case_start(&c, ARGS("--set", set, SH("echo up; exec sleep 100")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    case_begin(&other);
    snprintf(other.name, sizeof(other.name), "other-%d", (int)getpid());
    er_tap_check(case_run(&other, ARGS("--set", set, "true")) == 73);
    snprintf(text, sizeof(text), "is in use by job '%s'", c.name);
    ERR_HAS(&other, text);
    er_test_done(&other.p);
    make_dir(&c, "ck/step-000000000007");
    er_tap_check(case_run(&other, ARGS("--fresh", "--set", set, "true")) == 73);
    er_tap_check(case_has(&c, "ck/step-000000000007"));
    er_test_done(&other.p);
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(case_run(&other, ARGS("--set", set, "true")) == 0);
    er_test_done(&other.p);
    er_tap_check(case_run(&other, ARGS("--fresh", "--set", set, "true")) == 0);
    er_tap_check(case_has(&c, "ck/.job") && case_has(&c, "ck.before-1/.job"));
    case_end(&other);
    case_end(&c);
}

/* An interpreter would start, fail, and be started again. */
static void missing_script_is_refused_at_once(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run_job(&c, case_job(&c, "[sh, -e, ./no.sh]", "log: {dir: none}\n")) == 127);
    ERR_HAS(&c, "script './no.sh'");
    er_tap_check(strstr(er_test_err(&c.p), "restart") == NULL);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("no.py")) == 127);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--set", "workdir=/no/such", "true")) == 78);
    ERR_HAS(&c, "workdir: no folder '/no/such'");
    case_end(&c);
}

static void epoch_loop_says_what_it_needs_and_when_it_is_done(void)
{
    struct agent_case c = {0};
    char set[2 * ER_TEST_PATH_MAX + 32];

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--max-restarts", "3", er_test_bin("examples/epoch_loop"))) ==
                 93);
    ERR_HAS(&c, "set checkpoint.dir, or ELASTIC_CHECKPOINT_DIR");
    snprintf(set, sizeof(set), "checkpoint.dir=%s", case_path(&c, "ck"));
    for (int i = 0; i < 2; i++) {
        bool done;

        er_test_done(&c.p);
        er_tap_check(case_run(&c, ARGS("--set", set, er_test_bin("examples/epoch_loop"))) == 0);
        done = strstr(er_test_out(&c.p), "already done at epoch 5") != NULL;
        er_tap_check(done == (i == 1));
    }
    case_end(&c);
}

static void stdin_that_workers_do_not_get_is_told(void)
{
    struct agent_case c = {0};
    char command[2 * ER_TEST_PATH_MAX];

    case_begin(&c);
    snprintf(command, sizeof(command), "(echo hello; sleep 0.2) | (sleep 0.1; %s --rdzv-id %s cat)",
             er_test_bin("elastic-run"), c.name);
    er_tap_check(er_test_run(&c.p, ARGS(SH(command)), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    ERR_HAS(&c, "stdin=inherit");
    er_test_done(&c.p);
    snprintf(command, sizeof(command), "echo hello | %s --rdzv-id %s --set stdin=inherit cat",
             er_test_bin("elastic-run"), c.name);
    er_tap_check(er_test_run(&c.p, ARGS(SH(command)), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(strcmp(er_test_out(&c.p), "hello\n") == 0);
    er_tap_check(er_test_err(&c.p)[0] == '\0');
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"fresh_moves_checkpoints_aside_whole", fresh_moves_checkpoints_aside_whole, 0},
        {"fresh_without_checkpoints_moves_nothing", fresh_without_checkpoints_moves_nothing, 0},
        {"resume_needs_a_checkpoint", resume_needs_a_checkpoint, 0},
        {"earlier_logs_are_kept_apart", earlier_logs_are_kept_apart, 0},
        {"refused_second_job_moves_nothing", refused_second_job_moves_nothing, 0},
        {"a_checkpoint_folder_in_use_by_another_job_is_refused",
         a_checkpoint_folder_in_use_by_another_job_is_refused, 0},
        {"stdin_that_workers_do_not_get_is_told", stdin_that_workers_do_not_get_is_told, 0},
        {"missing_script_is_refused_at_once", missing_script_is_refused_at_once, 0},
        {"epoch_loop_says_what_it_needs_and_when_it_is_done",
         epoch_loop_says_what_it_needs_and_when_it_is_done, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
