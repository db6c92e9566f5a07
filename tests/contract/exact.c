/*
 * Exact mode on real communicators: a network trained by 1 to 5 ranks, with buckets of any size or
 * sharded over the ranks, has the same parameters bit for bit; in plain mode it has not. Shards and
 * the last step of an epoch are uneven, ranks have several shards a step, and the norm of the
 * gradients is clipped. With ER_TEST_ENGINE=gpu the same in the memory of GPUs.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_side.h"
#include "tests/lib/ranks.h"
#include "tests/lib/small_net.h"
#include "tests/lib/tap.h"
#include "trainer/engine.h"
#include "trainer/exact.h"
#include "trainer/fsdp.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"
#include "trainer/train.h"

enum {
    IN = 37,
    HIDDEN = 51,
    OUT = 10,
    PARAMS = 4,
    UNITS = 2,
    SHARDS = 12,
    BATCH = 250,
    SAMPLES = 2600,
    ELEMENTS_MAX = 4096,
    BAD_STEP = 7 /* where one is wanted */
};

enum how { EXACT, EXACT_FULL, EXACT_GRAD_OPTIM, PLAIN };

struct result {
    enum how how;
    size_t bucket_bytes;
    bool bad;                   /* a gradient of BAD_STEP does not fit: the step is skipped */
    uint64_t skipped;           /* of rank 0 */
    float values[ELEMENTS_MAX]; /* parameters at the end, at their places in flat memory */
};

struct model {
    enum how how;
    bool bad;
    struct er_engine *engine;
    void *memory, *sums_memory;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_exact sums;
    struct er_span spans[PARAMS];
    struct er_slice slices[3 * PARAMS];
    size_t slices_n;
    struct er_fsdp *fsdp; /* sharded */
    struct er_tape *tape;
    struct er_optim optim;
    struct er_plan plan;
    struct er_ddp *ddp; /* of the pass that runs */
    uint64_t outside;
    float images[BATCH * IN];
    int32_t labels[BATCH];
};

static void on_gradient(void *user, size_t param)
{
    struct model *m = user;

    struct er_error err = ER_ERROR_INIT;

    if (m->how == EXACT)
        er_tap_require(er_engine_fold(m->engine, &m->sums, &m->flat, param, &m->outside, &err) ==
                       0);
    if (m->ddp)
        er_ddp_ready(m->ddp, param);
}

static bool sharded(const struct model *m)
{
    return m->how == EXACT_FULL || m->how == EXACT_GRAD_OPTIM;
}

static void first_values(void *user, size_t param, float *value)
{
    struct model *m = user;

    for (size_t i = 0; i < m->table[param].count; i++)
        value[i] = param % 2 == 0 ? 0.2f * er_test_noise(param, 1, i) : 0;
}

/* Everything in one block, and the sums. */
static void bind_model(struct model *m)
{
    struct er_error err = ER_ERROR_INIT;

    float value[HIDDEN * IN];

    er_tap_require(er_engine_alloc(m->engine, er_flat_bytes(&m->flat), &m->memory, &err) == 0);
    er_tap_require(er_engine_alloc(m->engine, er_exact_bytes(&m->flat), &m->sums_memory, &err) ==
                   0);
    er_flat_place(&m->flat, m->memory);
    er_tap_require(er_exact_place(&m->sums, SHARDS, BATCH, m->sums_memory, &err) == 0);
    if (m->how == EXACT)
        er_exact_spans(&m->sums, &m->flat, m->spans);
    else
        er_flat_spans(&m->flat, ER_FLAT_GRAD, m->spans);
    m->slices_n = er_flat_slices(&m->flat, m->slices);
    for (size_t p = 0; p < PARAMS; p++) {
        first_values(m, p, value);
        er_tap_require(er_engine_put(m->engine, er_flat_at(&m->flat, ER_FLAT_VALUE, p), value,
                                     m->table[p].count * sizeof(float), &err) == 0);
    }
}

