#include "agent/report.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "agent/exit.h"
#include "base/clock.h"
#include "base/utf8.h"

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        int rc_ = (expr);                                                                          \
        if (rc_)                                                                                   \
            return rc_;                                                                            \
    } while (0)

static int add_duration(struct er_buf *buf, uint64_t us)
{
    uint64_t s = us / ER_US_PER_S;

    if (s < 60)
        return er_buf_printf(buf, "%" PRIu64 ".%" PRIu64 " s", s,
                             (uint64_t)(us / (ER_US_PER_S / 10) % 10));
    if (s < 3600)
        return er_buf_printf(buf, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    return er_buf_printf(buf, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
}

/* Each line of `text` behind a bar, so that it is told from ours. */
static int add_quoted_lines(struct er_buf *buf, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        TRY(er_buf_printf(buf, "    | %.*s\n", (int)n, text));
        text += n + (text[n] == '\n');
    }
    return 0;
}

const char *er_report_tail(const char *text)
{
    size_t n = strlen(text);
    const char *end = text + n, *at, *line;

    if (n <= ER_REPORT_TAIL_MAX)
        return text;
    at = end - ER_REPORT_TAIL_MAX;
    line = strchr(at, '\n');
    if (line && line[1])
        return line + 1;
    while (((unsigned char)*at & 0xC0) == 0x80) /* not inside a character */
        at++;
    return at;
}

/* Its further lines, should it have some, behind a bar. */
static int add_message(struct er_buf *buf, const char *message)
{
    size_t n = strcspn(message, "\n");

    TRY(er_buf_printf(buf, "  message     %.*s\n", (int)n, message));
    return message[n] ? add_quoted_lines(buf, message + n + 1) : 0;
}

static int add_tail(struct er_buf *buf, const struct er_report *r)
{
    const char *tail = er_report_tail(r->tail);

    TRY(er_buf_printf(buf, "  %s%s\n",
                      r->tail_is_traceback ? "traceback" : "last lines of its stderr",
                      tail == r->tail ? "" : ", the end of it"));
    return add_quoted_lines(buf, tail);
}

static int add_others(struct er_buf *buf, const struct er_report *r)
{
    const char *comma = "";

    if (r->others_ok + r->others_failed + r->others_stopped == 0)
        return 0;
    TRY(er_buf_add_str(buf, "  others      "));
    if (r->others_stopped) {
        TRY(er_buf_printf(buf, "%u stopped after it", r->others_stopped));
        if (r->others_killed)
            TRY(er_buf_printf(buf, ", %u of them had to be killed", r->others_killed));
        comma = ", ";
    }
    if (r->others_failed) {
        TRY(er_buf_printf(buf, "%s%u failed later", comma, r->others_failed));
        comma = ", ";
    }
    if (r->others_ok)
        TRY(er_buf_printf(buf, "%s%u had ended well", comma, r->others_ok));
    return er_buf_add_str(buf, " (on this node)\n");
}

static int add_restarts(struct er_buf *buf, const struct er_report *r)
{
    const struct er_verdict *v = r->verdict;

    if (r->restart_max == UINT32_MAX)
        TRY(er_buf_printf(buf, "  restarts    %u, no limit", v->restarts));
    else
        TRY(er_buf_printf(buf, "  restarts    %u of %u used", v->restarts, r->restart_max));
    if (v->reason[0])
        TRY(er_buf_printf(buf, "; %s", v->reason));
    return er_buf_add_str(buf, "\n");
}

static int add_logs(struct er_buf *buf, const struct er_report *r)
{
    return r->logs ? er_buf_printf(buf, "  logs        %s\n", r->logs) : 0;
}

/* A stop is somebody's wish, or this agent's inability. */
static const char *next_after_stop(int exit_code)
{
    switch (exit_code) {
    case ER_CODE_CANCELED:
        return "it was canceled; run the same command again when it is wanted after all";
    case ER_CODE_TEMPFAIL:
        return "it is unfinished: run the same command again to go on";
    case ER_CODE_OSERR:
        return "raise the limit that was hit (ulimit -u, ulimit -n, memory) and run it again";
    case ER_CODE_CONFIG:
        return "mend the job spec and run it again";
    case ER_CODE_UNAVAILABLE:
        return "run it again when the store can be reached";
    case ER_CODE_NOPERM:
        return "put certificate, password or role right (docs/several-nodes.md), then run it again";
    case ER_CODE_PROTOCOL:
        return "make this node's job spec and version those of the job, then run it again; "
               "or --update-spec makes its spec the job's next one";
    default:
        return "run the same command again when wanted";
    }
}

const char *er_report_next(const struct er_verdict *verdict, uint32_t restart_max)
{
    const struct er_cause *c = &verdict->cause;

    if (verdict->kind == ER_VERDICT_SUCCEEDED)
        return "nothing";
    if (verdict->kind == ER_VERDICT_STOPPED)
        return next_after_stop(verdict->exit_code);
    if (strstr(verdict->reason, "restart.poison_step"))
        return "find out what is wrong with that step's samples; "
               "restart.poison_step.action=skip leaves them out";
    if (c->kind == ER_EXIT_EXEC_FAILED && strstr(c->message, "working directory"))
        return "check workdir: it must be a folder that this user may enter";
    if (c->kind == ER_EXIT_EXEC_FAILED && strstr(c->message, "Exec format error"))
        return "begin the script with a line such as #!/bin/sh, or name its interpreter in front";
    if (c->kind == ER_EXIT_EXEC_FAILED)
        return c->code == ER_CODE_NOT_FOUND
                   ? "check the program's name, PATH and the interpreter in its first line"
                   : "check that the program is a file that this user may execute (chmod +x)";
    if (c->kind == ER_EXIT_OOM)
        return "give the job more memory or use less of it (batch size, loader workers)";
    if (c->kind == ER_EXIT_SIGNALED && c->signal == SIGKILL)
        return "somebody sent KILL; if it was the kernel, its log says 'Out of memory' (dmesg)";
    if (c->kind == ER_EXIT_SIGNALED && (c->signal == SIGSEGV || c->signal == SIGBUS ||
                                        c->signal == SIGABRT || c->signal == SIGILL))
        return "the program crashed: look at its core file or run it under a debugger";
    if (c->fatal && c->code == ER_CODE_IOERR)
        return "see why checkpoint.dir cannot be written (space, quota, permissions), run it again";
    if (c->fatal)
        return "restarting cannot help (restart.fatal_exit_codes): mend the cause, run it again";
    if (restart_max == 0)
        return "mend the cause and run it again; --max-restarts N restarts by itself";
    return "mend the cause and run it again; it goes on from the newest checkpoint, if it has any";
}

static int add_failure(struct er_buf *buf, const struct er_report *r)
{
    const struct er_cause *c = &r->verdict->cause;
    char what[ER_EXIT_TEXT_MAX];

    er_exit_text(c->kind, c->code, c->signal, what);
    TRY(er_buf_printf(buf, "elastic-run: job '%s' failed: exit code %d (outcome=%s) after ", r->job,
                      r->verdict->exit_code, r->outcome));
    TRY(add_duration(buf, r->duration_us));
    TRY(er_buf_add_str(buf, "\n  root cause  "));
    if (c->rank >= 0)
        TRY(er_buf_printf(buf, "rank %d (local rank %d", c->rank, c->local_rank));
    else
        TRY(er_buf_printf(buf, "node '%s' (", c->node_id));
    if (c->pid > 0)
        TRY(er_buf_printf(buf, ", pid %d", c->pid));
    TRY(er_buf_printf(buf, "%s on %s", c->rank >= 0 ? ")" : "every rank of it)", c->host));
    if (c->rank >= 0 && c->node_id[0] && strcmp(c->node_id, c->host) != 0)
        TRY(er_buf_printf(buf, " (node '%s')", c->node_id));
    TRY(er_buf_printf(buf, ", generation %" PRIu64 ": %s\n", c->generation, what));
    if (r->when)
        TRY(er_buf_printf(buf, "  when        %s", r->when));
    if (r->when && c->step)
        TRY(er_buf_printf(buf, ", after step %" PRIu64, c->step));
    if (r->when)
        TRY(er_buf_add_str(buf, "\n"));
    if (c->message[0])
        TRY(add_message(buf, c->message));
    if (r->tail && r->tail[0])
        TRY(add_tail(buf, r));
    TRY(add_others(buf, r));
    TRY(add_restarts(buf, r));
    TRY(add_logs(buf, r));
    return er_buf_printf(buf, "  next        %s\n", er_report_next(r->verdict, r->restart_max));
}

static int add_stop(struct er_buf *buf, const struct er_report *r)
{
    const struct er_verdict *v = r->verdict;
    const char *reason = r->reason ? r->reason : v->reason;

    TRY(er_buf_add_str(buf, "elastic-run: "));
    if (r->node)
        TRY(er_buf_printf(buf, "node '%s' of ", r->node));
    TRY(er_buf_printf(buf, "job '%s' stopped: %s; exit code %d (outcome=%s) after ", r->job,
                      reason[0] ? reason : "asked to", v->exit_code, r->outcome));
    TRY(add_duration(buf, r->duration_us));
    TRY(er_buf_add_str(buf, "\n"));
    if (r->others_killed)
        TRY(er_buf_printf(buf, "  workers     %u of %u stopped had to be killed\n",
                          r->others_killed, r->others_stopped));
    if (r->detailed)
        TRY(add_logs(buf, r));
    return er_buf_printf(
        buf, "  next        %s\n",
        r->node && v->exit_code == ER_CODE_TEMPFAIL
            ? "the others go on if they can; the same command brings this node back"
            : er_report_next(v, r->restart_max));
}

static int add_success(struct er_buf *buf, const struct er_report *r)
{
    if (!r->detailed)
        return 0;
    TRY(er_buf_printf(buf, "elastic-run: job '%s' succeeded after ", r->job));
    TRY(add_duration(buf, r->duration_us));
    TRY(er_buf_printf(buf, ", generation %" PRIu64 ", restarts %u\n", r->generation,
                      r->verdict->restarts));
    return add_logs(buf, r);
}

/* Nothing ran here: a spare that was never needed, or a job that was over before this agent came.
 */
static int add_idle(struct er_buf *buf, const struct er_report *r)
{
    static const char *const ENDS[] = {[ER_VERDICT_SUCCEEDED] = "succeeded",
                                       [ER_VERDICT_FAILED] = "failed",
                                       [ER_VERDICT_STOPPED] = "stopped"};
    const struct er_verdict *v = r->verdict;

    if (r->joined)
        return er_buf_printf(buf, "elastic-run: job '%s' %s without this node, which was a spare\n",
                             r->job, ENDS[v->kind]);
    return er_buf_printf(
        buf,
        "elastic-run: job '%s' had finished before (%s, exit code %d): nothing was "
        "started here\n  next        --fresh begins it anew, --resume goes on from "
        "its newest checkpoint\n",
        r->job, ENDS[v->kind], v->exit_code);
}

static int format(struct er_buf *buf, const struct er_report *report)
{
    if (report->idle)
        TRY(add_idle(buf, report));
    if (report->idle && report->verdict->kind == ER_VERDICT_SUCCEEDED)
        return 0;
    switch (report->verdict->kind) {
    case ER_VERDICT_SUCCEEDED:
        return add_success(buf, report);
    case ER_VERDICT_FAILED:
        return add_failure(buf, report);
    case ER_VERDICT_STOPPED:
        return add_stop(buf, report);
    }
    return 0;
}

/* Much of it is others' words: of workers, here and on other nodes. None of them reaches the
 * terminal as a command, or begins a line of ours. */
int er_report_format(struct er_buf *buf, const struct er_report *report)
{
    size_t start = buf->len;
    int rc = format(buf, report);

    for (size_t i = start; i < buf->len; i++) {
        if (buf->data[i] == '\t' || buf->data[i] == '\r') /* traces are indented by it */
            buf->data[i] = ' ';
    }
    if (buf->len > start)
        er_utf8_tame(buf->data + start, buf->len - start);
    return rc;
}
