#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/errorfile.h"
#include "agent/exit.h"
#include "tests/lib/tempdir.h"

/* Wait statuses as Linux builds them: code << 8, or signal, with 0x80 for a core. */
#define EXITED(code)  ((code) << 8)
#define SIGNALED(sig) (sig)
#define DUMPED(sig)   ((sig) | 0x80)

Test(exit, status_becomes_kind_code_and_signal)
{
    static const struct {
        int status, exec_errno;
        bool oom;
        struct er_exit want;
    } CASES[] = {
        {EXITED(0), 0, false, {.kind = ER_EXIT_OK}},
        {EXITED(1), 0, false, {.kind = ER_EXIT_EXITED, .code = 1}},
        {EXITED(255), 0, true, {.kind = ER_EXIT_EXITED, .code = 255}},
        {SIGNALED(SIGKILL), 0, false, {.kind = ER_EXIT_SIGNALED, .signal = SIGKILL}},
        {SIGNALED(SIGKILL), 0, true, {.kind = ER_EXIT_OOM, .signal = SIGKILL}},
        {SIGNALED(SIGTERM), 0, true, {.kind = ER_EXIT_SIGNALED, .signal = SIGTERM}},
        {DUMPED(SIGSEGV), 0, false, {.kind = ER_EXIT_SIGNALED, .signal = SIGSEGV, .core = true}},
        {EXITED(127), ENOENT, false, {.kind = ER_EXIT_EXEC_FAILED, .code = 127}},
        {EXITED(127), EACCES, false, {.kind = ER_EXIT_EXEC_FAILED, .code = 126}},
        {EXITED(127), ENOEXEC, false, {.kind = ER_EXIT_EXEC_FAILED, .code = 126}},
        {EXITED(127), 0, false, {.kind = ER_EXIT_EXITED, .code = 127}},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct er_exit e = er_exit_classify(CASES[i].status, CASES[i].exec_errno, CASES[i].oom);

        cr_assert_eq(e.kind, CASES[i].want.kind, "case %zu", i);
        cr_assert_eq(e.code, CASES[i].want.code, "case %zu", i);
        cr_assert_eq(e.signal, CASES[i].want.signal, "case %zu", i);
        cr_assert_eq(e.core, CASES[i].want.core, "case %zu", i);
    }
}

Test(exit, unknown_status_is_failure)
{
    struct er_exit e = er_exit_classify(0x137f, 0, false); /* stopped, not ended */

    cr_assert_eq(e.kind, ER_EXIT_LOST);
    cr_assert_neq(e.code, 0);
}

Test(exit, text_names_the_signal)
{
    char text[ER_EXIT_TEXT_MAX];

    cr_assert_str_eq(er_exit_text(ER_EXIT_SIGNALED, 0, SIGKILL, text),
                     "died by signal 9 (SIGKILL)");
    cr_assert_str_eq(er_exit_text(ER_EXIT_EXITED, 3, 0, text), "exited with code 3");
    for (int kind = 0; kind < ER_EXIT_KIND_COUNT; kind++)
        cr_assert_neq(er_exit_text((enum er_exit_kind)kind, 1, 9, text)[0], '\0');
}

/* A worker may leave what it likes where its error file is expected. */
Test(exit, an_error_file_that_is_a_pipe_is_not_waited_for, .timeout = 60)
{
    char dir[ER_TEST_PATH_MAX], path[ER_TEST_PATH_MAX + 16];
    char *message = NULL, *traceback = NULL;

    er_test_tempdir(dir);
    snprintf(path, sizeof(path), "%s/error.json", dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    er_errorfile_read(path, &message, &traceback);
    cr_assert_null(message);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(symlink("/dev/zero", path), 0);
    er_errorfile_read(path, &message, &traceback);
    cr_assert_null(message);
    er_test_rmtree(dir);
}
