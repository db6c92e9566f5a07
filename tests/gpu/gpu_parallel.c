/*
 * Items of training on two GPUs: each way of it gives what one process gives, DDP and FSDP the same
 * bits, exact mode those of one GPU; a lost rank ends a step.
 */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "tests/gpu/gpu_net.h"
#include "trainer/compress.h"

enum { STEPS = 12, RANKS = 2, SHARDS = 4, ELEMENTS_MAX = 1 << 15 };

/* How two ranks train. */
struct way {
    bool sharded, exact, compressed;
    enum er_fsdp_strategy strategy;
    enum er_dtype dtype; /* sharded: of gathered values and of gradients on the wire */
};

static struct result {
    struct way way;
    float values[RANKS][ELEMENTS_MAX]; /* of each rank; sharded: all in the first */
    size_t elements;
    double loss, step_us, held_bytes;
    _Atomic uint64_t died_us, told_us[RANKS + 1], aborted_us[RANKS + 1];
} * result;

/* One rank of a run. */
struct run {
    struct rank *rank;
    struct net *net;
    struct er_comm *comms[2]; /* of the host, of the GPU */
    struct er_compress *compress;
};

static void open_reducer(struct run *r)
{
    const struct way *way = &result->way;
    struct er_ddp_opts opts = {.first_bucket_bytes = 4096,
                               .bucket_bytes = 16384,
                               .dtype = way->exact ? ER_I64 : ER_F32,
                               .engine = r->net->engine,
                               .control = r->comms[0]};
    struct er_error err = ER_ERROR_INIT;

    if (way->exact)
        net_exact(r->net, SHARDS);
    if (way->compressed) {
        RANK_OK(er_compress_open_on(&r->compress, r->net->engine, r->net->spans, PARAMS, &err),
                err);
        opts.hook = er_compress_hook(r->compress);
    }
    RANK_OK(er_ddp_open(&r->net->ddp, r->comms[1], r->net->spans, PARAMS, &opts, &err), err);
}

static void open_run(struct run *r)
{
    const struct way *way = &result->way;
    struct er_comm_opts of_host = {.name = "control"};
    struct er_engine *engine;

    gpu_pose(r->rank); /* before CUDA's and NCCL's first call */
    engine = net_gpu(gpu_index(r->rank));
    r->net = net_open(engine, &net_small, way->sharded);
    r->comms[0] = rank_open(r->rank, &of_host);
    r->comms[1] = rank_open(r->rank, &(struct er_comm_opts){.backend = ER_COMM_NCCL,
                                                            .device = er_engine_device(engine)});
    if (way->sharded)
        net_shard(r->net, r->comms[1],
                  &(struct er_fsdp_opts){.strategy = way->strategy,
                                         .norm2 = true,
                                         .exact_shards = way->exact ? SHARDS : 0,
                                         .exact_weight_max = net_small.batch * net_small.positions,
                                         .param_dtype = way->dtype,
                                         .reduce_dtype = way->dtype,
                                         .engine = engine});
    else
        open_reducer(r);
}

static void close_run(struct run *r)
{
    struct er_engine *engine = r->net->engine;

    er_ddp_close(r->net->ddp);
    r->net->ddp = NULL;
    er_comm_abort_all(r->comms, 2);
    if (r->net->fsdp)
        er_fsdp_abandon(r->net->fsdp);
    net_close(r->net);
    er_compress_close(r->compress);
    er_engine_close(engine);
}

/* This rank's samples: in exact mode shard by shard, which reach the reducer with the last one. */
static double gradients(struct run *r, uint64_t step)
{
    size_t share = net_small.batch / (size_t)r->rank->size, first = share * (size_t)r->rank->rank;
    size_t shard = result->way.exact ? net_small.batch / SHARDS : share;
    struct er_ddp *ddp = r->net->ddp;
    double loss = 0;

    r->net->outside = 0;
    for (size_t at = 0; at < share; at += shard) {
        r->net->ddp = at + shard == share ? ddp : NULL;
        loss += net_pass(r->net, step, first + at, shard);
    }
    r->net->ddp = ddp;
    return loss;
}

static void one_step(struct run *r, uint64_t step)
{
    size_t share = net_small.batch / (size_t)r->rank->size;
    struct er_vote vote = {.step = step, .weight = (double)(share * net_small.positions)};
    struct er_error err = ER_ERROR_INIT;

    vote.loss = gradients(r, step);
    vote.nonfinite = r->net->outside;
    RANK_OK(r->net->fsdp ? er_fsdp_finish(r->net->fsdp, &vote, &err)
                         : er_ddp_finish(r->net->ddp, &vote, &err),
            err);
    RANK_REQUIRE(vote.nonfinite == 0);
    net_apply(r->net, step, vote.weight);
    if (r->rank->rank == 0)
        result->loss = vote.loss / vote.weight;
}

