#pragma once
/*
 * A way to carry one operation at a time out, in steps that never wait. Used by one thread at a
 * time (the holder of the engine in comm_host.c). Internal to the host backend.
 */
#include "runtime/comm_ops.h"
#include "runtime/host_mesh.h"

#define ER_STEP_MOVED   1 /* something was done; call again */
#define ER_STEP_BLOCKED 2 /* nothing can be done before a peer has acted */

/* An operation of up to this many bytes over all ranks is exchanged whole and reduced by everybody:
 * one round instead of two, and the same rank order. */
#define ER_SMALL_BYTES ((size_t)64 << 10)

struct er_transport; /* opaque: each transport's own */

struct er_transport_ops {
    /* All links are up. Everything that operations need is allocated here. The transport borrows
     * the mesh. */
    int (*open)(struct er_transport **ret, struct er_comm *comm, struct er_mesh *mesh,
                struct er_error *err);
    /* One collective, or `ops_n` sends and receives that go side by side. The list and what it
     * points at stay until the end. */
    void (*begin)(struct er_transport *t, struct er_op *const *ops, int ops_n);
    /* 0 done, ER_STEP_MOVED, ER_STEP_BLOCKED, negative failed. */
    int (*step)(struct er_transport *t, struct er_error *err);
    /* After ER_STEP_BLOCKED: whether something of it needs something from this peer now. */
    bool (*needs)(const struct er_transport *t, int peer);
    /* May be NULL. Whether what carries bytes to or from this peer has ended. */
    bool (*broken)(const struct er_transport *t, int peer);
    /* After ER_STEP_BLOCKED: what is not done yet of messages to and from a peer; NULL: nothing. */
    const struct er_op *(*sending)(const struct er_transport *t, int peer);
    const struct er_op *(*receiving)(const struct er_transport *t, int peer);
    /* May be NULL. Whether each of the ranks, as far as all of them have said where they may run,
     * can have a CPU of its own: ranks that were bound to one each do not know it from their own.
     */
    bool (*roomy)(const struct er_transport *t);
    size_t eager_bytes; /* a send of more than that is not done before it is received */
    /* Until a peer may have acted, at most `us`; `bulk`: rather until much has come. */
    void (*wait)(struct er_transport *t, uint64_t us, bool bulk);
    void (*close)(struct er_transport *t); /* NULL is fine */
};

extern const struct er_transport_ops er_host_shm_ops, er_host_tcp_ops;
