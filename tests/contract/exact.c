/*
 * Exact mode on real communicators: a network trained by 1 to 5 ranks, with buckets of any size,
 * has the same parameters bit for bit; in plain mode it has not.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/pool.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "trainer/exact.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"
#include "trainer/train.h"

enum { IN = 37, HIDDEN = 51, OUT = 10, PARAMS = 4, SHARDS = 12, BATCH = 250, SAMPLES = 2600 };

struct result {
    bool plain; /* not exact: for comparison */
    size_t bucket_bytes;
    uint64_t hash; /* of rank 0's parameters at the end */
};

struct model {
    bool exact;
    struct er_pool *pool;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_exact sums;
    struct er_span spans[PARAMS];
    struct er_slice slices[3 * PARAMS];
    struct er_tape *tape;
    struct er_optim optim;
    struct er_plan plan;
    struct er_ddp *ddp; /* of the pass that runs */
    uint64_t outside;
    float images[BATCH * IN];
    int32_t labels[BATCH];
};

/* The part of libelastic that the fake world leaves to its users; nothing is saved here. */
int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    return 0;
}

int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
              const char *skipped, struct er_error *err)
{
    return 0;
}

static float noise(uint64_t a, uint32_t op, uint64_t i)
{
    return (float)((double)(er_rng(4, a, op, i) >> 11) * 0x1p-52 - 1.0);
}

static void on_gradient(void *user, size_t param)
{
    struct model *m = user;

    if (m->exact)
        m->outside += er_exact_fold(&m->sums, &m->flat, param);
    if (m->ddp)
        er_ddp_ready(m->ddp, param);
}

static void open_model(struct model *m)
{
    const struct er_shape shapes[PARAMS] = {
        {2, {HIDDEN, IN}}, {1, {HIDDEN}}, {2, {OUT, HIDDEN}}, {1, {OUT}}};
    static const char *const names[PARAMS] = {"w1", "b1", "w2", "b2"};
    struct er_error err = ER_ERROR_INIT;

    er_tap_require(er_matmul_setup(&err) == 0);
    m->optim = er_optim_adamw();
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(m->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++)
        er_tap_require(er_flat_add(&m->flat, names[p], &shapes[p], NULL, &err) == 0);
    er_tap_require(
        er_pool_new(&m->pool, er_flat_bytes(&m->flat) + er_exact_bytes(&m->flat), &err) == 0);
    er_flat_bind(&m->flat, er_pool_alloc(m->pool, er_flat_bytes(&m->flat), ER_FLAT_ALIGN));
    er_tap_require(er_exact_bind(&m->sums, &m->flat, SHARDS, BATCH,
                                 er_pool_alloc(m->pool, er_exact_bytes(&m->flat), ER_FLAT_ALIGN),
                                 &err) == 0);
    if (m->exact)
        er_exact_spans(&m->sums, &m->flat, m->spans);
    else
        er_flat_spans(&m->flat, ER_FLAT_GRAD, m->spans);
    er_flat_slices(&m->flat, m->slices);
    er_tap_require(er_tape_new(&m->tape, &m->flat, 0, &err) == 0);
    er_tape_hook(m->tape, on_gradient, m);
    for (size_t p = 0; p < PARAMS; p += 2) {
        for (size_t i = 0; i < m->table[p].count; i++)
            er_flat_at(&m->flat, ER_FLAT_VALUE, p)[i] = 0.2f * noise(p, 1, i);
    }
}

/* Forward and backward of `count` samples; the bucket reducer hears of it with `ddp`. */
static int pass(struct model *m, uint64_t first, uint64_t count, struct er_ddp *ddp,
                struct er_loss *loss, struct er_error *err)
{
    struct er_shape shape = er_shape_2d(count, IN);
    struct er_tensor *x, *total;
    double sum = 0;
    int rc = er_tape_begin(m->tape, err);

    if (count == 0)
        return rc;
    for (uint64_t s = 0; s < count; s++) {
        for (uint64_t i = 0; i < IN; i++)
            m->images[s * IN + i] = noise(first + s, 2, i);
        m->labels[s] = (int32_t)(er_rng(4, first + s, 3, 0) % OUT);
    }
    m->ddp = ddp;
    if (rc == 0)
        rc = er_tape_input(m->tape, "images", &shape, m->images, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, er_tape_param(m->tape, 0), er_tape_param(m->tape, 1), &x, err);
    if (rc == 0)
        rc = er_gelu(m->tape, x, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, er_tape_param(m->tape, 2), er_tape_param(m->tape, 3), &x, err);
    if (rc == 0)
        rc = er_cross_entropy(m->tape, x, m->labels, &sum, &total, err);
    if (rc == 0)
        rc = er_tape_backward(m->tape, total, err);
    loss->sum += sum;
    loss->weight += (double)count;
    return rc;
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;
    const struct er_range *range = &step->range;
    int rc = 0;

    *ret = (struct er_loss){0};
    m->outside = 0;
    if (!m->exact)
        return pass(m, range->first, range->count, step->ddp, ret, err);
    for (uint32_t i = 0; i < range->shards_n && rc == 0; i++) {
        struct er_range shard = er_batch_shard(&m->plan, step->step, range->first_shard + i);

        rc = pass(m, shard.first, shard.count, i + 1 == range->shards_n ? step->ddp : NULL, ret,
                  err);
    }
    ret->nonfinite = m->outside;
    return rc;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct model *m = user;
    struct er_optim_view view = er_optim_view_flat(&m->flat);