static void train_rank(struct rank *rank)
{
    struct run r = {.rank = rank};
    struct er_error err = ER_ERROR_INIT;
    uint64_t began_us = 0;

    open_run(&r);
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (step == 3) /* the first ones allocate */
            began_us = er_now_us();
        one_step(&r, step);
    }
    RANK_OK(er_engine_wait(r.net->engine, &err), err);
    if (rank->rank == 0)
        result->step_us = (double)(er_now_us() - began_us) / (STEPS - 2);
    RANK_REQUIRE(r.net->flat.total <= ELEMENTS_MAX);
    net_values(r.net, result->values[r.net->fsdp ? 0 : rank->rank]);
    if (rank->rank == 0) {
        result->elements = r.net->flat.total;
        result->held_bytes = r.net->fsdp ? (double)er_fsdp_bytes(r.net->fsdp) : 0;
    }
    RANK_OK(er_comm_barrier(r.comms[0], &err), err);
    close_run(&r);
}

static void prepare(struct way way)
{
    if (!result)
        result =
            mmap(NULL, sizeof(*result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RANK_REQUIRE(result != MAP_FAILED);
    memset(result, 0, sizeof(*result));
    result->way = way;
}

static void train(int ranks, struct way way)
{
    prepare(way);
    gpu_ranks(ranks, train_rank);
}

static uint32_t bits(int rank)
{
    return net_hash(result->values[rank], result->elements);
}

void item_ddp(void)
{
    double loss;

    train(1, (struct way){0});
    loss = result->loss;
    train(RANKS, (struct way){0});
    say("loss_one", loss);
    say("loss_two", result->loss);
    say("step_us", result->step_us);
    RANK_REQUIRE(bits(0) == bits(1));
    RANK_REQUIRE(fabs(result->loss - loss) <= 1e-3 * loss);
}

/* Sums of two ranks do not depend on their order: the same bits. */
void item_fsdp(void)
{
    uint32_t want;
    double loss;

    train(RANKS, (struct way){0});
    want = bits(0);
    for (int s = ER_FSDP_FULL; s <= ER_FSDP_GRAD_OPTIM; s++) {
        train(RANKS, (struct way){.sharded = true, .strategy = (enum er_fsdp_strategy)s});
        say(s == ER_FSDP_FULL ? "full_step_us" : "grad_optim_step_us", result->step_us);
        say(s == ER_FSDP_FULL ? "full_bytes" : "grad_optim_bytes", result->held_bytes);
        RANK_REQUIRE(bits(0) == want);
    }
    loss = result->loss;
    train(RANKS, (struct way){.sharded = true, .dtype = ER_BF16});
    say("bfloat16_step_us", result->step_us);
    say("bfloat16_bytes", result->held_bytes);
    RANK_REQUIRE(fabs(result->loss - loss) <= 0.05 * loss);
}

void item_exact_train(void)
{
    const struct way ways[] = {{.exact = true},
                               {.exact = true, .sharded = true},
                               {.exact = true, .sharded = true, .strategy = ER_FSDP_GRAD_OPTIM}};
    uint32_t want;

    train(1, ways[0]);
    want = bits(0);
    say("loss", result->loss);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        train(RANKS, ways[i]);
        RANK_REQUIRE(bits(0) == want);
    }
    train(1, ways[1]);
    RANK_REQUIRE(bits(0) == want);
}

void item_hook(void)
{
    double loss;

    train(RANKS, (struct way){0});
    loss = result->loss;
    train(RANKS, (struct way){.compressed = true});
    say("loss", loss);
    say("loss_bfloat16", result->loss);
    RANK_REQUIRE(bits(0) == bits(1) && fabs(result->loss - loss) <= 0.05 * loss);
}

/* ---- a rank that is lost in the middle of a step whose kernels wait for it ---- */

/* The GPU is well: a step by this rank alone. */
static void go_on_alone(int gpu)
{
    struct er_engine *engine = net_gpu(gpu);
    struct net *n = net_open(engine, &net_small, false);

    RANK_REQUIRE(isfinite(net_pass(n, 1, 0, net_small.batch)));
    net_close(n);
    er_engine_close(engine);
}

static void lose_rank(struct rank *rank)
{
    struct run r = {.rank = rank};
    struct er_vote vote = {.step = 3, .weight = 1};
    struct er_error err = ER_ERROR_INIT;
    size_t share = net_small.batch / (size_t)rank->size;
    int rc;

    open_run(&r);
    one_step(&r, 1);
    one_step(&r, 2);
    if (rank->rank == 1) {
        atomic_store(&result->died_us, er_now_us());
        raise(SIGKILL);
    }
    rc = net_try(r.net, 3, share * (size_t)rank->rank, share, &vote.loss, &err);
    if (rc == 0)
        rc = er_fsdp_finish(r.net->fsdp, &vote, &err);
    atomic_store(&result->told_us[rank->rank], er_now_us());
    RANK_REQUIRE(rc == ER_E_PEER_LOST);
    close_run(&r);
    atomic_store(&result->aborted_us[rank->rank], er_now_us());
    go_on_alone(gpu_index(rank));
}

static double after_ms(uint64_t us)
{
    return (double)(us - result->died_us) / 1e3;
}

void item_fsdp_lost(void)
{
    prepare((struct way){.sharded = true});
    gpu_ranks_but(3, 1, lose_rank);
    say("told_max_ms", fmax(after_ms(result->told_us[0]), after_ms(result->told_us[2])));
    say("aborted_max_ms", fmax(after_ms(result->aborted_us[0]), after_ms(result->aborted_us[2])));
}
