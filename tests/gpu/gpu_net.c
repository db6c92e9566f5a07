#include "tests/gpu/gpu_net.h"

#include <string.h>

#include "trainer/ops/ops.h"
#include "trainer/sampler.h"

enum { HEADS = 4 };

const struct net_size net_small = {61, 32, 16, 8};

static float noise(uint64_t a, uint64_t i)
{
    return (float)((double)(er_rng(7, a, 1, i) >> 11) * 0x1p-52 - 1.0);
}

void *net_memory(size_t bytes)
{
    void *p = calloc(1, bytes);

    RANK_REQUIRE(p);
    return p;
}

static void first_values(void *user, size_t p, float *x)
{
    const struct er_flat_param *param = &((struct net *)user)->table[p];
    bool is_gain = p == NORM_1 || p == NORM_2;

    for (size_t i = 0; i < param->count; i++)
        x[i] = is_gain ? 1.0f : param->shape.ndim == 2 ? 0.1f * noise(p, i) : 0.0f;
}

/* All of it here. */
static void hold_whole(struct net *n)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_engine_alloc(n->engine, er_flat_bytes(&n->flat), &n->memory, &err), err);
    er_flat_place(&n->flat, n->memory);
    er_flat_spans(&n->flat, ER_FLAT_GRAD, n->spans);
    for (size_t p = 0; p < PARAMS; p++) {
        float *x = net_memory(n->table[p].count * sizeof(*x));

        first_values(n, p, x);
        RANK_OK(er_engine_put(n->engine, er_flat_at(&n->flat, ER_FLAT_VALUE, p), x,
                              n->table[p].count * sizeof(*x), &err),
                err);
        free(x);
    }
}

static void on_gradient(void *user, size_t p)
{
    struct net *n = user;
    struct er_error err = ER_ERROR_INIT;

    if (n->sums)
        RANK_OK(er_engine_fold(n->engine, &n->exact, &n->flat, p, &n->outside, &err), err);
    if (n->ddp)
        er_ddp_ready(n->ddp, p);
}

struct net *net_open(struct er_engine *engine, const struct net_size *size, bool sharded)
{
    static const char *const names[PARAMS] = {"table", "n1",  "n1b", "qkv", "out",
                                              "n2",    "n2b", "up",  "upb", "down"};
    struct net *n = net_memory(sizeof(*n));
    size_t c = size->width, rows = size->batch * size->positions;
    const struct er_shape shapes[PARAMS] = {er_shape_2d(size->vocabulary, c),
                                            er_shape_1d(c),
                                            er_shape_1d(c),
                                            er_shape_2d(3 * c, c),
                                            er_shape_2d(c, c),
                                            er_shape_1d(c),
                                            er_shape_1d(c),
                                            er_shape_2d(4 * c, c),
                                            er_shape_1d(4 * c),
                                            er_shape_2d(c, 4 * c)};
    struct er_error err = ER_ERROR_INIT;

    n->size = *size;
    n->engine = engine;
    n->optim = er_optim_adamw();
    n->ids = net_memory(rows * sizeof(*n->ids));
    n->labels = net_memory(rows * sizeof(*n->labels));
    er_flat_init(&n->flat, n->table, PARAMS, er_optim_state_names(n->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++)
        RANK_OK(er_flat_add(&n->flat, names[p], &shapes[p], NULL, &err), err);
    if (!sharded)
        hold_whole(n);
    RANK_OK(er_tape_new_on(&n->tape, &n->flat, 0, engine, &err), err);
    er_tape_hook(n->tape, on_gradient, n);
    return n;
}

void net_close(struct net *n)
{
    er_tape_free(n->tape);
    er_fsdp_close(n->fsdp);
    er_engine_free(n->engine, n->memory);
    er_engine_free(n->engine, n->sums);
    free(n->ids);
    free(n->labels);
    free(n);
}

static struct er_tensor *param(struct net *n, size_t p)
{
    return er_tape_param(n->tape, p);
}

/* The block itself; the first failure stops it. */
static int forward(struct net *n, struct er_tensor *x, struct er_tensor **ret, struct er_error *err)
{
    struct er_tape *t = n->tape;
    struct er_tensor *h;
    int rc = er_layer_norm(t, x, param(n, NORM_1), param(n, NORM_1B), 1e-5f, &h, err);

    if (rc == 0)
        rc = er_linear(t, h, param(n, QKV), NULL, &h, err);
    if (rc == 0)
        rc = er_attention(t, h, HEADS, &h, err);
    if (rc == 0)
        rc = er_linear(t, h, param(n, OUT), NULL, &h, err);
    if (rc == 0)
        rc = er_add(t, x, h, &x, err);
    if (rc == 0)
        rc = er_layer_norm(t, x, param(n, NORM_2), param(n, NORM_2B), 1e-5f, &h, err);
    if (rc == 0)
        rc = er_linear(t, h, param(n, UP), param(n, UP_B), &h, err);
    if (rc == 0)
        rc = er_gelu(t, h, &h, err);
    if (rc == 0)
        rc = er_linear(t, h, param(n, DOWN), NULL, &h, err);
    if (rc == 0)
        rc = er_add(t, x, h, &x, err);
    return rc ? rc : er_linear(t, x, param(n, TABLE), NULL, ret, err);
}

int net_try(struct net *n, uint64_t step, size_t first, size_t count, double *ret_loss,
            struct er_error *err)
{
    struct er_shape shape = er_shape_2d(count, n->size.positions);
    struct er_tensor *x, *loss;
    double sum = 0;
    int rc;

