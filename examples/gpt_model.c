#include "examples/gpt_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "trainer/matmul.h"
#include "trainer/sampler.h"

/* Parameters in forward order: so buckets leave from the last layer on. */
enum { TOKENS, POSITIONS, LAYERS };
enum layer_param {
    LN1_W,
    LN1_B,
    QKV_W,
    QKV_B,
    MIX_W,
    MIX_B,
    LN2_W,
    LN2_B,
    UP_W,
    UP_B,
    DOWN_W,
    DOWN_B
};

static const float EPS = 1e-5f;

struct param_row {
    const char *name;
    size_t rows, cols;   /* in units of C; rows 0: a vector of cols C */
    float spread, start; /* standard deviation and mean of the first values */
};

static const struct param_row layer_rows[GPT_LAYER_PARAMS] = {
    [LN1_W] = {"ln1.weight", 0, 1, 0, 1},    [LN1_B] = {"ln1.bias", 0, 1, 0, 0},
    [QKV_W] = {"qkv.weight", 3, 1, 1, 0},    [QKV_B] = {"qkv.bias", 0, 3, 0, 0},
    [MIX_W] = {"mix.weight", 1, 1, -1, 0},   [MIX_B] = {"mix.bias", 0, 1, 0, 0},
    [LN2_W] = {"ln2.weight", 0, 1, 0, 1},    [LN2_B] = {"ln2.bias", 0, 1, 0, 0},
    [UP_W] = {"up.weight", 4, 1, 1, 0},      [UP_B] = {"up.bias", 0, 4, 0, 0},
    [DOWN_W] = {"down.weight", 1, 4, -1, 0}, [DOWN_B] = {"down.bias", 0, 1, 0, 0},
};

static size_t last_norm(const struct gpt *gpt)
{
    return LAYERS + gpt->shape.layers * GPT_LAYER_PARAMS;
}

static int check_shape(const struct gpt_shape *s, struct er_error *err)
{
    if (s->layers < 1 || s->layers > GPT_LAYERS_MAX)
        return er_error_set(err, -EINVAL, "gpt: %zu layers, expected 1 to %d", s->layers,
                            GPT_LAYERS_MAX);
    if (s->heads < 1 || s->width < 1 || s->width % s->heads != 0)
        return er_error_set(err, -EINVAL, "gpt: width %zu is not a multiple of %zu heads", s->width,
                            s->heads);
    if (s->vocab < 1 || s->context < 1)
        return er_error_set(err, -EINVAL, "gpt: vocabulary %zu, context %zu: at least 1 each",
                            s->vocab, s->context);
    return 0;
}

static int add_params(struct gpt *gpt, struct er_error *err)
{
    const size_t width = gpt->shape.width;
    struct er_shape tokens = er_shape_2d(gpt->shape.vocab, width);
    struct er_shape positions = er_shape_2d(gpt->shape.context, width), norm = er_shape_1d(width);
    int rc = er_flat_add(&gpt->flat, "tokens.weight", &tokens, NULL, err);

    if (rc == 0)
        rc = er_flat_add(&gpt->flat, "positions.weight", &positions, NULL, err);
    for (size_t i = 0; i < gpt->shape.layers * GPT_LAYER_PARAMS && rc == 0; i++) {
        const struct param_row *row = &layer_rows[i % GPT_LAYER_PARAMS];
        struct er_shape shape = row->rows > 0 ? er_shape_2d(row->rows * width, row->cols * width)
                                              : er_shape_1d(row->cols * width);
        char name[48];

        snprintf(name, sizeof(name), "layer%zu.%s", i / GPT_LAYER_PARAMS, row->name);
        rc = er_flat_add(&gpt->flat, name, &shape, NULL, err);
    }
    if (rc == 0)
        rc = er_flat_add(&gpt->flat, "norm.weight", &norm, NULL, err);
    return rc < 0 ? rc : er_flat_add(&gpt->flat, "norm.bias", &norm, NULL, err);
}

/* Uniform of standard deviation `spread` around `start`. */
static void init_param(struct gpt *gpt, size_t param, float spread, float start, float *value)
{
    for (size_t i = 0; i < gpt->table[param].count; i++) {
        double unit = (double)(er_rng(gpt->seed, param, 0, i) >> 11) * 0x1p-52 - 1.0;

        value[i] = start + spread * (float)(unit * 1.7320508075688772);
    }
}

/* First values of one parameter. GPT-2's: 0.02, and less for what is added to the residual stream.
 */
static void init_value(void *user, size_t param, float *value)
{
    const float spread = 0.02f;
    struct gpt *gpt = user;
    float residual = spread / sqrtf(2.0f * (float)gpt->shape.layers);

    if (param < LAYERS) {
        init_param(gpt, param, spread, 0, value);
    } else if (param < last_norm(gpt)) {
        const struct param_row *row = &layer_rows[(param - LAYERS) % GPT_LAYER_PARAMS];

        init_param(gpt, param,
                   row->spread > 0   ? spread
                   : row->spread < 0 ? residual
                                     : 0,
                   row->start, value);
    } else {
        init_param(gpt, param, 0, param == last_norm(gpt) ? 1 : 0, value);
    }
}

