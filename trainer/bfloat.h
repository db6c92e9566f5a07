#pragma once
/* float32 to bfloat16 and back, whole arrays. Pure; IEEE rounding, vectorised. */
#include <stddef.h>
#include <stdint.h>

/* To nearest even; what is too large becomes infinite, NaN stays NaN. */
void er_bfloat_from(const float *from, uint16_t *to, size_t n);
void er_bfloat_to(const uint16_t *from, float *to, size_t n);
