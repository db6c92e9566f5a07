/*
 * Collectives between two ranks of this host: time of a small all-reduce and of the step vote, and
 * algorithm bandwidth (bytes of one rank / time) of a large one, float32, in place.
 */
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "bench/lib/bench.h"
#include "runtime/comm.h"
#include "tests/lib/fake_world.h"

enum {
    RANKS = 2,
    SMALL_BYTES = 4 << 10,
    LARGE_BYTES = 16 << 20,
    SMALL_WARM = 300,
    LARGE_WARM = 5,
    DEADLINE_US = 30000000
};

struct setting {
    enum er_comm_transport transport;
    const char *small, *large, *vote;
};

static const struct setting settings[] = {
    {ER_TRANSPORT_SHM, "allreduce_shm_4KiB_us", "allreduce_shm_16MiB_GBps", "vote_shm_us"},
    {ER_TRANSPORT_TCP, "allreduce_tcp_4KiB_us", "allreduce_tcp_16MiB_GBps", "vote_tcp_us"},
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void reduce_once(struct er_comm *comm, float *x, size_t bytes)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    must(er_all_reduce(comm, x, bytes / sizeof(*x), ER_F32, ER_SUM, &op, &err), &err);
    must(er_op_wait(op, DEADLINE_US, &err), &err);
}

static void vote_once(struct er_comm *comm)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.ok = 1};

    must(er_vote(comm, &vote, &err), &err);
}

/* Milliseconds of each repetition. */
static void measure(struct er_comm *comm, float *x, size_t bytes, size_t warm, size_t runs,
                    struct bench_series *s)
{
    for (size_t i = 0; i < warm + runs; i++) {
        double began = bench_now_ms();

        if (bytes)
            reduce_once(comm, x, bytes);
        else
            vote_once(comm);
        if (i >= warm)
            bench_add(s, bench_now_ms() - began);
    }
}

static struct er_comm *connect_rank(struct er_ctx *ctx, enum er_comm_transport transport)
{
    struct er_comm_opts opts = {.transport = transport, .open_timeout_us = DEADLINE_US};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    must(er_comm_open(&comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    return comm;
}

static void emit_us(const char *figure, struct bench_series *s)
{
    for (size_t i = 0; i < s->n; i++)
        s->values[i] *= 1000;
    bench_emit(figure, s);
}

static void emit_rate(const char *figure, struct bench_series *s, size_t bytes)
{
    for (size_t i = 0; i < s->n; i++)
        s->values[i] = (double)bytes / s->values[i] / 1e6;
    bench_emit(figure, s);
}

/* Both ranks do the same; rank 0 reports. */
static void bench_rank(struct er_fake_world *world, const struct setting *setting, int rank)
{
    static struct bench_series small, large, vote;
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = er_fake_ctx(world, rank, RANKS, 1, 1);
    struct er_pool *pool = NULL;
    struct er_comm *comm;
    float *x;

    must(er_pool_new(&pool, LARGE_BYTES, &err), &err);
    x = er_pool_alloc(pool, LARGE_BYTES, 4096);
    comm = connect_rank(ctx, setting->transport);
    small.n = large.n = vote.n = 0;
    measure(comm, x, SMALL_BYTES, SMALL_WARM, bench_runs(4000, 2000), &small);
    measure(comm, x, LARGE_BYTES, LARGE_WARM, bench_runs(100, 40), &large);
    measure(comm, x, 0, SMALL_WARM, bench_runs(4000, 2000), &vote);
    er_comm_abort(comm);
    if (rank == 0) {
        emit_us(setting->small, &small);
        emit_rate(setting->large, &large, LARGE_BYTES);
        emit_us(setting->vote, &vote);
    }
    er_pool_free(pool);
    er_close(ctx);
}

static void bench_setting(const struct setting *setting)
{
    struct er_fake_world *world = er_fake_world_new();
    int status = -1;
    pid_t pid = fork();

    if (pid < 0)
        bench_fail("cannot fork");
    if (pid == 0) {
        bench_rank(world, setting, 1);
        _exit(0);
    }
    bench_rank(world, setting, 0);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_fail("rank 1 ended with status 0x%x", (unsigned)status);
    er_fake_world_free(world);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        bench_setting(&settings[i]);
    return 0;
}
