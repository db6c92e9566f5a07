#include "agent/yaml_text.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS  "0123456789"

/* YAML 1.1 readers take these for something else than a string. */
static bool is_word(const char *text)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};

    for (size_t i = 0; i < ER_ARRAY_N(words); i++) {
        if (!strcasecmp(text, words[i]))
            return true;
    }
    return false;
}

/* A letter (or a path's beginning) first, then nothing that YAML gives a meaning. */
static bool is_safe_plain(const char *text)
{
    return *text && strchr(LETTERS "/_", *text) && !is_word(text) &&
           text[strspn(text, LETTERS DIGITS "_./+-")] == '\0';
}

/* The code point at s and its length; bytes that are no UTF-8 stand for themselves. */
static uint32_t decode(const char *s, size_t *ret_length)
{
    uint32_t code = (unsigned char)s[0];
    size_t length = er_utf8_decode(s, strnlen(s, 4), &code);

    *ret_length = length ? length : 1;
    return code;
}

static bool may_stand(uint32_t code, size_t length)
{
    if (length == 1)
        return code >= 0x20 && code < 0x7F && code != '"' && code != '\\';
    return code >= 0xA0 && code != 0x2028 && code != 0x2029 && code != 0xFEFF && code != 0xFFFE &&
           code != 0xFFFF;
}

int er_yaml_text(struct er_buf *out, const char *text, bool quoted)
{
    const char *s = text;
    int rc;

    if (!quoted && is_safe_plain(text))
        return er_buf_add_str(out, text);
    rc = er_buf_add(out, "\"", 1);
    while (!rc && *s) {
        size_t length;
        uint32_t code = decode(s, &length);

        if (may_stand(code, length))
            rc = er_buf_add(out, s, length);
        else if (code == '"' || code == '\\')
            rc = er_buf_printf(out, "\\%c", (int)code);
        else if (code == '\n' || code == '\t')
            rc = er_buf_add_str(out, code == '\n' ? "\\n" : "\\t");
        else if (code <= 0xFF)
            rc = er_buf_printf(out, "\\x%02X", (unsigned)code);
        else
            rc = er_buf_printf(out, code <= 0xFFFF ? "\\u%04X" : "\\U%08X", (unsigned)code);
        s += length;
    }
    return rc ? rc : er_buf_add(out, "\"", 1);
}
