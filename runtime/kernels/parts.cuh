#pragma once
/* What kernels share: bits of floats, sums over a block, an exponential. */
#include "runtime/kernels/shim.cuh"

union bits {
    float f;
    uint32_t u;
};

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
