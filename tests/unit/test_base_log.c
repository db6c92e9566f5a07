#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/rand.h"
#include "base/utf8.h"

/* The fields as a JSON object, read by a parser that is not ours. */
static json_t *as_json(const struct er_field *fields, size_t n)
{
    struct er_buf buf;
    json_error_t error;
    json_t *root;

    er_buf_init(&buf, 1 << 20);
    cr_assert(er_buf_add_str(&buf, "{") == 0 && er_fields_json(&buf, fields, n) == 0 &&
              er_buf_add_str(&buf, "}") == 0);
    root = json_loads(er_buf_str(&buf), JSON_ALLOW_NUL, &error);
    cr_assert(root, "%s: %s", error.text, er_buf_str(&buf));
    er_buf_done(&buf);
    return root;
}

static void expect_text(struct er_field field, const char *wanted)
{
    struct er_buf buf;

    er_buf_init(&buf, 4096);
    cr_assert(er_fields_text(&buf, &field, 1) == 0);
    cr_expect(!strcmp(er_buf_str(&buf), wanted), "%s is not %s", er_buf_str(&buf), wanted);
    er_buf_done(&buf);
}

Test(base_field, values_survive_json)
{
    struct er_field fields[] = {ER_STR("s", "t\xC3\xA4xt \"q\" \\ \n\t\x01"),
                                ER_STR("null", NULL),
                                ER_INT("min", INT64_MIN),
                                ER_NUM("num", 0.1),
                                ER_BOOL("yes", true),
                                ER_BOOL("no", false),
                                ER_NUM("nan", NAN),
                                ER_NUM("inf", -INFINITY),
                                ER_JSON("list", "[1,\n2]"),
                                ER_JSON("nothing", NULL),
                                ER_STR("k\"ey", "")};
    json_t *root = as_json(fields, ER_ARRAY_N(fields));

    cr_expect(json_object_size(root) == ER_ARRAY_N(fields));
    cr_expect(
        !strcmp(json_string_value(json_object_get(root, "s")), "t\xC3\xA4xt \"q\" \\ \n\t\x01"));
    cr_expect(json_is_null(json_object_get(root, "null")));
    cr_expect(json_integer_value(json_object_get(root, "min")) == INT64_MIN);
    cr_expect(json_number_value(json_object_get(root, "num")) == 0.1);
    cr_expect(json_is_true(json_object_get(root, "yes")));
    cr_expect(json_is_false(json_object_get(root, "no")));
    cr_expect(json_is_null(json_object_get(root, "nan")));
    cr_expect(json_is_null(json_object_get(root, "inf")));
    cr_expect(json_array_size(json_object_get(root, "list")) == 2);
    cr_expect(json_is_null(json_object_get(root, "nothing")));
    cr_expect(json_is_string(json_object_get(root, "k\"ey")));
    json_decref(root);
}

Test(base_field, integers_are_exact)
{
    expect_text(ER_UINT("n", UINT64_MAX), "n=18446744073709551615");
    expect_text(ER_INT("n", INT64_MIN), "n=-9223372036854775808");
    expect_text(ER_UINT("n", 0), "n=0");
}

/* jansson, for one, refuses a whole text for one number that is too large. */
Test(base_field, integers_in_json_are_ones_that_its_readers_take)
{
    const struct er_field fields[] = {ER_UINT("most", UINT64_MAX), ER_UINT("fits", INT64_MAX)};
    struct er_buf buf;
    json_t *root;

    er_buf_init(&buf, 256);
    cr_assert(er_buf_add_str(&buf, "{") == 0 && er_fields_json(&buf, fields, 2) == 0 &&
              er_buf_add_str(&buf, "}") == 0);
    root = json_loads(er_buf_str(&buf), 0, NULL);
    cr_assert_not_null(root);
    cr_expect(json_integer_value(json_object_get(root, "most")) == INT64_MAX);
    cr_expect(json_integer_value(json_object_get(root, "fits")) == INT64_MAX);
    json_decref(root);
    er_buf_done(&buf);
}

Test(base_field, doubles_are_short_and_exact)
{
    struct er_rand r;

    expect_text(ER_NUM("x", 0.1), "x=0.1");
    expect_text(ER_NUM("x", 1.0 / 3), "x=0.33333333333333331");
    expect_text(ER_NUM("x", 5), "x=5");
    expect_text(ER_NUM("x", -0.0), "x=-0");
    expect_text(ER_NUM("x", 1e300), "x=1e+300");
    expect_text(ER_NUM("x", NAN), "x=null");
    er_rand_init(&r, 16);
    for (int i = 0; i < 5000; i++) {
        uint64_t bits = er_rand_next(&r);
        json_t *root;
        double x;

        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x) || fabs(x) < DBL_MIN) /* jansson refuses what underflows */
            continue;
        root = as_json(&ER_NUM("x", x), 1);
        cr_assert(json_number_value(json_object_get(root, "x")) == x, "%a", x);
        json_decref(root);
    }
}

