#pragma once
/* Deterministic random numbers (splitmix64, xoshiro256**) for tests, simulation and nonces' mixing.
 * Pure. */
#include <stdint.h>

struct er_rand {
    uint64_t s[4];
};

void er_rand_init(struct er_rand *r, uint64_t seed);
uint64_t er_rand_next(struct er_rand *r);
/* Uniform in [0, n), n > 0, without modulo bias. */
uint64_t er_rand_below(struct er_rand *r, uint64_t n);
/* One-shot mixing function (splitmix64 finaliser). */
uint64_t er_rand_mix(uint64_t x);
