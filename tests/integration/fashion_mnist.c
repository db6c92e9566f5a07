/* The example as a program of its own, a world of one, on a small made-up data set. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/clothes.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

enum { ARGS_MAX = 24 };

static char root[ER_TEST_PATH_MAX], cache_env[ER_TEST_PATH_MAX + 32];

static void make_data(void)
{
    er_test_tempdir(root);
    snprintf(cache_env, sizeof(cache_env), "XDG_CACHE_HOME=%s/cache", root);
    er_test_clothes(root);
}

/* `checkpoints`: a folder below the test's, or NULL for none. `more` ends with NULL. */
static void start(struct er_test_proc *p, const char *checkpoints, const char *const *more)
{
    const char *argv[ARGS_MAX] = {er_test_bin("examples/fashion_mnist"),
                                  "--data",
                                  root,
                                  "--batch=32",
                                  "--epochs=3",
                                  "--log-steps=1",
                                  "--exact-log"};
    char dir_env[2 * ER_TEST_PATH_MAX] = "ELASTIC_CHECKPOINT_DIR";
    const char *env[] = {cache_env, "ELASTIC_SOCKET", dir_env, NULL};
    size_t n = 7;

    for (size_t i = 0; more && more[i] && n + 1 < ARGS_MAX; i++)
        argv[n++] = more[i];
    if (checkpoints)
        snprintf(dir_env, sizeof(dir_env), "ELASTIC_CHECKPOINT_DIR=%s/%s", root, checkpoints);
    er_test_start(p, argv, env);
}

static void run(struct er_test_proc *p, const char *checkpoints, const char *const *more, int want)
{
    start(p, checkpoints, more);
    er_tap_require(er_test_wait_exit(p, ER_TEST_DEADLINE_MS));
    if (!er_tap_check(er_test_exit_code(p) == want))
        er_tap_note("%s", er_test_err(p));
}

/* The part of a run's output from step `step` on. */
static const char *from_step(const struct er_test_proc *p, unsigned step)
{
    char text[32];
    const char *at;

    snprintf(text, sizeof(text), "step=%u loss=", step);
    at = strstr(er_test_out(p), text);
    er_tap_require(at);
    return at;
}

static void equal_runs_give_equal_losses(void)
{
    struct er_test_proc first, second;

    make_data();
    run(&first, NULL, NULL, 0);
    run(&second, NULL, NULL, 0);
    er_tap_check(strstr(er_test_out(&first), "step=60 loss="));
    er_tap_check(strstr(er_test_out(&first), "\naccuracy=1.0000 loss="));
    er_tap_check(strcmp(er_test_out(&first), er_test_out(&second)) == 0);
    er_test_done(&first);
    er_test_done(&second);
    er_test_rmtree(root);
}

static bool is_step_line(const char *line)
{
    return strncmp(line, "step=", 5) == 0 || strncmp(line, "accuracy=", 9) == 0;
}

/* Lines of steps and results only: where a run saves depends on where it began. */
static char *results_from(const struct er_test_proc *p, unsigned step)
{
    char *text = strdup(from_step(p, step)), *kept = calloc(1, strlen(text) + 2), *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (is_step_line(line)) {
            strcat(kept, line);
            strcat(kept, "\n");
        }
    }
    free(text);
    return kept;
}

static void a_killed_run_goes_on_bit_for_bit(void)
{
    /* 800 steps, so that the kill comes long before the end */
    static const char *const more[] = {"--epochs=40", "--checkpoint-steps=20", NULL};
    struct er_test_proc whole, killed, resumed;
    char *want, *got;
    const char *at;
    unsigned step;

    make_data();
    run(&whole, "whole", more, 0);
    start(&killed, "killed", more);
    er_tap_require(er_test_wait_out(&killed, " saved ", ER_TEST_DEADLINE_MS));
    kill(killed.pid, SIGKILL);
    er_tap_require(er_test_wait_exit(&killed, ER_TEST_DEADLINE_MS));
    er_tap_check(er_test_exit_code(&killed) == 128 + SIGKILL);
    run(&resumed, "killed", more, 0);
    er_tap_check(strstr(er_test_out(&resumed), "resumed from"));
    at = strstr(er_test_out(&resumed), "\nstep=");
    er_tap_require(at && sscanf(at, "\nstep=%u", &step) == 1 && step > 20);
    want = results_from(&whole, step);
    got = results_from(&resumed, step);
    if (!er_tap_check(strcmp(want, got) == 0))
        er_tap_note("want:\n%sgot:\n%s", want, got);
    free(want);
    free(got);
    er_test_done(&whole);
    er_test_done(&killed);
    er_test_done(&resumed);
    er_test_rmtree(root);
}

