#include "base/field.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Length of the valid UTF-8 sequence at `s`, 0 when there is none. Source: RFC 3629, section 4. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;

    if (!length || length > n || s[0] > 0xF4)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    }
    if (length > 2) {
        unsigned two = (unsigned)s[0] << 8 | s[1];

        /* Overlong forms, surrogates, and what lies above U+10FFFF. */
        if ((two >= 0xE080 && two < 0xE0A0) || two >= 0xF490 || (two >= 0xEDA0 && two < 0xEE00) ||
            (two >= 0xF080 && two < 0xF090))
            return 0;
    }
    return length;
}

/* C0, DEL and C1: what a terminal might act upon. Returns the code point, or -1. */
static int control_char(const unsigned char *s, size_t length)
{
    if (length == 1)
        return s[0] < 0x20 || s[0] == 0x7F ? s[0] : -1;
    return length == 2 && s[0] == 0xC2 && s[1] < 0xA0 ? s[1] : -1;
}

static int add_escape(struct er_buf *buf, int c)
{
    static const char SHORT[] = "\"\"\\\\\nn\rr\tt\bb\ff";

    for (size_t i = 0; i + 1 < sizeof(SHORT); i += 2) {
        if (SHORT[i] == c)
            return er_buf_add(buf, (char[]){'\\', SHORT[i + 1]}, 2);
    }
    return er_buf_printf(buf, "\\u%04x", (unsigned)c);
}

static int add_quoted(struct er_buf *buf, const unsigned char *s, size_t n)
{
    size_t plain = 0; /* start of the run that is copied as it is */
    int rc = er_buf_add(buf, "\"", 1);

    for (size_t i = 0; !rc && i < n;) {
        size_t length = utf8_length(s + i, n - i);
        int c = length ? control_char(s + i, length) : -1;

        if (length && c < 0 && s[i] != '"' && s[i] != '\\') {
            i += length;
            continue;
        }
        rc = er_buf_add(buf, s + plain, i - plain);
        if (!rc)
            rc = length ? add_escape(buf, c < 0 ? s[i] : c) : er_buf_add_str(buf, REPLACEMENT);
        i += length ? length : 1;
        plain = i;
    }
    if (!rc)
        rc = er_buf_add(buf, s + plain, n - plain);
    return rc ? rc : er_buf_add(buf, "\"", 1);
}

/* Back to where the buffer was, when an addition of several parts has failed. */
static int settle(struct er_buf *buf, size_t len, int rc)
{
    if (rc && buf->data) {
        buf->len = len;
        buf->data[len] = '\0';
    }
    return rc;
}

int er_json_quote(struct er_buf *buf, const char *text, size_t n)
{
    size_t start = buf->len;

    return settle(buf, start, add_quoted(buf, (const unsigned char *)text, n));
}

/* The shorter of 15 and 17 digits that reads back as the same number; always with a '.', whatever
 * the locale. */
static int add_number(struct er_buf *buf, double x)
{
    char text[48];
    size_t from, other;

    if (!isfinite(x))
        return er_buf_add_str(buf, "null");
    snprintf(text, sizeof(text), "%.15g", x);
    if (strtod(text, NULL) != x)
        snprintf(text, sizeof(text), "%.17g", x);
    from = strspn(text, "+-0123456789e");
    other = strcspn(text + from, "0123456789");
    if (!other)
        return er_buf_add_str(buf, text);
    return er_buf_printf(buf, "%.*s.%s", (int)from, text, text + from + other);
}

/* JSON text stays as it is, but on one line: outside strings a line break is only white space. */
static int add_json(struct er_buf *buf, const char *json)
{
    size_t start = buf->len;
    int rc = er_buf_add_str(buf, json);

    for (size_t i = start; !rc && i < buf->len; i++) {
        if (buf->data[i] == '\n' || buf->data[i] == '\r')
            buf->data[i] = ' ';
    }
    return rc;
}

/* A value that can stand bare in `key=value` and be told from its neighbours. */
static bool is_plain(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = strlen(text), length;

    if (!n || strpbrk(text, " \"=\\"))
        return false;
    for (size_t i = 0; i < n; i += length) {
        length = utf8_length(s + i, n - i);
        if (!length || control_char(s + i, length) >= 0)
            return false;
    }
    return true;
}

static int add_value(struct er_buf *buf, const struct er_field *field, bool json)
{
    const char *str;

    switch (field->type) {
    case ER_FIELD_INT:
        return er_buf_printf(buf, "%" PRId64, field->v.i);
    case ER_FIELD_UINT:
        return er_buf_printf(buf, "%" PRIu64, field->v.u);
    case ER_FIELD_NUM:
        return add_number(buf, field->v.num);
    case ER_FIELD_BOOL:
        return er_buf_add_str(buf, field->v.b ? "true" : "false");
    case ER_FIELD_JSON:
        return add_json(buf, field->v.str ? field->v.str : "null");
    case ER_FIELD_STR:
        break;
    }
    str = field->v.str;
    if (!str)
        return er_buf_add_str(buf, "null");
    if (!json && is_plain(str))
        return er_buf_add_str(buf, str);
    return er_json_quote(buf, str, strlen(str));
}

static int add_key(struct er_buf *buf, const char *key, bool json)
{
    int rc = json ? er_json_quote(buf, key, strlen(key)) : er_buf_add_str(buf, key);

    return rc ? rc : er_buf_add(buf, json ? ":" : "=", 1);
}

static int add_fields(struct er_buf *buf, const struct er_field *fields, size_t n, bool json)
{
    size_t start = buf->len;
    int rc = 0;

    for (size_t i = 0; !rc && i < n; i++) {
        if (i > 0)
            rc = er_buf_add(buf, json ? "," : " ", 1);
        if (!rc)
            rc = add_key(buf, fields[i].key, json);
        if (!rc)
            rc = add_value(buf, &fields[i], json);
    }
    return settle(buf, start, rc);
}

int er_fields_json(struct er_buf *buf, const struct er_field *fields, size_t n)
{
    return add_fields(buf, fields, n, true);
}

int er_fields_text(struct er_buf *buf, const struct er_field *fields, size_t n)
{
    return add_fields(buf, fields, n, false);
}
