/*
 * FSDP beside DDP: the step of the same GPT on 2 ranks of this host, round by round in turn, over
 * shared memory and over TCP links paced so that communication takes longer than the computation;
 * and what a rank holds against 16 P / W bytes + values and gradients of the two largest
 * neighbouring units (those that stay, the embeddings, counted beside them).
 */
#include "bench/lib/bench.h"
#include "bench/lib/gpt_job.h"
#include "tests/lib/ranks.h"

enum { RANKS = 2, WARM = 2 };
#define PACE_BYTES_PER_S 100000000u

/* Shared with the ranks. */
struct round {
    bool sharded, paced;
    size_t steps;
    double step_ms;
    size_t bytes, bound; /* sharded */
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static size_t unit_elements(const struct gpt *gpt, size_t first, size_t end)
{
    size_t last = end < gpt->flat.params_n ? gpt->table[end].first : gpt->flat.total;

    return last - gpt->table[first].first;
}

static size_t bound(const struct gpt *gpt)
{
    size_t embeddings = unit_elements(gpt, 0, 2);
    size_t layer = unit_elements(gpt, 2, 2 + GPT_LAYER_PARAMS);

    return 16 * gpt->flat.total / RANKS + 8 * (layer + layer) + 8 * embeddings;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct gpt_job job;
    struct round *round = user;
    const struct er_comm_opts opts = {
        .transport = round->paced ? ER_TRANSPORT_TCP : ER_TRANSPORT_SHM,
        .pace_bytes_per_s = round->paced ? PACE_BYTES_PER_S : 0,
    };
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    double began = 0;

    must(er_comm_open(&comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    gpt_job_open(&job, comm, round->sharded, NULL);
    for (size_t i = 0; i < WARM + round->steps; i++) {
        if (i == WARM) {
            must(er_comm_barrier(comm, &err), &err);
            began = bench_now_ms();
        }
        gpt_job_step(&job);
    }
    if (er_comm_rank(comm) == 0) {
        round->step_ms = (bench_now_ms() - began) / (double)round->steps;
        if (round->sharded) {
            round->bytes = er_fsdp_bytes(job.gpt.fsdp);
            round->bound = bound(&job.gpt);
        }
    }
    gpt_job_close(&job);
    er_comm_abort(comm);
    return 0;
}

static double step_ms(struct round *round, bool sharded, bool paced)
{
    int status[RANKS];

    round->sharded = sharded;
    round->paced = paced;
    er_ranks_run(RANKS, rank_main, round, status);
    for (int rank = 0; rank < RANKS; rank++) {
        if (status[rank] != 0)
            bench_fail("rank %d ended with %d", rank, status[rank]);
    }
    return round->step_ms;
}

static void measure(struct round *round, bool paced, const char *ddp_figure,
                    const char *fsdp_figure, const char *ratio_figure)
{
    static struct bench_series ddp, fsdp, ratio;

    ddp.n = fsdp.n = ratio.n = 0;
    for (size_t i = 0; i < bench_runs(paced ? 5 : 11, 3); i++) {
        bench_add(&ddp, step_ms(round, false, paced));
        bench_add(&fsdp, step_ms(round, true, paced));
        bench_add(&ratio, fsdp.values[i] / ddp.values[i]);
    }
    bench_emit(ddp_figure, &ddp);
    bench_emit(fsdp_figure, &fsdp);
    bench_emit(ratio_figure, &ratio);
}

int main(void)
{
    struct round *round = er_ranks_shared(sizeof(*round));

    round->steps = bench_runs(6, 3);
    measure(round, false, "ddp_step_ms", "fsdp_step_ms", "fsdp_over_ddp");
    measure(round, true, "ddp_paced_step_ms", "fsdp_paced_step_ms", "fsdp_over_ddp_paced");
    bench_emit_value("fsdp_bytes_over_bound", (double)round->bytes / (double)round->bound, 0, 1);
    return 0;
}
