#include "base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts); /* cannot fail for the two clocks used here */
    return (uint64_t)ts.tv_sec * ER_US_PER_S + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t er_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

uint64_t er_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

uint64_t er_deadline_in(uint64_t now_us, uint64_t delay_us)
{
    return delay_us > ER_FOREVER - now_us ? ER_FOREVER : now_us + delay_us;
}

int er_poll_ms(uint64_t now_us, uint64_t deadline_us)
{
    uint64_t left_us, ms;

    if (deadline_us == ER_FOREVER)
        return -1;
    if (deadline_us <= now_us)
        return 0;
    left_us = deadline_us - now_us;
    ms = left_us / ER_US_PER_MS + (left_us % ER_US_PER_MS != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/*
 * Days since 1970-01-01 to a date of the proleptic Gregorian calendar. Source: H. Hinnant,
 * "chrono-compatible low-level date algorithms", civil_from_days. Not gmtime_r(), which takes a
 * lock that a forked child may find held.
 */
static void civil_from_days(uint64_t days, uint64_t *ret_year, unsigned *ret_month,
                            unsigned *ret_day)
{
    uint64_t z = days + 719468, era = z / 146097;
    unsigned doe = (unsigned)(z % 146097);
    unsigned yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    unsigned doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    unsigned mp = (5 * doy + 2) / 153;

    *ret_day = doy - (153 * mp + 2) / 5 + 1;
    *ret_month = mp < 10 ? mp + 3 : mp - 9;
    *ret_year = yoe + era * 400 + (*ret_month <= 2);
}

void er_rfc3339(uint64_t wall_us, char ret_text[ER_RFC3339_MAX])
{
    uint64_t seconds = wall_us / ER_US_PER_S, year;
    unsigned us = (unsigned)(wall_us % ER_US_PER_S), of_day = (unsigned)(seconds % 86400);
    unsigned month, day;
    char text[64] = {0}; /* as much as the compiler fears */

    civil_from_days(seconds / 86400, &year, &month, &day);
    snprintf(text, sizeof(text), "%04u-%02u-%02uT%02u:%02u:%02u.%06uZ", (unsigned)year, month, day,
             of_day / 3600, of_day / 60 % 60, of_day % 60, us);
    memcpy(ret_text, text, ER_RFC3339_MAX); /* the largest year has six digits: 29 bytes and NUL */
}
