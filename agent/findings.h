#pragma once
/* What is wrong with a configuration: collected, so that a user sees all of it at once. */
#include "base/buf.h"
#include "base/error.h"

enum { ER_FINDINGS_MAX = 20 };

struct er_findings {
    struct er_buf text; /* one finding a line */
    unsigned n;         /* those beyond ER_FINDINGS_MAX are counted only */
    int code;           /* the first one's */
};

void er_findings_init(struct er_findings *findings);
void er_findings_done(struct er_findings *findings);
/* Control characters print as '?': texts come from outside. */
void er_findings_add(struct er_findings *findings, int code, const char *fmt, ...) ER_PRINTF(3, 4);
/* 0, or the first finding's code with all of them in `err`, as far as they fit. */
int er_findings_result(const struct er_findings *findings, struct er_error *err);
/* A text of one or more lines on stderr, each behind the program's name. For main programs. */
void er_findings_tell(const char *program, const char *text);
