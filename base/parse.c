#include "base/parse.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"

enum {
    NUMBER_TEXT_MAX = 96, /* longest text of a decimal number */
    EXPONENT_MAX = 9999,  /* beyond any double */
};

/* How much of a wrong text is repeated in a message. */
#define SHOWN "%.80s"

/*
 * Digits at *at, at least one; advances *at behind them. -EINVAL when there is none, -ERANGE when
 * the value does not fit (then *at is behind the digits all the same). By hand, because strtoull()
 * takes blanks and signs.
 */
static int scan_digits(const char **at, uint64_t *ret)
{
    const char *s = *at;
    uint64_t value = 0;
    int rc = 0;

    if (*s < '0' || *s > '9')
        return -EINVAL;
    for (; *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');

        if (value > (UINT64_MAX - digit) / 10)
            rc = -ERANGE;
        else
            value = value * 10 + digit;
    }
    *at = s;
    *ret = value;
    return rc;
}

int er_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret, struct er_error *err)
{
    const char *at = text;
    uint64_t value = 0;
    int rc = scan_digits(&at, &value);

    if (rc == -EINVAL || *at)
        return er_error_set(err, -EINVAL, "expected a whole number, got '" SHOWN "'", text);
    if (rc || value < min || value > max)
        return er_error_set(err, -ERANGE, "expected a number from %llu to %llu, got " SHOWN,
                            (unsigned long long)min, (unsigned long long)max, text);
    *ret = value;
    return 0;
}

int er_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret, struct er_error *err)
{
    bool negative = *text == '-';
    const char *at = text + negative;
    uint64_t size = 0;
    int rc = scan_digits(&at, &size);
    int64_t value;

    if (rc == -EINVAL || *at)
        return er_error_set(err, -EINVAL, "expected a whole number, got '" SHOWN "'", text);
    if (size > (uint64_t)INT64_MAX + negative)
        rc = -ERANGE;
    value = negative ? (int64_t)(0 - size) : (int64_t)size;
    if (rc || value < min || value > max)
        return er_error_set(err, -ERANGE, "expected a number from %lld to %lld, got " SHOWN,
                            (long long)min, (long long)max, text);
    *ret = value;
    return 0;
}

/* A decimal number without its point: value = digits * 10^exponent. */
struct decimal {
    char digits[NUMBER_TEXT_MAX + 1];
    size_t n;
    int exponent;
};

static void take_digits(const char **at, struct decimal *d, bool fraction)
{
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        d->digits[d->n++] = **at;
        d->exponent -= fraction;
    }
}

/* `digits[.digits][e[+-]digits]`; -EINVAL unless all of the text is that. */
static int scan_decimal(const char *at, struct decimal *d)
{
    uint64_t exponent = 0;
    bool negative;

    if (strlen(at) > NUMBER_TEXT_MAX)
        return -EINVAL;
    take_digits(&at, d, false);
    if (!d->n)
        return -EINVAL;
    if (*at == '.') {
        size_t before = d->n;

        at++;
        take_digits(&at, d, true);
        if (d->n == before)
            return -EINVAL;
    }
    d->digits[d->n] = '\0';
    if (*at != 'e' && *at != 'E')
        return *at ? -EINVAL : 0;
    at++;
    negative = *at == '-';
    at += *at == '-' || *at == '+';
    if (scan_digits(&at, &exponent) == -EINVAL || *at)
        return -EINVAL;
    if (exponent > EXPONENT_MAX)
        exponent = EXPONENT_MAX;
    d->exponent += negative ? -(int)exponent : (int)exponent;
    return 0;
}

/* Appends "e<exponent>" so that strtod(), which looks for the locale's decimal point, never needs
 * one. */
static double decimal_value(const struct decimal *d)
{
    char text[NUMBER_TEXT_MAX + 16];
    unsigned size = (unsigned)(d->exponent < 0 ? -d->exponent : d->exponent);
    size_t n = d->n;

    memcpy(text, d->digits, n);
    text[n++] = 'e';
    text[n++] = d->exponent < 0 ? '-' : '+';
    for (unsigned unit = 10000; unit; unit /= 10)
        text[n++] = (char)('0' + size / unit % 10);
    text[n] = '\0';
    return strtod(text, NULL);
}

