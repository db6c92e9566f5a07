#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/rand.h"

#define UNTOUCHED 77

/* Every failure says something and leaves the result alone. */
static void expect_failure(const char *text, int rc, int wanted, const struct er_error *err)
{
    cr_expect(rc == wanted, "'%s': %d, wanted %d", text, rc, wanted);
    cr_expect(err->code == wanted && err->text[0], "'%s': no text", text);
}

Test(base_parse, u64_takes_digits_and_nothing_else)
{
    static const struct {
        const char *text;
        uint64_t min, max, value;
        int rc;
    } CASES[] = {
        {"0", 0, UINT64_MAX, 0, 0},
        {"007", 0, 10, 7, 0},
        {"18446744073709551615", 0, UINT64_MAX, UINT64_MAX, 0},
        {"18446744073709551616", 0, UINT64_MAX, 0, -ERANGE},
        {"18446744073709551620", 0, UINT64_MAX, 0, -ERANGE},
        {"99999999999999999999999999999", 0, UINT64_MAX, 0, -ERANGE},
        {"10", 1, 10, 10, 0},
        {"1", 1, 10, 1, 0},
        {"11", 1, 10, 0, -ERANGE},
        {"0", 1, 10, 0, -ERANGE},
        {"", 0, 10, 0, -EINVAL},
        {" 1", 0, 10, 0, -EINVAL},
        {"1 ", 0, 10, 0, -EINVAL},
        {"1\n", 0, 10, 0, -EINVAL},
        {"+1", 0, 10, 0, -EINVAL},
        {"-1", 0, 10, 0, -EINVAL},
        {"-0", 0, 10, 0, -EINVAL},
        {"0x1", 0, 10, 0, -EINVAL},
        {"1e1", 0, 10, 0, -EINVAL},
        {"1.0", 0, 10, 0, -EINVAL},
        {"1_0", 0, 10, 0, -EINVAL},
        {"99999999999999999999999999x", 0, 10, 0, -EINVAL},
        {"\xd9\xa1", 0, 10, 0, -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        uint64_t value = UNTOUCHED;
        int rc = er_parse_u64(CASES[i].text, CASES[i].min, CASES[i].max, &value, &err);

        if (CASES[i].rc)
            expect_failure(CASES[i].text, rc, CASES[i].rc, &err);
        cr_expect(rc == CASES[i].rc && value == (rc ? UNTOUCHED : CASES[i].value), "'%s'",
                  CASES[i].text);
    }
}

Test(base_parse, failures_need_no_error_object)
{
    uint64_t value = UNTOUCHED;

    cr_expect(er_parse_u64("x", 0, 1, &value, NULL) == -EINVAL);
    cr_expect(er_parse_duration("x", false, &value, NULL) == -EINVAL);
    cr_expect(value == UNTOUCHED);
}

Test(base_parse, messages_name_what_was_expected_and_what_stood_there)
{
    struct er_error err = ER_ERROR_INIT;
    char longer[4000];
    uint64_t value;

    er_parse_u64("12x", 0, 9, &value, &err);
    cr_expect(!strcmp(err.text, "expected a whole number, got '12x'"), "%s", err.text);
    er_parse_duration("30", false, &value, &err);
    cr_expect(strstr(err.text, "no unit") && strstr(err.text, "'30'"), "%s", err.text);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    er_parse_u64(longer, 0, 9, &value, &err);
    cr_expect(strlen(err.text) < 200);
}

Test(base_parse, i64_reaches_both_ends)
{
    static const struct {
        const char *text;
        int64_t min, max, value;
        int rc;
    } CASES[] = {
        {"-9223372036854775808", INT64_MIN, INT64_MAX, INT64_MIN, 0},
        {"9223372036854775807", INT64_MIN, INT64_MAX, INT64_MAX, 0},
        {"-9223372036854775809", INT64_MIN, INT64_MAX, 0, -ERANGE},
        {"9223372036854775808", INT64_MIN, INT64_MAX, 0, -ERANGE},
        {"18446744073709551617", INT64_MIN, INT64_MAX, 0, -ERANGE},
        {"-0", -1, 1, 0, 0},
        {"-1", -1, 1, -1, 0},
        {"-2", -1, 1, 0, -ERANGE},
        {"2", -1, 1, 0, -ERANGE},
        {"--1", -9, 9, 0, -EINVAL},
        {"+1", -9, 9, 0, -EINVAL},
        {"-", -9, 9, 0, -EINVAL},
        {"- 1", -9, 9, 0, -EINVAL},
        {"", -9, 9, 0, -EINVAL},
        {"1-", -9, 9, 0, -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        int64_t value = UNTOUCHED;
        int rc = er_parse_i64(CASES[i].text, CASES[i].min, CASES[i].max, &value, &err);

        if (CASES[i].rc)
            expect_failure(CASES[i].text, rc, CASES[i].rc, &err);
        cr_expect(rc == CASES[i].rc && value == (rc ? UNTOUCHED : CASES[i].value), "'%s'",
                  CASES[i].text);
    }
}

Test(base_parse, f64_takes_finite_decimals)
{
    static const struct {
        const char *text;
        double value;
        int rc;
    } CASES[] = {
        {"0", 0, 0},
        {"0.95", 0.95, 0},
        {"3e-4", 3e-4, 0},
        {"-1.5E+3", -1500, 0},
        {"0.1", 0.1, 0},
        {"1.7976931348623157e308", 1.7976931348623157e308, 0},
        {"2.2250738585072014e-308", 2.2250738585072014e-308, 0},
        {"5e-324", 5e-324, 0},
        {"1e-99999999999999999999", 0, 0},
        {"123456789012345678901234567890.5", 123456789012345678901234567890.5, 0},
        {"9007199254740993", 9007199254740992.0, 0},
        {"1e309", 0, -ERANGE},
        {"1e99999999999999999999", 0, -ERANGE},
        {"-1e400", 0, -ERANGE},
        {"inf", 0, -EINVAL},
        {"nan", 0, -EINVAL},
        {"-inf", 0, -EINVAL},
        {"0x1p3", 0, -EINVAL},
        {".5", 0, -EINVAL},
        {"5.", 0, -EINVAL},
        {"1,5", 0, -EINVAL},
        {"1e", 0, -EINVAL},
        {"1e+", 0, -EINVAL},
        {"1e1.5", 0, -EINVAL},
        {"1.2.3", 0, -EINVAL},
        {"+1", 0, -EINVAL},
        {"--1", 0, -EINVAL},
        {" 1", 0, -EINVAL},
        {"1 ", 0, -EINVAL},
        {"", 0, -EINVAL},
        {"-", 0, -EINVAL},
        {"e5", 0, -EINVAL},
        {"00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00000000000000000000",
         0, -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        double value = UNTOUCHED;
        int rc = er_parse_f64(CASES[i].text, -HUGE_VAL, HUGE_VAL, &value, &err);

        if (CASES[i].rc)
            expect_failure(CASES[i].text, rc, CASES[i].rc, &err);
        cr_expect(rc == CASES[i].rc && value == (rc ? UNTOUCHED : CASES[i].value), "'%s': %a",
                  CASES[i].text, value);
    }
}

Test(base_parse, f64_bounds_are_inclusive)
{
    double value = UNTOUCHED;

    cr_expect(er_parse_f64("1", 0, 1, &value, NULL) == 0 && value == 1);
    cr_expect(er_parse_f64("0", 0, 1, &value, NULL) == 0 && value == 0);
    cr_expect(er_parse_f64("1.0000001", 0, 1, &value, NULL) == -ERANGE && value == 0);
    cr_expect(er_parse_f64("-0.1", 0, 1, &value, NULL) == -ERANGE && value == 0);
}

Test(base_parse, f64_reads_back_random_doubles)
{
    struct er_rand r;

    er_rand_init(&r, 1);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = er_rand_next(&r);
        double x, back = 0;
        char text[40];

        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x))
            continue;
        snprintf(text, sizeof(text), "%.17g", x);
        cr_assert(er_parse_f64(text, -HUGE_VAL, HUGE_VAL, &back, NULL) == 0, "%s", text);
        cr_assert(memcmp(&x, &back, sizeof(x)) == 0, "%s", text);
    }
}

