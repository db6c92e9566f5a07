#include "agent/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { TEXT_MAX_BYTES = 64 << 10, LINE_MAX_BYTES = 8 << 10, MORE_BYTES = 32 };

void er_findings_init(struct er_findings *findings)
{
    *findings = (struct er_findings){0};
    er_buf_init(&findings->text, TEXT_MAX_BYTES);
}

void er_findings_done(struct er_findings *findings)
{
    er_buf_done(&findings->text);
}

void er_findings_add(struct er_findings *findings, int code, const char *fmt, ...)
{
    struct er_buf *text = &findings->text;
    size_t before = text->len;
    va_list ap;

    if (!findings->n++)
        findings->code = code;
    if (findings->n > ER_FINDINGS_MAX)
        return;
    if (before)
        er_buf_add_str(text, "\n");
    va_start(ap, fmt);
    er_buf_vprintf(text, fmt, ap);
    va_end(ap);
    for (size_t i = before ? before + 1 : 0; i < text->len; i++) {
        if ((unsigned char)text->data[i] < 0x20 || text->data[i] == 0x7F)
            text->data[i] = '?';
    }
}

int er_findings_result(const struct er_findings *findings, struct er_error *err)
{
    const char *text = er_buf_str(&findings->text);
    size_t length = findings->text.len;
    unsigned shown = findings->n < ER_FINDINGS_MAX ? findings->n : ER_FINDINGS_MAX;

    if (!findings->n)
        return 0;
    /* Whole lines only; at least the first, which er_error_set() may cut. */
    while (shown > 1 && length > ER_ERROR_TEXT_MAX - MORE_BYTES) {
        while (length && text[length] != '\n')
            length--;
        if (length > ER_ERROR_TEXT_MAX - MORE_BYTES)
            length--;
        shown--;
    }
    if (shown == findings->n)
        return er_error_set(err, findings->code, "%s", text);
    return er_error_set(err, findings->code, "%.*s\n(and %u more)", (int)length, text,
                        findings->n - shown);
}

void er_findings_tell(const char *program, const char *text)
{
    do {
        size_t n = strcspn(text, "\n"), shown = n < LINE_MAX_BYTES ? n : LINE_MAX_BYTES;
        char line[LINE_MAX_BYTES];

        memcpy(line, text, shown);
        er_utf8_tame(line, shown);
        fprintf(stderr, "%s: %.*s\n", program, (int)shown, line);
        text += n + (text[n] == '\n');
    } while (*text);
}
