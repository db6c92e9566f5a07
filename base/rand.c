#include "base/rand.h"

#include <assert.h>

/* Sources: S. Vigna, splitmix64.c (2015); D. Blackman and S. Vigna, xoshiro256starstar.c (2018). */

#define GOLDEN 0x9e3779b97f4a7c15ull

uint64_t er_rand_mix(uint64_t x)
{
    x += GOLDEN;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

void er_rand_init(struct er_rand *r, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++)
        r->s[i] = er_rand_mix(seed + i * GOLDEN);
}

static uint64_t rotl(uint64_t x, unsigned k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t er_rand_next(struct er_rand *r)
{
    uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* Source: D. Lemire, "Fast Random Integer Generation in an Interval" (2019), algorithm 5. */
uint64_t er_rand_below(struct er_rand *r, uint64_t n)
{
    unsigned __int128 m;

    assert(n > 0);
    m = (unsigned __int128)er_rand_next(r) * n;
    if ((uint64_t)m < n) {
        uint64_t floor = (0 - n) % n;

        while ((uint64_t)m < floor)
            m = (unsigned __int128)er_rand_next(r) * n;
    }
    return (uint64_t)(m >> 64);
}
