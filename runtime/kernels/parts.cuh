#pragma once
/* What kernels share: bits of floats, numbers of 16 bits, sums over a block, an exponential. */
#include "runtime/kernels/shim.cuh"

union bits {
    float f;
    uint32_t u;
};

/* ---- conversions, in integers: the same on every compiler ---- */

/* To nearest even; a NaN stays one. */
ER_INLINE uint16_t bf16_of(float x)
{
    union bits b = {x};

    if ((b.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(b.u >> 16 | 0x40u);
    return (uint16_t)((b.u + 0x7fffu + (b.u >> 16 & 1u)) >> 16);
}

ER_INLINE float of_bf16(uint16_t h)
{
    union bits b;

    b.u = (uint32_t)h << 16;
    return b.f;
}

/* `m` shifted right by `n` (1 to 31), to nearest even. */
ER_INLINE uint32_t round_shift(uint32_t m, uint32_t n)
{
    uint32_t half = 1u << (n - 1), rest = m & ((half << 1) - 1), q = m >> n;

    return q + (rest > half || (rest == half && (q & 1u)) ? 1u : 0u);
}

ER_INLINE uint16_t f16_of(float x)
{
    union bits b = {x};
    uint32_t sign = b.u >> 16 & 0x8000u, exponent = b.u >> 23 & 0xffu, m = b.u & 0x7fffffu;

    if (exponent == 0xffu)
        return (uint16_t)(sign | 0x7c00u | (m ? 0x200u | m >> 13 : 0u));
    if (exponent >= 143u)
        return (uint16_t)(sign | 0x7c00u);
    if (exponent >= 113u) /* a carry goes on into the exponent, up to infinity */
        return (uint16_t)(sign + (((exponent - 112u) << 10) + round_shift(m, 13u)));
    if (exponent < 102u)
        return (uint16_t)sign;
    return (uint16_t)(sign | round_shift(m | 0x800000u, 126u - exponent));
}

ER_INLINE float of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, m = h & 0x3ffu;
    union bits b;

    if (exponent == 0x1fu)
        b.u = sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0u);
    else if (exponent)
        b.u = sign | (exponent + 112u) << 23 | m << 13;
    else { /* m * 2^-24, exact in float */
        b.f = (float)m * 5.9604644775390625e-8f;
        b.u |= sign;
    }
    return b.f;
}

/* ---- numbers in memory: what they are stored as is the same for all threads ---- */

ER_INLINE float get_of(const void *x, uint32_t type, uint64_t i)
{
    switch (type) {
    case ER_KERNEL_BF16:
        return of_bf16(((const uint16_t *)x)[i]);
    case ER_KERNEL_F16:
        return of_f16(((const uint16_t *)x)[i]);
    default:
        return ((const float *)x)[i];
    }
}

ER_INLINE void put_of(void *y, uint32_t type, uint64_t i, float v)
{
    switch (type) {
    case ER_KERNEL_BF16:
        ((uint16_t *)y)[i] = bf16_of(v);
        break;
    case ER_KERNEL_F16:
        ((uint16_t *)y)[i] = f16_of(v);
        break;
    default:
        ((float *)y)[i] = v;
    }
}

/* Element i of the argument p. */
#define ER_GET(p, i)    get_of(a.p, a.t##p, i)
#define ER_PUT(p, i, v) put_of(a.p, a.t##p, i, v)

/* ---- over a block ---- */

/* v[0] becomes the sum of v (ER_KERNEL_THREADS) in shared memory, as a tree: the same order every
 * time. Stands between phases; all threads may read v[0] afterwards. */
#define ER_SUM_UP(v)                                                                               \
    do {                                                                                           \
        for (unsigned half = ER_KERNEL_THREADS / 2; half > 0; half /= 2) {                         \
            ER_TOGETHER;                                                                           \
            ER_THREADS                                                                             \
            {                                                                                      \
                if (tid < half)                                                                    \
                    v[tid] += v[tid + half];                                                       \
            }                                                                                      \
        }                                                                                          \
        ER_TOGETHER;                                                                               \
    } while (0)
/* v[0] becomes the largest. */
#define ER_LARGEST(v)                                                                              \
    do {                                                                                           \
        for (unsigned half = ER_KERNEL_THREADS / 2; half > 0; half /= 2) {                         \
            ER_TOGETHER;                                                                           \
            ER_THREADS                                                                             \
            {                                                                                      \
                if (tid < half && v[tid + half] > v[tid])                                          \
                    v[tid] = v[tid + half];                                                        \
            }                                                                                      \
        }                                                                                          \
        ER_TOGETHER;                                                                               \
    } while (0)

/* Each row of `rows` by one block, and each element of a row by one of its threads. */
#define ER_EACH_ROW(r, rows)  for (uint64_t r = ER_BLOCK; r < (rows); r += ER_BLOCKS)
#define ER_EACH_OF_ROW(j, n)  for (uint64_t j = tid; j < (n); j += ER_BLOCK_DIM)

/* The old content of a gradient, which beta = 0 says not to read. */
#define ER_OLD(beta, at) ((beta) == 0.0f ? 0.0f : (at))

/* e^x as trainer/width.h has it, operation by operation: the same bits. */
ER_INLINE float exp_of(float x)
{
    const float round = 12582912.0f;
    union bits whole, scale;
    float n, r, p;

    x = x < -87.3f ? -87.3f : x;
    x = x > 88.0f ? 88.0f : x;
    whole.f = ER_ADD(ER_MUL(x, 1.44269504f), round);
    n = ER_ADD(whole.f, -round);
    r = ER_ADD(x, -ER_MUL(n, 0.693359375f));
    r = ER_ADD(r, -ER_MUL(n, -2.12194440e-4f));
    p = 1.9875691500e-4f;
    p = ER_ADD(ER_MUL(p, r), 1.3981999507e-3f);
    p = ER_ADD(ER_MUL(p, r), 8.3334519073e-3f);
    p = ER_ADD(ER_MUL(p, r), 4.1665795894e-2f);
    p = ER_ADD(ER_MUL(p, r), 1.6666665459e-1f);
    p = ER_ADD(ER_MUL(p, r), 5.0000001201e-1f);
    p = ER_ADD(ER_ADD(ER_MUL(p, ER_MUL(r, r)), r), 1.0f);
    scale.u = (whole.u << 23) + 0x3f800000u;
    return ER_MUL(p, scale.f);
}
