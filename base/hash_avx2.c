/* The hash for processors with AVX2: xxHash chooses its code by what the compiler may use here. */
#include "base/hash_internal.h"

#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

struct er_digest er_hash_avx2(const void *data, size_t n)
{
    const XXH128_hash_t h = XXH3_128bits(data, n);

    return (struct er_digest){.lo = h.low64, .hi = h.high64};
}

void er_hash_add_avx2(void *state, const void *data, size_t n)
{
    XXH3_128bits_update(state, data, n);
}
