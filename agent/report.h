#pragma once
/*
 * The final summary: what failed, when, exit code, root cause with its last words, what happened to
 * the others, what to do next. Formatting only. Pure.
 */
#include "base/buf.h"
#include "rendezvous/driver.h"

#define ER_REPORT_MAX      (32u * 1024)
#define ER_REPORT_TAIL_MAX (8u * 1024) /* of a traceback or last lines: the end of them */

struct er_report {
    const char *job;
    const struct er_verdict *verdict;
    const char *outcome; /* as in the events */
    const char *node;    /* a stop of this node of several; NULL: of the job */
    bool detailed;       /* YAML form: success is told too */
    const char *reason;  /* of a stop; NULL: the verdict's */
    bool idle;           /* this node never ran a worker */
    bool joined;         /* it was one of the job's nodes */
    const char *when;    /* RFC 3339, of the failure; NULL: unknown */
    uint64_t duration_us;
    uint64_t generation; /* newest one */
    uint32_t restart_max;
    const char *tail; /* root cause's traceback or last stderr lines, NULL or "": none */
    bool tail_is_traceback;
    const char *logs; /* a failure: of the root cause; else the job's folder. NULL: none kept */
    /* Local workers of the last generation; killed: those of the stopped that needed it. */
    unsigned others_ok, others_failed, others_stopped, others_killed;
};

/* Nothing is appended when there is nothing to say (success in program form). -ENOBUFS, -ENOMEM. */
int er_report_format(struct er_buf *buf, const struct er_report *report);
/* The end of `text` that a summary shows: whole lines, at most ER_REPORT_TAIL_MAX bytes (a single
 * longer line is cut). */
const char *er_report_tail(const char *text);
/* What the operator can do about it: one sentence without a full stop. */
const char *er_report_next(const struct er_verdict *verdict, uint32_t restart_max);