static void failures_are_one_line_and_exit_code_93(void)
{
    static const struct {
        const char *args[3], *text;
    } table[] = {
        {{"--data=/nonexistent"}, "install the Debian package dataset-fashion-mnist"},
        {{"--epochs=0"}, "--epochs: "},
        {{"--batch=x"}, "--batch: "},
        {{"--lr=-1"}, "--lr: "},
        {{"--seed"}, "'--seed': "},
        {{"--sed", "1"}, "'--sed': "},
        {{"stray"}, "'stray': "},
    };
    struct er_test_proc p;

    make_data();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const char *text;

        start(&p, NULL, table[i].args);
        er_tap_require(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
        er_tap_check(er_test_exit_code(&p) == 93);
        text = er_test_err(&p);
        if (!er_tap_check(strstr(text, table[i].text) &&
                          strchr(text, '\n') == text + strlen(text) - 1))
            er_tap_note("%s: %s", table[i].args[0], text);
        er_test_done(&p);
    }
    er_test_rmtree(root);
}

static void a_truncated_file_is_named(void)
{
    char path[ER_TEST_PATH_MAX + 64];
    struct er_test_proc p;

    make_data();
    snprintf(path, sizeof(path), "%s/train-images-idx3-ubyte.gz", root);
    er_tap_require(truncate(path, 5000) == 0);
    run(&p, NULL, NULL, 93);
    er_tap_check(strstr(er_test_err(&p), path) && strstr(er_test_err(&p), "truncated"));
    er_test_done(&p);
    er_test_rmtree(root);
}

/* A job of two workers in the test's folder; `more` is YAML. */
static void start_job(struct er_test_proc *p, const char *options, const char *more)
{
    char path[ER_TEST_PATH_MAX + 32], job[8 * ER_TEST_PATH_MAX];

    snprintf(path, sizeof(path), "%s/job.yaml", root);
    snprintf(job, sizeof(job),
             "name: fashion-%d\nnproc_per_node: 2\nlog: {dir: none}\ncommand: [%s, --data, %s, "
             "--batch=32, --log-steps=1%s]\n%s\n",
             (int)getpid(), er_test_bin("examples/fashion_mnist"), root, options, more);
    er_test_write_file(path, job);
    er_test_start(p, (const char *[]){er_test_bin("elastic-run"), path, NULL},
                  (const char *[]){cache_env, NULL});
}

