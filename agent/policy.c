#include "agent/policy.h"

#include <string.h>

#include "base/exit_codes.h"

static bool is_fatal_code(const struct er_policy_input *in)
{
    char text[16];
    size_t n = 0;
    unsigned code = (unsigned)in->exit.code;

    if (in->exit.kind != ER_EXIT_EXITED)
        return false;
    if (code == ER_CODE_IOERR && in->checkpoints)
        return true; /* checkpoint.on_failure.max was reached */
    for (unsigned scale = 100; scale > 0; scale /= 10) {
        if (code >= scale || scale == 1)
            text[n++] = (char)('0' + code / scale % 10);
    }
    text[n] = '\0';
    for (size_t i = 0; i < in->fatal_n; i++) {
        if (strcmp(in->fatal_codes[i], text) == 0)
            return true;
    }
    return false;
}

/* The texts of EADDRINUSE in C, Python and Go programs' messages. */
static bool is_bind_failure(const struct er_policy_input *in)
{
    const char *text = in->message;

    return in->exit.kind == ER_EXIT_EXITED && text &&
           (strstr(text, "ddress already in use") || strstr(text, "EADDRINUSE"));
}

/* Whoever signals the agent may have hit its whole group: the worker's death is the same event. */
static bool same_signal_as_agent(const struct er_policy_input *in)
{
    return in->exit.kind == ER_EXIT_SIGNALED && in->agent_signal == in->exit.signal &&
           in->now_us - in->agent_signal_us <= in->grace_us;
}

/* Its peers have told first that it was gone: it died while it was asked to leave what its own
 * death has ended. */
static bool died_unasked(const struct er_policy_input *in)
{
    return in->unexplained && (in->exit.kind == ER_EXIT_SIGNALED || in->exit.kind == ER_EXIT_OOM);
}

struct er_policy_result er_agent_policy_judge(const struct er_policy_input *in)
{
    if (in->exit.kind == ER_EXIT_OK)
        return (struct er_policy_result){.outcome = ER_OUTCOME_OK};
    if ((in->stopped_by_us && !died_unasked(in)) || same_signal_as_agent(in))
        return (struct er_policy_result){.outcome = ER_OUTCOME_STOPPED};
    return (struct er_policy_result){
        .outcome = ER_OUTCOME_FAILED,
        .fatal = in->exit.kind == ER_EXIT_EXEC_FAILED || is_fatal_code(in),
        .uncounted = !in->progress && is_bind_failure(in),
    };
}