int er_parse_f64(const char *text, double min, double max, double *ret, struct er_error *err)
{
    bool negative = *text == '-';
    struct decimal d = {.n = 0};
    double value;

    if (scan_decimal(text + negative, &d))
        return er_error_set(err, -EINVAL, "expected a decimal number, got '" SHOWN "'", text);
    value = negative ? -decimal_value(&d) : decimal_value(&d);
    if (!isfinite(value) || value < min || value > max)
        return er_error_set(err, -ERANGE, "expected a number from %g to %g, got " SHOWN, min, max,
                            text);
    *ret = value;
    return 0;
}

int er_parse_bool(const char *text, bool *ret, struct er_error *err)
{
    bool yes = !strcmp(text, "true");

    if (!yes && strcmp(text, "false") != 0)
        return er_error_set(err, -EINVAL, "expected true or false, got '" SHOWN "'", text);
    *ret = yes;
    return 0;
}

struct unit {
    const char *name;
    uint64_t scale;
};

/* Largest first: the order in which they may be joined. */
static const struct unit TIME_UNITS[] = {
    {"d", 86400 * ER_US_PER_S}, {"h", 3600 * ER_US_PER_S}, {"m", 60 * ER_US_PER_S},
    {"s", ER_US_PER_S},         {"ms", ER_US_PER_MS},      {"us", 1},
};

static const struct unit SIZE_UNITS[] = {
    {"TiB", 1ull << 40},   {"TB", 1000000000000ull}, {"GiB", 1ull << 30},
    {"GB", 1000000000ull}, {"MiB", 1ull << 20},      {"MB", 1000000ull},
    {"KiB", 1ull << 10},   {"kB", 1000ull},          {"B", 1},
};

/* The unit that is all of the letters at *at; advances behind it. NULL when there is none. */
static const struct unit *scan_unit(const char **at, const struct unit *units, size_t n)
{
    const char *end = *at;

    while ((*end >= 'a' && *end <= 'z') || (*end >= 'A' && *end <= 'Z'))
        end++;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(units[i].name);

        if (length == (size_t)(end - *at) && !memcmp(units[i].name, *at, length)) {
            *at = end;
            return &units[i];
        }
    }
    return NULL;
}

/* *total += value * scale, kept below UINT64_MAX, which means "none". */
static int add_scaled(uint64_t *total, uint64_t value, uint64_t scale)
{
    if (value > (UINT64_MAX - 1 - *total) / scale)
        return -ERANGE;
    *total += value * scale;
    return 0;
}

#define DURATION_WANTED "expected a duration such as 500ms, 30s, 1h30m or none"

/* "30", "0.5": seconds; what is finer than a microsecond is cut off. -EINVAL when it is something
 * else. */
static int scan_bare_seconds(const char *text, uint64_t *ret_us)
{
    const char *at = text;
    uint64_t seconds = 0, us = 0, unit = ER_US_PER_S;
    int rc = scan_digits(&at, &seconds);

    if (rc == -EINVAL)
        return rc;
    if (*at == '.') {
        const char *point = at++;

        for (; *at >= '0' && *at <= '9'; at++) {
            unit /= 10;
            us += (uint64_t)(*at - '0') * unit;
        }
        if (at == point + 1)
            return -EINVAL;
    }
    if (*at)
        return -EINVAL;
    if (!rc)
        rc = add_scaled(&us, seconds, ER_US_PER_S);
    if (!rc)
        *ret_us = us;
    return rc;
}

static bool only_digits(const char *text)
{
    return *text && text[strspn(text, "0123456789.")] == '\0';
}

