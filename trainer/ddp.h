#pragma once
/*
 * The DDP reducer: overlapped bucketed all-reduce over any gradients, also of a hand-written
 * backward.
 *
 * Open once with the gradients in forward order; call er_ddp_ready() the moment a gradient is final
 * (an autograd leaf hook does it); a bucket leaves as soon as it is full, while backward goes on;
 * er_ddp_finish() waits for all buckets and holds the step vote; then update by 1/vote.weight.
 * Gradients stay where they are; buckets are contiguous pieces of the same memory (views). On the
 * wire are sums, never averages. Source: S. Li et al., "PyTorch Distributed", VLDB 2020,
 * section 3.2.
 *
 * Buckets are made for gradients that come in the reverse order of use. The first step shows in
 * which order they really come; rank 0's is sent to all at its end, and from the second step on
 * buckets are made for that. Results do not change: sums are made in rank order in any bucket.
 */
#include <stdbool.h>

#include "runtime/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One parameter's gradient: `count` elements, owned by the caller for the reducer's life; float32
 * unless the reducer's `dtype` says otherwise. */
struct er_span {
    const char *name;
    float *ptr;
    size_t count;
};

/* A bucket as a hook sees it. */
struct er_ddp_bucket {
    float *grads;
    size_t count;
    size_t first; /* elements in the buckets before it: a place of its own in the hook's memory */
};
/* What is reduced for it. */
struct er_ddp_wire {
    void *ptr;
    size_t count;
    enum er_dtype dtype;
};

/*
 * Another form for gradients on the wire. Sums over ranks are made of what `pack` gives; `unpack`
 * turns them into gradients in place, where they stay until apply. Each is called once per bucket
 * and step, by the thread that calls the reducer; on all ranks `pack` gives the same count and
 * type. A failure ends this rank's part in the generation. With a GPU's engine gradients and wire
 * are in its memory, and both functions issue their work on er_engine_stream(), without waiting.
 * trainer/compress.h is one.
 */
struct er_ddp_hook {
    void *user;
    /* `*wire` is the gradients themselves at first; the hook's memory until unpack. */
    int (*pack)(void *user, const struct er_ddp_bucket *bucket, struct er_ddp_wire *wire,
                struct er_error *err);
    int (*unpack)(void *user, const struct er_ddp_bucket *bucket, const struct er_ddp_wire *wire,
                  struct er_error *err);
};

struct er_engine; /* trainer/engine.h */

struct er_ddp_opts {
    size_t first_bucket_bytes; /* 0: 1 MiB: the first gradients leave early */
    size_t bucket_bytes;       /* 0: 25 MiB */
    bool count_nonfinite; /* adds this rank's non-finite gradient elements to the vote: one more
                             pass over the gradients */
    enum er_dtype dtype;  /* ER_F32, or ER_I64 (exact mode: er_exact_spans()), with which norm2,
                             hook and the one above are refused */
    bool norm2; /* adds the squared norm of the reduced gradients to the vote: each rank takes its
                   part of every gradient, so the pass is divided and all ranks agree on the sum */
    bool keep_order;         /* no new buckets after the first step */
    struct er_ddp_hook hook; /* both functions, or none; float32 only */
    /* Who makes the gradients, in its memory; NULL: the CPU. With a GPU's, the communicator is of
     * backend nccl on the same device, and `control` one of the same ranks in host memory, for what
     * is not gradients. A bucket leaves after the work that was issued until er_ddp_ready(); after
     * er_ddp_finish() the sums are there. */
    struct er_engine *engine;
    struct er_comm *control; /* borrowed; NULL: the reducer's own */
};

struct er_ddp; /* opaque */

/* Spans that follow one another in memory may share a bucket. Buckets are filled in reverse order
 * of `spans`, which is copied (names and gradients stay the caller's); `comm` is borrowed; `opts`
 * NULL: defaults. No communication yet. ER_E_USAGE: names or memory of spans are wrong; -ENOMEM. */
ER_API int er_ddp_open(struct er_ddp **ret, struct er_comm *comm, const struct er_span *spans,
                       size_t n, const struct er_ddp_opts *opts, struct er_error *err);
/* Not while a step is under way, unless the communicator has failed. NULL is fine. */
ER_API void er_ddp_close(struct er_ddp *ddp);

/* Collective; waits. Whether all ranks train the same gradients: the first step would tell as well,
 * by operations that do not match. ER_E_MISMATCH, on all ranks: names the first gradient that
 * differs and the ranks; the communicator is still good. er_train_run() does it. */
ER_API int er_ddp_check(struct er_ddp *ddp, struct er_error *err);
/* Gradient `span` is final for this step. Twice in a step is an error reported by er_ddp_finish(),
 * on the other ranks as ER_E_ABORTED. Never blocks. */
ER_API void er_ddp_ready(struct er_ddp *ddp, size_t span);
/* While on (no_sync), er_ddp_ready() changes nothing and nothing leaves. The last micro-step runs
 * with it off; how many came before is each rank's own affair. */
ER_API void er_ddp_accumulate(struct er_ddp *ddp, bool on);

/*
 * All my buckets complete, then the vote. Spans that were not marked ready (unused parameters, a
 * rank without samples) are sent as they are, in the agreed order. `vote`: in: loss, weight,
 * notice, step of this rank (ok and order_hash are the reducer's); out: the agreed record. 0:
 * apply; negative: recover (ER_E_PEER_LOST, ER_E_ABORTED, ER_E_MISMATCH ...). Gradients must not be
 * zeroed before apply.
 */
ER_API int er_ddp_finish(struct er_ddp *ddp, struct er_vote *vote, struct er_error *err);

/* Gradients become 0: the step is not applied. Between er_ddp_finish() and the next step. */
ER_API void er_ddp_drop(struct er_ddp *ddp);
/* Of the last er_ddp_finish(): every bucket was reduced, so the gradients are whole, also when the
 * vote after it failed. */
ER_API bool er_ddp_reduced(const struct er_ddp *ddp);

/* Rank 0's values of `state` for everyone, checked by digest on every rank. Collective; waits.
 * ER_E_MISMATCH: ranks hold other tensors, nothing was sent; ER_E_CORRUPT: bytes differ after the
 * transfer; else the communicator's failure. */
ER_API int er_ddp_sync_state(struct er_ddp *ddp, const struct er_span *state, size_t n,
                             struct er_error *err);

/* Layout as canonical text "name+name|name|..." (buckets in order of departure, gradients of one in
 * order of memory); owned by the reducer. Changes with the buckets, in the er_ddp_finish() of the
 * first step. A checkpoint names the one in force; it can be loaded with any. */
ER_API const char *er_ddp_layout(const struct er_ddp *ddp);

struct er_ddp_times {
    uint64_t comm_us;    /* from the first bucket's departure to the last one's completion */
    uint64_t exposed_us; /* of it, waiting in er_ddp_finish(): not hidden behind backward */
    uint64_t vote_us;    /* the vote, after all buckets */
    uint64_t buckets;
    uint64_t bytes; /* of the arrays that were reduced and gathered, each once */
};
/* Of the last step that er_ddp_finish() ended with all buckets reduced; all 0 before. */
ER_API struct er_ddp_times er_ddp_last_times(const struct er_ddp *ddp);

#ifdef __cplusplus
}
#endif