static bool on_gpu(const struct gpt *gpt)
{
    return gpt->engine && er_engine_device(gpt->engine);
}

/* In a GPU's memory, where the host cannot write. */
static int fill_gpu(struct gpt *gpt, struct er_error *err)
{
    int rc = er_engine_alloc(gpt->engine, er_flat_bytes(&gpt->flat), &gpt->memory, err);

    if (rc < 0)
        return rc;
    er_flat_place(&gpt->flat, gpt->memory);
    for (size_t i = 0; i < gpt->flat.params_n && rc == 0; i++) {
        size_t bytes = gpt->table[i].count * sizeof(float);
        float *value = malloc(bytes);

        if (!value)
            return er_error_set(err, -ENOMEM, "parameter '%s'", gpt->table[i].name);
        init_value(gpt, i, value);
        rc =
            er_engine_put(gpt->engine, er_flat_at(&gpt->flat, ER_FLAT_VALUE, i), value, bytes, err);
        free(value);
    }
    return rc;
}

/* Every rank holds everything. */
static int hold_whole(struct gpt *gpt, struct er_error *err)
{
    int rc = 0;

    if (on_gpu(gpt))
        rc = fill_gpu(gpt, err);
    else
        er_flat_bind(&gpt->flat,
                     er_pool_alloc(gpt->pool, er_flat_bytes(&gpt->flat), ER_FLAT_ALIGN));
    if (rc < 0)
        return rc;
    er_flat_spans(&gpt->flat, ER_FLAT_GRAD, gpt->spans);
    gpt->slices_n = er_flat_slices(&gpt->flat, gpt->slices);
    for (size_t i = 0; i < gpt->flat.params_n && !on_gpu(gpt); i++)
        init_value(gpt, i, er_flat_at(&gpt->flat, ER_FLAT_VALUE, i));
    return 0;
}

int gpt_open(struct gpt *gpt, const struct gpt_shape *shape, const struct er_optim *optim,
             uint64_t seed, bool sharded, struct er_error *err)
{
    size_t position_bytes = shape->context * sizeof(*gpt->positions);
    int rc = check_shape(shape, err);

    if (rc == 0)
        rc = er_matmul_setup(err);
    if (rc < 0)
        return rc;
    gpt->shape = *shape;
    gpt->seed = seed;
    er_flat_init(&gpt->flat, gpt->table, GPT_PARAMS_MAX, er_optim_state_names(optim->kind),
                 er_optim_states_n(optim->kind));
    rc = add_params(gpt, err);
    if (rc == 0)
        rc = er_pool_new(&gpt->pool,
                         (sharded || on_gpu(gpt) ? 0 : er_flat_bytes(&gpt->flat)) + position_bytes,
                         err);
    if (rc == 0 && !sharded)
        rc = hold_whole(gpt, err);
    if (rc < 0)
        return rc;
    gpt->positions = er_pool_alloc(gpt->pool, position_bytes, sizeof(*gpt->positions));
    for (size_t i = 0; i < shape->context; i++)
        gpt->positions[i] = (int32_t)i;
    rc =
        er_tape_new_on(&gpt->tape, &gpt->flat, 0, gpt->engine ? gpt->engine : er_engine_cpu(), err);
    return rc < 0 || sharded ? rc : er_tape_store(gpt->tape, gpt->dtype, err);
}

/* The embeddings are used at both ends: they stay. Then a unit a layer, and the last norm. */
int gpt_shard(struct gpt *gpt, struct er_comm *comm, const struct er_fsdp_opts *opts,
              struct er_error *err)
{
    struct er_fsdp_unit units[GPT_LAYERS_MAX + 2] = {
        {.name = "embeddings", .params_n = LAYERS, .keep = true}};
    size_t layers = gpt->shape.layers;
    int rc;

    for (size_t i = 0; i < layers; i++) {
        snprintf(gpt->unit_names[i], sizeof(gpt->unit_names[i]), "layer%zu", i);
        units[1 + i] = (struct er_fsdp_unit){.name = gpt->unit_names[i],
                                             .first = LAYERS + i * GPT_LAYER_PARAMS,
                                             .params_n = GPT_LAYER_PARAMS};
    }
    units[1 + layers] =
        (struct er_fsdp_unit){.name = "norm", .first = last_norm(gpt), .params_n = 2};
    rc = er_fsdp_open(&gpt->fsdp, comm, &gpt->flat, units, layers + 2, opts, err);
    if (rc < 0)
        return rc;
    er_fsdp_attach(gpt->fsdp, gpt->tape);
    return er_fsdp_fill(gpt->fsdp, init_value, gpt, err);
}

void gpt_close(struct gpt *gpt)
{
    er_tape_free(gpt->tape);
    er_fsdp_close(gpt->fsdp);
    if (gpt->engine)
        er_engine_free(gpt->engine, gpt->memory);
    er_pool_free(gpt->pool);
    gpt->memory = NULL;
    gpt->tape = NULL;
    gpt->fsdp = NULL;
    gpt->pool = NULL;
}

