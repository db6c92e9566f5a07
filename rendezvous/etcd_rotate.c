#include "rendezvous/etcd_rotate.h"

#include <assert.h>

#include "base/clock.h"

void er_etcd_rotate_init(struct er_etcd_rotate *r, size_t n, uint64_t seed)
{
    assert(n > 0 && n <= ER_ETCD_ROTATE_N_MAX);
    *r = (struct er_etcd_rotate){.n = n};
    er_rand_init(&r->rand, seed);
    for (size_t i = 0; i < n; i++) {
        size_t k = (size_t)er_rand_below(&r->rand, i + 1);

        r->order[i] = r->order[k];
        r->order[k] = (unsigned char)i;
    }
}

size_t er_etcd_rotate_current(const struct er_etcd_rotate *r)
{
    return r->order[r->at];
}

void er_etcd_rotate_try(struct er_etcd_rotate *r, uint64_t now_us)
{
    r->tried_us = now_us;
}

void er_etcd_rotate_up(struct er_etcd_rotate *r)
{
    r->fails = 0;
}

/* Between 3/4 and 5/4 of it. */
static uint64_t jittered(struct er_etcd_rotate *r, uint64_t us)
{
    return us - us / 4 + er_rand_below(&r->rand, us / 2 + 1);
}

uint64_t er_etcd_rotate_fail(struct er_etcd_rotate *r, uint64_t now_us)
{
    uint64_t next = er_deadline_in(r->tried_us, ER_ETCD_ROTATE_SPACING_US);
    uint64_t wait = ER_ETCD_ROTATE_SPACING_US;
    unsigned rounds;

    r->at = (r->at + 1) % r->n;
    r->fails++;
    rounds = r->fails / (unsigned)r->n;
    for (unsigned i = 1; i < rounds && wait < ER_ETCD_ROTATE_MAX_US; i++)
        wait *= 2;
    if (wait > ER_ETCD_ROTATE_MAX_US)
        wait = ER_ETCD_ROTATE_MAX_US;
    /* Only the first endpoint of a new round waits for the round's delay. */
    if (rounds && r->fails % r->n == 0)
        next = er_deadline_in(now_us, jittered(r, wait));
    return next > now_us ? next : now_us;
}

bool er_etcd_rotate_all_failed(const struct er_etcd_rotate *r)
{
    return r->fails >= r->n;
}
