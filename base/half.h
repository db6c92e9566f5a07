#pragma once
/*
 * float16 and bfloat16 <-> float32, by bits, without branches that keep the compiler from
 * vectorising. To the nearest, ties to even; NaN stays NaN (quiet); float16 subnormals included.
 */
#include <stdint.h>
#include <string.h>

static inline float er_float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t er_bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float er_float_of_bf16(uint16_t h)
{
    return er_float_of_bits((uint32_t)h << 16);
}

static inline uint16_t er_bf16_of_float(float x)
{
    uint32_t u = er_bits_of_float(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    uint32_t nan = (u >> 16) | 0x40;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Exponent and mantissa in float32's place and the bias made up for by a product, which is exact
 * also for subnormals. */
static inline float er_float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff);
    uint32_t finite = er_bits_of_float(er_float_of_bits(rest << 13) * 0x1p112f);
    uint32_t special = 0x7f800000u | (rest & 0x3ff) << 13;

    return er_float_of_bits(sign | (rest >= 0x7c00 ? special : finite));
}

/* Subnormal results are rounded by adding a float32 whose last bit is float16's last. */
static inline uint16_t er_f16_of_float(float x)
{
    uint32_t u = er_bits_of_float(x), sign = (u >> 16) & 0x8000, rest = u & 0x7fffffffu;
    uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1)) >> 13;
    uint32_t small = er_bits_of_float(er_float_of_bits(rest) + 0.5f) - 0x3f000000u;
    uint32_t special = rest > 0x7f800000u ? 0x7e00u | ((rest >> 13) & 0x1ff) : 0x7c00u;
    uint32_t finite = rest < 0x38800000u ? small : normal;

    return (uint16_t)(sign | (rest >= 0x47800000u ? special : finite));
}
