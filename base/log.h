#pragma once
/*
 * One sink for the process: `time level msg key=value ...` or one JSON object a line, on a file
 * descriptor (default: stderr, text, INFO). Library folders log at ER_LOG_DEBUG only. A line about
 * a decision gives its reason. A line has at most 8 KiB (what is cut or left out is marked). It
 * never waits: a reader that does not read loses lines, and the next one that gets through says how
 * many (`lines_lost_before`). Safe to call from several threads.
 */
#include "base/field.h"

enum er_log_level { ER_LOG_DEBUG, ER_LOG_INFO, ER_LOG_WARNING, ER_LOG_ERROR };
enum er_log_format { ER_LOG_TEXT, ER_LOG_JSON };

/* Takes a line (0), or leaves it to the descriptor. Any thread. */
typedef int (*er_log_sink_fn)(enum er_log_level level, const char *msg,
                              const struct er_field *fields, size_t n);

struct er_log_opts {
    int fd;
    enum er_log_level level; /* lines below it are dropped */
    enum er_log_format format;
    const char *name;    /* program name in the line; borrowed for the process's life */
    er_log_sink_fn sink; /* asked first; NULL: none */
};

void er_log_setup(const struct er_log_opts *opts);
/* What is called around each line that goes to the descriptor, for who shares a terminal with it;
 * any thread. NULL both: nothing. */
void er_log_around(void (*before)(void), void (*after)(bool line_is_complete));
bool er_log_wanted(enum er_log_level level);

/* Fields are built on the caller's stack; `msg` is one English sentence without a full stop. */
void er_log_fields(enum er_log_level level, const char *msg, const struct er_field *fields,
                   size_t n);

#define er_log(level, msg, ...)                                                                    \
    do {                                                                                           \
        if (er_log_wanted(level)) {                                                                \
            const struct er_field er_f_[] = {{.key = NULL}, ##__VA_ARGS__};                        \
            er_log_fields((level), (msg), er_f_ + 1, sizeof(er_f_) / sizeof(er_f_[0]) - 1);        \
        }                                                                                          \
    } while (0)
