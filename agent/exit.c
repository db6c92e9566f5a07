#include "agent/exit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/parse.h"

int er_exit_exec_code(int exec_errno)
{
    return exec_errno == ENOENT ? ER_CODE_NOT_FOUND : ER_CODE_NOT_EXECUTABLE;
}

struct er_exit er_exit_classify(int wait_status, int exec_errno, bool oom)
{
    if (exec_errno)
        return (struct er_exit){.kind = ER_EXIT_EXEC_FAILED, .code = er_exit_exec_code(exec_errno)};
    if (WIFEXITED(wait_status)) {
        int code = WEXITSTATUS(wait_status);

        return (struct er_exit){.kind = code ? ER_EXIT_EXITED : ER_EXIT_OK, .code = code};
    }
    if (WIFSIGNALED(wait_status)) {
        int sig = WTERMSIG(wait_status);

        return (struct er_exit){.kind = sig == SIGKILL && oom ? ER_EXIT_OOM : ER_EXIT_SIGNALED,
                                .signal = sig,
                                .core = WCOREDUMP(wait_status)};
    }
    return (struct er_exit){.kind = ER_EXIT_LOST, .code = 1}; /* unknown is failure */
}

const char *er_exit_text(enum er_exit_kind kind, int code, int signal,
                         char ret_text[ER_EXIT_TEXT_MAX])
{
    switch (kind) {
    case ER_EXIT_OK:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "ended well");
        break;
    case ER_EXIT_SIGNALED:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "died by signal %d (%s)", signal,
                 er_signal_name(signal));
        break;
    case ER_EXIT_OOM:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "was killed for lack of memory (signal %d)", signal);
        break;
    case ER_EXIT_EXEC_FAILED:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "could not be started (code %d)", code);
        break;
    case ER_EXIT_HUNG:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "hung");
        break;
    case ER_EXIT_STOPPED:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "was stopped");
        break;
    case ER_EXIT_EXITED:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "exited with code %d", code);
        break;
    case ER_EXIT_LOST:
    case ER_EXIT_KIND_COUNT:
        snprintf(ret_text, ER_EXIT_TEXT_MAX, "was lost");
        break;
    }
    return ret_text;
}
