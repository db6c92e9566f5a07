#pragma once
/*
 * er_comm: a communicator over the ranks of one generation that is never stuck. Backends: `self`
 * (world of one), `host` (shared memory within a host, TCP between hosts) and `nccl` (arrays in GPU
 * memory; what it does differently is said at the end).
 *
 * - The thread that opened a communicator owns it; only er_comm_abort() of that thread ends it.
 * - Operations are asynchronous and run in the order in which they were started, beside the caller,
 * on a progress thread. All ranks start the same operations in the same order; a different kind,
 * type, count or root is ER_E_MISMATCH on every rank, naming both operations and ranks.
 * - Sums are made element by element in rank order (0 + 1 + ... ), so results are bit-identical on
 * all ranks and do not depend on sizes, buckets or transport. float16 and bfloat16 are summed in
 * float32 and rounded once. Averages are the sum divided by the size (integers: towards zero).
 * - A peer's death (its socket closes), a deadline, or the agent's STOP notice fails everything
 * outstanding with a text that names peer and operation. After a failure only abort is useful.
 */
#include "runtime/device.h"
#include "runtime/elastic.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_IN_PROGRESS 1

enum er_comm_backend { ER_COMM_AUTO, ER_COMM_SELF, ER_COMM_HOST, ER_COMM_NCCL };
enum er_comm_transport { ER_TRANSPORT_AUTO, ER_TRANSPORT_SHM, ER_TRANSPORT_TCP };
enum er_dtype { ER_F32, ER_F64, ER_I32, ER_I64, ER_U8, ER_F16, ER_BF16, ER_DTYPE_COUNT };
enum er_reduce { ER_SUM, ER_MIN, ER_MAX, ER_AVG, ER_REDUCE_COUNT };

#define ER_COMM_OPS_MAX 256 /* operations in flight; one more is -EAGAIN */

struct er_comm; /* opaque */
struct er_op;   /* opaque; from a fixed ring of ER_COMM_OPS_MAX, valid until that many later
                   operations have begun */

struct er_comm_opts {
    enum er_comm_backend backend;
    enum er_comm_transport
        transport; /* host: auto takes ELASTIC_COMM_TRANSPORT (shm | tcp), else shm on one host */
    uint64_t open_timeout_us;  /* 0: 60 s */
    uint64_t op_timeout_us;    /* no progress in an operation for this long fails it; 0: 5 min */
    uint64_t pace_bytes_per_s; /* TCP: SO_MAX_PACING_RATE; 0: none */
    const char
        *name; /* several communicators in one generation need different names; NULL: "world" */
    const char *address;    /* TCP: numeric address of this host that peers connect to; NULL: all of
                               its addresses are tried, loopback alone when all ranks are local */
    const char *interfaces; /* TCP: names of network interfaces, comma-separated, whose addresses
                               peers connect to; NULL: ELASTIC_COMM_INTERFACE, else all */
    const char *host; /* what ranks of one host have in common; NULL: ELASTIC_COMM_HOST, else the
                         boot and the network namespace */
    struct er_device *device;    /* nccl: whose memory the arrays are in; not owned, outlives it */
    uint64_t abort_timeout_us;   /* nccl: an abort that takes longer ends the process with
                                    ER_WORKER_EXIT_STUCK; 0: 10 s */
    struct er_comm *shrink_from; /* nccl: this process's communicator of an earlier generation, not
                                    yet aborted. When all ranks give one of the same generation,
                                    the new one is made from it (ncclCommShrink), else afresh; in
                                    any case abort it once this one is ready or has failed. NULL:
                                    afresh */
};

/* Begins to connect and returns at once; poll er_comm_status() or er_comm_wait_ready(). `opts` may
 * be NULL. */
ER_API int er_comm_open(struct er_comm **ret, struct er_ctx *ctx, const struct er_comm_opts *opts,
                        struct er_error *err);
/* 0 ready, ER_IN_PROGRESS connecting, negative failed (err says which peer and operation). Ranks
 * become ready one after another: one that was, and has left since, is no reason to fail for who
 * still connects; the next operation, or look at the status, tells. */