Test(base_field, text_quotes_what_would_be_ambiguous)
{
    expect_text(ER_STR("k", "plain-1.2/x:y"), "k=plain-1.2/x:y");
    expect_text(ER_STR("k", "t\xC3\xA4xt"), "k=t\xC3\xA4xt");
    expect_text(ER_STR("k", ""), "k=\"\"");
    expect_text(ER_STR("k", "two words"), "k=\"two words\"");
    expect_text(ER_STR("k", "a=b"), "k=\"a=b\"");
    expect_text(ER_STR("k", "say \"x\""), "k=\"say \\\"x\\\"\"");
    expect_text(ER_STR("k", "a\\b"), "k=\"a\\\\b\"");
    expect_text(ER_STR("k", "a\nb"), "k=\"a\\nb\"");
    expect_text(ER_STR("k", "\x1b[31m"), "k=\"\\u001b[31m\"");
    expect_text(ER_STR("k", "\x7f"), "k=\"\\u007f\"");
    expect_text(ER_STR("k", "\xC2\x9b"), "k=\"\\u009b\"");
    expect_text(ER_STR("k", "\xff"), "k=\"\xEF\xBF\xBD\"");
    expect_text(ER_STR("k", NULL), "k=null");
    expect_text(ER_BOOL("k", true), "k=true");
    expect_text(ER_JSON("k", "[1, 2]"), "k=[1, 2]");
    expect_text(ER_JSON("k", "[\"\xC2\x9b\\\"\",\n\"\xff\"]"),
                "k=[\"\\u009b\\\"\", \"\xEF\xBF\xBD\"]");
}

Test(base_field, several_fields_are_separated)
{
    struct er_field fields[] = {ER_INT("a", 1), ER_STR("b", "x"), ER_BOOL("c", false)};
    struct er_buf buf;

    er_buf_init(&buf, 100);
    cr_expect(er_fields_text(&buf, fields, 3) == 0);
    cr_expect(!strcmp(er_buf_str(&buf), "a=1 b=x c=false"));
    er_buf_clear(&buf);
    cr_expect(er_fields_json(&buf, fields, 3) == 0);
    cr_expect(!strcmp(er_buf_str(&buf), "\"a\":1,\"b\":\"x\",\"c\":false"));
    er_buf_clear(&buf);
    cr_expect(er_fields_json(&buf, NULL, 0) == 0 && buf.len == 0);
    er_buf_done(&buf);
}

Test(base_field, full_buffer_is_left_as_it_was)
{
    struct er_field fields[] = {ER_INT("a", 1), ER_STR("b", "much too long for this buffer")};
    struct er_buf buf;

    er_buf_init(&buf, 16);
    cr_expect(er_buf_add_str(&buf, "kept") == 0);
    cr_expect(er_fields_json(&buf, fields, 2) == -ENOBUFS);
    cr_expect(er_fields_text(&buf, fields, 2) == -ENOBUFS);
    cr_expect(er_json_quote(&buf, "0123456789012", 13) == -ENOBUFS);
    cr_expect(!strcmp(er_buf_str(&buf), "kept") && buf.len == 4);
    er_buf_done(&buf);
}

/* U+FFFD for each byte that is part of no character. Cases of RFC 3629, section 10, and the edges
 * of each range. */
Test(base_field, invalid_utf8_is_replaced)
{
    static const struct {
        const char *bytes;
        unsigned replaced;
    } CASES[] = {
        {"\xC2\xA0\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBD", 1},
        {"\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", 0},
        {"\xC0\x80", 2},
        {"\xC1\xBF", 2},
        {"\xE0\x9F\xBF", 3},
        {"\xED\xA0\x80", 3},
        {"\xF0\x8F\xBF\xBF", 4},
        {"\xF4\x90\x80\x80", 4},
        {"\xF5\x80\x80\x80", 4},
        {"\x80", 1},
        {"\xC3", 1},
        {"\xE2\x82", 2},
        {"\xF0\x9F\x98", 3},
        {"a\xC3z", 1},
        {"\xFE\xFF", 2},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        json_t *root = as_json(&ER_STR("s", CASES[i].bytes), 1);
        const char *at = json_string_value(json_object_get(root, "s"));
        unsigned found = 0;

        while ((at = strstr(at, "\xEF\xBF\xBD"))) {
            found++;
            at += 3;
        }
        cr_expect(found == CASES[i].replaced, "case %zu: %u", i, found);
        json_decref(root);
    }
}

