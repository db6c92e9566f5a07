/*
 * What exact mode costs: a step on two ranks of this host, 768 samples in 12 shards of 64, beside
 * the same samples in one pass a rank with float32 sums, turn by turn in one run; and of it, adding
 * a shard's gradients to the sums. Two networks, AdamW: the example's (784-256-128-10), and the one
 * of `train` (784-1024-1024-10), whose gradients and sums leave the caches.
 */
#include "bench/lib/bench.h"
#include "bench/lib/mlp.h"
#include "tests/lib/ranks.h"

enum { RANKS = 2, SHARDS = ER_EXACT_SHARDS, SHARD_ROWS = 64, WARM = 3 };
enum { MINE = SHARDS / RANKS, ROWS = MINE * SHARD_ROWS }; /* of a rank */

static const size_t networks[][MLP_LAYERS + 1] = {{784, 256, 128, 10}, {784, 1024, 1024, 10}};

/* What rank 0 measured; shared with the parent. */
struct figures {
    size_t network;
    struct bench_series plain, exact, ratio, fold;
};

struct rank {
    struct mlp mlp;
    struct er_comm *comm;
    struct er_ddp *plain, *sums;
    struct er_exact exact;
    struct er_pool *pool; /* of its sums */
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void open_rank(struct rank *r, struct er_ctx *ctx, size_t network)
{
    struct er_span spans[MLP_PARAMS];
    struct er_error err = ER_ERROR_INIT;
    size_t bytes;

    mlp_open(&r->mlp, networks[network], ROWS, (uint64_t)er_world(ctx)->rank);
    bytes = er_exact_bytes(&r->mlp.flat);
    must(er_pool_new(&r->pool, bytes, &err), &err);
    must(er_exact_bind(&r->exact, &r->mlp.flat, SHARDS, ROWS * RANKS,
                       er_pool_alloc(r->pool, bytes, ER_FLAT_ALIGN), &err),
         &err);
    er_exact_spans(&r->exact, &r->mlp.flat, spans);
    must(er_comm_open(&r->comm, ctx, NULL, &err), &err);
    must(er_comm_wait_ready(r->comm, &err), &err);
    must(er_ddp_open(&r->plain, r->comm, r->mlp.spans, MLP_PARAMS, NULL, &err), &err);
    must(er_ddp_open(&r->sums, r->comm, spans, MLP_PARAMS, &(struct er_ddp_opts){.dtype = ER_I64},
                     &err),
         &err);
}

static void close_rank(struct rank *r)
{
    er_ddp_close(r->plain);
    er_ddp_close(r->sums);
    er_comm_abort(r->comm);
    er_pool_free(r->pool);
    mlp_close(&r->mlp);
}

/* Of all parameters, once. */
static double fold_ms(struct rank *r)
{
    double began = bench_now_ms();

    for (size_t p = 0; p < MLP_PARAMS; p++)
        er_exact_fold(&r->exact, &r->mlp.flat, p);
    return bench_now_ms() - began;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct figures other_ranks;
    static struct rank r;
    struct figures *to = er_world(ctx)->rank == 0 ? user : &other_ranks;
    struct er_error err = ER_ERROR_INIT;
    size_t runs = bench_runs(41, 11);

    open_rank(&r, ctx, ((struct figures *)user)->network);
    for (size_t i = 0; i < WARM + runs; i++) {
        double plain, exact, fold;

        must(er_comm_barrier(r.comm, &err), &err);
        plain = mlp_step_ms(&r.mlp, r.plain);
        must(er_comm_barrier(r.comm, &err), &err);
        exact = mlp_exact_step_ms(&r.mlp, r.sums, &r.exact, MINE);
        fold = fold_ms(&r); /* of zeros: what exact mode has left */
        if (i < WARM)
            continue;
        bench_add(&to->plain, plain);
        bench_add(&to->exact, exact);
        bench_add(&to->ratio, exact / plain);
        bench_add(&to->fold, fold);
    }
    close_rank(&r);
    return 0;
}

static void measure(size_t network, const char *const names[4])
{
    struct figures *figures = er_ranks_shared(sizeof(*figures));
    int status[RANKS];

    figures->network = network;
    er_ranks_run(RANKS, rank_main, figures, status);
    for (int rank = 0; rank < RANKS; rank++) {
        if (status[rank] != 0)
            bench_fail("rank %d ended with %d", rank, status[rank]);
    }
    bench_emit(names[0], &figures->plain);
    bench_emit(names[1], &figures->exact);
    bench_emit(names[2], &figures->ratio);
    bench_emit(names[3], &figures->fold);
}

int main(void)
{
    measure(0, (const char *[]){"plain_step_ms", "exact_step_ms", "exact_over_plain", "fold_ms"});
    measure(1, (const char *[]){"large_plain_step_ms", "large_exact_step_ms",
                                "large_exact_over_plain", "large_fold_ms"});
    return 0;
}