ER_API int er_comm_status(struct er_comm *comm, struct er_error *err);
ER_API int er_comm_wait_ready(struct er_comm *comm, struct er_error *err);
ER_API int er_comm_rank(const struct er_comm *comm);
ER_API int er_comm_size(const struct er_comm *comm);
ER_API const char *er_comm_describe(const struct er_comm *comm); /* "host/shm 2 ranks" */
/* In whose memory arrays are; NULL: the host's. */
ER_API struct er_device *er_comm_device(const struct er_comm *comm);
/* Local, bounded; everything outstanding fails with ER_E_ABORTED; frees the communicator. NULL is
 * fine. */
ER_API void er_comm_abort(struct er_comm *comm);
/* All of them; those on a GPU together, as NCCL wants it when several have unfinished operations.
 */
ER_API void er_comm_abort_all(struct er_comm *const *comms, size_t n);

/*
 * Starting an operation fails, and starts nothing, with: -ENOTCONN (still connecting), -EAGAIN
 * (ER_COMM_OPS_MAX in flight), ER_E_USAGE (arguments), or the communicator's failure, should it
 * have one. Codes of a failed operation: ER_E_PEER_LOST, ER_E_MISMATCH, -ETIMEDOUT, ER_E_ABORTED.
 */
/* Buffers are borrowed until the operation is done. `in` and `out` of one call are the same array,
 * or do not overlap; what else is allowed in place says each call. */
/* In place: n elements at buf become the reduction over all ranks. buf stays the communicator's
 * until the op is done. */
ER_API int er_all_reduce(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype,
                         enum er_reduce reduce, struct er_op **ret, struct er_error *err);
ER_API int er_broadcast(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int root,
                        struct er_op **ret, struct er_error *err);
/* `mine` (n bytes) of every rank in rank order at `all` (n * size bytes). */
ER_API int er_all_gather(struct er_comm *comm, const void *mine, size_t n, void *all,
                         struct er_op **ret, struct er_error *err);
/* `out` (n) of every rank is the reduction of all ranks' `in` (n). */
ER_API int er_all_reduce_to(struct er_comm *comm, const void *in, void *out, size_t n,
                            enum er_dtype dtype, enum er_reduce reduce, struct er_op **ret,
                            struct er_error *err);
/* `out` (n) of the root alone is the reduction; elsewhere it is untouched and may be NULL. */
ER_API int er_reduce_to(struct er_comm *comm, const void *in, void *out, size_t n,
                        enum er_dtype dtype, enum er_reduce reduce, int root, struct er_op **ret,
                        struct er_error *err);
/* `out` (n) of every rank is the root's `in` (n); `in` of the others is not looked at. */
ER_API int er_broadcast_to(struct er_comm *comm, const void *in, void *out, size_t n,
                           enum er_dtype dtype, int root, struct er_op **ret, struct er_error *err);
/* `out` (n) of rank r is the reduction of block r of all ranks' `in` (size, n). In place: `out` is
 * this rank's block of `in`. The v form: block r has counts[r] elements, the same counts on all
 * ranks; they are copied. */
ER_API int er_reduce_scatter(struct er_comm *comm, const void *in, void *out, size_t n,
                             enum er_dtype dtype, enum er_reduce reduce, struct er_op **ret,
                             struct er_error *err);
ER_API int er_reduce_scatter_v(struct er_comm *comm, const void *in, void *out,
                               const size_t *counts, enum er_dtype dtype, enum er_reduce reduce,
                               struct er_op **ret, struct er_error *err);
/* Block r of `out` (size, n) is `in` (n) of rank r. In place: `in` is this rank's block of `out`.
 * The v form: rank r gives counts[r] elements. */
ER_API int er_all_gather_to(struct er_comm *comm, const void *in, void *out, size_t n,
                            enum er_dtype dtype, struct er_op **ret, struct er_error *err);
ER_API int er_all_gather_v(struct er_comm *comm, const void *in, void *out, const size_t *counts,
                           enum er_dtype dtype, struct er_op **ret, struct er_error *err);
/* Block s of rank r's `out` (size, n) is block r of rank s's `in` (size, n). Not in place. */
ER_API int er_all_to_all(struct er_comm *comm, const void *in, void *out, size_t n,
                         enum er_dtype dtype, struct er_op **ret, struct er_error *err);
