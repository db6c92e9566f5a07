/*
 * See fsdp_model.h.
 */
#include "tests/contract/fsdp_model.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/gpu_side.h"
#include "tests/lib/small_net.h"
#include "tests/lib/tap.h"
#include "trainer/engine.h"
#include "trainer/fsdp.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/scaler.h"
#include "trainer/train.h"

/* W x, layers, W' x. */
enum {
    WIDTH = 12,
    LAYERS = 4,
    PARAMS = 1 + 2 * LAYERS + 1,
    UNITS = LAYERS + 2,
    BATCH = 24,
    SAMPLES = 100, /* the last step of an epoch has 4 samples: some ranks have none */
    EPOCHS = 2
};

static struct fsdp_test *test;

struct model {
    struct er_engine *engine;
    void *memory;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_span spans[PARAMS];
    struct er_slice slices[3 * PARAMS];
    size_t slices_n;
    struct er_fsdp *fsdp;
    struct er_tape *tape;
    struct er_optim optim;
    struct er_scaler scaler;
    struct er_ddp *ddp; /* of the pass that runs */
    int rank;
    bool settled;
    float images[BATCH * WIDTH];
    int32_t labels[BATCH];
};

static void on_gradient(void *user, size_t param)
{
    struct model *m = user;

    if (m->ddp)
        er_ddp_ready(m->ddp, param);
}

static void first_values(void *user, size_t param, float *value)
{
    struct model *m = user;
    bool is_matrix = m->table[param].shape.ndim == 2;

    for (size_t i = 0; i < m->table[param].count; i++)
        value[i] = is_matrix ? 0.4f * er_test_noise(param, 1, i) : 0;
}

