/*
 * A job under elastic-run that loses a worker, or all, goes on by itself, and every loss it prints
 * is the one of an undisturbed run, bit for bit: 1, 2, 3 and 4 workers, both transports.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/clothes.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

#define DEADLINE_MS 60000u

static char root[ER_TEST_PATH_MAX];

static void start(struct er_test_proc *p, int workers, const char *name, const char *transport)
{
    char nproc[16], job[64], checkpoint[ER_TEST_PATH_MAX + 64], cache[ER_TEST_PATH_MAX + 32],
        pids[ER_TEST_PATH_MAX + 32], net[64];
    snprintf(nproc, sizeof(nproc), "%d", workers);
    snprintf(job, sizeof(job), "name=resume-%d-%s", (int)getpid(), name);
    snprintf(checkpoint, sizeof(checkpoint), "checkpoint.dir=%s/%s", root, name);
    snprintf(cache, sizeof(cache), "XDG_CACHE_HOME=%s/cache", root);
    snprintf(pids, sizeof(pids), "PIDS=%s/pid", root);
    snprintf(net, sizeof(net), "ELASTIC_COMM_TRANSPORT=%s", transport);
    const char *argv[] = {
        er_test_bin("elastic-run"),
        "--nproc-per-node",
        nproc,
        "--max-restarts",
        "3",
        "--set",
        "restart.respawn_wait=none",
        "--set",
        job,
        "--set",
        checkpoint,
        "sh",
        "-c",
        "echo $$ > $PIDS.$RANK; exec \"$0\" \"$@\"", /* the pid stays the worker's */
        er_test_bin("examples/fashion_mnist"),
        "--data",
        root,
        "--batch=32",
        "--epochs=40",
        "--log-steps=1",
        "--checkpoint-steps=20",
        "--exact-log",
        NULL};
    const char *env[] = {cache, pids, net, NULL};
    er_test_start(p, argv, env);
}

static pid_t pid_of(int rank)
{
    char path[ER_TEST_PATH_MAX + 32];
    snprintf(path, sizeof(path), "%s/pid.%d", root, rank);
    char *text = er_test_read_file(path);
    er_tap_require(text);
    pid_t pid = (pid_t)atoi(text);
    free(text);
    return pid;
}

/* Every "step=" line and the result of `got` stand in `want`; returns how many there were. */
static int compare(const char *want, const char *got)
{
    int n = 0;
    char *text = strdup(got), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char wanted[512];
        if (strncmp(line, "step=", 5) != 0 && strncmp(line, "accuracy=", 9) != 0)
            continue;
        snprintf(wanted, sizeof(wanted), "%s\n", line);
        n++;
        if (!er_tap_check(strstr(want, wanted)))
            er_tap_note("not in the undisturbed run: %s", line);
    }
    free(text);
    return n;
}

/* Ranks [first, last] die at once, after a checkpoint; `word`: what the run says then. */
static void kill_and_compare(int workers, int first, int last, const char *name,
                             const char *transport, const struct er_test_proc *whole,
                             const char *word)
{
    struct er_test_proc killed;

    start(&killed, workers, name, transport);
    er_tap_require(er_test_wait_out(&killed, " saved ", DEADLINE_MS));
    for (int rank = first; rank <= last; rank++)
        er_tap_check(kill(pid_of(rank), SIGKILL) == 0);
    er_tap_require(er_test_wait_exit(&killed, DEADLINE_MS));
    if (!er_tap_check(er_test_exit_code(&killed) == 0))
        er_tap_note("%s", er_test_err(&killed));
    er_tap_check(strstr(er_test_out(&killed), word));
    er_tap_check(compare(er_test_out(whole), er_test_out(&killed)) > 800);
    er_test_done(&killed);
}

/* Nobody is left: the checkpoint; one is lost: the others' memory. */
static void disturbed_equals_undisturbed(int workers, int victim, const char *transport)
{
    struct er_test_proc whole, again;
    er_test_tempdir(root);
    er_test_clothes(root);
    start(&whole, workers, "whole", transport);
    er_tap_require(er_test_wait_exit(&whole, DEADLINE_MS));
    start(&again, workers, "again", transport);
    er_tap_require(er_test_wait_exit(&again, DEADLINE_MS));
    er_tap_check(er_test_exit_code(&whole) == 0 && er_test_exit_code(&again) == 0);
    er_tap_check(compare(er_test_out(&whole), er_test_out(&again)) > 800);
    kill_and_compare(workers, 0, workers - 1, "all", transport, &whole, "resumed from");
    if (workers > 1)
        kill_and_compare(workers, victim, victim, "one", transport, &whole, "goes on with");
    er_test_done(&whole);
    er_test_done(&again);
    er_test_rmtree(root);
}

/* As above with `epochs`, in the folder of `name`, which may hold checkpoints. */
static int run_epochs(struct er_test_proc *p, const char *name, const char *epochs, bool crash)
{
    char job[64], checkpoint[ER_TEST_PATH_MAX + 64], cache[ER_TEST_PATH_MAX + 32];

    snprintf(job, sizeof(job), "name=resume-%d-%s", (int)getpid(), name);
    snprintf(checkpoint, sizeof(checkpoint), "checkpoint.dir=%s/%s", root, name);
    snprintf(cache, sizeof(cache), "XDG_CACHE_HOME=%s/cache", root);
    const char *argv[] = {
        er_test_bin("elastic-run"),
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "3",
        "--set",
        "restart.respawn_wait=none",
        "--set",
        job,
        "--set",
        checkpoint,
        "sh",
        "-c",
        "[ -n \"$CRASH\" ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 5; exec "
        "\"$0\" \"$@\"",
        er_test_bin("examples/fashion_mnist"),
        "--data",
        root,
        "--batch=32",
        "--checkpoint-steps=20",
        epochs,
        NULL};
    const char *env[] = {cache, crash ? "CRASH=1" : "CRASH", NULL};
    return er_test_run(p, argv, env, DEADLINE_MS);
}

/* The first run ends in generation 3; the second is a job of its own, with a new record. */
static void a_later_run_goes_on_in_the_folder_of_one_that_had_restarts(void)
{
    struct er_test_proc first, second;

    er_test_tempdir(root);
    er_test_clothes(root);
    er_tap_check(run_epochs(&first, "twice", "--epochs=5", true) == 0);
    if (!er_tap_check(run_epochs(&second, "twice", "--epochs=10", false) == 0))
        er_tap_note("%s", er_test_err(&second));
    er_tap_check(strstr(er_test_out(&second), "step 100/200 resumed from"));
    er_tap_check(strstr(er_test_out(&second), "step 120/200 saved"));
    er_test_done(&first);
    er_test_done(&second);
    er_test_rmtree(root);
}

static void one_worker(void)
{
    disturbed_equals_undisturbed(1, 0, "shm");
}

static void two_workers(void)
{
    disturbed_equals_undisturbed(2, 1, "shm");
}

static void two_workers_over_tcp(void)
{
    disturbed_equals_undisturbed(2, 0, "tcp");
}

static void three_workers(void)
{
    disturbed_equals_undisturbed(3, 0, "shm");
}

static void four_workers(void)
{
    disturbed_equals_undisturbed(4, 2, "shm");
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_later_run_goes_on_in_the_folder_of_one_that_had_restarts",
         a_later_run_goes_on_in_the_folder_of_one_that_had_restarts, 120},
        {"one_worker", one_worker, 120},
        {"two_workers", two_workers, 120},
        {"two_workers_over_tcp", two_workers_over_tcp, 120},
        {"three_workers", three_workers, 120},
        {"four_workers", four_workers, 120},
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