Test(base_parse, bool_is_true_or_false)
{
    static const char *const WRONG[] = {"",  "True", "TRUE", "yes",   "no",    "on",
                                        "1", "0",    "t",    "true ", " true", "falsely"};
    bool value = false;

    cr_expect(er_parse_bool("true", &value, NULL) == 0 && value);
    cr_expect(er_parse_bool("false", &value, NULL) == 0 && !value);
    for (size_t i = 0; i < ER_ARRAY_N(WRONG); i++) {
        struct er_error err = ER_ERROR_INIT;

        value = true;
        expect_failure(WRONG[i], er_parse_bool(WRONG[i], &value, &err), -EINVAL, &err);
        cr_expect(value);
    }
}

struct unit_case {
    const char *text;
    uint64_t value;
    int rc;
};

static const struct unit_case DURATIONS[] = {
    {"250us", 250, 0},
    {"500ms", 500000, 0},
    {"30s", 30000000, 0},
    {"10m", 600000000, 0},
    {"1h", 3600000000, 0},
    {"7d", 604800000000, 0},
    {"0s", 0, 0},
    {"0us", 0, 0},
    {"1h30m", 5400000000, 0},
    {"1d2h3m4s5ms6us", 93784005006, 0},
    {"1s500ms", 1500000, 0},
    {"90m", 5400000000, 0},
    {"none", UINT64_MAX, 0},
    {"213503982d", 18446744044800000000u, 0},
    {"18446744073709551614us", UINT64_MAX - 1, 0},
    {"18446744073709551615us", 0, -ERANGE},
    {"18446744073709551616us", 0, -ERANGE},
    {"213503983d", 0, -ERANGE},
    {"213503982d23h", 0, -ERANGE},
    {"99999999999999999999999s", 0, -ERANGE},
    {"99999999999999999999999s1x", 0, -EINVAL},
    {"30m1h", 0, -EINVAL},
    {"1h1h", 0, -EINVAL},
    {"1ms1s", 0, -EINVAL},
    {"0.5s", 0, -EINVAL},
    {"1.5h", 0, -EINVAL},
    {"-1s", 0, -EINVAL},
    {"+1s", 0, -EINVAL},
    {" 1s", 0, -EINVAL},
    {"1s ", 0, -EINVAL},
    {"1 s", 0, -EINVAL},
    {"1h 30m", 0, -EINVAL},
    {"1h30", 0, -EINVAL},
    {"h", 0, -EINVAL},
    {"s1", 0, -EINVAL},
    {"1S", 0, -EINVAL},
    {"1H", 0, -EINVAL},
    {"1sec", 0, -EINVAL},
    {"1min", 0, -EINVAL},
    {"1ns", 0, -EINVAL},
    {"1w", 0, -EINVAL},
    {"", 0, -EINVAL},
    {"None", 0, -EINVAL},
    {"none ", 0, -EINVAL},
    {"inf", 0, -EINVAL},
};

