#pragma once
/*
 * Element loops: compiled for each vector width, of which the widest that the CPU has is taken, and
 * the few functions they need that the C library has only as calls. Everything here is IEEE
 * operations in a fixed order, 16 lanes whatever the width, without contraction: the same bits on
 * every processor.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Not with ThreadSanitizer: a resolver that it instruments runs before it is set up. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define ER_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ER_EACH_WIDTH
#endif
#define ER_IN_LOOP static inline __attribute__((always_inline))

#define ER_LANES 16
typedef float er_lanes
    __attribute__((vector_size(ER_LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t er_lane_bits __attribute__((vector_size(ER_LANES * sizeof(int32_t))));

/* The old content of a gradient, which beta = 0 says not to read. */
ER_IN_LOOP float er_old(float beta, float old)
{
    return beta == 0.0f ? 0.0f : old;
}

/*
 * e^x within 2 units in the last place for x in [-87.3, 88]; outside, the value at the nearer end;
 * a NaN stays one. Source of the polynomial: S. Moshier, Cephes, expf.
 */
ER_IN_LOOP float er_exp(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float whole, r, p, scale;
    uint32_t bits;

    x = x < -87.3f ? -87.3f : x;
    x = x > 88.0f ? 88.0f : x;
    whole = x * 1.44269504f + round;
    memcpy(&bits, &whole, sizeof(bits));
    whole -= round;
    r = x - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    bits = (bits << 23) + 0x3f800000u; /* 2^whole */
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

ER_IN_LOOP float er_lanes_sum(const er_lanes *v)
{
    float s[ER_LANES];

    memcpy(s, v, sizeof(s));
    for (size_t half = ER_LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++)
            s[i] += s[i + half];
    }
    return s[0];
}

/* Sums over n elements: lane by lane, then the lanes, then the rest. */
ER_IN_LOOP float er_sum(const float *x, size_t n)
{
    er_lanes lanes = {0};
    size_t i = 0;
    float sum;

    for (; i + ER_LANES <= n; i += ER_LANES)
        lanes += *(const er_lanes *)(x + i);
    sum = er_lanes_sum(&lanes);
    for (; i < n; i++)
        sum += x[i];
    return sum;
}

ER_IN_LOOP float er_dot(const float *x, const float *y, size_t n)
{
    er_lanes lanes = {0};
    size_t i = 0;
    float sum;

    for (; i + ER_LANES <= n; i += ER_LANES)
        lanes += *(const er_lanes *)(x + i) * *(const er_lanes *)(y + i);
    sum = er_lanes_sum(&lanes);
    for (; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Sum of (x - c)^2. */
ER_IN_LOOP float er_sum_squares(const float *x, size_t n, float c)
{
    er_lanes lanes = {0};
    size_t i = 0;
    float sum;

    for (; i + ER_LANES <= n; i += ER_LANES) {
        er_lanes d = *(const er_lanes *)(x + i) - c;

        lanes += d * d;
    }
    sum = er_lanes_sum(&lanes);
    for (; i < n; i++)
        sum += (x[i] - c) * (x[i] - c);
    return sum;
}

/* Largest of n >= 1; a NaN may be passed over. */
ER_IN_LOOP float er_largest(const float *x, size_t n)
{
    er_lanes m = x[0] - (er_lanes){0};
    float lane[ER_LANES], max = x[0];
    size_t i = 0;

    for (; i + ER_LANES <= n; i += ER_LANES) {
        er_lanes v = *(const er_lanes *)(x + i);
        er_lane_bits take = v > m;

        m = (er_lanes)((take & (er_lane_bits)v) | (~take & (er_lane_bits)m));
    }
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    memcpy(lane, &m, sizeof(lane));
    for (size_t l = 0; l < ER_LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    return max;
}
