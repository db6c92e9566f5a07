#include "trainer/ddp.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "trainer/bucket.h"
#include "trainer/optim.h"
#include "trainer/sync.h"
#include "trainer/vote.h"

/* Our operations in flight: well below the communicator's ring, whose handles are reused. A bucket
 * that is full while so many are under way leaves as soon as one is done. */
#define FLIGHT_MAX (ER_COMM_OPS_MAX / 2)

struct er_ddp {
    struct er_comm *comm; /* borrowed */
    struct er_bucket_plan plan;
    char *layout;
    uint64_t order_hash;
    enum er_dtype dtype;
    bool accumulate, count_nonfinite, norm2;

    /* This step. Buckets [0, done) are reduced, [done, begun) are under way. */
    size_t begun, done;
    struct er_op *flight[FLIGHT_MAX]; /* of bucket b at b % FLIGHT_MAX */
    uint64_t nonfinite;
    uint64_t first_us, last_us;
    struct er_error misuse;  /* of this step: told to everyone by the vote */
    struct er_error failure; /* of the communicator: for good */
    struct er_ddp_times times;
};

static int allocate_plan(struct er_bucket_plan *plan, size_t n, struct er_error *err)
{
    struct er_span *spans = calloc(n + 1, sizeof(*spans)); /* + 1: n may be 0 */

    plan->spans = spans;
    plan->spans_n = n;
    plan->buckets = calloc(n + 1, sizeof(*plan->buckets));
    plan->bucket_of = calloc(n + 1, sizeof(*plan->bucket_of));
    plan->final = calloc(n + 1, sizeof(*plan->final));
    if (!spans || !plan->buckets || !plan->bucket_of || !plan->final)
        return er_error_set(err, -ENOMEM, "plan of %zu gradients", n);
    return 0;
}

/* Names, their buckets and the sizes: what must be the same on all ranks. */
static int describe(struct er_ddp *ddp, struct er_error *err)
{
    size_t length = er_bucket_layout(&ddp->plan, NULL, 0);
    struct er_digest digest;

    ddp->layout = malloc(length + 1);
    if (!ddp->layout)
        return er_error_set(err, -ENOMEM, "layout of %zu buckets", ddp->plan.buckets_n);
    er_bucket_layout(&ddp->plan, ddp->layout, length + 1);
    digest = er_hash(ddp->layout, length);
    for (size_t i = 0; i < ddp->plan.spans_n; i++) {
        uint64_t parts[3] = {digest.lo, ddp->plan.spans[i].count, (uint64_t)ddp->dtype};

        digest = er_hash(parts, sizeof(parts));
    }
    ddp->order_hash = digest.lo;
    return 0;
}

static int check_dtype(const struct er_ddp_opts *opts, struct er_error *err)
{
    if (opts->dtype != ER_F32 && opts->dtype != ER_I64)
        return er_error_set(err, ER_E_USAGE, "gradients of type %d: float32 or int64 is expected",
                            (int)opts->dtype);
    if (opts->dtype != ER_F32 && (opts->count_nonfinite || opts->norm2))
        return er_error_set(err, ER_E_USAGE,
                            "count_nonfinite and norm2 read float32, the gradients are %s",
                            er_dtype_name(opts->dtype));
    return 0;
}

ER_CLEANUP_FOR(er_ddp_close, struct er_ddp)

