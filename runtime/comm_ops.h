#pragma once
/*
 * Between the front (comm.c: checks, the ring of operations, the vote) and the backends. The front
 * fills in the next operation of the ring and posts it; the backend carries operations out in ring
 * order and finishes each with er_comm_finish(). Internal to runtime/.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "base/page.h"
#include "runtime/comm.h"

#define ER_COMM_NAME_MAX         64
#define ER_COMM_DESCRIBE_MAX     64
#define ER_COMM_OP_TEXT_MAX      96
#define ER_COMM_RANKS_MAX        1024
#define ER_COMM_ADDRESS_MAX      64
#define ER_COMM_OPEN_DEFAULT_US  60000000ull
#define ER_COMM_OP_DEFAULT_US    300000000ull
#define ER_COMM_ABORT_DEFAULT_US 10000000ull
#define ER_COMMS_TOGETHER        64 /* aborted in one group; more than a process has */
#define ER_COMM_OPENING_OPS      3 /* collectives of a companion before the first of its principal */

/* X(ENUM, "text") */
#define ER_OP_KINDS(X)                                                                             \
    X(ALL_REDUCE, "all-reduce")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(ALL_GATHER, "all-gather")                                                                    \
    X(BARRIER, "barrier")                                                                          \
    X(VOTE, "vote")                                                                                \
    X(REDUCE, "reduce")                                                                            \
    X(REDUCE_SCATTER, "reduce-scatter")                                                            \
    X(ALL_TO_ALL, "all-to-all")                                                                    \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")

enum er_op_kind {
#define ER_OP_ENUM(name, text) ER_OP_##name,
    ER_OP_KINDS(ER_OP_ENUM)
#undef ER_OP_ENUM
        ER_OP_KIND_COUNT
};

/* What all ranks must agree on (a send and its receive: but for the kind); travels as it is (one
 * machine type per job). */
struct er_op_desc {
    uint64_t seq;    /* 1, 2, ... of the communicator's collectives; SEND, RECV: of the pair's */
    uint64_t n;      /* elements: of the array, or of one rank's block; v forms: of all blocks */
    uint64_t counts; /* v forms: hash of the counts; else 0 */
    uint32_t kind, dtype, reduce;
    uint32_t root; /* SEND: the receiver, RECV: the sender */
};

enum er_op_state { ER_OP_PENDING, ER_OP_AWAITED, ER_OP_DONE };

struct er_op {
    struct er_comm *comm;
    uint64_t number; /* 1, 2, ...: place in the ring */
    uint32_t batch;  /* first of so many that start and end together; 0: not the first */
    struct er_op_desc desc;
    const void *in;         /* borrowed from the caller until done; may be `out` */
    void *out;              /* likewise; NULL where nothing is received */
    const size_t *offsets;  /* (size + 1) elements where blocks begin; NULL: even blocks */
    _Atomic uint32_t state; /* enum er_op_state; a futex word of the owner */
    int rc;                 /* valid once DONE */
};

struct er_comm {
    const struct er_comm_ops *ops;
    void *impl; /* the backend's; NULL before its open and after its close */
    struct er_ctx *ctx;
    struct er_page *page; /* may be NULL */
    int rank, size;
    bool one_host; /* all ranks of the generation are on this host */
    bool ready;    /* owner only */
    uint64_t generation;
    enum er_comm_transport transport; /* as asked for; AUTO: as the hosts turn out */
    uint64_t open_timeout_us, op_timeout_us, pace_bytes_per_s;
    char name[ER_COMM_NAME_MAX];
    char address[ER_COMM_ADDRESS_MAX];    /* "" : automatic */
    char interfaces[ER_COMM_ADDRESS_MAX]; /* likewise */
    char host[ER_COMM_ADDRESS_MAX];       /* likewise */
    uint64_t hidden;             /* operations before the first that is counted in the page */
    struct er_device *device;    /* not owned; may be NULL */
    struct er_comm *shrink_from; /* likewise, while opening */
    uint64_t abort_timeout_us;
    char describe[ER_COMM_DESCRIBE_MAX];
    /* the owner's */
    bool grouping;
    uint64_t staged;      /* operations of the ring that are filled in; > begun while grouping */
    uint64_t collectives; /* staged */
    uint64_t *sent, *received; /* (size) messages staged to and from each rank; owned */
    size_t *offsets;           /* (ER_COMM_OPS_MAX, size + 1) of the v forms; owned */

    _Atomic uint64_t begun;            /* operations started; written by the owner */
    _Atomic uint64_t finished;         /* written by whoever carries operations out */
    _Atomic uint64_t collectives_done; /* of them; likewise */
    _Atomic int failed;                /* 0, or the code; set once, after `failure` */
    struct er_error failure;
    struct er_vote *votes; /* (size); owned */
    uint64_t *busy;        /* size: room for a median of them */
    struct er_op ring[ER_COMM_OPS_MAX];
};

