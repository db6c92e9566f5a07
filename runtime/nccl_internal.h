#pragma once
/* Shared by comm_nccl.c (operations, failures, abort) and nccl_open.c (connecting). */
#include "runtime/gpu_module.h"
#include "runtime/watchdog.h"

enum nccl_phase {
    NCCL_PHASE_HOST,   /* the companion connects */
    NCCL_PHASE_HELLO,  /* who has which NCCL and GPU; rank 0's id */
    NCCL_PHASE_INIT,   /* NCCL connects */
    NCCL_PHASE_AGREE,  /* whether all have; a shrink that failed anywhere is given up by all */
    NCCL_PHASE_AFRESH, /* NCCL connects again, in that case */
    NCCL_PHASE_SETTLE, /* all have */
    NCCL_PHASE_READY
};

/*
 *   HOST -> HELLO -> INIT -> AGREE -> AFRESH -> SETTLE -> READY
 *
 * Operations: the front's ring is launched in order, a batch (one operation or a group) at a time,
 * up to `launched`, and finished in order. `launching`: NCCL works on the last launch in a thread
 * of its own and must not be called for anything but its status.
 */
struct nccl {
    struct er_comm *comm, *host; /* the front, not owned; the companion, owned */
    const struct er_nccl_ops *calls;
    void *handle;                           /* NCCL's; NULL before INIT and after the abort */
    struct er_stream *stream;               /* all operations run on it */
    struct er_event *after;                 /* for er_comm_after() */
    struct er_event *done[ER_COMM_OPS_MAX]; /* end of the batch that begins in this slot */
    uint16_t first[ER_COMM_OPS_MAX];        /* slot in which the batch of this slot's begins */
    struct er_watchdog *dog;
    bool reports; /* one of the device's reporters */
    enum nccl_phase phase;
    uint64_t open_deadline_us, shrink_deadline_us;
    struct er_op *step;            /* HELLO, SETTLE: the companion's operation */
    struct nccl_hello *mine, *all; /* (1), (size); owned, while opening */
    int *left_out;                 /* ranks of the parent that are not here; owned; NULL: afresh */
    int left_out_n;
    bool shrunk;                             /* made from the parent */
    unsigned char connected, *all_connected; /* INIT: 1; (size), owned */

    uint64_t launched; /* operations of the ring */
    bool launching;
    uint64_t stalled_us;    /* since then nobody but the device is waited for; 0: not so */
    bool said_waiting;      /* since then */
    uint64_t lost_us;       /* when a peer was found gone while the device works; 0: none */
    uint64_t looked_us;     /* last look at the companion */
    uint64_t broken_us;     /* when NCCL or the device said to have failed; 0: has not */
    struct er_error broken; /* what it said */
    const struct er_op *batch[ER_COMM_OPS_MAX];
};

/* Begin and carry on opening, for at most `wait_us`. */
int er_nccl_open_begin(struct nccl *n, struct er_error *err);
int er_nccl_open_step(struct nccl *n, uint64_t wait_us, struct er_error *err);
/* Have a loss of the device reach the agent; until the communicator closes. */
void er_nccl_report(struct nccl *n);
void er_nccl_report_end(struct nccl *n);