Test(base_field, random_bytes_are_always_json)
{
    struct er_rand r;

    er_rand_init(&r, 17);
    for (int i = 0; i < 5000; i++) {
        char key[20], value[60];

        for (size_t k = 0; k < sizeof(key); k++)
            key[k] = (char)er_rand_next(&r);
        for (size_t k = 0; k < sizeof(value); k++)
            value[k] =
                (char)(er_rand_below(&r, 2) ? er_rand_next(&r) : 0xE0 + er_rand_below(&r, 32));
        key[er_rand_below(&r, sizeof(key))] = '\0';
        key[sizeof(key) - 1] = value[sizeof(value) - 1] = '\0';
        json_decref(as_json(&ER_STR(key, value), 1));
    }
}

Test(base_field, quote_takes_nul_bytes)
{
    struct er_buf buf;

    er_buf_init(&buf, 100);
    cr_expect(er_json_quote(&buf, "a\0b", 3) == 0);
    cr_expect(!strcmp(er_buf_str(&buf), "\"a\\u0000b\""), "%s", er_buf_str(&buf));
    er_buf_done(&buf);
}

/* A packet socket: one read is one write. */
struct sink {
    int fds[2];
    char line[16384];
};

static void open_sink(struct sink *s, enum er_log_level level, enum er_log_format format,
                      const char *name)
{
    cr_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s->fds) == 0);
    er_log_setup(
        &(struct er_log_opts){.fd = s->fds[1], .level = level, .format = format, .name = name});
}

static const char *next_line(struct sink *s)
{
    ssize_t n = read(s->fds[0], s->line, sizeof(s->line) - 1);

    if (n <= 0)
        return NULL;
    s->line[n] = '\0';
    cr_assert(n <= 8192 && s->line[n - 1] == '\n');
    cr_assert(strchr(s->line, '\n') == s->line + n - 1, "one line");
    return s->line;
}

static void close_sink(struct sink *s)
{
    close(s->fds[0]);
    close(s->fds[1]);
}

Test(base_log, text_line_has_time_level_name_message_and_fields)
{
    static struct sink s;
    const char *line;

    open_sink(&s, ER_LOG_INFO, ER_LOG_TEXT, "elastic-run");
    er_log(ER_LOG_INFO, "worker exited", ER_INT("rank", 3), ER_STR("kind", "core dumped"));
    line = next_line(&s);
    cr_assert_not_null(line);
    cr_expect(line[10] == 'T' && line[26] == 'Z' && line[27] == ' ');
    cr_expect(!strcmp(line + 28, "INFO  elastic-run: worker exited rank=3 kind=\"core dumped\"\n"),
              "%s", line);
    er_log(ER_LOG_WARNING, "no fields");
    cr_expect(!strcmp(next_line(&s) + 28, "WARN  elastic-run: no fields\n"));
    close_sink(&s);
}

Test(base_log, json_line_is_one_object)
{
    static struct sink s;
    json_t *root;

    open_sink(&s, ER_LOG_DEBUG, ER_LOG_JSON, "elastic-run");
    er_log(ER_LOG_ERROR, "a \"message\"\nof two lines", ER_UINT("bytes", 7));
    root = json_loads(next_line(&s), 0, NULL);
    cr_assert_not_null(root);
    cr_expect(!strcmp(json_string_value(json_object_get(root, "level")), "error"));
    cr_expect(!strcmp(json_string_value(json_object_get(root, "name")), "elastic-run"));
    cr_expect(
        !strcmp(json_string_value(json_object_get(root, "msg")), "a \"message\"\nof two lines"));
    cr_expect(strlen(json_string_value(json_object_get(root, "ts"))) == 27);
    cr_expect(json_integer_value(json_object_get(root, "bytes")) == 7);
    json_decref(root);
    close_sink(&s);
}

static int calls;

static int64_t count_call(void)
{
    return ++calls;
}

Test(base_log, dropped_levels_cost_nothing)
{
    static struct sink s;

    open_sink(&s, ER_LOG_WARNING, ER_LOG_TEXT, NULL);
    er_log(ER_LOG_INFO, "not wanted", ER_INT("n", count_call()));
    cr_expect(calls == 0 && next_line(&s) == NULL);
    cr_expect(!er_log_wanted(ER_LOG_INFO) && er_log_wanted(ER_LOG_WARNING));
    er_log(ER_LOG_ERROR, "wanted", ER_INT("n", count_call()));
    cr_expect(calls == 1 && !strcmp(next_line(&s) + 28, "ERROR wanted n=1\n"));
    close_sink(&s);
}

