#include "bench/lib/coll_sweep.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "tests/lib/fake_world.h"

enum { RANKS_MAX = 4, DEADLINE_US = 30000000, BLOCK_BYTES = 16 * COLL_MIB, VOTE_RUNS = 2000 };

enum kind { VOTE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

static const size_t sizes[] = {8,
                               64,
                               256,
                               COLL_KIB,
                               4 * COLL_KIB,
                               16 * COLL_KIB,
                               64 * COLL_KIB,
                               256 * COLL_KIB,
                               COLL_MIB,
                               4 * COLL_MIB,
                               16 * COLL_MIB,
                               64 * COLL_MIB,
                               256 * COLL_MIB};

struct rank {
    struct er_comm *comm;
    struct er_pool *pool;
    float *in, *out;
};

static size_t largest(const struct coll_setting *setting)
{
    return bench_runs(setting->largest, setting->quick_largest);
}

size_t coll_sizes(const struct coll_setting *setting, size_t ret[COLL_SIZES_MAX])
{
    size_t n = 0;

    while (n < sizeof(sizes) / sizeof(sizes[0]) && sizes[n] <= largest(setting)) {
        ret[n] = sizes[n];
        n++;
    }
    return n;
}

size_t coll_runs(const struct coll_setting *setting, size_t bytes)
{
    size_t budget = bench_runs((size_t)2 << 30, 256 * COLL_MIB);
    size_t least = bench_runs(10, 4), most = bench_runs(2000, 500), n = budget / bytes;

    if (setting->ranks > 2)
        most /= 4;
    return n < least ? least : n > most ? most : n;
}

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void once(struct rank *r, enum kind kind, enum coll_place place, size_t bytes)
{
    size_t n = bytes / sizeof(float), block = n / (size_t)er_comm_size(r->comm);
    float *mine = r->in + block * (size_t)er_comm_rank(r->comm);
    struct er_vote vote = {.ok = 1};
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    int rc = 0;

    switch (kind) {
    case VOTE:
        must(er_vote(r->comm, &vote, &err), &err);
        return;
    case ALL_REDUCE:
        rc = er_all_reduce_to(r->comm, r->in, place == COLL_IN_PLACE ? r->in : r->out, n, ER_F32,
                              ER_SUM, &op, &err);
        break;
    case REDUCE_SCATTER:
        rc = er_reduce_scatter(r->comm, r->in, mine, block, ER_F32, ER_SUM, &op, &err);
        break;
    case ALL_GATHER:
        rc = er_all_gather_to(r->comm, mine, r->in, block, ER_F32, &op, &err);
        break;
    }
    must(rc, &err);
    must(er_op_wait(op, DEADLINE_US, &err), &err);
}

static double once_us(struct rank *r, enum kind kind, enum coll_place place, size_t bytes)
{
    double began = bench_now_ms();

    once(r, kind, place, bytes);
    return (bench_now_ms() - began) * 1e3;
}

static struct coll_point point_of(const struct bench_series *s, size_t bytes)
{
    return (struct coll_point){.bytes = bytes,
                               .runs = s->n,
                               .p50_us = bench_median(s),
                               .p99_us = bench_quantile(s, 0.99),
                               .spread = bench_spread(s)};
}

void coll_keep_better(struct coll_point *kept, const struct coll_point *fresh)
{
    if (kept->runs == 0 || fresh->p50_us < kept->p50_us)
        *kept = *fresh;
}

static void add_all(struct bench_series *to, const struct bench_series *from)
{
    for (size_t i = 0; i < from->n; i++)
        bench_add(to, from->values[i]);
}

void coll_keep_better_result(struct coll_result *kept, const struct coll_result *fresh)
{
    for (int place = 0; place < COLL_PLACE_COUNT; place++)
        for (size_t i = 0; i < COLL_SIZES_MAX && fresh->all_reduce[place][i].runs > 0; i++)
            coll_keep_better(&kept->all_reduce[place][i], &fresh->all_reduce[place][i]);
    coll_keep_better(&kept->reduce_scatter, &fresh->reduce_scatter);
    coll_keep_better(&kept->all_gather, &fresh->all_gather);
    coll_keep_better(&kept->vote, &fresh->vote);
    add_all(&kept->reduce_scatter_over, &fresh->reduce_scatter_over);
    add_all(&kept->all_gather_over, &fresh->all_gather_over);
}

static void measure(struct rank *r, struct coll_point *ret, enum kind kind, enum coll_place place,
                    size_t bytes, size_t runs)
{
    static struct bench_series s;

    s.n = 0;
    memset(r->in, 0, bytes);
    for (size_t i = 0; i < runs / 8 + 1; i++)
        once(r, kind, place, bytes);
    for (size_t i = 0; i < runs; i++)
        bench_add(&s, once_us(r, kind, place, bytes));
    *ret = point_of(&s, bytes);
}

/* All-reduce, reduce-scatter and all-gather of one size in turn, so that they can be compared. An
 * all-reduce moves twice as much as each of the others. */
static void measure_blocks(struct rank *r, struct coll_result *result, size_t runs)
{
    static struct bench_series reduce_scatter, all_gather;

    memset(r->in, 0, BLOCK_BYTES);
    reduce_scatter.n = all_gather.n = 0;
    for (size_t i = 0; i < runs + 2; i++) {
        double both = once_us(r, ALL_REDUCE, COLL_IN_PLACE, BLOCK_BYTES);
        double scatter = once_us(r, REDUCE_SCATTER, COLL_IN_PLACE, BLOCK_BYTES);
        double gather = once_us(r, ALL_GATHER, COLL_IN_PLACE, BLOCK_BYTES);

        if (i < 2)
            continue;
        bench_add(&reduce_scatter, scatter);
        bench_add(&all_gather, gather);
        bench_add(&result->reduce_scatter_over, both / 2 / scatter);
        bench_add(&result->all_gather_over, both / 2 / gather);
    }
    result->reduce_scatter = point_of(&reduce_scatter, BLOCK_BYTES);
    result->all_gather = point_of(&all_gather, BLOCK_BYTES);
}

static void open_rank(struct rank *r, struct er_ctx *ctx, const struct coll_setting *setting)
{
    struct er_comm_opts opts = {.transport = setting->transport, .open_timeout_us = DEADLINE_US};
    size_t bytes = largest(setting);
    struct er_error err = ER_ERROR_INIT;

    must(er_comm_open(&r->comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(r->comm, &err), &err);
    must(er_pool_new(&r->pool, 2 * bytes, &err), &err);
    r->in = er_pool_alloc(r->pool, bytes, 4096);
    r->out = er_pool_alloc(r->pool, bytes, 4096);
}

/* Each rank a CPU of its own, where there are enough: as Open MPI's launcher does, and as jobs do.
 */
static void take_cpu(int rank, int ranks)
{
    cpu_set_t all, mine;
    size_t at = 0;

    if (sched_getaffinity(0, sizeof(all), &all) < 0 || CPU_COUNT(&all) < ranks)
        return;
    for (size_t i = 0; i < CPU_SETSIZE && rank >= 0; i++)
        if (CPU_ISSET(i, &all) && rank-- == 0)
            at = i;
    CPU_ZERO(&mine);
    CPU_SET(at, &mine);
    sched_setaffinity(0, sizeof(mine), &mine);
}

/* All ranks do the same. */
static void run_rank(struct er_fake_world *world, const struct coll_setting *setting, int rank,
                     struct coll_result *result)
{
    struct er_ctx *ctx = er_fake_ctx(world, rank, setting->ranks, 1, 1);
    size_t bytes[COLL_SIZES_MAX], n = coll_sizes(setting, bytes);
    cpu_set_t before;
    struct rank r = {0};

    sched_getaffinity(0, sizeof(before), &before);
    take_cpu(rank, setting->ranks);
    open_rank(&r, ctx, setting);
    for (int place = 0; place < COLL_PLACE_COUNT; place++)
        for (size_t i = 0; i < n; i++)
            measure(&r, &result->all_reduce[place][i], ALL_REDUCE, (enum coll_place)place, bytes[i],
                    coll_runs(setting, bytes[i]));
    measure_blocks(&r, result, bench_runs(60, 16));
    measure(&r, &result->vote, VOTE, COLL_IN_PLACE, 64, bench_runs(VOTE_RUNS, VOTE_RUNS / 4));
    er_comm_abort(r.comm);
    er_pool_free(r.pool);
    er_close(ctx);
    sched_setaffinity(0, sizeof(before), &before);
}

void coll_sweep(const struct coll_setting *setting, struct coll_result *result)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];

    for (int i = 1; i < setting->ranks; i++) {
        pid[i] = fork();
        if (pid[i] < 0)
            bench_fail("cannot fork");
        if (pid[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_rank(world, setting, i, result);
            _exit(0);
        }
    }
    run_rank(world, setting, 0, result);
    for (int i = 1; i < setting->ranks; i++) {
        int status = -1;

        if (waitpid(pid[i], &status, 0) != pid[i] || status != 0)
            bench_fail("rank %d ended with status 0x%x", i, (unsigned)status);
    }
    er_fake_world_free(world);
}
