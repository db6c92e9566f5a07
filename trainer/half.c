#include "trainer/half.h"

#include <assert.h>
#include <string.h>

#include "base/half.h"
#include "trainer/width.h"

ER_EACH_WIDTH static void bf16_from(const float *restrict from, uint16_t *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = er_bf16_of_float(from[i]);
}

ER_EACH_WIDTH static void f16_from(const float *restrict from, uint16_t *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = er_f16_of_float(from[i]);
}

ER_EACH_WIDTH static void bf16_to(const uint16_t *restrict from, float *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = er_float_of_bf16(from[i]);
}

ER_EACH_WIDTH static void f16_to(const uint16_t *restrict from, float *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = er_float_of_f16(from[i]);
}

ER_EACH_WIDTH static void bf16_add(const uint16_t *restrict from, float *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += er_float_of_bf16(from[i]);
}

ER_EACH_WIDTH static void f16_add(const uint16_t *restrict from, float *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += er_float_of_f16(from[i]);
}

static size_t size_of(enum er_dtype type)
{
    return type == ER_F32 ? sizeof(float) : sizeof(uint16_t);
}

void er_half_from(enum er_dtype type, const float *from, uint16_t *to, size_t n)
{
    (type == ER_F16 ? f16_from : bf16_from)(from, to, n);
}

void er_half_to(enum er_dtype type, const uint16_t *from, float *to, size_t n)
{
    (type == ER_F16 ? f16_to : bf16_to)(from, to, n);
}

void er_half_convert(enum er_dtype from_type, const void *from, enum er_dtype to_type, void *to,
                     size_t n)
{
    assert(from_type == to_type || from_type == ER_F32 || to_type == ER_F32);
    if (from_type == to_type)
        memcpy(to, from, n * size_of(to_type));
    else if (from_type == ER_F32)
        er_half_from(to_type, from, to, n);
    else
        er_half_to(from_type, from, to, n);
}

/* In pieces that stay in the cache, by way of float32: so from any type to any other. */
enum { PIECE = 1024 };

void er_half_add_as(enum er_dtype from_type, const void *from, enum er_dtype to_type, void *to,
                    size_t n, float beta)
{
    float x[PIECE], old[PIECE];

    for (size_t at = 0, part; at < n; at += part) {
        char *place = (char *)to + at * size_of(to_type);

        part = n - at < PIECE ? n - at : PIECE;
        er_half_convert(from_type, (const char *)from + at * size_of(from_type), ER_F32, x, part);
        if (beta != 0.0f)
            er_half_convert(to_type, place, ER_F32, old, part);
        for (size_t i = 0; beta != 0.0f && i < part; i++)
            x[i] += old[i];
        er_half_convert(ER_F32, x, to_type, place, part);
    }
}

void er_half_add(enum er_dtype type, const uint16_t *from, float *to, size_t n)
{
    (type == ER_F16 ? f16_add : bf16_add)(from, to, n);
}