Test(base_log, message_cannot_forge_a_line)
{
    static struct sink s;

    open_sink(&s, ER_LOG_INFO, ER_LOG_TEXT, NULL);
    er_log(ER_LOG_INFO, "first\n2026-01-01T00:00:00.000000Z ERROR forged");
    cr_expect(strstr(next_line(&s), "\"first\\n2026"));
    close_sink(&s);
}

/* A terminal that speaks C1 takes U+009B, and some take the bare byte, for the beginning of an
 * escape sequence. */
Test(base_log, nothing_reaches_the_terminal_as_a_control_sequence)
{
    static const char *const TEXTS[] = {"\x1b[31mred", "\xC2\x9b[31mred", "\x9b[31mred", "a\x7f",
                                        "half \xC3"};
    static struct sink s;

    open_sink(&s, ER_LOG_INFO, ER_LOG_TEXT, NULL);
    for (size_t i = 0; i < ER_ARRAY_N(TEXTS); i++) {
        char json[64];
        const char *line;
        size_t n;

        snprintf(json, sizeof(json), "[\"%s\"]", TEXTS[i]);
        er_log(ER_LOG_INFO, TEXTS[i], ER_STR("a", TEXTS[i]), ER_JSON("b", json));
        line = next_line(&s);
        n = strlen(line);
        cr_expect(line[n - 1] == '\n' && er_utf8_is_printable(line, n - 1), "%zu: %s", i, line);
    }
    er_log(ER_LOG_INFO, "caf\xC3\xA9");
    cr_expect(!strcmp(next_line(&s) + 28, "INFO  caf\xC3\xA9\n"), "what is printable stays");
    close_sink(&s);
}

/* Whatever is logged, a line keeps its bound, stays one line, and says when something was left out.
 */
Test(base_log, lines_are_bounded_in_both_forms)
{
    static const unsigned char FILL[] = {'x', '\x01', '"', 0xFF, 0xC3};
    static struct sink s;
    static char longer[20000];

    for (int format = ER_LOG_TEXT; format <= ER_LOG_JSON; format++) {
        open_sink(&s, ER_LOG_INFO, (enum er_log_format)format, "elastic-run");
        for (size_t i = 0; i < ER_ARRAY_N(FILL); i++) {
            const char *line;

            memset(longer, FILL[i], sizeof(longer) - 1);
            er_log(ER_LOG_INFO, longer, ER_STR("a", longer), ER_JSON("b", longer),
                   ER_STR("c", longer), ER_STR("d", longer), ER_STR("e", longer), ER_INT("f", 6));
            line = next_line(&s);
            cr_assert_not_null(line);
            cr_expect(strstr(line, format == ER_LOG_JSON ? "\"cut\":true" : " cut=true"));
            cr_expect(strstr(line, "..."));
            if (format == ER_LOG_JSON) {
                json_t *root = json_loads(line, 0, NULL);

                cr_expect(root, "%s", line);
                json_decref(root);
            }
        }
        close_sink(&s);
    }
}

Test(base_log, failing_sink_is_survived_and_errno_kept)
{
    static struct sink s;

    open_sink(&s, ER_LOG_INFO, ER_LOG_TEXT, NULL);
    for (int i = 0; i < 10000; i++) {
        errno = ERANGE;
        er_log(ER_LOG_INFO, "a full socket loses lines", ER_INT("i", i));
        cr_assert(errno == ERANGE);
    }
    close_sink(&s);
    er_log_setup(&(struct er_log_opts){.fd = -1, .level = ER_LOG_INFO});
    er_log(ER_LOG_INFO, "nowhere to go");
}

/* As a pager that has stopped reading: lines are lost and counted, nobody waits. */
Test(base_log, never_waits_for_a_reader)
{
    int pipe_fds[2];
    char text[70000];
    ssize_t n;

    cr_assert(pipe2(pipe_fds, O_CLOEXEC) == 0);
    er_log_setup(&(struct er_log_opts){.fd = pipe_fds[1], .level = ER_LOG_INFO});
    for (int i = 0; i < 5000; i++) /* a pipe holds 64 KiB; this would be 300 KiB */
        er_log(ER_LOG_INFO, "a line of some length", ER_INT("i", i));
    for (size_t left = sizeof(text) - 1; left > 0; left -= (size_t)n) {
        struct pollfd p = {.fd = pipe_fds[0], .events = POLLIN};

        if (poll(&p, 1, 0) != 1 || (n = read(pipe_fds[0], text, left)) <= 0)
            break;
    }
    er_log(ER_LOG_INFO, "the reader is back");
    n = read(pipe_fds[0], text, sizeof(text) - 1);
    cr_assert(n > 0);
    text[n] = 0;
    cr_expect(strstr(text, "the reader is back lines_lost_before="), "%s", text);
    er_log_setup(&(struct er_log_opts){.fd = 2, .level = ER_LOG_INFO});
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}
