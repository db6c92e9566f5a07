/*
 * One process over two devices (threads) beside DDP with two ranks: the same model, the same 128
 * rows a device. Over four devices, what the primary moves and computes over what another one does:
 * that is the limit of one process; with DDP no rank is special.
 */
#include "bench/lib/bench.h"
#include "bench/lib/mlp.h"
#include "tests/lib/ranks.h"
#include "trainer/dp.h"

enum { DEVICES = 2, MANY = 4, ROWS = 128, WARM = 10 };

static const size_t widths[MLP_LAYERS + 1] = {784, 256, 128, 10};

/* Shared with the processes. */
struct figures {
    size_t steps;
    unsigned devices; /* of one process */
    double dp_ms, ddp_ms, bytes_ratio, busy_ratio;
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static int model(void *user, const struct er_dp_part *part, struct er_loss *ret,
                 struct er_error *err)
{
    ret->weight = (double)part->samples;
    ret->sum = mlp_backward(user, part->tape, part->in[0], part->in[1], part->samples);
    return 0;
}

static double dp_step_ms(struct mlp *mlp, struct er_dp *dp)
{
    const struct er_dp_input in[] = {{mlp->images, widths[0] * sizeof(float)},
                                     {mlp->labels, sizeof(int32_t)}};
    struct er_optim_view view = er_optim_view_flat(&mlp->flat);
    struct er_error err = ER_ERROR_INIT;
    struct er_loss loss;
    double began = bench_now_ms();

    must(er_dp_step(dp, in, 2, mlp->rows, model, mlp, &loss, &err), &err);
    er_optim_apply(&mlp->optim, &view, ++mlp->step, 1e-4, 1.0 / loss.weight);
    return bench_now_ms() - began;
}

/* The primary's over the mean of the others'. */
static void compare_devices(struct figures *figures, const struct er_dp *dp)
{
    double bytes = 0, busy = 0;

    for (unsigned i = 1; i < figures->devices; i++) {
        bytes += (double)er_dp_use(dp, i).bytes / (figures->devices - 1);
        busy += (double)er_dp_use(dp, i).busy_us / (figures->devices - 1);
    }
    figures->bytes_ratio = (double)er_dp_use(dp, 0).bytes / bytes;
    figures->busy_ratio = (double)er_dp_use(dp, 0).busy_us / busy;
}

/* One process. */
static int dp_main(struct er_ctx *ctx, void *user)
{
    static struct mlp mlp;
    struct figures *figures = user;
    struct er_error err = ER_ERROR_INIT;
    struct er_dp *dp;
    double ms = 0;

    mlp_open(&mlp, widths, figures->devices * ROWS, 0);
    must(er_dp_open(&dp, &mlp.flat, &(struct er_dp_opts){.devices = figures->devices}, &err), &err);
    for (size_t i = 0; i < WARM + figures->steps; i++) {
        double one = dp_step_ms(&mlp, dp);

        ms += i < WARM ? 0 : one;
    }
    figures->dp_ms = ms / (double)figures->steps;
    compare_devices(figures, dp);
    er_dp_close(dp);
    mlp_close(&mlp);
    return 0;
}

static int ddp_main(struct er_ctx *ctx, void *user)
{
    static struct mlp mlp;
    struct figures *figures = user;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    struct er_ddp *ddp;
    double ms = 0;

    mlp_open(&mlp, widths, ROWS, (uint64_t)er_world(ctx)->rank);
    must(er_comm_open(&comm, ctx, NULL, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    must(er_ddp_open(&ddp, comm, mlp.spans, MLP_PARAMS, NULL, &err), &err);
    for (size_t i = 0; i < WARM + figures->steps; i++) {
        double one = mlp_step_ms(&mlp, ddp);

        ms += i < WARM ? 0 : one;
    }
    if (er_comm_rank(comm) == 0)
        figures->ddp_ms = ms / (double)figures->steps;
    er_ddp_close(ddp);
    er_comm_abort(comm);
    mlp_close(&mlp);
    return 0;
}

static void run(int size, er_rank_fn main, struct figures *figures)
{
    int status[DEVICES];

    er_ranks_run(size, main, figures, status);
    for (int rank = 0; rank < size; rank++) {
        if (status[rank] != 0)
            bench_fail("rank %d ended with %d", rank, status[rank]);
    }
}

int main(void)
{
    static struct bench_series dp, ddp, ratio, busy;
    struct figures *figures = er_ranks_shared(sizeof(*figures));
    size_t rounds = bench_runs(11, 3);

    figures->steps = bench_runs(200, 50);
    for (size_t i = 0; i < rounds; i++) { /* in turn */
        figures->devices = DEVICES;
        run(1, dp_main, figures);
        run(DEVICES, ddp_main, figures);
        bench_add(&dp, figures->dp_ms);
        bench_add(&ddp, figures->ddp_ms);
        bench_add(&ratio, figures->dp_ms / figures->ddp_ms);
        figures->devices = MANY;
        run(1, dp_main, figures);
        bench_add(&busy, figures->busy_ratio);
    }
    bench_emit("dp_step_ms", &dp);
    bench_emit("ddp_step_ms", &ddp);
    bench_emit("dp_over_ddp", &ratio);
    bench_emit_value("primary_bytes_over_other_4", figures->bytes_ratio, 0, 1);
    bench_emit("primary_busy_over_other_4", &busy);
    return 0;
}
