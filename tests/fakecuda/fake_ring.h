#pragma once
/* Collectives of the double: shared memory between processes, every rank in step with all others.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/comm_ops.h"

enum { RING_RANKS_MAX = 64, RING_SLOT = 256 << 10, RING_PAIR = 32 << 10 };

struct ring_shared; /* opaque */

struct ring {
    struct ring_shared *shared;
    size_t bytes;
    int fd, rank, size;
    uint64_t turn; /* barriers passed */
    uint64_t ops;  /* collectives begun */
    _Atomic bool abort;
    _Atomic bool lost; /* a peer's process is gone */
    char name[64];
};

/* Joins; waits for all ranks until `abort` is set. 0, or -1: aborted before all were there. */
int ring_open(struct ring *r, const char *name, int rank, int size);
void ring_close(struct ring *r);

/* One operation of NCCL's, in elements; `op` as in er_op. */
struct ring_op {
    enum er_op_kind kind;
    const void *in;
    void *out;
    size_t n;
    enum er_dtype dtype;
    enum er_reduce reduce;
    int root; /* or peer */
};

/* All messages side by side, then the collectives in order. False: aborted. */
bool ring_run(struct ring *r, const struct ring_op *ops, int ops_n);
/* Until aborted. */
void ring_hang(struct ring *r);
