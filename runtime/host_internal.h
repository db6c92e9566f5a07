#pragma once
/* Shared by comm_host.c (connecting, the engine) and host_judge.c (why an operation cannot go on).
 */
#include <pthread.h>

#include "runtime/host_mesh.h"
#include "runtime/host_transport.h"

struct host {
    struct er_comm *comm;
    struct er_mesh *mesh;
    const struct er_transport_ops *ops;
    struct er_transport *transport;
    uint64_t deadline_us;
    _Atomic bool spin; /* no more ranks on this host than processors */
    pthread_t thread;
    bool thread_runs;
    _Atomic int engine;      /* 1: held */
    _Atomic uint32_t bell;   /* futex word of the progress thread */
    _Atomic uint32_t asleep; /* the progress thread sleeps on it */
    _Atomic int lazy;        /* the owner comes at once for what it starts */
    _Atomic int ticking;     /* the progress thread looks for work by itself, every TICK_US */
    _Atomic int stopping;
    /* the holder's */
    const struct er_op *batch;           /* its first; NULL: none begun */
    uint32_t batch_at;                   /* next of it that may be a unit */
    struct er_op *unit[ER_COMM_OPS_MAX]; /* what the transport is at: one collective, or messages */
    int unit_n;                          /* 0: nothing */
    uint64_t collectives, *sent,
        *received;      /* begun; messages to and from each rank (size), owned */
    uint64_t moved_us;  /* last progress */
    bool said_waiting;  /* since then */
    uint64_t broken_us; /* since when a living peer's bytes cannot come or go; 0: they can */
    uint64_t adrift_us; /* when to look at the addresses of connections again */
    const char *told;   /* the peer's words, when the failure came from a peer */
    /* the owner's */
    uint64_t posted;    /* the operation that it last left to the progress thread */
    uint64_t posted_us; /* when */
    bool came_at_once;  /* to wait for it */
    uint32_t at_once_n; /* so many in a row */
    /* the owner's, until `asked` is set */
    struct er_error ask;
    _Atomic int asked; /* its code: the owner wants the communicator to fail so */
};

/* The agent says that this generation is over. */
bool er_host_told_to_stop(const struct er_comm *comm);
/* Why the blocked unit cannot go on: 0 no reason. */
int er_host_judge(struct host *h, struct er_error *err);
/* The same without an operation. */
int er_host_judge_idle(struct host *h, struct er_error *err);
/* Of a companion (comm_ops.h): the caller holds the engine. */
void er_host_say_waiting(struct host *h, uint64_t first, uint32_t n);
int er_host_find_silent(const struct host *h, uint64_t first, uint32_t n);

/* Of the backend's table: opening, and the connecting that follows. */
int er_host_open(struct er_comm *comm, struct er_error *err);
int er_host_connect(struct er_comm *comm, uint64_t wait_us, struct er_error *err);
/* The progress thread, until h->stopping. */
void er_host_progress(struct host *h);
