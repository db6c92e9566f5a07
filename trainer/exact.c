#include "trainer/exact.h"

#include <errno.h>
#include <stdbool.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "trainer/width.h"

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 wide_bits;

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

int er_exact_scale(struct er_exact_scale *ret, uint32_t shards, uint64_t weight_max,
                   struct er_error *err)
{
    int whole_bits = (int)log2_up(weight_max), bits = UNIT_BITS - whole_bits;

    if (shards < 1 || shards > ER_EXACT_SHARDS_MAX)
        return er_error_set(err, -EINVAL, "exact mode: %u shards, expected 1 to %d", shards,
                            ER_EXACT_SHARDS_MAX);
    if (weight_max < 1 || bits < 20)
        return er_error_set(err, -EINVAL, "exact mode: a step of weight %llu, expected 1 to 2^32",
                            (unsigned long long)weight_max);
    ret->unit = power_of_two(bits);
    ret->whole = power_of_two(whole_bits);
    /* All shards at their limit stay below 2^62. */
    ret->limit = power_of_two(62 - bits - (int)log2_up(shards));
    return 0;
}

int er_exact_bind(struct er_exact *exact, const struct er_flat *flat, uint32_t shards,
                  uint64_t weight_max, void *memory, struct er_error *err)
{
    int rc = er_exact_place(exact, shards, weight_max, memory, err);

    if (rc == 0)
        memset(memory, 0, er_exact_bytes(flat));
    return rc;
}

int er_exact_place(struct er_exact *exact, uint32_t shards, uint64_t weight_max, void *memory,
                   struct er_error *err)
{
    int rc = er_exact_scale(&exact->scale, shards, weight_max, err);

    if (rc == 0)
        exact->sums = memory;
    return rc;
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

/* 0 for what does not count. */
ER_IN_LOOP double kept(float g, double limit, uint64_t *outside)
{
    double x = (double)g;
    int64_t fine = (x <= limit) & (x >= -limit); /* a NaN is neither */

    *outside += (uint64_t)(1 - fine);
    return fine ? x : 0.0;
}

ER_EACH_WIDTH static uint64_t add(int64_t *restrict sums, const float *restrict g, size_t n,
                                  double unit, double limit)
{
    uint64_t outside = 0;

    for (size_t i = 0; i < n; i++)
        sums[i] += to_integer(kept(g[i], limit, &outside) * unit);
    return outside;
}

ER_EACH_WIDTH static uint64_t convert(int64_t *restrict sums, const float *restrict g, size_t n,
                                      double unit, double limit)
{
    uint64_t outside = 0;

    for (size_t i = 0; i < n; i++)
        sums[i] = to_integer(kept(g[i], limit, &outside) * unit);
    return outside;
}

#if defined(__x86_64__)
/* The same where the processor rounds to 64-bit integers by itself: eight at a time, in half the
 * time. Returns how many elements it has done. */
__attribute__((target("avx512f,avx512dq"))) static size_t eights(int64_t *restrict sums,
                                                                 const float *restrict g, size_t n,
                                                                 const struct er_exact_scale *scale,
                                                                 bool adds, uint64_t *outside)
{
    const __m512d unit = _mm512_set1_pd(scale->unit), limit = _mm512_set1_pd(scale->limit);
    const __m512d least = _mm512_set1_pd(-scale->limit);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m512d x = _mm512_cvtps_pd(_mm256_loadu_ps(g + i));
        __mmask8 fine =
            _mm512_cmp_pd_mask(x, limit, _CMP_LE_OQ) & _mm512_cmp_pd_mask(x, least, _CMP_GE_OQ);
        __m512i whole = _mm512_cvt_roundpd_epi64(_mm512_maskz_mul_pd(fine, x, unit),
                                                 _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

        *outside += 8 - (uint64_t)__builtin_popcount(fine);
        if (adds)
            whole = _mm512_add_epi64(whole, _mm512_loadu_si512(sums + i));
        _mm512_storeu_si512(sums + i, whole);
    }
    return i;
}

__attribute__((target("avx512f,avx512dq"))) static size_t
mean_eights(int64_t *restrict sums, float *restrict g, size_t n, double step, double weight)
{
    const __m512d unit = _mm512_set1_pd(step), by = _mm512_set1_pd(weight);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m512d x = _mm512_cvtepi64_pd(_mm512_loadu_si512(sums + i));

        _mm256_storeu_ps(g + i, _mm512_cvtpd_ps(_mm512_div_pd(_mm512_mul_pd(x, unit), by)));
        _mm512_storeu_si512(sums + i, _mm512_setzero_si512());
    }
    return i;
}

static bool has_eights(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
}
#else
static size_t eights(int64_t *sums, const float *g, size_t n, const struct er_exact_scale *scale,
                     bool adds, uint64_t *outside)
{
    return 0;
}

static size_t mean_eights(int64_t *sums, float *g, size_t n, double step, double weight)
{
    return 0;
}

static bool has_eights(void)
{
    return false;
}
#endif

