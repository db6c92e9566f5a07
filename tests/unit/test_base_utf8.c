#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

/* Edges of each range, and what RFC 3629 forbids. */
Test(base_utf8, decodes_what_is_valid_and_nothing_else)
{
    static const struct {
        const char *bytes;
        size_t n, length;
        uint32_t code;
    } CASES[] = {
        {"", 1, 1, 0}, /* the NUL that ends it */
        {"a", 1, 1, 'a'},
        {"\x7F", 1, 1, 0x7F},
        {"\xC2\x80", 2, 2, 0x80},
        {"\xDF\xBF", 2, 2, 0x7FF},
        {"\xE0\xA0\x80", 3, 3, 0x800},
        {"\xED\x9F\xBF", 3, 3, 0xD7FF},
        {"\xEE\x80\x80", 3, 3, 0xE000},
        {"\xEF\xBF\xBF", 3, 3, 0xFFFF},
        {"\xF0\x90\x80\x80", 4, 4, 0x10000},
        {"\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF},
        {"\xC0\x80", 2, 0, 0},
        {"\xC1\xBF", 2, 0, 0},
        {"\xE0\x9F\xBF", 3, 0, 0},
        {"\xED\xA0\x80", 3, 0, 0},
        {"\xED\xBF\xBF", 3, 0, 0},
        {"\xF0\x8F\xBF\xBF", 4, 0, 0},
        {"\xF4\x90\x80\x80", 4, 0, 0},
        {"\xF8\x88\x80\x80\x80", 5, 0, 0},
        {"\x80", 1, 0, 0},
        {"\xC3", 1, 0, 0},
        {"\xC3z", 2, 0, 0},
        {"\xE2\x82\xAC", 2, 0, 0}, /* more is there, but may not be read */
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        uint32_t code = 12345;
        size_t length = er_utf8_decode(CASES[i].bytes, CASES[i].n, &code);

        cr_expect(length == CASES[i].length, "case %zu: %zu", i, length);
        cr_expect(code == (length ? CASES[i].code : 12345), "case %zu: U+%04X", i, code);
    }
}

Test(base_utf8, cuts_between_sequences)
{
    const char *text = "a\xC3\xA4\xE2\x82\xAC!";
    static const size_t WANTED[] = {0, 1, 1, 3, 3, 3, 6};

    for (size_t max = 0; max < ER_ARRAY_N(WANTED); max++)
        cr_expect(er_utf8_cut(text, max) == WANTED[max], "%zu", max);
    cr_expect(er_utf8_cut("\x80\x80\x80", 2) == 0, "ends where the text begins");
}

Test(base_utf8, printable_means_nothing_for_a_terminal_to_act_upon)
{
    cr_expect(er_utf8_is_printable("", 0) && er_utf8_is_printable("t\xC3\xA4xt \"q\"", 9));
    cr_expect(!er_utf8_is_printable("a\n", 2) && !er_utf8_is_printable("\x1b[0m", 4));
    cr_expect(!er_utf8_is_printable("\x7f", 1) && !er_utf8_is_printable("\xC2\x9b", 2));
    cr_expect(!er_utf8_is_printable("\x9b", 1) && !er_utf8_is_printable("a\0b", 3));
    cr_expect(er_utf8_is_printable("\xC2\xA0", 2), "the first one after C1");
}

Test(base_utf8, tamed_text_keeps_its_length_and_what_may_be_shown)
{
    static const struct {
        const char *text, *wanted;
    } CASES[] = {
        {"", ""},
        {"t\xC3\xA4xt", "t\xC3\xA4xt"},
        {"\x1b]0;x\x07", "?]0;x?"},
        {"a\nb\r\t\x7f", "a\nb???"},
        {"\xC2\x9b[J", "??[J"},
        {"\x9bz\xE2\x82", "?z??"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        char text[32];

        snprintf(text, sizeof(text), "%s", CASES[i].text);
        er_utf8_tame(text, strlen(text));
        cr_expect(strcmp(text, CASES[i].wanted) == 0, "case %zu: %s", i, text);
    }
}
