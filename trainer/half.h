#pragma once
/* float32 to float16 or bfloat16 and back, whole arrays. Pure; IEEE rounding, vectorised. */
#include <stddef.h>
#include <stdint.h>

#include "runtime/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a tensor may be stored as: float32 and the two of 16 bits. */
static inline bool er_dtype_is_half(enum er_dtype type)
{
    return type == ER_F16 || type == ER_BF16;
}

/* `type` is ER_F16 or ER_BF16. To nearest even; what is too large becomes infinite, NaN stays NaN;
 * float16's subnormals are kept. */
void er_half_from(enum er_dtype type, const float *from, uint16_t *to, size_t n);
void er_half_to(enum er_dtype type, const uint16_t *from, float *to, size_t n);
/* Any of the three to any of them. Between the two of 16 bits: not offered. */
void er_half_convert(enum er_dtype from_type, const void *from, enum er_dtype to_type, void *to,
                     size_t n);
/* to[i] = beta * to[i] + from[i], beta 0 or 1, any types: sums of float32, rounded once. With 0 the
 * old content is not read. */
void er_half_add_as(enum er_dtype from_type, const void *from, enum er_dtype to_type, void *to,
                    size_t n, float beta);
/* to[i] += from[i] */
void er_half_add(enum er_dtype type, const uint16_t *from, float *to, size_t n);

#ifdef __cplusplus
}
#endif
