#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/linesplit.h"

enum { TEXT_MAX = 1 << 20 };

/* Each line as <text>end, a bare '\n' as ~. */
static void show(void *user, const char *text, size_t n, const char *end, size_t end_n)
{
    struct er_buf *out = user;

    if (text) {
        er_buf_add_str(out, "<");
        er_buf_add(out, text, n);
        er_buf_add_str(out, ">");
    } else {
        er_buf_add_str(out, "~");
    }
    er_buf_add(out, end, end_n);
}

static const struct {
    const char *text, *lines;
} CASES[] = {
    {"", ""},
    {"a", "<a>"},
    {"a\n", "<a>\n"},
    {"a\nb\n\nc", "<a>\n<b>\n<>\n<c>"},
    {"a\rb\r\nc\n", "<a>\r<b>\r\n<c>\n"},
    {"\r10%\r20%\n", "<>\r<10%>\r<20%>\n"},
    {"a\r\r\n\r", "<a>\r<>\r\n<>\r"},
    {"\n\n", "<>\n<>\n"},
};

/* However the bytes come, the lines are the same, but that a '\n' behind a '\r' may come alone. */
Test(linesplit, lines_do_not_depend_on_the_pieces)
{
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        size_t n = strlen(CASES[i].text);

        for (size_t cut = 0; cut <= n; cut++) {
            struct er_linesplit s;
            struct er_buf out, whole;

            er_linesplit_init(&s);
            er_buf_init(&out, TEXT_MAX);
            er_buf_init(&whole, TEXT_MAX);
            cr_assert_eq(er_linesplit_feed(&s, CASES[i].text, cut, show, &out), 0);
            cr_assert_eq(er_linesplit_feed(&s, CASES[i].text + cut, n - cut, show, &out), 0);
            er_linesplit_finish(&s, show, &out);
            for (size_t k = 0; k < out.len; k++) {
                if (out.data[k] != '~')
                    er_buf_add(&whole, &out.data[k], 1);
            }
            cr_expect_str_eq(er_buf_str(&whole), CASES[i].lines, "cut at %zu", cut);
            er_buf_done(&out);
            er_buf_done(&whole);
            er_linesplit_done(&s);
        }
    }
}

static void measure(void *user, const char *text, size_t n, const char *end, size_t end_n)
{
    size_t *lengths = user;

    cr_assert_leq(n, ER_LINE_MAX);
    cr_assert_lt(lengths[0], 7);
    lengths[++lengths[0]] = n;
}

Test(linesplit, long_lines_come_in_pieces)
{
    size_t n = 2 * ER_LINE_MAX + 5, lengths[8] = {0};
    char *data = malloc(n + 1);
    struct er_linesplit s;

    cr_assert(data);
    memset(data, 'x', n);
    data[n] = '\n';
    er_linesplit_init(&s);
    cr_assert_eq(er_linesplit_feed(&s, data, 100, measure, lengths), 0);
    cr_assert_eq(er_linesplit_feed(&s, data + 100, n + 1 - 100, measure, lengths), 0);
    er_linesplit_finish(&s, measure, lengths);
    cr_expect_eq(lengths[0], 3);
    cr_expect_eq(lengths[1], ER_LINE_MAX);
    cr_expect_eq(lengths[2], ER_LINE_MAX);
    cr_expect_eq(lengths[3], 5);
    er_linesplit_done(&s);
    free(data);
}

/* A line of just the largest size is not cut. */
Test(linesplit, largest_line_is_whole)
{
    char *data = malloc(ER_LINE_MAX + 1);
    size_t lengths[8] = {0};
    struct er_linesplit s;

    cr_assert(data);
    memset(data, 'x', ER_LINE_MAX);
    data[ER_LINE_MAX] = '\n';
    er_linesplit_init(&s);
    cr_assert_eq(er_linesplit_feed(&s, data, ER_LINE_MAX + 1, measure, lengths), 0);
    cr_expect_eq(lengths[0], 1);
    cr_expect_eq(lengths[1], ER_LINE_MAX);
    er_linesplit_done(&s);
    free(data);
}

static void count(void *user, const char *text, size_t n, const char *end, size_t end_n)
{
    size_t *lines = user;

    (*lines)++;
}

/* Were the whole looked through for a '\n' again for each of them, it would take hours. */
Test(linesplit, progress_bars_without_newline_are_split_in_linear_time, .timeout = 120)
{
    size_t n = 8 << 20, lines = 0;
    char *data = malloc(n);
    struct er_linesplit s;

    cr_assert_not_null(data);
    memset(data, '\r', n);
    er_linesplit_init(&s);
    cr_assert_eq(er_linesplit_feed(&s, data, n, count, &lines), 0);
    er_linesplit_finish(&s, count, &lines);
    cr_expect_eq(lines, n);
    er_linesplit_done(&s);
    free(data);
}

static const struct {
    const char *before, *skipped, *after;
    size_t resume; /* where in `after` a line begins */
} RESUMES[] = {
    {"", "a\n", "b\n", 0}, {"", "a", "b\nc\n", 2},   {"", "a\r", "\nb\n", 1},
    {"", "a\r", "b\n", 0}, {"", "a", "1%\r2%\r", 3}, {"", "a", "b\r\nc", 3},
    {"", "a", "bcd", 3},   {"", "a", "b\r", 2},      {"x", "a\n", "b", 0},
    {"x\n", "", "b\n", 0}, {"x", "", "y\nb\n", 2},   {"x\r", "", "\nb", 1},
};

Test(linesplit, lines_begin_again_where_one_begins)
{
    for (size_t i = 0; i < sizeof(RESUMES) / sizeof(RESUMES[0]); i++) {
        struct er_linesplit s;
        struct er_buf out;
        size_t n = strlen(RESUMES[i].after), forgotten;

        er_linesplit_init(&s);
        er_buf_init(&out, TEXT_MAX);
        cr_assert_eq(
            er_linesplit_feed(&s, RESUMES[i].before, strlen(RESUMES[i].before), show, &out), 0);
        forgotten = er_linesplit_skip(&s, RESUMES[i].skipped, strlen(RESUMES[i].skipped));
        cr_expect_eq(forgotten, RESUMES[i].skipped[0] && !strcmp(RESUMES[i].before, "x"), "%zu", i);
        cr_expect_eq(er_linesplit_resume(&s, RESUMES[i].after, n), RESUMES[i].resume, "case %zu",
                     i);
        er_linesplit_done(&s);
        er_buf_done(&out);
    }
}

Test(linesplit, ends_of_lines_are_counted_at_any_length_and_place)
{
    enum { N = 3 * 32 * 255 };
    char *data = malloc(N);
    size_t all = 0;

    cr_assert_not_null(data);
    for (size_t i = 0; i < N; i++) {
        data[i] = i % 7 == 3 || i % 31 == 0 ? '\n' : (char)i == '\n' ? 'x' : (char)i;
        all += data[i] == '\n';
    }
    cr_expect_eq(er_linesplit_count(data, N), all);
    for (size_t n = 0; n < 200; n++) {
        size_t lines = 0;

        for (size_t i = 0; i < n; i++)
            lines += data[n % 5 + i] == '\n';
        cr_expect_eq(er_linesplit_count(data + n % 5, n), lines);
    }
    memset(data, '\n', N);
    cr_expect_eq(er_linesplit_count(data, N), N);
    free(data);
}