static void check_duration(const struct unit_case *c, bool bare_seconds)
{
    struct er_error err = ER_ERROR_INIT;
    uint64_t value = UNTOUCHED;
    int rc = er_parse_duration(c->text, bare_seconds, &value, &err);

    if (c->rc)
        expect_failure(c->text, rc, c->rc, &err);
    cr_expect(rc == c->rc && value == (rc ? UNTOUCHED : c->value), "'%s': %d %llu", c->text, rc,
              (unsigned long long)value);
}

Test(base_parse, duration_needs_units_in_falling_order)
{
    static const struct unit_case BARE[] = {
        {"30", 0, -EINVAL}, {"0", 0, -EINVAL}, {"0.5", 0, -EINVAL}, {".", 0, -EINVAL}};

    for (size_t i = 0; i < ER_ARRAY_N(DURATIONS); i++)
        check_duration(&DURATIONS[i], false);
    for (size_t i = 0; i < ER_ARRAY_N(BARE); i++)
        check_duration(&BARE[i], false);
}

Test(base_parse, bare_seconds_may_have_a_fraction)
{
    static const struct unit_case BARE[] = {
        {"30", 30000000, 0},
        {"0", 0, 0},
        {"0.5", 500000, 0},
        {"0.1", 100000, 0},
        {"1.000001", 1000001, 0},
        {"1.0000019", 1000001, 0},
        {"18446744073709.551614", UINT64_MAX - 1, 0},
        {"18446744073709.551615", 0, -ERANGE},
        {"99999999999999999999", 0, -ERANGE},
        {".5", 0, -EINVAL},
        {"5.", 0, -EINVAL},
        {"1.2.3", 0, -EINVAL},
        {"1e3", 0, -EINVAL},
        {"-1", 0, -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(BARE); i++)
        check_duration(&BARE[i], true);
    for (size_t i = 0; i < ER_ARRAY_N(DURATIONS); i++)
        check_duration(&DURATIONS[i], true);
}

Test(base_parse, size_needs_one_known_unit)
{
    static const struct unit_case CASES[] = {
        {"512B", 512, 0},
        {"0B", 0, 0},
        {"64KiB", 65536, 0},
        {"8MiB", 8388608, 0},
        {"2GiB", 2147483648, 0},
        {"1TiB", 1099511627776, 0},
        {"64kB", 64000, 0},
        {"8MB", 8000000, 0},
        {"2GB", 2000000000, 0},
        {"1TB", 1000000000000, 0},
        {"none", UINT64_MAX, 0},
        {"16777215TiB", 18446742974197923840u, 0},
        {"18446744073709551614B", UINT64_MAX - 1, 0},
        {"18446744073709551615B", 0, -ERANGE},
        {"16777216TiB", 0, -ERANGE},
        {"99999999999999999999999KiB", 0, -ERANGE},
        {"64", 0, -EINVAL},
        {"0", 0, -EINVAL},
        {"64K", 0, -EINVAL},
        {"64KB", 0, -EINVAL},
        {"64kib", 0, -EINVAL},
        {"64kiB", 0, -EINVAL},
        {"8mb", 0, -EINVAL},
        {"8Mib", 0, -EINVAL},
        {"1PiB", 0, -EINVAL},
        {"1.5GiB", 0, -EINVAL},
        {"1GiB512MiB", 0, -EINVAL},
        {"-1B", 0, -EINVAL},
        {"+1B", 0, -EINVAL},
        {" 1B", 0, -EINVAL},
        {"1 B", 0, -EINVAL},
        {"1B ", 0, -EINVAL},
        {"B", 0, -EINVAL},
        {"", 0, -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        uint64_t value = UNTOUCHED;
        int rc = er_parse_size(CASES[i].text, &value, &err);

        if (CASES[i].rc)
            expect_failure(CASES[i].text, rc, CASES[i].rc, &err);
        cr_expect(rc == CASES[i].rc && value == (rc ? UNTOUCHED : CASES[i].value), "'%s': %d",
                  CASES[i].text, rc);
    }
}

Test(base_parse, formatted_values_read_back)
{
    static const uint64_t SPECIAL[] = {
        0, 1, 999, 1000, 1024, 512, 5400000000, UINT64_MAX - 1, UINT64_MAX};
    char text[ER_UNIT_TEXT_MAX];
    struct er_rand r;
    uint64_t back = 0;

    er_rand_init(&r, 2);
    for (size_t i = 0; i < 5000; i++) {
        uint64_t value =
            i < ER_ARRAY_N(SPECIAL) ? SPECIAL[i] : er_rand_next(&r) >> er_rand_below(&r, 64);

        er_format_duration(value, text);
        cr_assert(er_parse_duration(text, false, &back, NULL) == 0 && back == value, "%s", text);
        er_format_size(value, text);
        cr_assert(er_parse_size(text, &back, NULL) == 0 && back == value, "%s", text);
    }
}

Test(base_parse, formatted_values_are_the_ones_people_write)
{
    static const struct {
        uint64_t value;
        const char *duration, *size;
    } CASES[] = {
        {0, "0s", "0B"},
        {512, "512us", "512B"},
        {65536, "65ms536us", "64KiB"},
        {5400000000, "1h30m", "5400MB"},
        {30000000, "30s", "30MB"},
        {8388608, "8s388ms608us", "8MiB"},
        {64000000, "1m4s", "64MB"},
        {UINT64_MAX, "none", "none"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        char text[ER_UNIT_TEXT_MAX];

        er_format_duration(CASES[i].value, text);
        cr_expect(!strcmp(text, CASES[i].duration), "%s", text);
        er_format_size(CASES[i].value, text);
        cr_expect(!strcmp(text, CASES[i].size), "%s", text);
    }
}

Test(base_parse, range_is_min_or_min_max)
{
    static const struct {
        const char *text;
        uint32_t limit, min, max;
        int rc;
    } CASES[] = {
        {"4", 10, 4, 4, 0},
        {"4:6", 10, 4, 6, 0},
        {"1:10", 10, 1, 10, 0},
        {"4:4", 10, 4, 4, 0},
        {"4294967295", UINT32_MAX, UINT32_MAX, UINT32_MAX, 0},
        {"6:4", 10, 0, 0, -EINVAL},
        {"0", 10, 0, 0, -ERANGE},
        {"0:4", 10, 0, 0, -ERANGE},
        {"4:0", 10, 0, 0, -EINVAL},
        {"11", 10, 0, 0, -ERANGE},
        {"4:11", 10, 0, 0, -ERANGE},
        {"4294967296", UINT32_MAX, 0, 0, -ERANGE},
        {"18446744073709551617", UINT32_MAX, 0, 0, -ERANGE},
        {"1:18446744073709551617", UINT32_MAX, 0, 0, -ERANGE},
        {"4:", 10, 0, 0, -EINVAL},
        {":4", 10, 0, 0, -EINVAL},
        {":", 10, 0, 0, -EINVAL},
        {"1:2:3", 10, 0, 0, -EINVAL},
        {"-1:4", 10, 0, 0, -EINVAL},
        {"1:-4", 10, 0, 0, -EINVAL},
        {"1 :4", 10, 0, 0, -EINVAL},
        {"1: 4", 10, 0, 0, -EINVAL},
        {"1-4", 10, 0, 0, -EINVAL},
        {"four", 10, 0, 0, -EINVAL},
        {"", 10, 0, 0, -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        uint32_t min = UNTOUCHED, max = UNTOUCHED;
        int rc = er_parse_range(CASES[i].text, CASES[i].limit, &min, &max, &err);

        if (CASES[i].rc)
            expect_failure(CASES[i].text, rc, CASES[i].rc, &err);
        cr_expect(rc == CASES[i].rc && min == (rc ? UNTOUCHED : CASES[i].min) &&
                      max == (rc ? UNTOUCHED : CASES[i].max),
                  "'%s': %d", CASES[i].text, rc);
    }
}

Test(base_parse, signal_names_with_and_without_prefix)
{
    static const char *const WRONG[] = {"",      "SIG",   "term", "SIGterm", "15",    "SIGSIGTERM",
                                        "TERM ", " TERM", "EXIT", "RTMIN",   "SIGERR"};
    int value = UNTOUCHED;

    cr_expect(er_parse_signal("TERM", &value, NULL) == 0 && value == SIGTERM);
    cr_expect(er_parse_signal("SIGTERM", &value, NULL) == 0 && value == SIGTERM);
    cr_expect(er_parse_signal("USR1", &value, NULL) == 0 && value == SIGUSR1);
    cr_expect(er_parse_signal("SIGKILL", &value, NULL) == 0 && value == SIGKILL);
    for (size_t i = 0; i < ER_ARRAY_N(WRONG); i++) {
        struct er_error err = ER_ERROR_INIT;

        value = UNTOUCHED;
        expect_failure(WRONG[i], er_parse_signal(WRONG[i], &value, &err), -EINVAL, &err);
        cr_expect(value == UNTOUCHED);
    }
}

Test(base_parse, signal_names_read_back_and_mistakes_get_a_hint)
{
    struct er_error err = ER_ERROR_INIT;
    int value = 0;

    for (int sig = 1; sig < 32; sig++) {
        cr_assert(er_parse_signal(er_signal_name(sig), &value, &err) == 0, "%d: %s", sig, err.text);
        cr_assert(value == sig);
    }
    cr_expect(!strcmp(er_signal_name(SIGSEGV), "SIGSEGV"));
    cr_expect(!strcmp(er_signal_name(0), "SIG?") && !strcmp(er_signal_name(-1), "SIG?") &&
              !strcmp(er_signal_name(9999), "SIG?"));
    er_parse_signal("SIGTERN", &value, &err);
    cr_expect(strstr(err.text, "did you mean SIGTERM?"), "%s", err.text);
}

static int collect(void *user, const char *item, size_t n, struct er_error *err)
{
    char *all = user;

    if (n == 4 && !memcmp(item, "stop", 4))
        return er_error_set(err, 5, "stopped");
    strncat(all, item, n);
    strcat(all, "|");
    return 0;
}

Test(base_parse, list_calls_for_each_item)
{
    static const struct {
        const char *text, *items;
        int rc;
    } CASES[] = {
        {"a", "a|", 0},        {"a,b,c", "a|b|c|", 0}, {" a ,b", " a |b|", 0},
        {"a,stop,c", "a|", 5}, {"", "", -EINVAL},      {",", "", -EINVAL},
        {"a,", "a|", -EINVAL}, {",a", "", -EINVAL},    {"a,,b", "a|", -EINVAL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        char all[64] = "";
        int rc = er_parse_list(CASES[i].text, ',', collect, all, &err);

        cr_expect(rc == CASES[i].rc && !strcmp(all, CASES[i].items), "'%s': %d '%s'", CASES[i].text,
                  rc, all);
        cr_expect(!rc || err.text[0]);
    }
}

Test(base_parse, edit_distance_is_levenshteins)
{
    char longer[200];

    cr_expect(er_edit_distance("", "") == 0);
    cr_expect(er_edit_distance("", "abc") == 3 && er_edit_distance("abc", "") == 3);
    cr_expect(er_edit_distance("kitten", "sitting") == 3);
    cr_expect(er_edit_distance("flaw", "lawn") == 2);
    cr_expect(er_edit_distance("same", "same") == 0);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    cr_expect(er_edit_distance(longer, longer) == 0 && er_edit_distance(longer, "x") == 199);
}

Test(base_parse, nearest_finds_typing_mistakes_only)
{
    static const char *const KEYS[] = {"nnodes", "nproc_per_node", "rendezvous", "restarts", "log"};
    size_t n = ER_ARRAY_N(KEYS);

    cr_expect(er_nearest("nproc_per_nod", KEYS, n) == KEYS[1]);
    cr_expect(er_nearest("rendevous", KEYS, n) == KEYS[2]);
    cr_expect(er_nearest("restart", KEYS, n) == KEYS[3]);
    cr_expect(er_nearest("logs", KEYS, n) == KEYS[4]);
    cr_expect(er_nearest("nnodes", KEYS, n) == KEYS[0]);
    cr_expect(er_nearest("zebra", KEYS, n) == NULL);
    cr_expect(er_nearest("", KEYS, n) == NULL);
    cr_expect(er_nearest("lo", NULL, 0) == NULL);
}
