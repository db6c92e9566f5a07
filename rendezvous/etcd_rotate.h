#pragma once
/*
 * Which endpoint to talk to, and when to try the next one. Pure: time is an argument.
 *
 * One endpoint is current. When the session with it fails, the next in (shuffled) order becomes
 * current: at once, but never sooner than SPACING after the attempt before; after a whole round
 * without success each round waits twice as long as the last, up to MAX, with jitter.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rand.h"

#define ER_ETCD_ROTATE_SPACING_US 200000u
#define ER_ETCD_ROTATE_MAX_US     1000000u
#define ER_ETCD_ROTATE_N_MAX      16

struct er_etcd_rotate {
    size_t n, at;
    unsigned char order[ER_ETCD_ROTATE_N_MAX];
    unsigned fails; /* sessions that failed since one was up */
    uint64_t tried_us;
    struct er_rand rand;
};

/* 0 < n <= ER_ETCD_ROTATE_N_MAX. */
void er_etcd_rotate_init(struct er_etcd_rotate *r, size_t n, uint64_t seed);
size_t er_etcd_rotate_current(const struct er_etcd_rotate *r);
/* A session with the current endpoint is being tried now. */
void er_etcd_rotate_try(struct er_etcd_rotate *r, uint64_t now_us);
/* It is up. */
void er_etcd_rotate_up(struct er_etcd_rotate *r);
/* It failed or broke; returns when the next endpoint, now current, is to be tried. */
uint64_t er_etcd_rotate_fail(struct er_etcd_rotate *r, uint64_t now_us);
/* Every endpoint has failed since one was up. */
bool er_etcd_rotate_all_failed(const struct er_etcd_rotate *r);
