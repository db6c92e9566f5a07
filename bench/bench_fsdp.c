/*
 * FSDP beside DDP: the step of the same GPT on 2 ranks of this host, round by round in turn, over
 * shared memory and over TCP links paced so that communication takes longer than the computation;
 * and what a rank holds against 16 P / W bytes + values and gradients of the two largest
 * neighbouring units (those that stay, the embeddings, counted beside them). Likewise FSDP with a
 * second copy of every shard on the other rank, beside FSDP without.
 */
#include "bench/lib/bench.h"
#include "bench/lib/gpt_job.h"
#include "tests/lib/ranks.h"

enum { RANKS = 2, WARM = 2 };
#define PACE_BYTES_PER_S 100000000u

/* Shared with the ranks. */
struct round {
    bool sharded, paced, shadow;
    size_t steps;
    double step_ms, begin_ms; /* begin: to make the copies */
    size_t bytes, bound;      /* sharded */
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

static void make_copies(struct gpt_job *job, struct er_comm *comm, struct round *round)
{
    struct er_error err = ER_ERROR_INIT;
    double began;

    must(er_comm_barrier(comm, &err), &err);
    began = bench_now_ms();
    must(er_fsdp_shadow(job->gpt.fsdp, 1, &err), &err);
    if (er_comm_rank(comm) == 0)
        round->begin_ms = bench_now_ms() - began;
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
    if (round->shadow)
        make_copies(&job, comm, round);
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

enum kind { DDP, FSDP, SHADOW };

static double step_ms(struct round *round, enum kind kind, bool paced)
{
    int status[RANKS];

    round->sharded = kind != DDP;
    round->shadow = kind == SHADOW;
    round->paced = paced;
    er_ranks_run(RANKS, rank_main, round, status);
    for (int rank = 0; rank < RANKS; rank++) {
        if (status[rank] != 0)
            bench_fail("rank %d ended with %d", rank, status[rank]);
    }
    return round->step_ms;
}

/* Names of figures. */
struct names {
    const char *ddp, *fsdp, *fsdp_ratio, *shadow, *shadow_ratio;
};

static struct bench_series begin;

static void measure(struct round *round, bool paced, const struct names *names)
{
    static struct bench_series ddp, fsdp, shadow, fsdp_ratio, shadow_ratio;

    ddp.n = fsdp.n = shadow.n = fsdp_ratio.n = shadow_ratio.n = 0;
    for (size_t i = 0; i < bench_runs(paced ? 5 : 11, 3); i++) {
        bench_add(&ddp, step_ms(round, DDP, paced));
        bench_add(&shadow, step_ms(round, SHADOW, paced));
        if (!paced)
            bench_add(&begin, round->begin_ms);
        bench_add(&fsdp, step_ms(round, FSDP, paced));
        bench_add(&fsdp_ratio, fsdp.values[i] / ddp.values[i]);
        bench_add(&shadow_ratio, shadow.values[i] / fsdp.values[i]);
    }
    bench_emit(names->ddp, &ddp);
    bench_emit(names->fsdp, &fsdp);
    bench_emit(names->fsdp_ratio, &fsdp_ratio);
    bench_emit(names->shadow, &shadow);
    bench_emit(names->shadow_ratio, &shadow_ratio);
}

int main(void)
{
    static const struct names plain = {"ddp_step_ms", "fsdp_step_ms", "fsdp_over_ddp",
                                       "shadow_step_ms", "shadow_over_fsdp"};
    static const struct names paced = {"ddp_paced_step_ms", "fsdp_paced_step_ms",
                                       "fsdp_over_ddp_paced", "shadow_paced_step_ms",
                                       "shadow_over_fsdp_paced"};
    struct round *round = er_ranks_shared(sizeof(*round));
    size_t alone;

    round->steps = bench_runs(6, 3);
    measure(round, false, &plain);
    measure(round, true, &paced);
    alone = round->bytes; /* the last one was FSDP alone */
    bench_emit_value("fsdp_bytes_over_bound", (double)alone / (double)round->bound, 0, 1);
    (void)step_ms(round, SHADOW, false);
    bench_emit_value("shadow_bytes_over_fsdp", (double)round->bytes / (double)alone, 0, 1);
    bench_emit("shadow_begin_ms", &begin);
    return 0;
}
