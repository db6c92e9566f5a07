#include "trainer/ddp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "trainer/agree.h"
#include "trainer/bucket.h"
#include "trainer/engine_ops.h"
#include "trainer/sync.h"
#include "trainer/vote.h"

/* Our operations in flight: well below the communicator's ring, whose handles are reused. A bucket
 * that is full while so many are under way leaves as soon as one is done. */
#define FLIGHT_MAX (ER_COMM_OPS_MAX / 2)
/* So many steps may show no order (rank 0 has no samples in them) before it is given up. */
#define ORDER_STEPS_MAX 4

struct er_ddp {
    struct er_comm *comm, *control; /* borrowed */
    struct er_engine *engine;       /* borrowed */
    struct er_bucket_plan plan;
    size_t first_bucket_bytes, bucket_bytes;
    char *layout;
    uint64_t order_hash;
    enum er_dtype dtype;
    bool accumulate, count_nonfinite, norm2, reduced;
    struct er_ddp_hook hook; /* of NULLs: none */

    /* The order in which gradients came: order[0] of them, then the rest as planned. What rank 0
     * sends; spans_n + 1. */
    uint32_t *order;
    unsigned order_steps; /* that may still show it; 0: buckets stay as they are */

    /* This step. Buckets [0, done) are reduced, [done, begun) are under way. */
    size_t begun, done;
    bool packed; /* the next bucket has been through the hook, and waits for room */
    struct er_op *flight[FLIGHT_MAX]; /* of bucket b at b % FLIGHT_MAX */
    struct er_ddp_wire wire[FLIGHT_MAX];
    uint64_t nonfinite;
    uint64_t first_us, last_us;
    struct er_error misuse;  /* of this step: told to everyone by the vote */
    struct er_error failure; /* of the communicator: for good */
    struct er_ddp_times times;
    uint64_t bytes; /* of this step's buckets */
};

static int allocate(struct er_ddp *ddp, const struct er_span *from, size_t n, struct er_error *err)
{
    struct er_bucket_plan *plan = &ddp->plan;
    struct er_span *spans = calloc(n + 1, sizeof(*spans)); /* + 1: n may be 0 */
    size_t layout_bytes = 1;

    plan->spans = spans;
    plan->spans_n = n;
    plan->buckets = calloc(n + 1, sizeof(*plan->buckets));
    plan->members = calloc(n + 1, sizeof(*plan->members));
    plan->bucket_of = calloc(n + 1, sizeof(*plan->bucket_of));
    plan->final = calloc(n + 1, sizeof(*plan->final));
    ddp->order = calloc(n + 1, sizeof(*ddp->order));
    if (!spans || !plan->buckets || !plan->members || !plan->bucket_of || !plan->final ||
        !ddp->order)
        return er_error_set(err, -ENOMEM, "plan of %zu gradients", n);
    for (size_t i = 0; i < n; i++) {
        spans[i] = from[i];
        layout_bytes += strlen(from[i].name) + 1;
    }
    ddp->layout = calloc(1, layout_bytes);
    return ddp->layout ? 0 : er_error_set(err, -ENOMEM, "layout of %zu gradients", n);
}

/* Names, their buckets and the sizes: what must be the same on all ranks. The text has the same
 * length whatever the buckets. */
static void describe(struct er_ddp *ddp)
{
    size_t length = er_bucket_layout(&ddp->plan, NULL, 0);
    struct er_digest digest;

    er_bucket_layout(&ddp->plan, ddp->layout, length + 1);
    digest = er_hash(ddp->layout, length);
    for (size_t i = 0; i < ddp->plan.spans_n; i++) {
        uint64_t parts[3] = {digest.lo, ddp->plan.spans[i].count, (uint64_t)ddp->dtype};

        digest = er_hash(parts, sizeof(parts));
    }
    ddp->order_hash = digest.lo;
}

static void plan_buckets(struct er_ddp *ddp, const uint32_t *order)
{
    er_bucket_plan_make(&ddp->plan, order, ddp->first_bucket_bytes, ddp->bucket_bytes);
    describe(ddp);
}

