#pragma once
/*
 * Messages between ranks of one host: in the shared segment, a ring of bytes for each ordered pair,
 * written by the one and read by the other. A message is descriptor | elements. Internal to the
 * shared-memory transport.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/comm_ops.h"

#define ER_PAIRS_RING_MAX                                                                          \
    ((size_t)128 << 10) /* bytes of a ring, fewer when there are many ranks                        \
                         */

struct er_pairs_ring {
    _Alignas(64) _Atomic uint64_t head; /* bytes ever written */
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever read */
};

/* This rank's end of one ring. */
struct er_pairs_end {
    const struct er_op *op; /* the message under way; NULL: none */
    int at;                 /* in the list: what was looked at */
    size_t done;            /* of descriptor | elements */
    struct er_op_desc desc; /* as it came */
};

struct er_pairs {
    int rank, size;
    size_t ring_bytes;
    char *base; /* borrowed: (size, size) rings */
    struct er_op *const *ops;
    int ops_n;
    struct er_pairs_end *out, *in; /* (size); owned */
    bool *moved;                   /* (size) a ring shared with that rank has changed; owned */
};

/* Bytes of all rings. */
size_t er_pairs_bytes(int size);
/* `base` as many bytes, zero at first, aligned to 64. -ENOMEM. */
int er_pairs_open(struct er_pairs *p, char *base, int rank, int size);
void er_pairs_close(struct er_pairs *p);
void er_pairs_begin(struct er_pairs *p, struct er_op *const *ops, int ops_n);
/* As a transport's step. Whom to wake says p->moved, which the caller clears. */
int er_pairs_step(struct er_pairs *p, struct er_error *err);
/* Whether a step would do anything. */
bool er_pairs_may_step(const struct er_pairs *p);
bool er_pairs_needs(const struct er_pairs *p, int peer);
