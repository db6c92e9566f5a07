#include "trainer/bfloat.h"

#include <string.h>

static uint16_t narrow(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 0x40; /* quiet, and never the infinity that rounding would make */

    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

void er_bfloat_from(const float *from, uint16_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &from[i], sizeof(bits));
        to[i] = narrow(bits);
    }
}

void er_bfloat_to(const uint16_t *from, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;

        memcpy(&to[i], &bits, sizeof(bits));
    }
}