static int check_opts(const struct er_ddp_opts *opts, struct er_error *err)
{
    if (opts->dtype != ER_F32 && opts->dtype != ER_I64)
        return er_error_set(err, ER_E_USAGE, "gradients of type %d: float32 or int64 is expected",
                            (int)opts->dtype);
    if (opts->dtype != ER_F32 && (opts->count_nonfinite || opts->norm2 || opts->hook.pack))
        return er_error_set(err, ER_E_USAGE,
                            "count_nonfinite, norm2 and hook read float32, the gradients are %s",
                            er_dtype_name(opts->dtype));
    if (!opts->hook.pack != !opts->hook.unpack)
        return er_error_set(err, ER_E_USAGE, "hook: pack and unpack, or none of them");
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
    rc = check_opts(opts, err);
    if (rc == 0)
        rc = er_bucket_check(spans, n, er_dtype_size(opts->dtype), err);
    if (rc < 0)
        return rc;
    ddp = calloc(1, sizeof(*ddp));
    if (!ddp)
        return er_error_set(err, -ENOMEM, "reducer");
    ddp->comm = comm;
    ddp->control = opts->control ? opts->control : comm;
    ddp->engine = opts->engine ? opts->engine : er_engine_cpu();
    ddp->dtype = opts->dtype;
    ddp->plan.element = er_dtype_size(opts->dtype);
    ddp->count_nonfinite = opts->count_nonfinite;
    ddp->norm2 = opts->norm2;
    ddp->hook = opts->hook;
    ddp->first_bucket_bytes = opts->first_bucket_bytes;
    ddp->bucket_bytes = opts->bucket_bytes;
    rc = allocate(ddp, spans, n, err);
    if (rc < 0)
        return rc;
    plan_buckets(ddp, NULL);
    /* One bucket holds everything: there is nothing to arrange. */
    ddp->order_steps = opts->keep_order || ddp->plan.buckets_n < 2 ? 0 : ORDER_STEPS_MAX;
    *ret = ER_TAKE(ddp);
    return 0;
}

void er_ddp_close(struct er_ddp *ddp)
{
    int saved = errno;

    if (ddp) {
        if (ddp->engine)
            ddp->engine->ops->forget(ddp->engine);
        free((void *)ddp->plan.spans);
        free(ddp->plan.buckets);
        free(ddp->plan.members);
        free(ddp->plan.bucket_of);
        free(ddp->plan.final);
        free(ddp->order);
        free(ddp->layout);
        free(ddp);
    }
    errno = saved;
}

int er_ddp_check(struct er_ddp *ddp, struct er_error *err)
{
    return er_agree_spans(ddp->control, ddp->plan.spans, ddp->plan.spans_n, ddp->order_hash, err);
}

static void fail(struct er_ddp *ddp, int rc, size_t bucket, const struct er_error *err)
{
    const struct er_bucket_plan *plan = &ddp->plan;

    ddp->failure = *err;
    er_error_wrap(&ddp->failure, rc, "gradient bucket %zu ('%s'%s)", bucket,
                  plan->spans[plan->members[plan->buckets[bucket].first]].name,
                  plan->buckets[bucket].spans_n > 1 ? " ..." : "");
}

/* As the hook sees it. */
static struct er_ddp_bucket view_of(const struct er_ddp *ddp, size_t bucket)
{
    const struct er_bucket *b = &ddp->plan.buckets[bucket];

    return (struct er_ddp_bucket){.grads = b->ptr, .count = b->count, .first = b->before};
}

/* What of the next bucket goes on the wire; once, however often it must wait for room. */
static int pack_next(struct er_ddp *ddp, struct er_error *err)
{
    const struct er_bucket *bucket = &ddp->plan.buckets[ddp->begun];
    struct er_ddp_wire *wire = &ddp->wire[ddp->begun % FLIGHT_MAX];
    int rc = 0;

    if (ddp->packed)
        return 0;
    if (ddp->count_nonfinite) /* before it is a sum */
        rc = ddp->engine->ops->count_bad(ddp->engine, bucket->ptr, bucket->count, &ddp->nonfinite,
                                         err);
    if (rc < 0)
        return rc;
    *wire = (struct er_ddp_wire){bucket->ptr, bucket->count, ddp->dtype};
    if (ddp->hook.pack) {
        const struct er_ddp_bucket view = view_of(ddp, ddp->begun);

        rc = ddp->hook.pack(ddp->hook.user, &view, wire, err);
    }
    ddp->packed = rc == 0;
    return rc;
}

