#include "base/field.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

static int add_escape(struct er_buf *buf, uint32_t c)
{
    static const char SHORT[] = "\"\"\\\\\nn\rr\tt\bb\ff";

    for (size_t i = 0; i + 1 < sizeof(SHORT); i += 2) {
        if ((uint32_t)SHORT[i] == c)
            return er_buf_add(buf, (char[]){'\\', SHORT[i + 1]}, 2);
    }
    return er_buf_printf(buf, "\\u%04" PRIx32, c);
}

/* Control characters escaped, what is no UTF-8 replaced. `special`: escaped too; or NULL in text
 * that is JSON already: there a C0 character can only be white space between values. */
static int add_escaped(struct er_buf *buf, const char *s, size_t n, const char *special)
{
    size_t plain = 0; /* start of the run that is copied as it is */
    uint32_t code = 0;
    int rc = 0;

    for (size_t i = 0; !rc && i < n;) {
        size_t length = er_utf8_decode(s + i, n - i, &code);
        bool marked = special && length == 1 && code && strchr(special, (int)code);

        if (length && !er_utf8_is_control(code) && !marked) {
            i += length;
            continue;
        }
        rc = er_buf_add(buf, s + plain, i - plain);
        if (!rc && !length)
            rc = er_buf_add_str(buf, REPLACEMENT);
        else if (!rc)
            rc = !special && code < 0x20 ? er_buf_add(buf, " ", 1) : add_escape(buf, code);
        i += length ? length : 1;
        plain = i;
    }
    return rc ? rc : er_buf_add(buf, s + plain, n - plain);
}

static int add_quoted(struct er_buf *buf, const char *s, size_t n)
{
    int rc = er_buf_add(buf, "\"", 1);

    if (!rc)
        rc = add_escaped(buf, s, n, "\"\\");
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

    return settle(buf, start, add_quoted(buf, text, n));
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

/* A value that can stand bare in `key=value` and be told from its neighbours. */
static bool is_plain(const char *text)
{
    return *text && !strpbrk(text, " \"=\\") && er_utf8_is_printable(text, strlen(text));
}

static int add_value(struct er_buf *buf, const struct er_field *field, bool json)
{
    const char *str;

    switch (field->type) {
    case ER_FIELD_INT:
        return er_buf_printf(buf, "%" PRId64, field->v.i);
    case ER_FIELD_UINT:
        /* Readers of JSON refuse the whole of a text in which one integer has more than 63 bits. */
        return er_buf_printf(buf, "%" PRIu64,
                             json && field->v.u > INT64_MAX ? (uint64_t)INT64_MAX : field->v.u);
    case ER_FIELD_NUM:
        return add_number(buf, field->v.num);
    case ER_FIELD_BOOL:
        return er_buf_add_str(buf, field->v.b ? "true" : "false");
    case ER_FIELD_JSON:
        str = field->v.str ? field->v.str : "null";
        return add_escaped(buf, str, strlen(str), NULL);
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
