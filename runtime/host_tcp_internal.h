#pragma once
/* Shared by host_tcp.c (bytes in and out) and host_tcp_plan.c (which bytes, for each operation). */
#include <poll.h>
#include <stdbool.h>

#include "base/pool.h"
#include "runtime/host_transport.h"

enum {
    RING_BYTES = 512 << 10, /* per peer */
    GRAIN_BYTES = 16 << 10, /* reduced at once, unless it is the end */
    CALL_BYTES = 256 << 10, /* per system call, so that a step stays short */
    BULK_BYTES = 128 << 10, /* for which a thread wakes whose core may be computing */
    DESC_BYTES = sizeof(struct er_op_desc)
};

_Static_assert(ER_SMALL_BYTES <= RING_BYTES, "a small operation fits the ring");

/*
 * One peer: what goes out and what comes in, as positions in descriptor | first | second. Of
 * several messages to or from one peer, the lane has the one that is under way.
 */
struct lane {
    int fd; /* borrowed from the mesh; -1: ourselves */
    bool closed;
    bool checked;                 /* its descriptor was compared */
    char *ring;                   /* RING_BYTES of the pool */
    const struct er_op *out, *in; /* NULL: nothing goes out, comes in */
    int out_at, in_at;            /* in the list: what was looked at for the lane */
    struct er_op_desc desc;
    const char *out_first, *out_second;
    char *in_first; /* NULL: into the ring */
    char *in_second;
    size_t out_first_n, out_second_n, in_first_n, in_second_n;
    size_t sent, got;
};

struct er_transport {
    const struct er_comm *comm;
    struct er_pool *pool;
    struct lane *lane;   /* (size) */
    struct pollfd *poll; /* (2 * size): data, control */
    const void **src;    /* (size) */
    char *block;         /* GRAIN_BYTES of the pool: a reduced block before it goes home */
    struct er_mesh *mesh;
    /* the unit at work */
    struct er_op *const *ops;
    int ops_n;
    const struct er_op *op; /* the collective, or NULL */
    size_t width;
    const char *own;   /* the part that we reduce: our contribution */
    char *part;        /* where its result goes */
    size_t part_n;     /* its bytes; 0: nothing is reduced as it comes */
    size_t reduced;    /* of them done; they may be sent on */
    int part_to;       /* our part is only passed on to this rank, out of our own ring; -1: no */
    const char *whole; /* small: our contribution, to be reduced once all have come; or NULL */
};

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Fill in the lanes for the collective t->op. */
void er_tcp_plan(struct er_transport *t);
/* The next message of the unit to, or from, the lane's peer. */
void er_tcp_load_out(struct er_transport *t, struct lane *l);
void er_tcp_load_in(struct er_transport *t, struct lane *l);
