#include <criterion/criterion.h>
#include <signal.h>

#include "agent/policy.h"

static const char *const FATAL[] = {"93", "120"};

static struct er_policy_input exited(int code)
{
    return (struct er_policy_input){
        .exit = {.kind = code ? ER_EXIT_EXITED : ER_EXIT_OK, .code = code},
        .now_us = 1000,
        .grace_us = 100,
        .fatal_codes = FATAL,
        .fatal_n = 2,
    };
}

static struct er_policy_input signaled(int sig)
{
    struct er_policy_input in = exited(0);

    in.exit = (struct er_exit){.kind = ER_EXIT_SIGNALED, .signal = sig};
    return in;
}

Test(policy, code_zero_is_success_also_while_stopping)
{
    struct er_policy_input in = exited(0);

    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_OK);
    in.stopped_by_us = true;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_OK);
}

Test(policy, whoever_is_being_stopped_is_never_a_cause)
{
    struct er_policy_input in = exited(1);

    in.stopped_by_us = true;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_STOPPED);
    in = signaled(SIGKILL);
    in.stopped_by_us = true;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_STOPPED);
}

Test(policy, who_dies_unasked_while_it_leaves_a_generation_is_the_cause)
{
    struct er_policy_input in = signaled(SIGKILL);

    in.stopped_by_us = in.unexplained = true;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_FAILED);
    in.exit.kind = ER_EXIT_OOM;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_FAILED);
    in.exit =
        (struct er_exit){.kind = ER_EXIT_EXITED, .code = 1}; /* as it may when it is told to */
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_STOPPED);
    in = signaled(SIGTERM);
    in.stopped_by_us = in.unexplained = true;
    in.agent_signal = SIGTERM;
    in.agent_signal_us = in.now_us;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_STOPPED);
}

Test(policy, fatal_codes_are_fatal)
{
    static const struct {
        int code;
        bool fatal;
    } CASES[] = {{1, false}, {9, false}, {93, true}, {120, true}, {12, false}, {193, false}};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct er_policy_input in = exited(CASES[i].code);
        struct er_policy_result r = er_agent_policy_judge(&in);

        cr_assert_eq(r.outcome, ER_OUTCOME_FAILED);
        cr_assert_eq(r.fatal, CASES[i].fatal, "code %d", CASES[i].code);
    }
}

Test(policy, failed_exec_is_fatal)
{
    struct er_policy_input in = exited(1);

    in.exit = (struct er_exit){.kind = ER_EXIT_EXEC_FAILED, .code = 127};
    cr_assert(er_agent_policy_judge(&in).fatal);
}

Test(policy, signal_that_the_agent_got_too_is_a_stop)
{
    struct er_policy_input in = signaled(SIGTERM);

    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_FAILED);
    in.agent_signal = SIGTERM;
    in.agent_signal_us = 900;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_STOPPED);
    in.agent_signal_us = 899; /* longer ago than the grace */
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_FAILED);
    in.agent_signal = SIGINT;
    in.agent_signal_us = 1000;
    cr_assert_eq(er_agent_policy_judge(&in).outcome, ER_OUTCOME_FAILED);
}

Test(policy, early_bind_failure_is_not_counted)
{
    struct er_policy_input in = exited(1);

    in.message = "OSError: [Errno 98] Address already in use";
    cr_assert(er_agent_policy_judge(&in).uncounted);
    in.progress = true;
    cr_assert_not(er_agent_policy_judge(&in).uncounted);
    in.progress = false;
    in.message = "RuntimeError: something else";
    cr_assert_not(er_agent_policy_judge(&in).uncounted);
    in.message = NULL;
    cr_assert_not(er_agent_policy_judge(&in).uncounted);
}

Test(policy, code_74_ends_a_job_that_has_checkpoints)
{
    struct er_policy_input in = exited(74);

    cr_assert(!er_agent_policy_judge(&in).fatal);
    in.checkpoints = true;
    cr_assert(er_agent_policy_judge(&in).fatal);
}