struct er_comm_ops {
    const char *name;
    /* Begin to connect. On failure the front calls close, which copes with half-built backends. */
    int (*open)(struct er_comm *comm, struct er_error *err);
    /* Carry connecting on for at most `wait_us`. 0 ready, ER_IN_PROGRESS, negative failed. */
    int (*connect)(struct er_comm *comm, uint64_t wait_us, struct er_error *err);
    /* New operations stand at the end of the ring. `async`: nobody may come to wait for them soon.
     */
    void (*post)(struct er_comm *comm, bool async);
    /* May be NULL. The owner comes to wait for an operation, which may be done. */
    void (*come)(struct er_comm *comm, const struct er_op *op);
    /* Until the operation is done or the deadline has passed; the front reads the result. */
    void (*wait)(struct er_comm *comm, struct er_op *op, uint64_t deadline_us);
    /* Look after idle connections: a lost peer becomes the failure of the communicator. */
    void (*check)(struct er_comm *comm);
    /* Abort, give everything back. Bounded. */
    void (*close)(struct er_comm *comm);
    /* The rest may be NULL. */
    /* Find out what has been finished; for backends without a thread of their own. */
    void (*poll)(struct er_comm *comm);
    /* Make it the failure of the communicator and tell the peers why. */
    void (*fail)(struct er_comm *comm, int code, const struct er_error *why);
    /* What has become of the peers of a communicator without unfinished operations: 0, or why it
     * would fail (it does not). `*ret_left`: nobody died, some have left. */
    int (*look)(struct er_comm *comm, bool *ret_left, struct er_error *err);
    /* A companion's batch (from ring number `first`, `n` operations) is done here, but not what it
     * stands for: tell all peers that this rank waits in it. */
    void (*say_waiting)(struct er_comm *comm, uint64_t first, uint32_t n);
    /* A peer that has not said so, else the first that matters. */
    int (*find_silent)(struct er_comm *comm, uint64_t first, uint32_t n);
    int (*after)(struct er_comm *comm, struct er_stream *stream, struct er_error *err);
    int (*before)(struct er_op *op, struct er_stream *stream, struct er_error *err);
    /* First part of close(), for several of this backend at once. */
    void (*abort)(struct er_comm *const *comms, size_t n);
};

extern const struct er_comm_ops er_comm_self_ops, er_comm_host_ops, er_comm_nccl_ops;

/* Carry opening on for at most `wait_us`: 0 ready, ER_IN_PROGRESS, negative failed. */
int er_comm_connect(struct er_comm *comm, uint64_t wait_us, struct er_error *err);

/* The first of the next batch to carry out, or NULL. Its others follow in the ring: er_comm_at().
 */
struct er_op *er_comm_next(struct er_comm *comm);
struct er_op *er_comm_at(struct er_comm *comm, uint64_t number);
/* Finish the next batch. The result becomes visible to the owner, who is woken. */
void er_comm_finish(struct er_comm *comm, struct er_op *first, int rc);
/* Make `err` the failure of the communicator, unless it has one. Returns the failure's code. */
int er_comm_fail(struct er_comm *comm, int code, const struct er_error *err);

/* What a call must bring along; fills in what the front knows and starts the operation, or stages
 * it when grouping. `ret` NULL: waits for it. comm.c, for comm_calls.c. */
struct er_comm_call {
    struct er_op_desc desc;
    const void *in;
    void *out;
    const size_t *counts; /* (size), or NULL; copied */
};
int er_comm_start(struct er_comm *comm, const struct er_comm_call *call, struct er_op **ret,
                  struct er_error *err);
/* 0, or the failure of the communicator as this call's error. */
int er_comm_check(const struct er_comm *comm, struct er_error *err);

bool er_op_is_pair(const struct er_op_desc *desc); /* SEND or RECV */
/* "all-reduce #17 (f32 x 4096)" */
const char *er_op_text(const struct er_op_desc *desc, char ret[ER_COMM_OP_TEXT_MAX]);
/* 0, or ER_E_MISMATCH with a text that names both ranks and operations. A receive agrees with the
 * send that it waits for. */
int er_op_agree(const struct er_op_desc *mine, int my_rank, const struct er_op_desc *theirs,
                int their_rank, struct er_error *err);
/* Unconditionally that error. */
int er_op_differ(const struct er_op_desc *mine, int my_rank, const struct er_op_desc *theirs,
                 int their_rank, struct er_error *err);

/*
 * An operation of a communicator, as its companion carries it: nothing but the descriptor travels
 * (a vote and a barrier are themselves), and texts name the original.
 */
struct er_op_desc er_op_shadow(const struct er_op_desc *desc);

/* Bytes of the array, or of one rank's block of even blocks. */
size_t er_op_bytes(const struct er_op_desc *desc);
/* Where the block of a rank begins, in bytes from the beginning of the blocks; `rank` may be size.
 */
size_t er_op_block(const struct er_op *op, int rank);
/* Bytes of the longest block. */
size_t er_op_longest(const struct er_op *op);