static void open_model(struct model *m, int rank)
{
    const struct er_device_opts device = er_test_device(rank);
    const struct er_shape shapes[PARAMS] = {
        {2, {HIDDEN, IN}}, {1, {HIDDEN}}, {2, {OUT, HIDDEN}}, {1, {OUT}}};
    static const char *const names[PARAMS] = {"w1", "b1", "w2", "b2"};
    struct er_error err = ER_ERROR_INIT;

    er_tap_require(er_matmul_setup(&err) == 0);
    er_tap_require(er_engine_open(&m->engine, &device, &err) == 0);
    m->optim = er_optim_adamw();
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(m->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++)
        er_tap_require(er_flat_add(&m->flat, names[p], &shapes[p], NULL, &err) == 0);
    if (!sharded(m))
        bind_model(m);
    er_tap_require(er_tape_new_on(&m->tape, &m->flat, 0, m->engine, &err) == 0);
    er_tape_hook(m->tape, on_gradient, m);
    er_tape_renew(m->tape, m->how == EXACT);
}

static int shard(void *user, struct er_comm *comm, struct er_fsdp **ret, struct er_error *err)
{
    static const struct er_fsdp_unit units[UNITS] = {{.name = "first", .params_n = 2},
                                                     {.name = "second", .first = 2, .params_n = 2}};
    struct model *m = user;
    const struct er_fsdp_opts opts = {.strategy =
                                          m->how == EXACT_FULL ? ER_FSDP_FULL : ER_FSDP_GRAD_OPTIM,
                                      .norm2 = true,
                                      .exact_shards = SHARDS,
                                      .exact_weight_max = BATCH,
                                      .engine = m->engine};
    int rc = er_fsdp_open(&m->fsdp, comm, &m->flat, units, UNITS, &opts, err);

    if (rc < 0)
        return rc;
    er_fsdp_attach(m->fsdp, m->tape);
    *ret = m->fsdp;
    return er_fsdp_fill(m->fsdp, first_values, m, err);
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
            m->images[s * IN + i] =
                m->bad && first + s == BAD_STEP * BATCH ? 1e30f : er_test_noise(first + s, 2, i);
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
    if (m->how == PLAIN)
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
    struct er_optim_view view = sharded(m) ? er_fsdp_view(m->fsdp) : er_optim_view_flat(&m->flat);
    double norm2 = vote->norm2, scale = 1;
    int rc = 0;

    if (m->how == EXACT)
        rc = er_engine_exact_norm2(m->engine, &m->sums, &m->flat, &norm2, err);
    if (rc == 0 && m->how == EXACT)
        rc = er_engine_take(m->engine, &m->sums, &m->flat, vote->weight, err);
    else if (sharded(m))
        rc = er_fsdp_take(m->fsdp, vote->weight, err);
    else
        scale = 1 / vote->weight;
    if (rc < 0)
        return rc;
    if (m->how != PLAIN)
        scale = er_optim_clip(norm2, vote->weight, 0.1) * vote->weight;
    return er_engine_apply(m->engine, &m->optim, &view, step, 1e-2, scale, err);
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->spans;
    *ret_n = PARAMS;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    struct model *m = user;

    if (m->fsdp)
        m->slices_n = er_fsdp_slices(m->fsdp, m->slices);
    *ret = m->slices;
    *ret_n = m->slices_n;
}

