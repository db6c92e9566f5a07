/* The helpers that other tests stand on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/jobs.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

static void gives_output_and_exit_code_of_a_program(void)
{
    struct er_test_proc p;
    const char *argv[] = {"sh", "-c", "echo out $NAME; echo err >&2; exit 3", NULL};
    const char *env[] = {"NAME=value", NULL};

    er_tap_check(er_test_run(&p, argv, env, ER_TEST_DEADLINE_MS) == 3);
    er_tap_check(strcmp(er_test_out(&p), "out value\n") == 0);
    er_tap_check(strcmp(er_test_err(&p), "err\n") == 0);
    er_test_done(&p);
}

static void takes_more_output_than_a_pipe_holds(void)
{
    struct er_test_proc p;
    const char *argv[] = {"head", "-c", "1000000", "/dev/zero", NULL};

    er_tap_check(er_test_run(&p, argv, NULL, ER_TEST_DEADLINE_MS) == 0);
    er_tap_check(p.out.n == 1000000);
    er_test_done(&p);
}

static void kills_a_program_at_the_deadline(void)
{
    struct er_test_proc p;
    const char *argv[] = {"sleep", "1000", NULL};

    er_tap_check(er_test_run(&p, argv, NULL, 1) == -1);
    er_test_done(&p);
}

static void waits_for_a_line_and_reports_a_signal_as_the_shell_does(void)
{
    struct er_test_proc p;
    const char *argv[] = {"sh", "-c", "echo ready; kill -TERM $$; sleep 1000", NULL};

    er_test_start(&p, argv, NULL);
    er_tap_check(er_test_wait_out(&p, "ready", ER_TEST_DEADLINE_MS));
    er_tap_check(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
    er_tap_check(er_test_exit_code(&p) == 128 + 15);
    er_test_done(&p);
}

static void sees_files_come_and_go(void)
{
    char dir[ER_TEST_PATH_MAX], path[ER_TEST_PATH_MAX + 16], script[2 * ER_TEST_PATH_MAX];
    struct er_test_proc p;

    er_test_tempdir(dir);
    snprintf(path, sizeof(path), "%s/there", dir);
    snprintf(script, sizeof(script), "echo text >'%s'; read line; :", path);
    const char *argv[] = {"sh", "-c", script, NULL};
    er_test_start(&p, argv, NULL);
    er_tap_check(er_test_wait_path(path, ER_TEST_DEADLINE_MS));
    er_tap_check(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
    char *text = er_test_read_file(path);
    er_tap_check(strcmp(text, "text\n") == 0);
    free(text);
    er_test_done(&p);

    er_test_rmtree(dir);
    er_tap_check(er_test_wait_gone(path, ER_TEST_DEADLINE_MS));
    er_tap_check(access(dir, F_OK) != 0);
}

#define LEAVES "TESTLIB_LEAVES"

/* A session of its own, whose end nobody waits for; then the case fails. Run as a program. */
static void leaves_a_process(void)
{
    struct er_test_proc p;
    const char *argv[] = {"setsid", "--fork", "sh", "-c", "echo $$; exec sleep 1000", NULL};

    er_test_start(&p, argv, NULL);
    er_tap_require(er_test_wait_out(&p, "\n", ER_TEST_DEADLINE_MS));
    er_tap_note("left %s", er_test_out(&p));
    er_tap_require(false);
}

/* The output of this program with its inner cases, one of which is run and fails. */
static void run_inner(struct er_test_proc *p, const char *name)
{
    static const char *const env[] = {LEAVES "=1", NULL};
    const char *argv[] = {"/proc/self/exe", name, NULL};

    er_tap_check(er_test_run(p, argv, env, ER_TEST_DEADLINE_MS) == 1);
}

static void what_a_failed_case_leaves_is_killed(void)
{
    const char *left;
    struct er_test_proc p;
    char path[64];
    pid_t pid = 0;

    run_inner(&p, "leaves_a_process");
    left = strstr(er_test_out(&p), "# left ");
    er_tap_require(left && sscanf(left, "# left %d", &pid) == 1 && pid > 0);
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid); /* a zombie has none */
    er_tap_check(er_test_wait_gone(path, ER_TEST_DEADLINE_MS));
    er_test_done(&p);
}

static void leaves_a_job(void)
{
    struct er_test_proc p;
    char name[64], path[ER_TEST_PATH_MAX];

    snprintf(name, sizeof(name), "case-%d", (int)getpid());
    er_test_job_folder(name, path);
    er_test_start(&p,
                  (const char *[]){er_test_bin("elastic-run"), "--rdzv-id", name, "sh", "-c",
                                   "echo up; exec sleep 1000", NULL},
                  NULL);
    er_tap_require(er_test_wait_out(&p, "up", ER_TEST_DEADLINE_MS));
    er_tap_require(access(path, F_OK) == 0);
    er_tap_note("left %s", path);
    er_tap_require(false);
}

static void folder_of_a_job_that_a_failed_case_leaves_is_removed(void)
{
    char folder[ER_TEST_PATH_MAX] = "", lock[ER_TEST_PATH_MAX + 16];
    const char *left, *name;
    struct er_test_proc p;

    run_inner(&p, "leaves_a_job");
    left = strstr(er_test_out(&p), "# left ");
    er_tap_require(left && sscanf(left, "# left %511s", folder) == 1);
    er_tap_check(access(folder, F_OK) != 0);
    name = strrchr(folder, '/') + 1;
    snprintf(lock, sizeof(lock), "%.*s.%s.lock", (int)(name - folder), folder, name);
    er_tap_check(access(lock, F_OK) != 0);
    er_test_done(&p);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case inner[] = {{"leaves_a_process", leaves_a_process, 0},
                                               {"leaves_a_job", leaves_a_job, 0}};
    static const struct er_tap_case cases[] = {
        {.name = "gives_output_and_exit_code_of_a_program",
         .run = gives_output_and_exit_code_of_a_program},
        {.name = "takes_more_output_than_a_pipe_holds", .run = takes_more_output_than_a_pipe_holds},
        {.name = "kills_a_program_at_the_deadline", .run = kills_a_program_at_the_deadline},
        {.name = "waits_for_a_line_and_reports_a_signal_as_the_shell_does",
         .run = waits_for_a_line_and_reports_a_signal_as_the_shell_does},
        {.name = "sees_files_come_and_go", .run = sees_files_come_and_go},
        {.name = "what_a_failed_case_leaves_is_killed", .run = what_a_failed_case_leaves_is_killed},
        {.name = "folder_of_a_job_that_a_failed_case_leaves_is_removed",
         .run = folder_of_a_job_that_a_failed_case_leaves_is_removed},
    };
    if (getenv(LEAVES))
        return er_tap_main(argc, argv, inner, sizeof(inner) / sizeof(inner[0]));
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
