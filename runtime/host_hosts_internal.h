#pragma once
/* Shared by host_hosts.c (memory, counters, who waits for whom) and host_chain.c (pieces and bytes
 * of one all-reduce). */
#include <stdatomic.h>

#include "runtime/host_hosts.h"

enum { HOSTS_LINE = 64, HOSTS_DESCS = 2, HOSTS_DEPTH_MAX = 32 };

/* Of one rank of this host; written by it, read by all of them. */
struct hosts_rank {
    _Alignas(HOSTS_LINE) _Atomic uint32_t in; /* pieces contributed */
    _Atomic uint32_t red, done;               /* results there; copied out */
    _Alignas(HOSTS_LINE) _Atomic uint32_t bell;
    _Atomic uint32_t asleep;
    _Alignas(HOSTS_LINE) struct er_op_desc desc[HOSTS_DESCS];
};

/* Where the ranks are. */
struct hosts_map {
    int hosts_n, host; /* host: ours */
    int first, count;  /* our host's ranks */
    int rails;
    int prev, next; /* ranks that our rail comes from and goes to; -1: none */
    uint32_t depth;
    size_t piece_bytes;
};

/* One neighbour on the rail: descriptor | bytes, each way. */
struct hosts_lane {
    int fd; /* -1: no neighbour */
    bool closed, checked;
    struct er_op_desc desc; /* theirs */
    size_t sent, got;
};

struct er_transport {
    const struct er_comm *comm;
    struct er_mesh *mesh;
    struct er_transport *tcp; /* what does not go along the chain */
    struct hosts_map map;
    char *memory; /* mapping, or with one rank a host our own */
    size_t memory_bytes;
    bool mapped;
    struct hosts_rank *rank; /* (count) */
    char *slots;             /* (count, depth, piece_bytes) */
    char *acc;               /* (depth, acc_bytes) owned: partial results of our part */
    size_t acc_bytes;
    const void **src; /* (count) */
    uint32_t base;    /* pieces of earlier operations */
    struct hosts_lane prev, next;
    /* the all-reduce at work; NULL: the unit is tcp's */
    const struct er_op *op;
    size_t width, acc_width, total;
    size_t part_acc, part_out; /* bytes of our part of a full piece, as partial and as result */
    size_t all_acc, all_out;   /* of all pieces */
    uint32_t pieces_n, copied, folded, published, fetched;
    bool checked; /* this host's descriptors */
};

static inline bool hosts_reached(uint32_t counter, uint32_t target)
{
    return (int32_t)(counter - target) >= 0;
}

static inline bool hosts_is_rail(const struct er_transport *t)
{
    return t->comm->rank - t->map.first < t->map.rails;
}

void er_chain_begin(struct er_transport *t, const struct er_op *op);
int er_chain_step(struct er_transport *t, struct er_error *err);
bool er_chain_may_step(const struct er_transport *t); /* of what memory alone decides */
bool er_chain_needs(const struct er_transport *t, int peer);
/* Bytes wanted from, or ready for, a neighbour. */
short er_chain_events(const struct er_transport *t, const struct hosts_lane *lane);
/* Set one of our counters and wake the ranks of this host. host_hosts.c */
void er_hosts_publish(struct er_transport *t, _Atomic uint32_t *counter, uint32_t value);