/* From one rank to another. Messages of a pair arrive in the order in which they were sent, and
 * both sides name the same count and type. A send may be done before it is received. */
ER_API int er_send(struct er_comm *comm, const void *buf, size_t n, enum er_dtype dtype, int to,
                   struct er_op **ret, struct er_error *err);
ER_API int er_recv(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int from,
                   struct er_op **ret, struct er_error *err);
/*
 * Operations between begin and end start together at the end, and are done together: sends and
 * receives side by side, whatever their order (an exchange between two ranks needs this), then the
 * others one after another. At most ER_COMM_OPS_MAX. Barrier, vote and waiting are refused between.
 * A failed er_group_end() has started nothing and forgets the group.
 */
ER_API int er_group_begin(struct er_comm *comm, struct er_error *err);
ER_API int er_group_end(struct er_comm *comm, struct er_error *err);
ER_API int er_comm_barrier(struct er_comm *comm, struct er_error *err); /* waits */

/* Wait for one operation: 0 done, -ETIMEDOUT (the operation goes on), other negative: failed.
 * UINT64_MAX: no deadline. */
ER_API int er_op_wait(struct er_op *op, uint64_t timeout_us, struct er_error *err);
/* 0 done, ER_IN_PROGRESS, negative failed. */
ER_API int er_op_test(struct er_op *op, struct er_error *err);

/*
 * The step record: each rank gives its part, all get the same agreed record. An operation of its
 * own, started only when every operation of this rank is complete (else -EBUSY): "the vote
 * completed" therefore means "every rank had all its reduced gradients". 104 bytes; sums are made
 * in rank order.
 */
struct er_vote {
    uint64_t step;       /* must be equal on all ranks, else ER_E_MISMATCH */
    uint64_t order_hash; /* order of gradient buckets; must be equal, else ER_E_MISMATCH */
    uint32_t ok;         /* sum; the step is good when it equals size */
    uint32_t notice;     /* max of enum er_notice */
    uint64_t target;     /* max: generation that a notice speaks of */
    double loss;         /* sum of the samples' losses */
    double weight;       /* sum: samples or tokens that count */
    double norm2;        /* sum: partial squared gradient norm */
    uint64_t nonfinite;  /* sum: non-finite gradient elements */
    uint32_t durable;    /* min: 1 when the ledger of this generation is known to be durable */
    uint32_t flags;      /* bitwise or, for the caller */
    uint64_t user[2];    /* max, for the caller */
    uint64_t busy_us;    /* median (of an even number the smaller one): for who is slow */
};
ER_API int er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err);

/*
 * With a device. Backend `nccl`: arrays lie in device or pinned memory, and operations run on a
 * stream of the communicator's, of high priority.
 * - er_comm_after(): operations begun from now on begin on the device after the work that was
 * issued on `stream` so far (the kernels that fill the array).
 * - er_op_before(): work issued on `stream` from now on begins after the operation (the kernels
 * that use the result). The host does not wait: whether the operation *succeeded* only its test or
 * wait can say, since an abort lets the stream go on with an array of undefined content. On other
 * backends the first does nothing and the second waits.
 *
 * What differs from the host backend: sums are made in NCCL's order (the same on all ranks;
 * repeatable with NCCL_ALGO and NCCL_PROTO fixed; integers are exact). No thread carries operations
 * on: completion is found by er_op_test(), er_op_wait() and whatever else is called. Barrier and
 * vote run on a host communicator beside it, as does an agreement on each operation, which finds
 * mismatches, dead peers and deadlines. After a failure the device may still work on the arrays:
 * they are free only after er_comm_abort(). Leave a communicator only after a vote or a barrier.
 */
ER_API int er_comm_after(struct er_comm *comm, struct er_stream *stream, struct er_error *err);
ER_API int er_op_before(struct er_op *op, struct er_stream *stream, struct er_error *err);

ER_API size_t er_dtype_size(enum er_dtype dtype);
ER_API const char *er_dtype_name(enum er_dtype dtype);

#ifdef __cplusplus
}
#endif
