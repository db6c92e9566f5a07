/*
 * One training step of the example's network (784-256-128-10, AdamW) on two ranks of this host:
 * alone (each rank by itself, no reducer) and with the reducer, turn by turn in one run.
 */
#include "bench/lib/bench.h"
#include "bench/lib/mlp.h"
#include "tests/lib/ranks.h"

enum { RANKS = 2, ROWS = 128, WARM = 10 };

static const size_t widths[MLP_LAYERS + 1] = {784, 256, 128, 10};

/* What rank 0 measured; shared with the parent. */
struct figures {
    struct bench_series alone, reduced, exposed, vote;
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void measure(struct mlp *mlp, struct er_comm *comm, struct er_ddp *ddp, size_t runs,
                    struct figures *ret)
{
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < WARM + runs; i++) {
        double alone, reduced;
        struct er_ddp_times times;

        must(er_comm_barrier(comm, &err), &err); /* both compute at the same time, either way */
        alone = mlp_step_ms(mlp, NULL);
        must(er_comm_barrier(comm, &err), &err);
        reduced = mlp_step_ms(mlp, ddp);
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
    static struct mlp mlp;
    int rank = er_world(ctx)->rank;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    struct er_ddp *ddp;

    mlp_open(&mlp, widths, ROWS, (uint64_t)rank);
    must(er_comm_open(&comm, ctx, NULL, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    must(er_ddp_open(&ddp, comm, mlp.spans, MLP_PARAMS, NULL, &err), &err);
    measure(&mlp, comm, ddp, bench_runs(1000, 200), rank == 0 ? user : &other_ranks);
    er_ddp_close(ddp);
    er_comm_abort(comm);
    mlp_close(&mlp);
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