/* ---- forward ---- */

/* One forward run; the first failure stops it, and what follows does nothing. */
struct run {
    struct gpt *gpt;
    const struct gpt_batch *batch;
    struct er_error *err;
    uint32_t drops; /* places of dropout so far: each has its own numbers */
    int rc;
};

static struct er_tensor *param(struct run *run, size_t i)
{
    return er_tape_param(run->gpt->tape, i);
}

static void norm(struct run *run, struct er_tensor *x, size_t at, struct er_tensor **ret)
{
    if (run->rc == 0)
        run->rc = er_layer_norm(run->gpt->tape, x, param(run, at), param(run, at + 1), EPS, ret,
                                run->err);
}

static void linear(struct run *run, struct er_tensor *x, size_t at, struct er_tensor **ret)
{
    if (run->rc == 0)
        run->rc = er_linear(run->gpt->tape, x, param(run, at), param(run, at + 1), ret, run->err);
}

static void drop(struct run *run, struct er_tensor **x)
{
    struct er_dropout dropout = {.p = run->gpt->shape.dropout,
                                 .op = ++run->drops,
                                 .seed = run->batch->seed,
                                 .samples = run->batch->samples};

    if (run->rc == 0 && dropout.p > 0 && dropout.samples)
        run->rc = er_dropout(run->gpt->tape, *x, &dropout, x, run->err);
}

/* x += part, with dropout in front. */
static void join(struct run *run, struct er_tensor **x, struct er_tensor *part)
{
    drop(run, &part);
    if (run->rc == 0)
        run->rc = er_add(run->gpt->tape, *x, part, x, run->err);
}

static void embed(struct run *run, struct er_tensor **ret)
{
    struct er_shape tokens = er_shape_2d(run->batch->rows, run->batch->length);
    struct er_shape positions = er_shape_1d(run->batch->length);
    struct er_tape *tape = run->gpt->tape;
    struct er_tensor *place;

    run->rc = er_embedding(tape, param(run, TOKENS), run->batch->tokens, &tokens, ret, run->err);
    if (run->rc == 0)
        run->rc = er_embedding(tape, param(run, POSITIONS), run->gpt->positions, &positions, &place,
                               run->err);
    if (run->rc == 0)
        run->rc = er_add(tape, *ret, place, ret, run->err);
    drop(run, ret);
}

static void layer(struct run *run, size_t at, struct er_tensor **x)
{
    struct er_tape *tape = run->gpt->tape;
    struct er_tensor *h;

    norm(run, *x, at + LN1_W, &h);
    linear(run, h, at + QKV_W, &h);
    if (run->rc == 0)
        run->rc = er_attention(tape, h, (uint32_t)run->gpt->shape.heads, &h, run->err);
    linear(run, h, at + MIX_W, &h);
    join(run, x, h);
    norm(run, *x, at + LN2_W, &h);
    linear(run, h, at + UP_W, &h);
    if (run->rc == 0)
        run->rc = er_gelu(tape, h, &h, run->err);
    linear(run, h, at + DOWN_W, &h);
    join(run, x, h);
}

int gpt_forward(struct gpt *gpt, const struct gpt_batch *batch, struct er_tensor **ret_logits,
                struct er_tensor **ret_loss, double *ret_sum, struct er_error *err)
{
    struct run run = {.gpt = gpt, .batch = batch, .err = err};
    struct er_tensor *x = NULL;

    if (batch->length < 1 || batch->length > gpt->shape.context)
        return er_error_set(err, -EINVAL, "gpt: %zu tokens, expected 1 to %zu", batch->length,
                            gpt->shape.context);
    embed(&run, &x);
    for (size_t i = 0; i < gpt->shape.layers; i++)
        layer(&run, LAYERS + i * GPT_LAYER_PARAMS, &x);
    norm(&run, x, last_norm(gpt), &x);
    if (run.rc == 0)
        run.rc = er_linear(gpt->tape, x, param(&run, TOKENS), NULL, ret_logits, err);
    if (run.rc == 0 && !batch->labels)
        run.rc = er_cast(gpt->tape, *ret_logits, ER_F32, ret_logits, err);
    if (run.rc == 0 && batch->labels)
        run.rc = er_cross_entropy(gpt->tape, *ret_logits, batch->labels, ret_sum, ret_loss, err);
    return run.rc;
}

int gpt_apply(struct gpt *gpt, const struct er_optim *optim, uint64_t step, double lr, double scale,
              struct er_error *err)
{
    struct er_engine *engine = gpt->engine ? gpt->engine : er_engine_cpu();
    struct er_optim plain = *optim;
    int rc = 0;

    plain.weight_decay = 0.0f;
    for (size_t i = 0; i < gpt->flat.params_n && rc == 0; i++) {
        struct er_optim_view view =
            gpt->fsdp ? er_fsdp_view_param(gpt->fsdp, i) : er_optim_view_params(&gpt->flat, i, 1);

        rc = er_engine_apply(engine, gpt->table[i].shape.ndim > 1 ? optim : &plain, &view, step, lr,
                             scale, err);
    }
    return rc;
}
