#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* no external symbol: this file stays pure */
#include <xxhash.h>

#include "base/hash_internal.h"

static struct er_digest from_xxh(XXH128_hash_t h)
{
    return (struct er_digest){.lo = h.low64, .hi = h.high64};
}

/* ---- vector widths ---- */

static bool runs_always(void)
{
    return true;
}

static struct er_digest hash_plain(const void *data, size_t n)
{
    return from_xxh(XXH3_128bits(data, n));
}

static void add_plain(void *state, const void *data, size_t n)
{
    XXH3_128bits_update(state, data, n);
}

#if defined(__x86_64__)
static bool runs_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#endif

const struct er_hash_width er_hash_widths[] = {
#if defined(__x86_64__)
    {"avx2", runs_avx2, er_hash_avx2, er_hash_add_avx2},
#endif
    {"plain", runs_always, hash_plain, add_plain},
    {NULL, NULL, NULL, NULL},
};

static const struct er_hash_width *widest(void)
{
    const struct er_hash_width *w = er_hash_widths;

    while (!w->runs())
        w++;
    return w;
}

struct er_digest er_hash(const void *data, size_t n)
{
    return widest()->hash(data, n);
}

/* ---- digests ---- */

int er_digest_equal(struct er_digest a, struct er_digest b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* The canonical order, high half first, as `xxhsum -H2` prints it. */
void er_digest_format(struct er_digest d, char ret_hex[ER_DIGEST_HEX_MAX])
{
    static const char HEX[] = "0123456789abcdef";

    for (unsigned i = 0; i < 16; i++) {
        ret_hex[i] = HEX[d.hi >> (60 - 4 * i) & 15];
        ret_hex[16 + i] = HEX[d.lo >> (60 - 4 * i) & 15];
    }
    ret_hex[32] = '\0';
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int er_digest_parse(const char *hex, struct er_digest *ret, struct er_error *err)
{
    uint64_t half[2] = {0, 0};
    unsigned i;

    for (i = 0; i < 32 && nibble(hex[i]) >= 0; i++)
        half[i / 16] = half[i / 16] << 4 | (uint64_t)nibble(hex[i]);
    if (i < 32 || hex[32] != '\0')
        return er_error_set(err, ER_E_CORRUPT,
                            "expected a digest of 32 lower-case hex digits, got '%.40s'", hex);
    *ret = (struct er_digest){.hi = half[0], .lo = half[1]};
    return 0;
}

/* ---- streaming ---- */

struct er_hasher {
    XXH3_state_t state; /* wants 64-byte alignment */
};

struct er_hasher *er_hasher_new(void)
{
    struct er_hasher *h = aligned_alloc(_Alignof(struct er_hasher), sizeof(*h));

    if (h)
        XXH3_128bits_reset(&h->state);
    return h;
}

void er_hasher_reset(struct er_hasher *h)
{
    XXH3_128bits_reset(&h->state);
}

void er_hasher_add(struct er_hasher *h, const void *data, size_t n)
{
    if (n)
        widest()->add(&h->state, data, n);
}

struct er_digest er_hasher_get(const struct er_hasher *h)
{
    return from_xxh(XXH3_128bits_digest(&h->state));
}

void er_hasher_free(struct er_hasher *h)
{
    free(h);
}