    for (size_t i = 0; i < count * n->size.positions; i++) {
        uint64_t at = step << 32 | (first * n->size.positions + i);

        n->ids[i] = (int32_t)(er_rng(1, at, 2, 0) % n->size.vocabulary);
        n->labels[i] = (int32_t)((uint64_t)(n->ids[i] * 3 + 1) % n->size.vocabulary);
    }
    rc = er_tape_begin(n->tape, err);
    if (rc == 0)
        rc = er_embedding(n->tape, param(n, TABLE), n->ids, &shape, &x, err);
    if (rc == 0)
        rc = forward(n, x, &x, err);
    if (rc == 0)
        rc = er_cross_entropy(n->tape, x, n->labels, &sum, &loss, err);
    if (rc == 0)
        rc = er_tape_backward(n->tape, loss, err);
    *ret_loss = sum;
    return rc;
}

double net_pass(struct net *n, uint64_t step, size_t first, size_t count)
{
    struct er_error err = ER_ERROR_INIT;
    double sum = 0;

    RANK_OK(net_try(n, step, first, count, &sum, &err), err);
    return sum;
}

void net_shard(struct net *n, struct er_comm *comm, const struct er_fsdp_opts *opts)
{
    const struct er_fsdp_unit units[UNITS] = {
        {.name = "table", .params_n = 1, .keep = true},
        {.name = "attention", .first = NORM_1, .params_n = 4},
        {.name = "up", .first = NORM_2, .params_n = 4},
        {.name = "down", .first = DOWN, .params_n = 1},
    };
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_fsdp_open(&n->fsdp, comm, &n->flat, units, UNITS, opts, &err), err);
    er_fsdp_attach(n->fsdp, n->tape);
    RANK_OK(er_fsdp_fill(n->fsdp, first_values, n, &err), err);
}

void net_exact(struct net *n, uint32_t shards)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_engine_alloc(n->engine, er_exact_bytes(&n->flat), &n->sums, &err), err);
    RANK_OK(er_exact_place(&n->exact, shards, n->size.batch * n->size.positions, n->sums, &err),
            err);
    er_exact_spans(&n->exact, &n->flat, n->spans);
    er_tape_renew(n->tape, true);
}

void net_apply(struct net *n, uint64_t step, double weight)
{
    struct er_optim_view view = n->fsdp ? er_fsdp_view(n->fsdp) : er_optim_view_flat(&n->flat);
    bool exact = n->sums || (n->fsdp && er_fsdp_exact_shards(n->fsdp) > 0);
    struct er_error err = ER_ERROR_INIT;

    if (n->sums)
        RANK_OK(er_engine_take(n->engine, &n->exact, &n->flat, weight, &err), err);
    else if (exact)
        RANK_OK(er_fsdp_take(n->fsdp, weight, &err), err);
    RANK_OK(er_engine_apply(n->engine, &n->optim, &view, step, 0.01, exact ? 1 : 1 / weight, &err),
            err);
}

void net_values(struct net *n, float *ret)
{
    struct er_slice slices[3 * PARAMS];
    struct er_error err = ER_ERROR_INIT;
    size_t slices_n = n->fsdp ? er_fsdp_slices(n->fsdp, slices) : er_flat_slices(&n->flat, slices);

    for (size_t i = 0; i < slices_n; i++) {
        for (size_t p = 0; p < PARAMS; p++) {
            if (strcmp(slices[i].name, n->table[p].name) == 0)
                RANK_OK(er_engine_get(n->engine, ret + n->table[p].first + slices[i].offset,
                                      slices[i].data, slices[i].count * sizeof(float), &err),
                        err);
        }
    }
}

uint32_t net_hash(const float *values, size_t count)
{
    uint32_t hash = 0, word;

    for (size_t i = 0; i < count; i++) {
        memcpy(&word, &values[i], sizeof(word));
        hash = hash * 31 + word;
    }
    return hash;
}

struct er_engine *net_gpu(int index)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = index};
    struct er_error err = ER_ERROR_INIT;
    struct er_engine *engine = NULL;

    RANK_OK(er_engine_open(&engine, &opts, &err), err);
    return engine;
}
