#include "base/utf8.h"

#include <string.h>

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

size_t er_utf8_decode(const char *s, size_t n, uint32_t *ret_code)
{
    static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000}; /* of a sequence of this length */
    unsigned char lead = (unsigned char)s[0];
    size_t length = lead < 0x80           ? 1
                    : (lead >> 5) == 0x06 ? 2
                    : (lead >> 4) == 0x0E ? 3
                    : (lead >> 3) == 0x1E ? 4
                                          : 0;
    uint32_t code = length < 2 ? lead : lead & (0x7Fu >> length);

    if (!length || length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if (!is_continuation(s[i]))
            return 0;
        code = code << 6 | ((unsigned char)s[i] & 0x3F);
    }
    if (code < LEAST[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return 0;
    if (ret_code)
        *ret_code = code;
    return length;
}

size_t er_utf8_cut(const char *text, size_t max)
{
    while (max > 0 && is_continuation(text[max]))
        max--;
    return max;
}

bool er_utf8_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0);
}

bool er_utf8_is_printable(const char *text, size_t n)
{
    uint32_t code = 0;

    for (size_t i = 0, length; i < n; i += length) {
        length = er_utf8_decode(text + i, n - i, &code);
        if (!length || er_utf8_is_control(code))
            return false;
    }
    return true;
}

void er_utf8_tame(char *text, size_t n)
{
    uint32_t code = 0;

    for (size_t i = 0, length; i < n; i += length) {
        length = er_utf8_decode(text + i, n - i, &code);
        if (length && (!er_utf8_is_control(code) || code == '\n'))
            continue;
        length = length ? length : 1;
        memset(text + i, '?', length);
    }
}