    if (m->exact)
        er_exact_take(&m->sums, &m->flat, vote->weight);
    er_optim_apply(&m->optim, &view, step, 1e-2, m->exact ? 1.0 : 1.0 / vote->weight);
    return 0;
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->spans;
    *ret_n = PARAMS;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->slices;
    *ret_n = 3 * PARAMS;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static const struct er_train_ops ops = {grads, apply, spans, state, NULL, NULL};
    static struct model m;
    struct result *result = user;
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result train;
    int rc;

    m.exact = !result->plain;
    m.plan =
        (struct er_plan){.samples = SAMPLES, .global_batch = BATCH, .shards = m.exact ? SHARDS : 0};
    open_model(&m);
    rc = er_train_run(ctx, &ops, &m,
                      &(struct er_train_opts){.plan = m.plan,
                                              .epochs = 2, /* the last step of each is short */
                                              .checkpoint_dir = "",
                                              .ddp = {.first_bucket_bytes = result->bucket_bytes,
                                                      .bucket_bytes = result->bucket_bytes,
                                                      .dtype = m.exact ? ER_I64 : ER_F32}},
                      &train, &err);
    if (rc < 0)
        er_tap_note("rank %d: %s", er_world(ctx)->rank, err.text);
    else if (er_world(ctx)->rank == 0)
        result->hash = er_hash(m.flat.block[ER_FLAT_VALUE], m.flat.total * sizeof(float)).lo;
    er_tape_free(m.tape);
    er_pool_free(m.pool);
    return rc < 0;
}

static uint64_t hash_of(int size, bool plain, size_t bucket_bytes)
{
    struct result *result = er_ranks_shared(sizeof(*result));
    int status[SHARDS + 1];

    *result = (struct result){.plain = plain, .bucket_bytes = bucket_bytes};
    er_ranks_run(size, rank_main, result, status);
    for (int rank = 0; rank < size; rank++)
        er_tap_require(status[rank] == 0);
    return result->hash;
}

static void any_world_size_and_bucket_size_gives_the_same_bits(void)
{
    static const size_t buckets[] = {64, 4096, 1 << 20};
    uint64_t want = hash_of(1, false, 0);

    for (int size = 1; size <= 5; size++) {
        for (size_t b = 0; b < sizeof(buckets) / sizeof(buckets[0]); b++) {
            uint64_t got = hash_of(size, false, buckets[b]);

            if (!er_tap_check(got == want))
                er_tap_note("%d ranks, buckets of %zu bytes", size, buckets[b]);
        }
    }
}

/* What the test above would not notice if the model were too easy. */
static void plain_mode_differs_between_world_sizes(void)
{
    er_tap_check(hash_of(1, true, 0) != hash_of(3, true, 0));
}

static int too_many_main(struct er_ctx *ctx, void *user)
{
    static const struct er_train_ops ops = {grads, apply, spans, state, NULL, NULL};
    static struct model m;
    const struct er_train_opts opts = {
        .plan = {.samples = SAMPLES, .global_batch = BATCH, .shards = 2},
        .epochs = 1,
        .checkpoint_dir = "",
        .ddp = {.dtype = ER_I64}};
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result train;

    m.exact = true;
    open_model(&m);
    return er_train_run(ctx, &ops, &m, &opts, &train, &err) == ER_E_USAGE &&
                   strstr(err.text, "3 ranks for 2 shards")
               ? 0
               : 1;
}

static void more_ranks_than_shards_are_refused(void)
{
    int status[3];

    er_ranks_run(3, too_many_main, NULL, status);
    for (int rank = 0; rank < 3; rank++)
        er_tap_check(status[rank] == 0);
}

/* Rank 1's OpenBLAS takes other kernels. */
static int mixed_main(struct er_ctx *ctx, void *user)
{
    static const struct er_train_ops ops = {grads, apply, spans, state, NULL, NULL};
    static struct model m;
    const struct er_train_opts opts = {
        .plan = {.samples = SAMPLES, .global_batch = BATCH, .shards = SHARDS},
        .epochs = 1,
        .checkpoint_dir = "",
        .ddp = {.dtype = ER_I64}};
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result train;

    setenv("OPENBLAS_CORETYPE", er_world(ctx)->rank == 1 ? "Nehalem" : "Sandybridge", 1);
    m.exact = true;
    open_model(&m);
    return er_train_run(ctx, &ops, &m, &opts, &train, &err) == ER_E_MISMATCH &&
                   strstr(err.text, "rank 1 with '") && strstr(err.text, "Nehalem")
               ? 0
               : 1;
}

static void a_rank_with_other_numerics_is_refused(void)
{
    int status[2];

    er_ranks_run(2, mixed_main, NULL, status);
    er_tap_check(status[0] == 0 && status[1] == 0);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"any_world_size_and_bucket_size_gives_the_same_bits",
         any_world_size_and_bucket_size_gives_the_same_bits, 0},
        {"plain_mode_differs_between_world_sizes", plain_mode_differs_between_world_sizes, 0},
        {"more_ranks_than_shards_are_refused", more_ranks_than_shards_are_refused, 0},
        {"a_rank_with_other_numerics_is_refused", a_rank_with_other_numerics_is_refused, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
