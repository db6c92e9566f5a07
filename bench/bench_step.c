/*
 * One training step of the example's network (784-256-128-10, AdamW) on two ranks of this host:
 * alone (each rank by itself, no reducer) and with the reducer, turn by turn in one run.
 */
#include <string.h>

#include "base/pool.h"
#include "bench/lib/bench.h"
#include "tests/lib/ranks.h"
#include "trainer/ddp.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"
#include "trainer/sampler.h"

enum { RANKS = 2, LAYERS_N = 3, PARAMS_N = 2 * LAYERS_N, ROWS = 128, WARM = 10 };

static const size_t widths[LAYERS_N + 1] = {784, 256, 128, 10};

struct model {
    struct er_pool *pool;
    struct er_flat_param table[PARAMS_N];
    struct er_flat flat;
    struct er_span spans[PARAMS_N];
    struct er_tape *tape;
    struct er_optim optim;
    struct er_ddp *ddp; /* of the step that runs; NULL: alone */
    float *images;      /* (ROWS, 784) */
    int32_t labels[ROWS];
    uint64_t step;
};

/* What rank 0 measured; shared with the parent. */
struct figures {
    struct bench_series alone, reduced, exposed, vote;
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void on_gradient(void *user, size_t param)
{
    struct model *model = user;

    if (model->ddp)
        er_ddp_ready(model->ddp, param);
}

static void fill(struct model *model, uint64_t rank)
{
    for (uint64_t i = 0; i < ROWS * 784; i++)
        model->images[i] = (float)(er_rng(1, rank, 0, i) >> 40) * 0x1p-24f;
    for (uint64_t i = 0; i < ROWS; i++)
        model->labels[i] = (int32_t)(er_rng(1, rank, 1, i) % 10);
    for (size_t p = 0; p < PARAMS_N; p += 2) {
        float *weight = er_flat_at(&model->flat, ER_FLAT_VALUE, p);

        for (size_t i = 0; i < model->table[p].count; i++)
            weight[i] = 0.05f * ((float)(er_rng(2, p, 0, i) >> 40) * 0x1p-23f - 1.0f);
    }
}

static void build(struct model *model, uint64_t rank)
{
    static const char *const names[PARAMS_N] = {"w1", "b1", "w2", "b2", "w3", "b3"};
    const size_t image_bytes = ROWS * 784 * sizeof(float);
    struct er_error err = ER_ERROR_INIT;

    must(er_matmul_setup(&err), &err);
    model->optim = er_optim_adamw();
    er_flat_init(&model->flat, model->table, PARAMS_N, er_optim_state_names(model->optim.kind),
                 er_optim_states_n(model->optim.kind));
    for (size_t p = 0; p < PARAMS_N; p++) {
        size_t in = widths[p / 2], out = widths[p / 2 + 1];
        struct er_shape shape = p % 2 ? er_shape_1d(out) : er_shape_2d(out, in);

        must(er_flat_add(&model->flat, names[p], &shape, NULL, &err), &err);
    }
    must(er_pool_new(&model->pool, er_flat_bytes(&model->flat) + image_bytes + ER_FLAT_ALIGN, &err),
         &err);
    er_flat_bind(&model->flat,
                 er_pool_alloc(model->pool, er_flat_bytes(&model->flat), ER_FLAT_ALIGN));
    model->images = er_pool_alloc(model->pool, image_bytes, ER_FLAT_ALIGN);
    er_flat_spans(&model->flat, ER_FLAT_GRAD, model->spans);
    must(er_tape_new(&model->tape, &model->flat, 0, &err), &err);
    er_tape_hook(model->tape, on_gradient, model);
    fill(model, rank);
}

static double backward(struct model *model)
{
    struct er_shape shape = er_shape_2d(ROWS, 784);
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *x, *loss;
    double sum;

    must(er_tape_begin(model->tape, &err), &err);
    must(er_tape_input(model->tape, "images", &shape, model->images, &x, &err), &err);
    for (size_t layer = 0; layer < LAYERS_N; layer++) {
        if (layer > 0)
            must(er_relu(model->tape, x, &x, &err), &err);
        must(er_linear(model->tape, x, er_tape_param(model->tape, 2 * layer),
                       er_tape_param(model->tape, 2 * layer + 1), &x, &err),
             &err);
    }
    must(er_cross_entropy(model->tape, x, model->labels, &sum, &loss, &err), &err);
    must(er_tape_backward(model->tape, loss, &err), &err);
    return sum;
}

/* Milliseconds of one step; with `ddp` NULL there is nobody else. */
static double step_ms(struct model *model, struct er_ddp *ddp)
{
    struct er_optim_view view = er_optim_view_flat(&model->flat);
    struct er_vote vote = {.step = ++model->step, .weight = ROWS};
    struct er_error err = ER_ERROR_INIT;
    double began = bench_now_ms();

    model->ddp = ddp;
    vote.loss = backward(model);
    if (ddp)
        must(er_ddp_finish(ddp, &vote, &err), &err);
    er_optim_apply(&model->optim, &view, model->step, 1e-4, 1.0 / vote.weight);
    return bench_now_ms() - began;
}

static void measure(struct model *model, struct er_comm *comm, struct er_ddp *ddp, size_t runs,
                    struct figures *ret)
{
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < WARM + runs; i++) {
        double alone, reduced;
        struct er_ddp_times times;

        must(er_comm_barrier(comm, &err), &err); /* both compute at the same time, either way */
        alone = step_ms(model, NULL);
        must(er_comm_barrier(comm, &err), &err);
        reduced = step_ms(model, ddp);
        times = er_ddp_last_times(ddp);
        if (i < WARM)
            continue;
        bench_add(&ret->alone, alone);
        bench_add(&ret->reduced, reduced);
        bench_add(&ret->exposed, (double)times.exposed_us);
        bench_add(&ret->vote, (double)times.vote_us);
    }
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct figures other_ranks;
    static struct model model;
    int rank = er_world(ctx)->rank;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    struct er_ddp *ddp;

    build(&model, (uint64_t)rank);
    must(er_comm_open(&comm, ctx, NULL, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    must(er_ddp_open(&ddp, comm, model.spans, PARAMS_N, NULL, &err), &err);
    measure(&model, comm, ddp, bench_runs(1000, 200), rank == 0 ? user : &other_ranks);
    er_ddp_close(ddp);
    er_comm_abort(comm);
    er_tape_free(model.tape);
    er_pool_free(model.pool);
    return 0;
}

int main(void)
{
    struct figures *figures = er_ranks_shared(sizeof(*figures));
    int status[RANKS];

    er_ranks_run(RANKS, rank_main, figures, status);
    for (int rank = 0; rank < RANKS; rank++) {
        if (status[rank] != 0)
            bench_fail("rank %d ended with %d", rank, status[rank]);
    }
    bench_emit("step_alone_ms", &figures->alone);
    bench_emit("step_reduced_ms", &figures->reduced);
    bench_emit("step_exposed_us", &figures->exposed);
    bench_emit("step_vote_us", &figures->vote);
    return 0;
}
