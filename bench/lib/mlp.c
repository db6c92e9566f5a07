#include "bench/lib/mlp.h"

#include "bench/lib/bench.h"
#include "trainer/matmul.h"
#include "trainer/sampler.h"

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void on_gradient(void *user, size_t param)
{
    struct mlp *mlp = user;

    if (mlp->exact && er_exact_fold(mlp->exact, &mlp->flat, param) > 0)
        bench_fail("a gradient does not fit");
    if (mlp->ddp)
        er_ddp_ready(mlp->ddp, param);
}

static void fill(struct mlp *mlp, uint64_t rank)
{
    for (uint64_t i = 0; i < mlp->rows * mlp->widths[0]; i++)
        mlp->images[i] = (float)(er_rng(1, rank, 0, i) >> 40) * 0x1p-24f;
    for (uint64_t i = 0; i < mlp->rows; i++)
        mlp->labels[i] = (int32_t)(er_rng(1, rank, 1, i) % mlp->widths[MLP_LAYERS]);
    for (size_t p = 0; p < MLP_PARAMS; p += 2) {
        float *weight = er_flat_at(&mlp->flat, ER_FLAT_VALUE, p);

        for (size_t i = 0; i < mlp->table[p].count; i++)
            weight[i] = 0.05f * ((float)(er_rng(2, p, 0, i) >> 40) * 0x1p-23f - 1.0f);
    }
}

void mlp_open(struct mlp *mlp, const size_t *widths, size_t rows, uint64_t rank)
{
    static const char *const names[MLP_PARAMS] = {"w1", "b1", "w2", "b2", "w3", "b3"};
    const size_t image_bytes = rows * widths[0] * sizeof(float);
    const size_t label_bytes = rows * sizeof(int32_t);
    struct er_error err = ER_ERROR_INIT;

    must(er_matmul_setup(&err), &err);
    *mlp = (struct mlp){.widths = widths, .rows = rows, .optim = er_optim_adamw()};
    er_flat_init(&mlp->flat, mlp->table, MLP_PARAMS, er_optim_state_names(mlp->optim.kind),
                 er_optim_states_n(mlp->optim.kind));
    for (size_t p = 0; p < MLP_PARAMS; p++) {
        size_t in = widths[p / 2], out = widths[p / 2 + 1];
        struct er_shape shape = p % 2 ? er_shape_1d(out) : er_shape_2d(out, in);

        must(er_flat_add(&mlp->flat, names[p], &shape, NULL, &err), &err);
    }
    must(er_pool_new(&mlp->pool,
                     er_flat_bytes(&mlp->flat) + image_bytes + label_bytes + 2 * ER_FLAT_ALIGN,
                     &err),
         &err);
    er_flat_bind(&mlp->flat, er_pool_alloc(mlp->pool, er_flat_bytes(&mlp->flat), ER_FLAT_ALIGN));
    mlp->images = er_pool_alloc(mlp->pool, image_bytes, ER_FLAT_ALIGN);
    mlp->labels = er_pool_alloc(mlp->pool, label_bytes, ER_FLAT_ALIGN);
    er_flat_spans(&mlp->flat, ER_FLAT_GRAD, mlp->spans);
    must(er_tape_new(&mlp->tape, &mlp->flat, 0, &err), &err);
    er_tape_hook(mlp->tape, on_gradient, mlp);
    fill(mlp, rank);
}

void mlp_close(struct mlp *mlp)
{
    er_tape_free(mlp->tape);
    er_pool_free(mlp->pool);
}

double mlp_backward(const struct mlp *mlp, struct er_tape *tape, const float *images,
                    const int32_t *labels, size_t rows)
{
    struct er_shape shape = er_shape_2d(rows, mlp->widths[0]);
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *x, *loss;
    double sum;

    must(er_tape_begin(tape, &err), &err);
    must(er_tape_input(tape, "images", &shape, images, &x, &err), &err);
    for (size_t layer = 0; layer < MLP_LAYERS; layer++) {
        if (layer > 0)
            must(er_relu(tape, x, &x, &err), &err);
        must(er_linear(tape, x, er_tape_param(tape, 2 * layer), er_tape_param(tape, 2 * layer + 1),
                       &x, &err),
             &err);
    }
    must(er_cross_entropy(tape, x, labels, &sum, &loss, &err), &err);
    must(er_tape_backward(tape, loss, &err), &err);
    return sum;
}

double mlp_step_ms(struct mlp *mlp, struct er_ddp *ddp)
{
    struct er_optim_view view = er_optim_view_flat(&mlp->flat);
    struct er_vote vote = {.step = ++mlp->step, .weight = (double)mlp->rows};
    struct er_error err = ER_ERROR_INIT;
    double began = bench_now_ms();

    mlp->ddp = ddp;
    vote.loss = mlp_backward(mlp, mlp->tape, mlp->images, mlp->labels, mlp->rows);
    if (ddp)
        must(er_ddp_finish(ddp, &vote, &err), &err);
    er_optim_apply(&mlp->optim, &view, mlp->step, 1e-4, 1.0 / vote.weight);
    return bench_now_ms() - began;
}

double mlp_exact_step_ms(struct mlp *mlp, struct er_ddp *ddp, struct er_exact *exact, size_t shards)
{
    struct er_optim_view view = er_optim_view_flat(&mlp->flat);
    struct er_vote vote = {.step = ++mlp->step, .weight = (double)mlp->rows};
    size_t rows = mlp->rows / shards;
    struct er_error err = ER_ERROR_INIT;
    double began = bench_now_ms();

    mlp->exact = exact;
    er_tape_renew(mlp->tape, true);
    for (size_t i = 0; i < shards; i++) {
        mlp->ddp = i + 1 == shards ? ddp : NULL;
        vote.loss += mlp_backward(mlp, mlp->tape, mlp->images + i * rows * mlp->widths[0],
                                  mlp->labels + i * rows, rows);
    }
    mlp->exact = NULL;
    er_tape_renew(mlp->tape, false);
    must(er_ddp_finish(ddp, &vote, &err), &err);
    er_exact_take(exact, &mlp->flat, vote.weight);
    er_optim_apply(&mlp->optim, &view, mlp->step, 1e-4, 1.0);
    return bench_now_ms() - began;
}