ER_EACH_WIDTH static void mean(int64_t *restrict sums, float *restrict g, size_t n, double step,
                               double weight)
{
    for (size_t i = 0; i < n; i++) {
        g[i] = (float)((double)sums[i] * step / weight);
        sums[i] = 0;
    }
}

uint64_t er_exact_add(const struct er_exact_scale *scale, int64_t *sums, const float *grad,
                      size_t n)
{
    uint64_t outside = 0;
    size_t done = has_eights() ? eights(sums, grad, n, scale, true, &outside) : 0;

    return outside + add(sums + done, grad + done, n - done, scale->unit, scale->limit);
}

void er_exact_sum(int64_t *sums, const int64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sums[i] += from[i];
}

uint64_t er_exact_convert(const struct er_exact_scale *scale, int64_t *sums, const float *grad,
                          size_t n)
{
    uint64_t outside = 0;
    size_t done = has_eights() ? eights(sums, grad, n, scale, false, &outside) : 0;

    return outside + convert(sums + done, grad + done, n - done, scale->unit, scale->limit);
}

void er_exact_mean(const struct er_exact_scale *scale, int64_t *sums, float *grad, size_t n,
                   double weight)
{
    double step = 1.0 / scale->unit;
    size_t done = has_eights() ? mean_eights(sums, grad, n, step, weight) : 0;

    mean(sums + done, grad + done, n - done, step, weight);
}

uint64_t er_exact_fold(struct er_exact *exact, const struct er_flat *flat, size_t param)
{
    const struct er_flat_param *p = &flat->params[param];

    return er_exact_add(&exact->scale, exact->sums + p->first,
                        er_flat_at(flat, ER_FLAT_GRAD, param), p->count);
}

void er_exact_take(struct er_exact *exact, const struct er_flat *flat, double weight)
{
    er_exact_mean(&exact->scale, exact->sums, flat->block[ER_FLAT_GRAD], flat->total, weight);
}

/* ---- the norm ---- */

/*
 * A square (below 2^20: of a mean gradient below 2^10) in units of 2^-64, in two integers that keep
 * NORM_BLOCK of them without overflow: multiples of 2^-24, and the rest.
 */
#define NORM_BLOCK  4096
#define NORM_COARSE 24
#define NORM_FINE   64

ER_EACH_WIDTH static void square_block(const int64_t *sums, size_t n, double step, int64_t ret[2])
{
    int64_t coarse = 0, fine = 0;

    for (size_t i = 0; i < n; i++) {
        double x = (double)sums[i] * step, square = x * x;
        int64_t whole = to_integer(square * 0x1p24);

        coarse += whole;
        fine += to_integer((square - (double)whole * 0x1p-24) * 0x1p64);
    }
    ret[0] = coarse;
    ret[1] = fine;
}

static wide norm_read(const struct er_exact_norm *norm)
{
    return (wide)(((wide_bits)(uint64_t)norm->high << 64) | norm->low);
}

static struct er_exact_norm norm_write(wide x)
{
    return (struct er_exact_norm){.low = (uint64_t)x, .high = (int64_t)(x >> 64)};
}

struct er_exact_norm er_exact_norm_of(const struct er_exact_scale *scale, const int64_t *sums,
                                      size_t n)
{
    double step = 1.0 / (scale->unit * scale->whole); /* of the mean: below 2^10 */
    wide sum = 0;

    for (size_t at = 0; at < n; at += NORM_BLOCK) {
        int64_t parts[2];

        square_block(sums + at, n - at < NORM_BLOCK ? n - at : NORM_BLOCK, step, parts);
        sum += (wide)parts[0] * ((wide)1 << (NORM_FINE - NORM_COARSE)) + parts[1];
    }
    return norm_write(sum);
}

void er_exact_norm_add(struct er_exact_norm *norm, const struct er_exact_norm *more)
{
    *norm = norm_write(norm_read(norm) + norm_read(more));
}

void er_exact_norm_split(const struct er_exact_norm *norm, uint64_t words[ER_EXACT_WORDS])
{
    words[0] = norm->low & UINT32_MAX;
    words[1] = norm->low >> 32;
    words[2] = (uint64_t)norm->high;
}

struct er_exact_norm er_exact_norm_join(const uint64_t words[ER_EXACT_WORDS])
{
    wide high = (wide)((wide_bits)words[2] << 64);

    return norm_write(high + (wide)((wide_bits)words[1] << 32) + (wide)words[0]);
}

double er_exact_norm_value(const struct er_exact_scale *scale, const struct er_exact_norm *norm)
{
    double whole = (double)norm->high + (double)norm->low * 0x1p-64; /* in units of 2^0 */

    return whole * scale->whole * scale->whole;
}

double er_exact_norm2(const struct er_exact *exact, const struct er_flat *flat)
{
    struct er_exact_norm norm = er_exact_norm_of(&exact->scale, exact->sums, flat->total);

    return er_exact_norm_value(&exact->scale, &norm);
}