/* Everything on this rank. */
static void hold_whole(struct model *m)
{
    struct er_error err = ER_ERROR_INIT;
    float value[WIDTH * WIDTH];

    er_tap_require(er_engine_alloc(m->engine, er_flat_bytes(&m->flat), &m->memory, &err) == 0);
    er_flat_place(&m->flat, m->memory);
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
    static char names[PARAMS][16];
    struct er_shape square = er_shape_2d(WIDTH, WIDTH), vector = er_shape_1d(WIDTH);
    struct er_error err = ER_ERROR_INIT;

    er_tap_require(er_matmul_setup(&err) == 0);
    er_tap_require(er_engine_open(&m->engine, &device, &err) == 0);
    m->optim = er_optim_adamw();
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(m->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++) {
        snprintf(names[p], sizeof(names[p]), "p%zu", p);
        er_tap_require(er_flat_add(&m->flat, names[p],
                                   p == 0 || (p % 2 && p + 1 < PARAMS) ? &square : &vector, NULL,
                                   &err) == 0);
    }
    if (test->strategy == DDP)
        hold_whole(m);
    er_tap_require(er_tape_new_on(&m->tape, &m->flat, 0, m->engine, &err) == 0);
    er_tape_hook(m->tape, on_gradient, m);
    m->scaler = (struct er_scaler){.state = {test->scale}};
    if (test->strategy == DDP)
        er_tap_require(er_tape_store(m->tape, test->param, &err) == 0);
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

/* 4 bytes each of value, gradient and two states a rank; values and gradients of two units, and of
 * the one that stays, of their types. */
static size_t bound(const struct er_flat *flat, int size)
{
    size_t line = ER_FLAT_ALIGN * (size_t)size, slack = UNITS * 4 * line;
    size_t elements = WIDTH * WIDTH + WIDTH;
    size_t both = er_dtype_size(test->param) + er_dtype_size(test->reduce[0]);

    return 16 * flat->total / (size_t)size + slack + 3 * (elements * both + 4 * line);
}

static int shard(void *user, struct er_comm *comm, struct er_fsdp **ret, struct er_error *err)
{
    struct er_fsdp_unit units[UNITS] = {{.name = "tied", .params_n = 1, .keep = true}};
    const struct er_fsdp_opts opts = {
        .strategy = test->strategy == FULL ? ER_FSDP_FULL : ER_FSDP_GRAD_OPTIM,
        .passes = test->passes,
        .norm2 = true,
        .count_nonfinite = true,
        .exact_shards = test->exact,
        .param_dtype = test->param,
        .reduce_dtype = test->reduce[((struct model *)user)->rank],
        .engine = ((struct model *)user)->engine,
    };
    struct model *m = user;
    int rc;

    for (size_t i = 0; i < LAYERS; i++)
        units[1 + i] = (struct er_fsdp_unit){
            .name = i ? i > 1 ? i > 2 ? "d" : "c" : "b" : "a", .first = 1 + 2 * i, .params_n = 2};
    units[UNITS - 1] = (struct er_fsdp_unit){.name = "norm", .first = PARAMS - 1, .params_n = 1};
    rc = er_fsdp_open(&m->fsdp, comm, &m->flat, units, UNITS, &opts, err);
    if (rc < 0)
        return rc;
    er_fsdp_attach(m->fsdp, m->tape);
    test->bytes = er_fsdp_bytes(m->fsdp);
    test->bound = bound(&m->flat, er_comm_size(comm));
    *ret = m->fsdp;
    return er_fsdp_fill(m->fsdp, first_values, m, err);
}

static int layer(struct model *m, size_t i, struct er_tensor **x, struct er_error *err)
{
    struct er_tensor *h;
    int rc = er_linear(m->tape, *x, er_tape_param(m->tape, 1 + 2 * i),
                       er_tape_param(m->tape, 2 + 2 * i), &h, err);

    if (rc == 0)
        rc = er_gelu(m->tape, h, &h, err);
    return rc < 0 ? rc : er_add(m->tape, *x, h, x, err);
}

static int forward(struct model *m, uint64_t count, double *sum, struct er_tensor **ret,
                   struct er_error *err)
{
    struct er_tensor *x, *tied = er_tape_param(m->tape, 0);
    struct er_shape shape = er_shape_2d(count, WIDTH);
    int rc = er_tape_input(m->tape, "images", &shape, m->images, &x, err);

    if (rc == 0)
        rc = er_cast(m->tape, x, test->param, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, tied, NULL, &x, err);
    for (size_t i = 0; i < LAYERS && rc == 0; i++)
        rc = layer(m, test->disordered && (i == 1 || i == 2) ? 3 - i : i, &x, err);
    if (rc == 0)
        rc = er_rms_norm(m->tape, x, er_tape_param(m->tape, PARAMS - 1), 1e-5f, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, tied, NULL, &x, err);
    return rc < 0 ? rc : er_cross_entropy(m->tape, x, m->labels, sum, ret, err);
}

static int pass(struct model *m, uint64_t first, uint64_t count, struct er_loss *loss,
                struct er_error *err)
{
    struct er_tensor *total;
    double sum = 0;
    int rc = er_tape_begin(m->tape, err);

    if (rc < 0 || count == 0)
        return rc;
    for (uint64_t s = 0; s < count; s++) {
        for (uint64_t i = 0; i < WIDTH; i++)
            m->images[s * WIDTH + i] = er_test_noise(first + s, 2, i);
        m->labels[s] = (int32_t)(er_rng(4, first + s, 3, 0) % WIDTH);
    }
    er_tape_scale(m->tape, er_scaler_scale(&m->scaler));
    rc = forward(m, count, &sum, &total, err);
    if (rc == 0)
        rc = er_tape_backward(m->tape, total, err);
    loss->sum += sum;
    loss->weight += (double)count;
    return rc;
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;
    uint64_t first = step->range.first, left = step->range.count;
    uint64_t passes = test->passes ? test->passes : 1;
    int rc = 0;

    *ret = (struct er_loss){0};
    if (step->step == 3 && test->dies > 0 && m->rank == test->dies && !test->leaves)
        kill(getpid(), SIGKILL);
    for (int rank = 0; step->step == 3 && test->leaves && rank < 3; rank++)
        er_fake_notice(test->world, rank, 1,
                       rank == test->dies ? ER_NOTICE_DRAIN : ER_NOTICE_REJOIN);
    /* The first steps, of full batches, allocate; and one that fails ends what it began. */
    m->settled = step->step > 2 && !test->disordered && !test->dies;
    if (m->rank == 0) /* others must not even write it: the ranks share it */
        test->passes_n++;
    if (m->settled)
        er_test_step(true);
    for (uint64_t i = 0; i < passes && rc == 0; i++) {
        uint64_t count = left / (passes - i);

        /* Gradients leave once they are whole. */
        m->ddp = i + 1 == passes ? step->ddp : NULL;
        rc = pass(m, first, count, ret, err);
        first += count;
        left -= count;
    }
    return rc;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct model *m = user;
    struct er_optim_view view =
        test->strategy == DDP ? er_optim_view_flat(&m->flat) : er_fsdp_view(m->fsdp);

    const double scale = er_scaler_clip(&m->scaler, 0, vote->weight, 0);

    if (m->settled)
        er_test_step(false);
    test->norm2 = vote->norm2;
    test->last_scale = m->scaler.state[0];
    if (m->fsdp)
        test->wire_bytes = er_fsdp_last_times(m->fsdp).bytes;
    return er_engine_apply(m->engine, &m->optim, &view, step, 1e-2, scale, err);
}

/* Every rank writes its pieces of the values. */
static void note_values(const struct model *m)
{
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < m->slices_n; i++) {
        const struct er_slice *s = &m->slices[i];

        if (s->name[0] == 'p') {
            const struct er_flat_param *param = &m->table[atoi(s->name + 1)];

            er_tap_require(er_engine_get(m->engine, test->values + param->first + s->offset,
                                         s->data, s->count * sizeof(float), &err) == 0);
        }
    }
}