/* Every rank writes what it has of the values. */
static void note_values(const struct model *m, float *ret)
{
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < m->slices_n; i++) {
        for (size_t p = 0; p < PARAMS; p++) {
            const struct er_slice *s = &m->slices[i];

            if (strcmp(s->name, m->table[p].name) == 0)
                er_tap_require(er_engine_get(m->engine, ret + m->table[p].first + s->offset,
                                             s->data, s->count * sizeof(float), &err) == 0);
        }
    }
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct model m;
    struct result *result = user;
    const bool is_plain = result->how == PLAIN;
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result train = {0};
    int rc, rank = er_world(ctx)->rank;

    m.how = result->how;
    m.bad = result->bad;
    m.plan = (struct er_plan){
        .samples = SAMPLES, .global_batch = BATCH, .shards = is_plain ? 0 : SHARDS};
    open_model(&m, rank);
    rc = er_train_run(ctx,
                      &(struct er_train_ops){.grads = grads,
                                             .apply = apply,
                                             .spans = sharded(&m) ? NULL : spans,
                                             .state = state,
                                             .shard = sharded(&m) ? shard : NULL},
                      &m,
                      &(struct er_train_opts){.plan = m.plan,
                                              .epochs = 2, /* the last step of each is short */
                                              .checkpoint_dir = "",
                                              .nonfinite = ER_NONFINITE_SKIP,
                                              .engine = m.engine,
                                              .ddp = {.first_bucket_bytes = result->bucket_bytes,
                                                      .bucket_bytes = result->bucket_bytes,
                                                      .dtype = m.how == EXACT ? ER_I64 : ER_F32}},
                      &train, &err);
    if (rc < 0)
        er_tap_note("rank %d: %s", rank, err.text);
    else if (sharded(&m) || rank == 0)
        note_values(&m, result->values);
    if (rank == 0)
        result->skipped = train.skipped;
    er_tape_free(m.tape);
    er_fsdp_close(m.fsdp);
    er_engine_free(m.engine, m.memory);
    er_engine_free(m.engine, m.sums_memory);
    er_engine_close(m.engine);
    return rc < 0;
}

/* Leaves the parameters in result->values. */
static void train(struct result *result, int size, enum how how, size_t bucket_bytes)
{
    int status[SHARDS + 1];

    result->how = how;
    result->bucket_bytes = bucket_bytes;
    memset(result->values, 0, sizeof(result->values));
    er_ranks_run(size, rank_main, result, status);
    for (int rank = 0; rank < size; rank++)
        er_tap_require(status[rank] == 0);
}

static void any_world_size_and_bucket_size_gives_the_same_bits(void)
{
    static const size_t buckets[] = {64, 4096, 1 << 20};
    static float want[ELEMENTS_MAX];
    struct result *result = er_ranks_shared(sizeof(*result));

    train(result, 1, EXACT, 0);
    memcpy(want, result->values, sizeof(want));
    for (int size = 1; size <= 5; size++) {
        for (size_t b = 0; b < sizeof(buckets) / sizeof(buckets[0]); b++) {
            train(result, size, EXACT, buckets[b]);
            if (!er_tap_check(memcmp(want, result->values, sizeof(want)) == 0))
                er_tap_note("%d ranks, buckets of %zu bytes", size, buckets[b]);
        }
    }
}

static void sharded_parameters_have_the_same_bits(void)
{
    static float want[ELEMENTS_MAX];
    struct result *result = er_ranks_shared(sizeof(*result));

    train(result, 1, EXACT, 0);
    memcpy(want, result->values, sizeof(want));
    for (int size = 1; size <= 5; size++) {
        for (enum how how = EXACT_FULL; how <= EXACT_GRAD_OPTIM; how++) {
            train(result, size, how, 0);
            if (!er_tap_check(memcmp(want, result->values, sizeof(want)) == 0))
                er_tap_note("%d ranks, %s", size,
                            how == EXACT_FULL ? "all sharded" : "values on every rank");
        }
    }
}

/* What does not fit into 64 bits is no gradient: the same step is skipped everywhere. */
static void a_gradient_that_does_not_fit_is_skipped_alike(void)
{
    static float want[ELEMENTS_MAX];
    struct result *result = er_ranks_shared(sizeof(*result));

    result->bad = true;
    train(result, 1, EXACT, 0);
    er_tap_check(result->skipped == 2); /* in each epoch */
    memcpy(want, result->values, sizeof(want));
    for (enum how how = EXACT; how <= EXACT_GRAD_OPTIM; how++) {
        train(result, 3, how, 0);
        er_tap_check(result->skipped == 2);
        er_tap_check(memcmp(want, result->values, sizeof(want)) == 0);
    }
}

