#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "agent/report.h"

static struct er_verdict failed(enum er_exit_kind kind, int code, int sig)
{
    struct er_verdict v = {.kind = ER_VERDICT_FAILED,
                           .exit_code = sig ? 128 + sig : code,
                           .restarts = 3,
                           .reason = "budget spent (3 of 3 in 1h)",
                           .cause = {.node_id = "n1",
                                     .host = "host1",
                                     .generation = 4,
                                     .rank = 9,
                                     .local_rank = 1,
                                     .pid = 4711,
                                     .kind = kind,
                                     .code = code,
                                     .signal = sig,
                                     .step = 120,
                                     .message = "ValueError: no"}};

    return v;
}

static struct er_buf format(const struct er_report *r)
{
    struct er_buf buf;

    er_buf_init(&buf, ER_REPORT_MAX);
    cr_assert_eq(er_report_format(&buf, r), 0);
    return buf;
}

static void has(const struct er_buf *buf, const char *text)
{
    cr_assert(strstr(er_buf_str(buf), text), "'%s' is not in:\n%s", text, er_buf_str(buf));
}

Test(report, failure_says_what_when_why_and_what_next)
{
    struct er_verdict v = failed(ER_EXIT_EXITED, 3, 0);
    struct er_report r = {.job = "train",
                          .verdict = &v,
                          .outcome = "failed",
                          .when = "2026-01-31T12:00:00.000000Z",
                          .duration_us = 83500000,
                          .restart_max = 3,
                          .tail = "Traceback\n  line 1\nValueError: no",
                          .tail_is_traceback = true,
                          .logs = "/logs/gen-4/rank-9",
                          .others_ok = 1,
                          .others_failed = 2,
                          .others_stopped = 4};
    struct er_buf buf = format(&r);

    has(&buf, "job 'train' failed: exit code 3 (outcome=failed) after 1 min 23 s\n");
    has(&buf,
        "rank 9 (local rank 1, pid 4711) on host1 (node 'n1'), generation 4: exited with code 3\n");
    has(&buf, "2026-01-31T12:00:00.000000Z, after step 120\n");
    has(&buf, "message     ValueError: no\n");
    has(&buf, "traceback\n    | Traceback\n    |   line 1\n    | ValueError: no\n");
    has(&buf, "4 stopped after it, 2 failed later, 1 had ended well");
    has(&buf, "3 of 3 used; budget spent (3 of 3 in 1h)\n");
    has(&buf, "/logs/gen-4/rank-9\n");
    has(&buf, "  next        ");
    er_buf_done(&buf);
}

/* The words of a worker on another node come through the store. */
Test(report, words_of_others_are_text_and_nothing_else)
{
    struct er_verdict v = failed(ER_EXIT_EXITED, 3, 0);
    struct er_report r = {.job = "train",
                          .verdict = &v,
                          .outcome = "failed",
                          .restart_max = 3,
                          .tail = "a\033[2Jb\n\033]0;title\007\nc\rd \302\2332J \303\244"};
    struct er_buf buf;

    strcpy(v.cause.message, "no\033[1A\n  next        rm -rf it\n");
    strcpy(v.cause.host, "h\033[Ho");
    strcpy(v.reason, "because\b");
    buf = format(&r);
    has(&buf, "message     no?[1A\n    |   next        rm -rf it\n");
    has(&buf, " on h?[Ho (node 'n1')");
    has(&buf, "    | a?[2Jb\n    | ?]0;title?\n    | c d ??2J \303\244\n");
    has(&buf, "; because?\n");
    for (size_t i = 0; i < buf.len; i++)
        cr_assert((unsigned char)buf.data[i] >= ' ' || buf.data[i] == '\n', "at %zu", i);
    er_buf_done(&buf);
}

Test(report, advice_fits_the_cause)
{
    static const struct {
        enum er_exit_kind kind;
        int code, sig;
        const char *advice;
    } CASES[] = {
        {ER_EXIT_EXEC_FAILED, 127, 0, "PATH"},  {ER_EXIT_EXEC_FAILED, 126, 0, "execute"},
        {ER_EXIT_OOM, 0, SIGKILL, "memory"},    {ER_EXIT_SIGNALED, 0, SIGKILL, "dmesg"},
        {ER_EXIT_SIGNALED, 0, SIGSEGV, "core"}, {ER_EXIT_EXITED, 1, 0, "checkpoint"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct er_verdict v = failed(CASES[i].kind, CASES[i].code, CASES[i].sig);

        cr_assert(strstr(er_report_next(&v, 3), CASES[i].advice), "case %zu", i);
    }
}

Test(report, success_is_silent_unless_asked)
{
    struct er_verdict v = {.kind = ER_VERDICT_SUCCEEDED};
    struct er_report r = {
        .job = "j", .verdict = &v, .outcome = "failed", .generation = 2, .duration_us = 1500000};
    struct er_buf buf = format(&r);

    cr_assert_eq(buf.len, 0);
    er_buf_done(&buf);
    r.detailed = true;
    buf = format(&r);
    cr_assert_str_eq(er_buf_str(&buf),
                     "elastic-run: job 'j' succeeded after 1.5 s, generation 2, restarts 0\n");
    er_buf_done(&buf);
}

Test(report, stop_says_that_it_is_unfinished)
{
    struct er_verdict v = {.kind = ER_VERDICT_STOPPED, .exit_code = 75, .reason = "signal SIGTERM"};
    struct er_report r = {.job = "j", .verdict = &v, .outcome = "failed"};
    struct er_buf buf = format(&r);

    has(&buf, "stopped: signal SIGTERM; exit code 75");
    has(&buf, "unfinished");
    er_buf_done(&buf);
}

Test(report, node_that_leaves_is_not_the_job)
{
    struct er_verdict v = {.kind = ER_VERDICT_STOPPED, .exit_code = 75, .reason = "signal SIGTERM"};
    struct er_report r = {.job = "j", .node = "n2", .verdict = &v, .outcome = "preempted"};
    struct er_buf buf = format(&r);

    has(&buf, "elastic-run: node 'n2' of job 'j' stopped: signal SIGTERM; exit code 75");
    has(&buf, "the others go on");
    er_buf_done(&buf);
}

Test(report, a_limit_is_an_error_not_a_crash)
{
    struct er_verdict v = failed(ER_EXIT_EXITED, 3, 0);
    struct er_report r = {.job = "train", .verdict = &v, .outcome = "failed"};

    for (size_t max = 0; max < 400; max += 7) {
        struct er_buf buf;

        er_buf_init(&buf, max);
        er_report_format(&buf, &r);
        cr_assert_leq(buf.len, max);
        er_buf_done(&buf);
    }
}