int fsdp_rank(struct er_ctx *ctx, void *user)
{
    const bool is_ddp = test->strategy == DDP;
    const struct er_train_ops ops = {grads, apply, is_ddp ? spans : NULL,
                                     state, NULL,  is_ddp ? NULL : shard};
    struct er_train_opts opts = {
        .plan = {.samples = SAMPLES, .global_batch = BATCH},
        .epochs = test->epochs ? test->epochs : EPOCHS,
        .checkpoint_dir = test->dir,
        .ddp = {.norm2 = true},
        .shadow = test->shadow,
        .checkpoint_steps = test->checkpoint_steps,
        .checkpoint_wait = test->checkpoint_steps > 0,
    };
    static struct model m;
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result result = {0};
    int rank = er_world(ctx)->rank;

    m.rank = rank;
    open_model(&m, rank);
    opts.engine = m.engine;
    opts.scaler = test->scale > 0 ? &m.scaler : NULL;
    test->rcs[rank] = er_train_run(ctx, &ops, &m, &opts, &result, &err);
    if (rank == 0) {
        snprintf(test->text, sizeof(test->text), "%s", err.text);
        test->resumed_from = result.resumed_from;
        test->skipped = result.skipped;
        test->recoveries = result.recoveries;
    }
    if (test->rcs[rank] == ER_E_USAGE)
        snprintf(test->refused, sizeof(test->refused), "%s", err.text);
    if (test->rcs[rank] == 0 && !result.stopped)
        note_values(&m);
    er_tape_free(m.tape);
    er_fsdp_close(m.fsdp);
    er_engine_free(m.engine, m.memory);
    er_engine_close(m.engine);
    return 0;
}

struct fsdp_test *fsdp_test_new(void)
{
    test = er_ranks_shared(sizeof(*test));
    return test;
}

void fsdp_train(int size, enum strategy strategy, uint32_t passes, float *ret)
{
    test->strategy = strategy;
    test->passes = passes;
    memset(test->values, 0, sizeof(test->values));
    er_ranks_run(size, fsdp_rank, NULL, NULL);
    for (int rank = 0; rank < size; rank++) {
        if (!er_tap_check(test->rcs[rank] == 0))
            er_tap_note("%d ranks, strategy %d, rank %d: %s", size, (int)strategy, rank,
                        test->text);
    }
    memcpy(ret, test->values, sizeof(test->values));
}

void fsdp_first(float *ret)
{
    static struct model m;

    test->strategy = FULL;
    open_model(&m, 0);
    for (size_t p = 0; p < PARAMS; p++)
        first_values(&m, p, ret + m.table[p].first);
    er_tape_free(m.tape);
    er_engine_close(m.engine);
}

bool fsdp_near(const float *a, const float *b)
{
    float most = 0;

    for (size_t i = 0; i < FSDP_ELEMENTS_MAX; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    if (most > 1e-4f)
        er_tap_note("parameters differ by up to %g", (double)most);
    return most <= 1e-4f;
}