/* The next bucket leaves. -EAGAIN: not now, the communicator's ring is full. */
static int begin_next(struct er_ddp *ddp)
{
    const struct er_ddp_wire *wire = &ddp->wire[ddp->begun % FLIGHT_MAX];
    struct er_error err = ER_ERROR_INIT;
    int rc = pack_next(ddp, &err);

    if (rc < 0) {
        fail(ddp, rc, ddp->begun, &err);
        return rc;
    }
    if (ddp->engine->stream) /* the kernels that fill it */
        rc = er_comm_after(ddp->comm, ddp->engine->stream, &err);
    if (rc == 0)
        rc = er_all_reduce(ddp->comm, wire->ptr, wire->count, wire->dtype, ER_SUM,
                           &ddp->flight[ddp->begun % FLIGHT_MAX], &err);
    if (rc == 0) {
        if (ddp->begun == 0) {
            ddp->first_us = er_now_us();
            ddp->bytes = 0;
        }
        ddp->bytes += wire->count * er_dtype_size(wire->dtype);
        ddp->begun++;
        ddp->packed = false;
    } else if (rc != -EAGAIN) {
        fail(ddp, rc, ddp->begun, &err);
    }
    return rc;
}

static void note_done(struct er_ddp *ddp, int rc, struct er_error *err)
{
    if (rc == 0 && ddp->hook.unpack) {
        const struct er_ddp_bucket view = view_of(ddp, ddp->done);

        rc = ddp->hook.unpack(ddp->hook.user, &view, &ddp->wire[ddp->done % FLIGHT_MAX], err);
    }
    if (rc < 0) {
        fail(ddp, rc, ddp->done, err);
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
    else if (ddp->order_steps > 0)
        ddp->order[1 + ddp->order[0]++] = (uint32_t)span;
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
    ddp->packed = false;
    ddp->nonfinite = 0;
    ddp->order[0] = 0;
    ddp->misuse.code = 0;
}

/* This rank's part of the squared norm: of each gradient, the rank's share of its elements. Not of
 * each bucket: a run that resumes has the first step's buckets again, and must get the same bits.
 */
static int norm2_part(const struct er_ddp *ddp, double *ret, struct er_error *err)
{
    size_t rank = (size_t)er_comm_rank(ddp->comm), size = (size_t)er_comm_size(ddp->comm);
    int rc = 0;

    *ret = 0;
    for (size_t i = 0; i < ddp->plan.spans_n && rc == 0; i++) {
        const struct er_span *span = &ddp->plan.spans[i];
        size_t share = span->count / size, rest = span->count % size;
        size_t first = share * rank + (rank < rest ? rank : rest);

        rc = ddp->engine->ops->norm2(ddp->engine, span->ptr + first, share + (rank < rest), ret,
                                     err);
    }
    return rc;
}

/* Gradients that did not come: behind the others, as they would have left. */
static void complete_order(struct er_ddp *ddp)
{
    struct er_bucket_plan *plan = &ddp->plan;
    uint32_t *order = ddp->order + 1;
    size_t n = ddp->order[0];

    for (size_t i = 0; i < plan->spans_n; i++)
        plan->final[i] = false;
    for (size_t i = 0; i < n; i++)
        plan->final[order[i]] = true;
    for (size_t b = 0; b < plan->buckets_n; b++) {
        const struct er_bucket *bucket = &plan->buckets[b];

        for (size_t i = bucket->first + bucket->spans_n; i-- > bucket->first;) {
            if (!plan->final[plan->members[i]])
                order[n++] = plan->members[i];
        }
    }
}

/* Rank 0's order for everyone. Before the vote, so that a step whose vote is held is complete. */
static int share_order(struct er_ddp *ddp, struct er_error *err)
{
    size_t n = ddp->plan.spans_n;
    struct er_op *op;
    int rc;

    if (ddp->order_steps == 0)
        return 0;
    complete_order(ddp);
    rc = er_broadcast(ddp->control, ddp->order, n + 1, ER_I32, 0, &op, err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, err);
    if (rc == 0 &&
        (ddp->order[0] > n || !er_bucket_order_valid(ddp->order + 1, n, ddp->plan.final)))
        rc = er_error_set(err, ER_E_PROTOCOL, "rank 0 sent no order of %zu gradients", n);
    if (rc < 0) {
        er_error_wrap(err, rc, "order of gradients");
        ddp->failure = *err;
    }
    return rc;
}

/* The step is good everywhere. A step in which rank 0 marked nothing shows no order. */
static void take_order(struct er_ddp *ddp, uint32_t marked)
{
    if (ddp->order_steps == 0)
        return;
    ddp->order_steps = marked > 0 ? 0 : ddp->order_steps - 1;
    if (marked > 0)
        plan_buckets(ddp, ddp->order + 1);
}

static int hold_vote(struct er_ddp *ddp, struct er_vote *vote, struct er_error *err)
{
    struct er_error misuse = ddp->misuse;
    uint32_t marked = ddp->order[0];
    double norm2 = 0;
    int rc = ddp->norm2 ? norm2_part(ddp, &norm2, err) : 0, waited;

    waited =
        ddp->engine->ops->wait(ddp->engine, rc ? NULL : err); /* in any case: for numbers of ours */
    if (rc < 0 || waited < 0)
        return rc ? rc : waited;
    vote->order_hash = ddp->order_hash;
    vote->nonfinite += ddp->nonfinite;
    vote->norm2 += norm2;
    start_over(ddp);
    rc = er_vote_hold(ddp->comm, vote, &misuse, err);
    if (rc == 0)
        take_order(ddp, marked);
    return rc;
}

int er_ddp_finish(struct er_ddp *ddp, struct er_vote *vote, struct er_error *err)
{
    uint64_t entered_us = er_now_us(), complete_us;
    struct er_ddp_times times = {.buckets = ddp->plan.buckets_n};
    int rc;

    complete_buckets(ddp);
    ddp->reduced = !ddp->failure.code;
    if (!ddp->reduced)
        return er_error_set(err, ddp->failure.code, "step %lu: %s", (unsigned long)vote->step,
                            ddp->failure.text);
    complete_us = er_now_us();
    if (ddp->plan.buckets_n > 0) {
        times.comm_us = ddp->last_us - ddp->first_us;
        times.exposed_us = complete_us - entered_us;
        times.bytes = ddp->bytes;
    }
    rc = share_order(ddp, err);
    if (rc < 0)
        return rc;
    rc = hold_vote(ddp, vote, err);
    times.vote_us = er_now_us() - complete_us;
    ddp->times = times;
    return rc;
}

void er_ddp_drop(struct er_ddp *ddp)
{
    for (size_t i = 0; i < ddp->plan.spans_n; i++)
        ddp->engine->ops->fill(ddp->engine, ddp->plan.spans[i].ptr, 0.0f,
                               ddp->plan.spans[i].count * ddp->plan.element / sizeof(float), NULL);
}

bool er_ddp_reduced(const struct er_ddp *ddp)
{
    return ddp->reduced;
}

int er_ddp_sync_state(struct er_ddp *ddp, const struct er_span *state, size_t n,
                      struct er_error *err)
{
    const struct er_sync_place place = {
        .engine = ddp->engine, .wire = ddp->comm, .control = ddp->control};
    ER_CLEANUP(er_cleanup_free) struct er_sync_part *parts = calloc(n + 1, sizeof(*parts));

    if (!parts)
        return er_error_set(err, -ENOMEM, "list of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        parts[i] = (struct er_sync_part){
            .name = state[i].name,
            .ptr = state[i].ptr,
            .bytes = state[i].count * sizeof(float),
        };
    return er_sync_parts_at(&place, parts, n, err);
}

const char *er_ddp_layout(const struct er_ddp *ddp)
{
    return ddp->layout;
}

struct er_ddp_times er_ddp_last_times(const struct er_ddp *ddp)
{
    return ddp->times;
}