/* Value and unit, again and again, each unit smaller than the one before. */
static int scan_joined(const char *text, uint64_t *ret_us)
{
    const struct unit *last = NULL;
    const char *at = text;
    uint64_t total = 0;
    int rc = 0;

    do {
        const struct unit *unit;
        uint64_t value = 0;
        int digits = scan_digits(&at, &value);

        if (digits == -EINVAL)
            return digits;
        unit = scan_unit(&at, TIME_UNITS, ER_ARRAY_N(TIME_UNITS));
        if (!unit || (last && unit <= last))
            return -EINVAL;
        if (!rc)
            rc = digits ? digits : add_scaled(&total, value, unit->scale);
        last = unit;
    } while (*at);
    if (!rc)
        *ret_us = total;
    return rc;
}

int er_parse_duration(const char *text, bool bare_seconds, uint64_t *ret_us, struct er_error *err)
{
    bool bare = only_digits(text);
    int rc;

    if (!strcmp(text, "none")) {
        *ret_us = ER_FOREVER;
        return 0;
    }
    if (bare && !bare_seconds)
        return er_error_set(err, -EINVAL, DURATION_WANTED ", got '" SHOWN "', which has no unit",
                            text);
    rc = bare ? scan_bare_seconds(text, ret_us) : scan_joined(text, ret_us);
    if (rc == -ERANGE)
        return er_error_set(err, rc, "duration '" SHOWN "' is too long; none is \"no limit\"",
                            text);
    if (rc)
        return er_error_set(err, rc, DURATION_WANTED ", got '" SHOWN "'", text);
    return 0;
}

#define SIZE_WANTED "expected a size such as 512B, 64KiB, 8MB or none"

int er_parse_size(const char *text, uint64_t *ret_bytes, struct er_error *err)
{
    const struct unit *unit;
    const char *at = text;
    uint64_t value = 0, total = 0;
    int rc;

    if (!strcmp(text, "none")) {
        *ret_bytes = UINT64_MAX;
        return 0;
    }
    if (only_digits(text))
        return er_error_set(err, -EINVAL, SIZE_WANTED ", got '" SHOWN "', which has no unit", text);
    rc = scan_digits(&at, &value);
    unit = rc == -EINVAL ? NULL : scan_unit(&at, SIZE_UNITS, ER_ARRAY_N(SIZE_UNITS));
    if (!unit || *at)
        return er_error_set(err, -EINVAL, SIZE_WANTED ", got '" SHOWN "'", text);
    if (rc || add_scaled(&total, value, unit->scale))
        return er_error_set(err, -ERANGE, "size '" SHOWN "' is too large; none is \"no limit\"",
                            text);
    *ret_bytes = total;
    return 0;
}

int er_parse_range(const char *text, uint32_t limit, uint32_t *ret_min, uint32_t *ret_max,
                   struct er_error *err)
{
    const char *at = text;
    uint64_t min = 0, max;
    int rc = scan_digits(&at, &min), rc_max = rc;

    max = min;
    if (rc != -EINVAL && *at == ':') {
        at++;
        rc_max = scan_digits(&at, &max);
    }
    if (rc == -EINVAL || rc_max == -EINVAL || *at)
        return er_error_set(err, -EINVAL,
                            "expected MIN or MIN:MAX such as 4 or 4:6, got '" SHOWN "'", text);
    if (rc || rc_max || min < 1 || max > limit || min > limit)
        return er_error_set(err, -ERANGE, "expected numbers from 1 to %u, got '" SHOWN "'", limit,
                            text);
    if (min > max)
        return er_error_set(err, -EINVAL, "'" SHOWN "' has its minimum above its maximum", text);
    *ret_min = (uint32_t)min;
    *ret_max = (uint32_t)max;
    return 0;
}

/* Those of Linux; where a number has two names, the customary one. */
#define NAMED(name) [SIG##name] = "SIG" #name
static const char *const SIGNAL_NAMES[] = {
    NAMED(HUP),  NAMED(INT),    NAMED(QUIT), NAMED(ILL),  NAMED(TRAP),   NAMED(ABRT), NAMED(BUS),
    NAMED(FPE),  NAMED(KILL),   NAMED(USR1), NAMED(SEGV), NAMED(USR2),   NAMED(PIPE), NAMED(ALRM),
    NAMED(TERM), NAMED(STKFLT), NAMED(CHLD), NAMED(CONT), NAMED(STOP),   NAMED(TSTP), NAMED(TTIN),
    NAMED(TTOU), NAMED(URG),    NAMED(XCPU), NAMED(XFSZ), NAMED(VTALRM), NAMED(PROF), NAMED(WINCH),
    NAMED(IO),   NAMED(PWR),    NAMED(SYS),
};
#undef NAMED