int er_ddp_open(struct er_ddp **ret, struct er_comm *comm, const struct er_span *spans, size_t n,
                const struct er_ddp_opts *opts, struct er_error *err)
{
    static const struct er_ddp_opts defaults = {0};
    ER_CLEANUP(er_ddp_close_cleanup) struct er_ddp *ddp = NULL;
    int rc;

    opts = opts ? opts : &defaults;
    rc = check_dtype(opts, err);
    if (rc == 0)
        rc = er_bucket_check(spans, n, er_dtype_size(opts->dtype), err);
    if (rc < 0)
        return rc;
    ddp = calloc(1, sizeof(*ddp));
    if (!ddp)
        return er_error_set(err, -ENOMEM, "reducer");
    ddp->comm = comm;
    ddp->dtype = opts->dtype;
    ddp->plan.element = er_dtype_size(opts->dtype);
    ddp->count_nonfinite = opts->count_nonfinite;
    ddp->norm2 = opts->norm2;
    rc = allocate_plan(&ddp->plan, n, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        ((struct er_span *)ddp->plan.spans)[i] = spans[i];
    er_bucket_plan_make(&ddp->plan, opts->first_bucket_bytes, opts->bucket_bytes);
    rc = describe(ddp, err);
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(ddp);
    return 0;
}

void er_ddp_close(struct er_ddp *ddp)
{
    int saved = errno;

    if (ddp) {
        free((void *)ddp->plan.spans);
        free(ddp->plan.buckets);
        free(ddp->plan.bucket_of);
        free(ddp->plan.final);
        free(ddp->layout);
        free(ddp);
    }
    errno = saved;
}

static uint64_t count_nonfinite(const struct er_bucket *bucket)
{
    uint64_t n = 0;

    for (size_t i = 0; i < bucket->count; i++)
        n += isfinite(bucket->ptr[i]) ? 0 : 1;
    return n;
}

/* The next bucket leaves. -EAGAIN: not now, the communicator's ring is full. */
static int begin_next(struct er_ddp *ddp)
{
    const struct er_bucket *bucket = &ddp->plan.buckets[ddp->begun];
    struct er_error err = ER_ERROR_INIT;
    uint64_t bad = ddp->count_nonfinite ? count_nonfinite(bucket) : 0; /* before it is a sum */
    int rc = er_all_reduce(ddp->comm, bucket->ptr, bucket->count, ddp->dtype, ER_SUM,
                           &ddp->flight[ddp->begun % FLIGHT_MAX], &err);

    if (rc == 0) {
        if (ddp->begun == 0)
            ddp->first_us = er_now_us();
        ddp->begun++;
        ddp->nonfinite += bad;
    } else if (rc != -EAGAIN) {
        ddp->failure = err;
        er_error_wrap(&ddp->failure, rc, "gradient bucket %zu", ddp->begun);
    }
    return rc;
}

static void note_done(struct er_ddp *ddp, int rc, const struct er_error *err)
{
    if (rc < 0) {
        ddp->failure = *err;
        er_error_wrap(&ddp->failure, rc, "gradient bucket %zu", ddp->done);
        return;
    }
    ddp->done++;
    ddp->last_us = er_now_us();
}

/* Counts what has completed by itself. */
static void reap(struct er_ddp *ddp)
{
    while (!ddp->failure.code && ddp->done < ddp->begun) {
        struct er_error err = ER_ERROR_INIT;
        int rc = er_op_test(ddp->flight[ddp->done % FLIGHT_MAX], &err);

        if (rc == ER_IN_PROGRESS)
            break;
        note_done(ddp, rc, &err);
    }
}

static void wait_oldest(struct er_ddp *ddp)
{
    struct er_error err = ER_ERROR_INIT;
    int rc = er_op_wait(ddp->flight[ddp->done % FLIGHT_MAX], UINT64_MAX, &err);

    note_done(ddp, rc, &err);
}

/* Full buckets leave in the agreed order: all ranks start the same operations in the same order, so
 * bucket i waits for bucket i - 1 to be full here. */
static void depart(struct er_ddp *ddp)
{
    reap(ddp);
    while (!ddp->failure.code && ddp->begun < ddp->plan.buckets_n &&
           ddp->begun - ddp->done < FLIGHT_MAX && er_bucket_full(&ddp->plan, ddp->begun)) {
        if (begin_next(ddp) < 0)
            break;
    }
}

void er_ddp_ready(struct er_ddp *ddp, size_t span)
{
    if (span >= ddp->plan.spans_n) {
        er_error_set(&ddp->misuse, ER_E_USAGE, "gradient %zu marked ready, there are %zu", span,
                     ddp->plan.spans_n);
        return;
    }
    if (ddp->accumulate)
        return;
    if (er_bucket_mark(&ddp->plan, span) == ER_BUCKET_TWICE)
        er_error_set(&ddp->misuse, ER_E_USAGE, "gradient '%s' marked ready twice in one step",
                     ddp->plan.spans[span].name);
    depart(ddp);
}

void er_ddp_accumulate(struct er_ddp *ddp, bool on)
{
    ddp->accumulate = on;
}

/* Sends what has not been sent and waits for everything. */
static void complete_buckets(struct er_ddp *ddp)
{
    size_t n = ddp->plan.buckets_n;

    er_bucket_mark_rest(&ddp->plan);
    depart(ddp);
    while (!ddp->failure.code && ddp->done < n) {
        if (ddp->done == ddp->begun) /* none of ours to wait for, and the ring is full of others */
            er_error_set(&ddp->failure, -EAGAIN,
                         "gradient bucket %zu: no room for an operation (%d in flight)", ddp->begun,
                         ER_COMM_OPS_MAX);
        else
            wait_oldest(ddp);
        depart(ddp);
    }
}

static void start_over(struct er_ddp *ddp)
{
    er_bucket_reset(&ddp->plan);
    ddp->begun = ddp->done = 0;
    ddp->nonfinite = 0;
    ddp->misuse.code = 0;
}

/* This rank's part of the squared norm: of each bucket, the rank's share of its elements. */
static double norm2_part(const struct er_ddp *ddp)
{
    size_t rank = (size_t)er_comm_rank(ddp->comm), size = (size_t)er_comm_size(ddp->comm);
    double sum = 0;

    for (size_t b = 0; b < ddp->plan.buckets_n; b++) {
        const struct er_bucket *bucket = &ddp->plan.buckets[b];
        size_t share = bucket->count / size, rest = bucket->count % size;
        size_t first = share * rank + (rank < rest ? rank : rest);

        sum += er_optim_norm2(bucket->ptr + first, share + (rank < rest));
    }
    return sum;
}

static int hold_vote(struct er_ddp *ddp, struct er_vote *vote, struct er_error *err)
{
    struct er_error misuse = ddp->misuse;

    vote->order_hash = ddp->order_hash;
    vote->nonfinite += ddp->nonfinite;
    if (ddp->norm2)
        vote->norm2 += norm2_part(ddp);
    start_over(ddp);
    return er_vote_hold(ddp->comm, vote, &misuse, err);
}

int er_ddp_finish(struct er_ddp *ddp, struct er_vote *vote, struct er_error *err)
{
    uint64_t entered_us = er_now_us(), complete_us;
    struct er_ddp_times times = {.buckets = ddp->plan.buckets_n};
    int rc;

    complete_buckets(ddp);
    if (ddp->failure.code)
        return er_error_set(err, ddp->failure.code, "%s", ddp->failure.text);
    complete_us = er_now_us();
    if (ddp->plan.buckets_n > 0) {
        times.comm_us = ddp->last_us - ddp->first_us;
        times.exposed_us = complete_us - entered_us;
    }
    rc = hold_vote(ddp, vote, err);
    times.vote_us = er_now_us() - complete_us;
    ddp->times = times;
    return rc;
}

int er_ddp_sync_state(struct er_ddp *ddp, const struct er_span *state, size_t n,
                      struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_sync_part *parts = calloc(n + 1, sizeof(*parts));

    if (!parts)
        return er_error_set(err, -ENOMEM, "list of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        parts[i] = (struct er_sync_part){
            .name = state[i].name,
            .ptr = state[i].ptr,
            .bytes = state[i].count * sizeof(float),
        };
    return er_sync_parts(ddp->comm, parts, n, err);
}

const char *er_ddp_layout(const struct er_ddp *ddp)
{
    return ddp->layout;
}

struct er_ddp_times er_ddp_last_times(const struct er_ddp *ddp)
{
    return ddp->times;
}