/* What the tests above would not notice if the model were too easy. */
static void plain_mode_differs_between_world_sizes(void)
{
    static float one[ELEMENTS_MAX];
    struct result *result = er_ranks_shared(sizeof(*result));

    train(result, 1, PLAIN, 0);
    memcpy(one, result->values, sizeof(one));
    train(result, 3, PLAIN, 0);
    er_tap_check(memcmp(one, result->values, sizeof(one)) != 0);
}

static int run_refused(struct er_ctx *ctx, const struct er_train_ops *ops, struct model *m,
                       struct er_train_opts opts, struct er_error *err)
{
    struct er_train_result train;

    opts.engine = m->engine;
    return er_train_run(ctx, ops, m, &opts, &train, err);
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

    m.how = EXACT;
    open_model(&m, er_world(ctx)->rank);
    return run_refused(ctx, &ops, &m, opts, &err) == ER_E_USAGE &&
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

/* Exact sums with a plan without shards, and the other way round. */
static int half_main(struct er_ctx *ctx, void *user)
{
    static struct model m;
    const struct er_train_ops ops = {.grads = grads,
                                     .apply = apply,
                                     .spans = *(enum how *)user == EXACT_FULL ? NULL : spans,
                                     .state = state,
                                     .shard = *(enum how *)user == EXACT_FULL ? shard : NULL};
    const struct er_train_opts opts = {
        .plan = {.samples = SAMPLES,
                 .global_batch = BATCH,
                 .shards = *(enum how *)user == PLAIN ? SHARDS : 0},
        .epochs = 1,
        .checkpoint_dir = "",
        .ddp = {.dtype = *(enum how *)user == EXACT ? ER_I64 : ER_F32}};
    struct er_error err = ER_ERROR_INIT;

    m.how = *(enum how *)user;
    open_model(&m, er_world(ctx)->rank);
    if (run_refused(ctx, &ops, &m, opts, &err) == ER_E_USAGE && strstr(err.text, "plan.shards is "))
        return 0;
    er_tap_note("%s", err.text);
    return 1;
}

static void half_an_exact_mode_is_refused(void)
{
    static const enum how hows[] = {EXACT, EXACT_FULL, PLAIN};
    int status[2];

    for (size_t i = 0; i < sizeof(hows) / sizeof(hows[0]); i++) {
        er_ranks_run(2, half_main, (void *)(uintptr_t)&hows[i], status);
        er_tap_check(status[0] == 0 && status[1] == 0);
    }
}

/* Rank 1's OpenBLAS takes other kernels; or its GPU is another model. */
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
    const char *other = er_test_on_gpu() ? "17 processors" : "Nehalem";

    setenv("OPENBLAS_CORETYPE", er_world(ctx)->rank == 1 ? "Nehalem" : "Sandybridge", 1);
    setenv("FAKE_CUDA_PROCESSORS", er_world(ctx)->rank == 1 ? "17" : "4", 1);
    m.how = EXACT;
    open_model(&m, er_world(ctx)->rank);
    return run_refused(ctx, &ops, &m, opts, &err) == ER_E_MISMATCH &&
                   strstr(err.text, "rank 1 with '") && strstr(err.text, other)
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
         any_world_size_and_bucket_size_gives_the_same_bits, 240},
        {"sharded_parameters_have_the_same_bits", sharded_parameters_have_the_same_bits, 240},
        {"a_gradient_that_does_not_fit_is_skipped_alike",
         a_gradient_that_does_not_fit_is_skipped_alike, 240},
        {"plain_mode_differs_between_world_sizes", plain_mode_differs_between_world_sizes, 240},
        {"more_ranks_than_shards_are_refused", more_ranks_than_shards_are_refused, 0},
        {"half_an_exact_mode_is_refused", half_an_exact_mode_is_refused, 0},
        {"a_rank_with_other_numerics_is_refused", a_rank_with_other_numerics_is_refused, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