static const char *nearest_signal(const char *text)
{
    const char *names[ER_ARRAY_N(SIGNAL_NAMES)];
    bool prefixed = !strncmp(text, "SIG", 3);
    size_t n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(SIGNAL_NAMES); i++) {
        if (SIGNAL_NAMES[i])
            names[n++] = SIGNAL_NAMES[i] + (prefixed ? 0 : 3);
    }
    return er_nearest(text, names, n);
}

int er_parse_signal(const char *text, int *ret, struct er_error *err)
{
    const char *bare = strncmp(text, "SIG", 3) ? text : text + 3, *near;

    for (size_t i = 0; i < ER_ARRAY_N(SIGNAL_NAMES); i++) {
        if (SIGNAL_NAMES[i] && !strcmp(SIGNAL_NAMES[i] + 3, bare)) {
            *ret = (int)i;
            return 0;
        }
    }
    near = nearest_signal(text);
    return er_error_set(err, -EINVAL,
                        "expected a signal such as TERM or SIGTERM, got '" SHOWN "'%s%s%s", text,
                        near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

const char *er_signal_name(int sig)
{
    if (sig < 0 || (size_t)sig >= ER_ARRAY_N(SIGNAL_NAMES) || !SIGNAL_NAMES[sig])
        return "SIG?";
    return SIGNAL_NAMES[sig];
}

/* Appends `value` and a unit; the caller has room. Returns the new end. */
static char *put_value(char *at, uint64_t value, const char *unit)
{
    char digits[20];
    size_t n = 0;

    do {
        digits[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    while (n)
        *at++ = digits[--n];
    n = strlen(unit);
    memcpy(at, unit, n + 1);
    return at + n;
}

void er_format_duration(uint64_t us, char ret_text[ER_UNIT_TEXT_MAX])
{
    char *at = ret_text;

    if (us == ER_FOREVER) {
        memcpy(ret_text, "none", 5);
        return;
    }
    if (us == 0)
        put_value(at, 0, "s");
    for (size_t i = 0; us && i < ER_ARRAY_N(TIME_UNITS); i++) {
        if (us >= TIME_UNITS[i].scale)
            at = put_value(at, us / TIME_UNITS[i].scale, TIME_UNITS[i].name);
        us %= TIME_UNITS[i].scale;
    }
}

/* The unit that needs the smallest whole number: 8388608 is 8MiB, 8000000 is 8MB. */
void er_format_size(uint64_t bytes, char ret_text[ER_UNIT_TEXT_MAX])
{
    const struct unit *best = &SIZE_UNITS[ER_ARRAY_N(SIZE_UNITS) - 1];

    if (bytes == UINT64_MAX) {
        memcpy(ret_text, "none", 5);
        return;
    }
    for (size_t i = 0; bytes && i < ER_ARRAY_N(SIZE_UNITS); i++) {
        if (bytes % SIZE_UNITS[i].scale == 0 && SIZE_UNITS[i].scale > best->scale)
            best = &SIZE_UNITS[i];
    }
    put_value(ret_text, bytes / best->scale, best->name);
}

int er_parse_list(const char *text, char sep, er_parse_item_fn fn, void *user, struct er_error *err)
{
    const char *at = text;

    assert(sep);
    for (;;) {
        const char *end = strchr(at, sep);
        size_t n = end ? (size_t)(end - at) : strlen(at);
        int rc;

        if (!n)
            return er_error_set(err, -EINVAL, "empty item in the list '" SHOWN "'", text);
        rc = fn(user, at, n, err);
        if (rc || !end)
            return rc;
        at = end + 1;
    }
}
