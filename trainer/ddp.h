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

struct er_ddp_opts {
    size_t first_bucket_bytes; /* 0: 1 MiB: the first gradients leave early */
    size_t bucket_bytes;       /* 0: 25 MiB */
    bool count_nonfinite; /* adds this rank's non-finite gradient elements to the vote: one more
                             pass over the gradients */
    enum er_dtype dtype;  /* ER_F32, or ER_I64 (exact mode: er_exact_spans()), with which the next
                             and the one above are refused */
    bool norm2; /* adds the squared norm of the reduced gradients to the vote: each rank takes its
                   part of every bucket, so the pass is divided and all ranks agree on the sum */
};

struct er_ddp; /* opaque */

/* Spans that follow one another in memory may share a bucket. Buckets are filled in reverse order
 * of `spans`, which is copied (names and gradients stay the caller's); `comm` is borrowed; `opts`
 * NULL: defaults. No communication yet. ER_E_USAGE: names or memory of spans are wrong; -ENOMEM. */
ER_API int er_ddp_open(struct er_ddp **ret, struct er_comm *comm, const struct er_span *spans,
                       size_t n, const struct er_ddp_opts *opts, struct er_error *err);
/* Not while a step is under way, unless the communicator has failed. NULL is fine. */
ER_API void er_ddp_close(struct er_ddp *ddp);

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

/* Rank 0's values of `state` for everyone, checked by digest on every rank. Collective; waits.
 * ER_E_MISMATCH: ranks hold other tensors, nothing was sent; ER_E_CORRUPT: bytes differ after the
 * transfer; else the communicator's failure. */
ER_API int er_ddp_sync_state(struct er_ddp *ddp, const struct er_span *state, size_t n,
                             struct er_error *err);

/* Layout as canonical text "name+name|name|..." (buckets in order of departure); owned by the
 * reducer. Part of saved state. */
ER_API const char *er_ddp_layout(const struct er_ddp *ddp);

struct er_ddp_times {
    uint64_t comm_us;    /* from the first bucket's departure to the last one's completion */
    uint64_t exposed_us; /* of it, waiting in er_ddp_finish(): not hidden behind backward */
    uint64_t vote_us;    /* the vote, after all buckets */
    uint64_t buckets;
};
/* Of the last step that er_ddp_finish() ended with all buckets reduced; all 0 before. */
ER_API struct er_ddp_times er_ddp_last_times(const struct er_ddp *ddp);

#ifdef __cplusplus
}
#endif