static void usage_errors_are_not_restarted(void)
{
    struct er_test_proc p;

    make_data();
    start_job(&p, ", --bad", "");
    er_tap_require(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
    er_tap_check(er_test_exit_code(&p) == 93);
    er_tap_check(strstr(er_test_err(&p), "restarts    0 of 3 used") != NULL);
    er_test_done(&p);
    er_test_rmtree(root);
}

/* The folder turns into a file while the job runs. The keys of the spec reach the trainer. */
static void checkpoints_that_fail_too_often_end_the_job(void)
{
    char dir[ER_TEST_PATH_MAX + 32], away[ER_TEST_PATH_MAX + 32], more[2 * ER_TEST_PATH_MAX];
    struct er_test_proc p;

    make_data();
    snprintf(dir, sizeof(dir), "%s/checkpoints", root);
    snprintf(away, sizeof(away), "%s/away", root);
    snprintf(more, sizeof(more),
             "checkpoint: {dir: %s, every_steps: 1, on_failure: {max: 3}}\nrestart: {max: 3}", dir);
    start_job(&p, ", --epochs=100000", more);
    er_tap_require(er_test_wait_out(&p, "step 2/", ER_TEST_DEADLINE_MS));
    er_tap_require(rename(dir, away) == 0);
    er_test_write_file(dir, "");
    er_tap_require(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
    if (!er_tap_check(er_test_exit_code(&p) == 74))
        er_tap_note("%s", er_test_err(&p));
    er_tap_check(strstr(er_test_err(&p), "3 checkpoints in a row failed") != NULL);
    er_tap_check(strstr(er_test_err(&p), "restarts    0 of 3 used") != NULL);
    er_test_done(&p);
    er_test_rmtree(root);
}

/* TERM is the notice of a preemption: the workers save at a step boundary and leave. */
static void a_preempted_job_saves_and_goes_on(void)
{
    static const char *const said[] = {"step 3/", "resumed from"};
    char more[2 * ER_TEST_PATH_MAX];
    struct er_test_proc p;

    make_data();
    snprintf(more, sizeof(more), "checkpoint: {dir: %s/checkpoints, every_steps: 1000000}", root);
    for (int i = 0; i < 2; i++) {
        start_job(&p, ", --epochs=100000", more);
        er_tap_require(er_test_wait_out(&p, said[i], ER_TEST_DEADLINE_MS));
        kill(p.pid, SIGTERM);
        er_tap_require(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
        if (!er_tap_check(er_test_exit_code(&p) == 75))
            er_tap_note("%s", er_test_err(&p));
        er_tap_check(strstr(er_test_err(&p), "asked 2 workers to save and leave within 1m30s"));
        er_tap_check(strstr(er_test_out(&p), "drain") != NULL);
        er_tap_check(strstr(er_test_err(&p), "had to be killed") == NULL);
        er_test_done(&p);
    }
    er_test_rmtree(root);
}

static const char *last_line(const struct er_test_proc *p)
{
    const char *at = strstr(er_test_out(p), "\naccuracy=");

    er_tap_require(at);
    return at;
}

/* In lock-step, parameter servers are another way to the same end. */
static void parameter_servers_end_where_ddp_does(void)
{
    static const char *const servers[] = {"--ps", NULL};
    static const char *const apart[] = {"--ps", "--staleness=1000000", NULL};
    struct er_test_proc ddp, ps;

    make_data();
    run(&ddp, NULL, NULL, 0);
    run(&ps, NULL, servers, 0);
    er_tap_check(strcmp(last_line(&ddp), last_line(&ps)) == 0);
    er_test_done(&ps);
    run(&ps, NULL, apart, 0);
    er_tap_check(strstr(er_test_out(&ps), "\naccuracy=1.0000"));
    er_test_done(&ps);
    er_test_done(&ddp);
    er_test_rmtree(root);
}

/* Exact mode as a user has it: 1, 2 and 3 workers under an agent end with the same parameters. */
static void exact_mode_has_the_same_parameters_on_any_number_of_workers(void)
{
    char want[64] = "";

    make_data();
    for (int workers = 1; workers <= 3; workers++) {
        char count[8];
        const char *const argv[] = {er_test_bin("elastic-run"),
                                    "--nproc-per-node",
                                    count,
                                    er_test_bin("examples/fashion_mnist"),
                                    "--data",
                                    root,
                                    "--batch=100",
                                    "--epochs=2",
                                    "--exact",
                                    NULL};
        const char *env[] = {cache_env, NULL};
        struct er_test_proc p;
        const char *at;

        snprintf(count, sizeof(count), "%d", workers);
        if (!er_tap_check(er_test_run(&p, argv, env, ER_TEST_DEADLINE_MS) == 0))
            er_tap_note("%s", er_test_err(&p));
        at = strstr(er_test_out(&p), "parameters=");
        er_tap_require(at);
        if (workers == 1)
            snprintf(want, sizeof(want), "%.27s", at);
        er_tap_check(strlen(want) == 27 && strncmp(at, want, 27) == 0);
        er_test_done(&p);
    }
    er_test_rmtree(root);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"equal_runs_give_equal_losses", equal_runs_give_equal_losses, 0},
        {"a_killed_run_goes_on_bit_for_bit", a_killed_run_goes_on_bit_for_bit, 0},
        {"failures_are_one_line_and_exit_code_93", failures_are_one_line_and_exit_code_93, 0},
        {"a_truncated_file_is_named", a_truncated_file_is_named, 0},
        {"a_preempted_job_saves_and_goes_on", a_preempted_job_saves_and_goes_on, 0},
        {"usage_errors_are_not_restarted", usage_errors_are_not_restarted, 0},
        {"checkpoints_that_fail_too_often_end_the_job", checkpoints_that_fail_too_often_end_the_job,
         0},
        {"exact_mode_has_the_same_parameters_on_any_number_of_workers",
         exact_mode_has_the_same_parameters_on_any_number_of_workers, 0},
        {"parameter_servers_end_where_ddp_does", parameter_servers_end_where_ddp_does, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
