#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Cut at `cap - 1` bytes and end in "...", never inside a UTF-8 sequence. */
static void mark_cut(char *text, size_t cap)
{
    memcpy(text + er_utf8_cut(text, cap - 1 - 3), "...", 4);
}

/* Arguments may point into the text that is about to be replaced, so format beside it. */
static void format(char ret_text[ER_ERROR_TEXT_MAX], const char *fmt, va_list ap)
{
    int n = vsnprintf(ret_text, ER_ERROR_TEXT_MAX, fmt, ap);

    if (n < 0)
        memcpy(ret_text, "?", 2);
    else if (n >= ER_ERROR_TEXT_MAX)
        mark_cut(ret_text, ER_ERROR_TEXT_MAX);
}

/* err->text = head + ": " + tail; neither may lie in err->text. */
static void join(struct er_error *err, const char *head, const char *tail)
{
    int n = snprintf(err->text, sizeof(err->text), "%s: %s", head, tail);

    if (n >= (int)sizeof(err->text))
        mark_cut(err->text, sizeof(err->text));
}

int er_error_set(struct er_error *err, int code, const char *fmt, ...)
{
    char text[ER_ERROR_TEXT_MAX];
    va_list ap;

    if (!err)
        return code;
    va_start(ap, fmt);
    format(text, fmt, ap);
    va_end(ap);
    err->code = code;
    memcpy(err->text, text, strlen(text) + 1);
    return code;
}

int er_error_errno(struct er_error *err, const char *fmt, ...)
{
    char text[ER_ERROR_TEXT_MAX];
    int code = errno ? -errno : -EIO; /* a failure must never read as success */
    va_list ap;

    if (!err)
        return code;
    va_start(ap, fmt);
    format(text, fmt, ap);
    va_end(ap);
    err->code = code;
    join(err, text, er_error_name(code));
    return code;
}

int er_error_wrap(struct er_error *err, int code, const char *fmt, ...)
{
    char head[ER_ERROR_TEXT_MAX], tail[ER_ERROR_TEXT_MAX];
    va_list ap;

    if (!err)
        return code;
    va_start(ap, fmt);
    format(head, fmt, ap);
    va_end(ap);
    /* A callee that set no text still leaves a message that says what went wrong. */
    snprintf(tail, sizeof(tail), "%s", err->code ? err->text : er_error_name(code));
    err->code = code;
    join(err, head, tail);
    return code;
}

const char *er_error_name(int code)
{
    const char *name = NULL;

    switch (code) {
#define ER_ERROR_CASE(code_name, value, text)                                                      \
    case code_name:                                                                                \
        return text;
        ER_ERROR_CODES(ER_ERROR_CASE)
#undef ER_ERROR_CASE
    default:
        break;
    }
    if (code <= 0 && code > -4000)
        name = strerrordesc_np(-code); /* untranslated, no static buffer */
    return name ? name : "unknown error";
}
