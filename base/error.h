#pragma once
/*
 * One error rule for the whole tree.
 *
 * An `int` result is 0 (done), positive (a condition that this one function documents and its
 * caller handles) or negative (failure: -errno, or one of the ER_E_* codes below; pass it up). The
 * text of a failure goes into a caller-owned `struct er_error`, the last parameter, which may be
 * NULL: it is set once where the failure happens, prefixed on the way up, and logged once at the
 * top.
 */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ER_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))
#else
#define ER_PRINTF(fmt_index, first)
#endif

#define ER_ERROR_TEXT_MAX 4096 /* twenty findings of a job spec fit */

/* Own codes, outside errno's range. X(name, value, text) */
#define ER_ERROR_CODES(X)                                                                          \
    X(ER_E_PEER_LOST, -4001, "peer lost")                                                          \
    X(ER_E_ABORTED, -4002, "aborted")                                                              \
    X(ER_E_MISMATCH, -4003, "ranks disagree")                                                      \
    X(ER_E_STALE, -4004, "generation superseded")                                                  \
    X(ER_E_CORRUPT, -4005, "corrupt data")                                                         \
    X(ER_E_CONFIG, -4006, "wrong configuration")                                                   \
    X(ER_E_USAGE, -4007, "wrong usage")                                                            \
    X(ER_E_PROTOCOL, -4008, "protocol error")                                                      \
    X(ER_E_AMBIGUOUS, -4009, "outcome unknown")                                                    \
    X(ER_E_UNSUPPORTED, -4010, "not available in this build")                                      \
    X(ER_E_LIMIT, -4011, "limit reached")

enum er_error_code {
#define ER_ERROR_ENUM(name, value, text) name = value,
    ER_ERROR_CODES(ER_ERROR_ENUM)
#undef ER_ERROR_ENUM
};

struct er_error {
    int code; /* 0: nothing set */
    char text[ER_ERROR_TEXT_MAX];
};

#define ER_ERROR_INIT                                                                              \
    {                                                                                              \
        0,                                                                                         \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Set code and text; returns code. Text longer than the field is cut and ends in "...". */
int er_error_set(struct er_error *err, int code, const char *fmt, ...) ER_PRINTF(3, 4);

/* As er_error_set(), after a failed system call: appends ": " and errno's text; returns -errno. */
int er_error_errno(struct er_error *err, const char *fmt, ...) ER_PRINTF(2, 3);

/* Prefix the text with "fmt: "; returns `code` as it is: `return er_error_wrap(err, rc, ...)`. An
 * object without a text yet gets the code's name as the text that is prefixed. */
int er_error_wrap(struct er_error *err, int code, const char *fmt, ...) ER_PRINTF(3, 4);

/* Short English name of a code of ours or of an errno (given negative); never NULL. Thread-safe. */
const char *er_error_name(int code);

#ifdef __cplusplus
}
#endif
