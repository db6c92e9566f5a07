/* bfloat16: rounding to nearest even, and what has no nearest. */
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/half.h"

static float of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint16_t narrow(uint32_t bits)
{
    const float x = of_bits(bits);
    uint16_t y;

    er_half_from(ER_BF16, &x, &y, 1);
    return y;
}

Test(half, bf16_rounds_to_nearest_even)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, /* a tie, down to even */
        {0x3f818000, 0x3f82},                       /* a tie, up to even */
        {0x3f808001, 0x3f81}, {0xbf807fff, 0xbf80}, {0x00000001, 0x0000},
        {0x80000000, 0x8000}, {0x7f7fffff, 0x7f80}, /* the largest becomes infinite */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++)
        cr_expect_eq(narrow(cases[i].from), cases[i].to, "%08x", cases[i].from);
}

Test(half, bf16_nan_stays_nan)
{
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};

    for (size_t i = 0; i < ER_ARRAY_N(nans); i++) {
        uint16_t narrow_nan = narrow(nans[i]);
        float back;

        er_half_to(ER_BF16, &narrow_nan, &back, 1);
        cr_expect(isnan(back), "%08x", nans[i]);
    }
}

/* All 65536 come back as they went; arrays of any length, so that no vector's rest is forgotten. */
Test(half, bf16_every_value_survives_a_round)
{
    for (uint32_t first = 0; first < 0x10000;) {
        uint16_t in[37], out[37];
        float wide[37];
        size_t n = 1 + first % 37;

        n = n > 0x10000 - first ? 0x10000 - first : n;
        for (size_t i = 0; i < n; i++)
            in[i] = (uint16_t)(first + i);
        er_half_to(ER_BF16, in, wide, n);
        er_half_from(ER_BF16, wide, out, n);
        for (size_t i = 0; i < n; i++)
            cr_assert(out[i] == in[i] || (isnan(wide[i]) && out[i] == (in[i] | 0x40)));
        first += (uint32_t)n;
    }
}
