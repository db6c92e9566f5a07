#include "trainer/exact.h"

#include <errno.h>

#include "trainer/width.h"

#define UNIT_BITS 52 /* of the mean gradient, and 10 above it, one for the sign */

static uint32_t log2_up(uint64_t n)
{
    return n > 1 ? 64 - (uint32_t)__builtin_clzll(n - 1) : 0;
}

static double power_of_two(int n)
{
    double x = 1.0;

    for (; n > 0; n--)
        x *= 2.0;
    for (; n < 0; n++)
        x *= 0.5;
    return x;
}

size_t er_exact_bytes(const struct er_flat *flat)
{
    return flat->total * sizeof(int64_t);
}

int er_exact_bind(struct er_exact *exact, const struct er_flat *flat, uint32_t shards,
                  uint64_t weight_max, void *memory, struct er_error *err)
{
    int bits = UNIT_BITS - (int)log2_up(weight_max);

    if (shards < 1 || shards > ER_EXACT_SHARDS_MAX)
        return er_error_set(err, -EINVAL, "exact mode: %u shards, expected 1 to %d", shards,
                            ER_EXACT_SHARDS_MAX);
    if (weight_max < 1 || bits < 20)
        return er_error_set(err, -EINVAL, "exact mode: a step of weight %llu, expected 1 to 2^32",
                            (unsigned long long)weight_max);
    exact->sums = memory;
    exact->unit = power_of_two(bits);
    /* All shards at their limit stay below 2^62. */
    exact->limit = power_of_two(62 - bits - (int)log2_up(shards));
    memset(memory, 0, er_exact_bytes(flat));
    return 0;
}

void er_exact_spans(const struct er_exact *exact, const struct er_flat *flat, struct er_span *ret)
{
    er_flat_spans(flat, ER_FLAT_GRAD, ret);
    for (size_t i = 0; i < flat->params_n; i++)
        ret[i].ptr = (float *)(void *)(exact->sums + flat->params[i].first);
}

/*
 * x rounded to an integer, to even, |x| < 2^62. Adding 1.5 * 2^52 does that and leaves the integer
 * in the low bits as long as it is below 2^51: so the upper and the lower 32 bits each for itself.
 */
ER_IN_LOOP int64_t to_integer(double x)
{
    const double round = 6755399441055744.0;
    double high = (x * 0x1p-32 + round) - round, low = x - high * 0x1p32;
    double high_r = high + round, low_r = low + round;
    int64_t high_bits, low_bits, base;

    memcpy(&high_bits, &high_r, sizeof(high_bits));
    memcpy(&low_bits, &low_r, sizeof(low_bits));
    memcpy(&base, &round, sizeof(base));
    return (int64_t)((uint64_t)(high_bits - base) << 32) + (low_bits - base);
}

ER_EACH_WIDTH static uint64_t fold(int64_t *restrict sums, float *restrict g, size_t n, double unit,
                                   double limit)
{
    uint64_t outside = 0;

    for (size_t i = 0; i < n; i++) {
        double x = (double)g[i];
        int64_t fine = (x <= limit) & (x >= -limit); /* a NaN is neither */
        double kept = fine ? x : 0.0;

        sums[i] += to_integer(kept * unit);
        outside += (uint64_t)(1 - fine);
        g[i] = 0.0f;
    }
    return outside;
}

uint64_t er_exact_fold(struct er_exact *exact, const struct er_flat *flat, size_t param)
{
    const struct er_flat_param *p = &flat->params[param];

    return fold(exact->sums + p->first, er_flat_at(flat, ER_FLAT_GRAD, param), p->count,
                exact->unit, exact->limit);
}

ER_EACH_WIDTH static void take(int64_t *restrict sums, float *restrict g, size_t n, double step,
                               double weight)
{
    for (size_t i = 0; i < n; i++) {
        g[i] = (float)((double)sums[i] * step / weight);
        sums[i] = 0;
    }
}

void er_exact_take(struct er_exact *exact, const struct er_flat *flat, double weight)
{
    take(exact->sums, flat->block[ER_FLAT_GRAD], flat->total, 1.0 / exact->unit, weight);
}
