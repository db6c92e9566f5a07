#include <criterion/criterion.h>

#include <limits.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"

Test(base_clock, time_does_not_go_back)
{
    uint64_t last = er_now_us();

    for (int i = 0; i < 1000; i++) {
        uint64_t now = er_now_us();

        cr_assert(now >= last);
        last = now;
    }
    cr_expect(er_wall_us() / ER_US_PER_S > 1600000000);
}

Test(base_clock, deadlines_saturate)
{
    cr_expect(er_deadline_in(10, 20) == 30);
    cr_expect(er_deadline_in(10, ER_FOREVER) == ER_FOREVER);
    cr_expect(er_deadline_in(10, ER_FOREVER - 10) == ER_FOREVER);
    cr_expect(er_deadline_in(10, ER_FOREVER - 11) == ER_FOREVER - 1);
    cr_expect(er_deadline_in(ER_FOREVER, 1) == ER_FOREVER);
    cr_expect(er_deadline_in(0, 0) == 0);
}

Test(base_clock, poll_waits_are_rounded_up)
{
    cr_expect(er_poll_ms(0, ER_FOREVER) == -1);
    cr_expect(er_poll_ms(100, 100) == 0 && er_poll_ms(100, 50) == 0);
    cr_expect(er_poll_ms(100, 101) == 1 && er_poll_ms(100, 1100) == 1);
    cr_expect(er_poll_ms(100, 1101) == 2);
    cr_expect(er_poll_ms(0, ER_FOREVER - 1) == INT_MAX);
}

Test(base_clock, rfc3339_matches_the_calendar)
{
    char text[ER_RFC3339_MAX], wanted[ER_RFC3339_MAX];
    struct er_rand r;

    er_rfc3339(0, text);
    cr_expect(!strcmp(text, "1970-01-01T00:00:00.000000Z"), "%s", text);
    er_rfc3339(951782400123456, text);
    cr_expect(!strcmp(text, "2000-02-29T00:00:00.123456Z"), "%s", text);
    er_rfc3339(UINT64_MAX, text);
    cr_expect(!strcmp(text, "586524-01-19T08:01:49.551615Z"), "%s", text);
    er_rand_init(&r, 6);
    for (int i = 0; i < 20000; i++) {
        uint64_t us = er_rand_below(&r, 253402300800ull * ER_US_PER_S);
        time_t seconds = (time_t)(us / ER_US_PER_S);
        struct tm tm;

        gmtime_r(&seconds, &tm);
        strftime(wanted, sizeof(wanted), "%Y-%m-%dT%H:%M:%S.", &tm);
        er_rfc3339(us, text);
        cr_assert(!strncmp(text, wanted, 20), "%s is not %s", text, wanted);
    }
}

/* First outputs of the authors' reference programs. */
Test(base_rand, known_answers)
{
    static const uint64_t XOSHIRO[] = {11520, 0, 1509978240, 1215971899390074240};
    struct er_rand r = {{1, 2, 3, 4}};

    cr_expect(er_rand_mix(0) == 0xe220a8397b1dcdafull);
    for (size_t i = 0; i < ER_ARRAY_N(XOSHIRO); i++)
        cr_expect(er_rand_next(&r) == XOSHIRO[i]);
    er_rand_init(&r, 0);
    cr_expect(r.s[0] == 0xe220a8397b1dcdafull && r.s[1] == 0x6e789e6aa1b965f4ull);
}

Test(base_rand, same_seed_same_numbers)
{
    struct er_rand a, b, c;
    int differ = 0;

    er_rand_init(&a, 7);
    er_rand_init(&b, 7);
    er_rand_init(&c, 8);
    for (int i = 0; i < 100; i++) {
        uint64_t x = er_rand_next(&a);

        cr_assert(x == er_rand_next(&b));
        differ += x != er_rand_next(&c);
    }
    cr_expect(differ == 100);
}

Test(base_rand, below_is_in_range_and_even)
{
    enum { SIDES = 6, THROWS = 60000 };
    unsigned count[SIDES] = {0};
    struct er_rand r;

    er_rand_init(&r, 9);
    for (int i = 0; i < THROWS; i++)
        count[er_rand_below(&r, SIDES)]++;
    for (int i = 0; i < SIDES; i++)
        cr_expect(count[i] > 9500 && count[i] < 10500, "%u", count[i]);
    for (int i = 0; i < 1000; i++) {
        cr_assert(er_rand_below(&r, 1) == 0);
        cr_assert(er_rand_below(&r, (1ull << 63) + 1) <= 1ull << 63);
    }
}
