#include "agent/hostlist.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define BRACKETS_MAX 4
#define NUMBER_MAX   9 /* digits */

/* One name of the list: text, then as often as there are brackets the inside of one and text. */
struct name {
    const char *text[BRACKETS_MAX + 1], *inside[BRACKETS_MAX];
    size_t text_n[BRACKETS_MAX + 1], inside_n[BRACKETS_MAX];
    size_t brackets;
};

struct range {
    uint32_t low, high;
    int digits;
};

static size_t digits_at(const char *text, uint32_t *ret)
{
    size_t n = 0;
    uint32_t value = 0;

    for (; text[n] >= '0' && text[n] <= '9' && n < NUMBER_MAX; n++)
        value = value * 10 + (uint32_t)(text[n] - '0');
    *ret = value;
    return n;
}

/* The range that `*at` begins with, "3" or "07-12"; goes on behind its comma. */
static bool next_range(const char **at, const char *end, struct range *ret)
{
    size_t n = digits_at(*at, &ret->low);

    ret->digits = (int)n;
    ret->high = ret->low;
    *at += n;
    if (n > 0 && *at < end && **at == '-') {
        n = digits_at(++*at, &ret->high);
        *at += n;
    }
    if (n == 0 || ret->high < ret->low || (*at < end && **at != ','))
        return false;
    if (*at < end && ++*at == end)
        return false; /* a comma at the end */
    return true;
}

/* How many numbers stand in a bracket; 0: it is not one. */
static uint64_t count_of(const char *inside, size_t n)
{
    const char *at = inside, *end = inside + n;
    struct range r;
    uint64_t count = 0;

    while (at < end) {
        if (!next_range(&at, end, &r))
            return 0;
        count += (uint64_t)r.high - r.low + 1;
    }
    return count;
}

/* Writes the number at place `index`. */
static void number_at(const char *inside, size_t n, uint64_t index, char ret[NUMBER_MAX + 3])
{
    const char *at = inside, *end = inside + n;
    struct range r;

    while (next_range(&at, end, &r) && index > (uint64_t)r.high - r.low)
        index -= (uint64_t)r.high - r.low + 1;
    snprintf(ret, NUMBER_MAX + 3, "%0*u", r.digits, r.low + (uint32_t)index);
}

/* Splits the name that `*at` begins with; goes on behind it. */
static bool next_name(const char **at, struct name *ret)
{
    const char *p = *at;

    *ret = (struct name){.text = {p}};
    for (; *p && *p != ','; p++) {
        size_t k = ret->brackets;
        const char *close;

        if (*p == ']')
            return false;
        if (*p != '[') {
            ret->text_n[k]++;
            continue;
        }
        close = strchr(p, ']');
        if (k == BRACKETS_MAX || !close)
            return false;
        ret->inside[k] = p + 1;
        ret->inside_n[k] = (size_t)(close - p - 1);
        ret->text[k + 1] = close + 1;
        ret->brackets++;
        p = close;
    }
    *at = *p ? p + 1 : p;
    return ret->text_n[0] > 0 && (*p == 0 || p[1] != 0);
}

/* The host at place `index` of those that the name stands for; false: too long. */
static bool write_host(const struct name *name, const uint64_t counts[BRACKETS_MAX], uint64_t index,
                       char ret[ER_HOSTLIST_NAME_MAX])
{
    uint64_t places[BRACKETS_MAX] = {0};
    char number[NUMBER_MAX + 3];
    int used;

    for (size_t k = name->brackets; k > 0; k--) {
        places[k - 1] = index % counts[k - 1];
        index /= counts[k - 1];
    }
    used = snprintf(ret, ER_HOSTLIST_NAME_MAX, "%.*s", (int)name->text_n[0], name->text[0]);
    for (size_t k = 0; k < name->brackets && used < ER_HOSTLIST_NAME_MAX; k++) {
        number_at(name->inside[k], name->inside_n[k], places[k], number);
        used += snprintf(ret + used, (size_t)(ER_HOSTLIST_NAME_MAX - used), "%s%.*s", number,
                         (int)name->text_n[k + 1], name->text[k + 1]);
    }
    return used < ER_HOSTLIST_NAME_MAX;
}

static bool add_hosts(const struct name *name, char (*ret)[ER_HOSTLIST_NAME_MAX], size_t max,
                      size_t *n)
{
    uint64_t counts[BRACKETS_MAX] = {0}, all = 1;

    for (size_t k = 0; k < name->brackets; k++) {
        counts[k] = count_of(name->inside[k], name->inside_n[k]);
        if (counts[k] == 0)
            return false;
        all = all > max ? all : all * counts[k]; /* no more are asked for than `max` */
    }
    for (uint64_t i = 0; i < all && *n < max; i++) {
        if (!write_host(name, counts, i, ret[*n]))
            return false;
        ++*n;
    }
    return true;
}

int er_hostlist_first(const char *text, char (*ret)[ER_HOSTLIST_NAME_MAX], size_t max,
                      size_t *ret_n, struct er_error *err)
{
    const char *at = text;
    struct name name;
    size_t n = 0;

    do {
        if (!next_name(&at, &name) || !add_hosts(&name, ret, max, &n))
            return er_error_set(err, ER_E_CONFIG,
                                "expected a list of hosts such as n[1-3,07],login, got '%.200s'",
                                text);
    } while (*at && n < max);
    *ret_n = n;
    return 0;
}
