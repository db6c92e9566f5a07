/*
 * The communicator under faults, ranks of this host as processes: how soon survivors know of a
 * killed rank and have a new communicator, how soon a notice of the agent ends what a stopped rank
 * blocks, and how long connecting takes.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rand.h"
#include "bench/lib/bench.h"
#include "runtime/comm.h"
#include "tests/lib/fake_world.h"
#include "tests/lib/ranks.h"

enum {
    RANKS_MAX = ER_FAKE_RANKS_MAX,
    ELEMENTS_MAX = 500000,
    DEADLINE_US = 20000000,
    CONNECTS_MAX = 64
};

/* What the processes of a trial tell each other. */
static struct shared {
    _Atomic int ready_n, victim, stopped;
    _Atomic uint64_t hit_us;
    _Atomic uint64_t error_us[RANKS_MAX], again_us[RANKS_MAX];
    _Atomic uint64_t connect_us[CONNECTS_MAX][RANKS_MAX];
    uint64_t seed;
    int size, connects_n;
    enum er_comm_transport transport;
} * shared;

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void pause_us(uint64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

    nanosleep(&ts, NULL);
}

static struct er_comm *connect_ranks(struct er_ctx *ctx)
{
    struct er_comm_opts opts = {.transport = shared->transport, .open_timeout_us = DEADLINE_US};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    must(er_comm_open(&comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    return comm;
}

/* The same random operation on all ranks. */
static int random_op(struct er_comm *comm, struct er_rand *rand, float *x, struct er_error *err)
{
    struct er_vote vote = {.ok = 1};
    struct er_op *op = NULL;
    uint64_t kind = er_rand_below(rand, 5);
    size_t n = er_rand_below(rand, ELEMENTS_MAX) / (kind == 1 ? 1 : 100);
    size_t size = (size_t)er_comm_size(comm);
    int rc;

    if (kind == 4)
        return er_vote(comm, &vote, err);
    if (kind == 3)
        rc = er_broadcast(comm, x, n, ER_F32, (int)er_rand_below(rand, size), &op, err);
    else if (kind == 2)
        rc = er_reduce_scatter(comm, x, x + ELEMENTS_MAX, n / size, ER_F32, ER_MAX, &op, err);
    else
        rc = er_all_reduce(comm, x, n, ER_F32, ER_MAX, &op, err);
    return rc < 0 ? rc : er_op_wait(op, ER_FOREVER, err);
}

static void run_until_error(struct er_comm *comm, int rank, int expected)
{
    static float x[2 * ELEMENTS_MAX];
    struct er_error err = ER_ERROR_INIT;
    struct er_rand rand;
    int rc;

    er_rand_init(&rand, shared->seed);
    atomic_fetch_add(&shared->ready_n, 1);
    do {
        rc = random_op(comm, &rand, x, &err);
    } while (rc == 0);
    atomic_store(&shared->error_us[rank], er_now_us());
    if (rc != expected)
        bench_fail("rank %d: %s", rank, err.text);
}

static void verify(struct er_comm *comm)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    int64_t x = er_comm_rank(comm) + 1, want = er_comm_size(comm);

    must(er_all_reduce(comm, &x, 1, ER_I64, ER_SUM, &op, &err), &err);
    must(er_op_wait(op, DEADLINE_US, &err), &err);
    if (x != want * (want + 1) / 2)
        bench_fail("wrong sum after recovery");
}

static void survive_kill(struct er_ctx *ctx, int rank)
{
    struct er_comm *comm = connect_ranks(ctx);
    int victim;

    run_until_error(comm, rank, ER_E_PEER_LOST);
    er_comm_abort(comm);
    victim = atomic_load(&shared->victim);
    er_fake_move(ctx, rank - (rank > victim), shared->size - 1, 2);
    comm = connect_ranks(ctx);
    verify(comm);
    atomic_store(&shared->again_us[rank], er_now_us());
    er_comm_abort(comm);
}

static void survive_stop(struct er_ctx *ctx, int rank)
{
    struct er_comm *comm = connect_ranks(ctx);

    run_until_error(comm, rank, ER_E_ABORTED);
    er_comm_abort(comm);
}

static void connect_again(struct er_ctx *ctx, int rank)
{
    for (int i = 0; i < shared->connects_n; i++) {
        struct er_error err = ER_ERROR_INIT;
        uint64_t began_us;
        struct er_comm *comm;

        must(er_barrier(ctx, "begin", DEADLINE_US, &err), &err);
        began_us = er_now_us();
        comm = connect_ranks(ctx);
        atomic_store(&shared->connect_us[i][rank], er_now_us() - began_us);
        must(er_barrier(ctx, "end", DEADLINE_US, &err), &err);
        er_comm_abort(comm);
        er_fake_move(ctx, rank, shared->size, (uint64_t)i + 2);
    }
}

typedef void (*rank_fn)(struct er_ctx *ctx, int rank);

static void fork_all(struct er_fake_world *world, rank_fn fn, pid_t *pid)
{
    fflush(stdout);
    for (int i = 0; i < shared->size; i++) {
        pid[i] = fork();
        if (pid[i] < 0)
            bench_fail("cannot fork");
        if (pid[i] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fn(er_fake_ctx(world, i, shared->size, 1, 1), i);
        _exit(0);
    }
}

static void wait_all(const pid_t *pid)
{
    for (int i = 0; i < shared->size; i++) {
        int status = -1;

        waitpid(pid[i], &status, 0);
        if (status != 0 && i != atomic_load(&shared->victim))
            bench_fail("rank %d ended with status 0x%x", i, (unsigned)status);
    }
}

static void prepare(uint64_t seed, int size, enum er_comm_transport transport)
{
    memset(shared, 0, sizeof(*shared));
    shared->victim = -1;
    shared->seed = seed;
    shared->size = size;
    shared->transport = transport;
}

/* Until all are at work, then a random time; returns the victim. */
static int await_instant(struct er_rand *rand)
{
    while (atomic_load(&shared->ready_n) < shared->size)
        pause_us(200);
    pause_us(er_rand_below(rand, 8000));
    atomic_store(&shared->victim, (int)er_rand_below(rand, (uint64_t)shared->size));
    return atomic_load(&shared->victim);
}

static void add_since_hit(struct bench_series *s, const _Atomic uint64_t *times)
{
    uint64_t worst_us = shared->hit_us;

    for (int i = 0; i < shared->size; i++)
        if (i != shared->victim && atomic_load(&times[i]) > worst_us)
            worst_us = atomic_load(&times[i]);
    bench_add(s, (double)(worst_us - shared->hit_us) / 1e3);
}

static void kill_trial(uint64_t seed, struct bench_series *known, struct bench_series *again)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];
    struct er_rand rand;

    prepare(seed, 2 + (int)(seed / 2 % 5), seed % 2 ? ER_TRANSPORT_SHM : ER_TRANSPORT_TCP);
    er_rand_init(&rand, ~seed);
    fork_all(world, survive_kill, pid);
    await_instant(&rand);
    atomic_store(&shared->hit_us, er_now_us());
    kill(pid[shared->victim], SIGKILL);
    wait_all(pid);
    add_since_hit(known, shared->error_us);
    add_since_hit(again, shared->again_us);
    er_fake_world_free(world);
}

static void stop_trial(uint64_t seed, struct bench_series *aborted)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];
    struct er_rand rand;

    prepare(seed, 2 + (int)(seed / 2 % 5), seed % 2 ? ER_TRANSPORT_SHM : ER_TRANSPORT_TCP);
    er_rand_init(&rand, ~seed);
    fork_all(world, survive_stop, pid);
    await_instant(&rand);
    kill(pid[shared->victim], SIGSTOP);
    pause_us(5000);
    atomic_store(&shared->hit_us, er_now_us());
    for (int i = 0; i < shared->size; i++)
        er_fake_notice(world, i, 1, ER_NOTICE_STOP);
    for (int i = 0; i < shared->size; i++)
        while (i != shared->victim && !atomic_load(&shared->error_us[i]))
            pause_us(300);
    kill(pid[shared->victim], SIGKILL);
    wait_all(pid);
    add_since_hit(aborted, shared->error_us);
    er_fake_world_free(world);
}

/* The slowest rank of each time counts. */
static void bench_connect(int size, const char *figure, int connects_n)
{
    static struct bench_series s;
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];

    s.n = 0;
    prepare(1, size, ER_TRANSPORT_AUTO);
    shared->connects_n = connects_n;
    fork_all(world, connect_again, pid);
    wait_all(pid);
    for (int i = 0; i < connects_n; i++) {
        uint64_t worst_us = 0;

        for (int r = 0; r < size; r++)
            if (shared->connect_us[i][r] > worst_us)
                worst_us = shared->connect_us[i][r];
        bench_add(&s, (double)worst_us / 1e3);
    }
    bench_emit(figure, &s);
    er_fake_world_free(world);
}

static void emit_quantile(const char *figure, const struct bench_series *s, double q)
{
    bench_emit_value(figure, bench_quantile(s, q), bench_spread(s), s->n);
}

int main(void)
{
    static struct bench_series known, again, aborted;
    size_t kills_n = bench_runs(500, 80), stops_n = bench_runs(200, 40);

    shared = er_ranks_shared(sizeof(*shared));
    bench_connect(2, "connect_2_ranks_ms", (int)bench_runs(60, 30));
    bench_connect(16, "connect_16_ranks_ms", (int)bench_runs(40, 20));
    bench_connect(64, "connect_64_ranks_ms", (int)bench_runs(20, 7));
    for (size_t i = 0; i < kills_n; i++)
        kill_trial(i, &known, &again);
    for (size_t i = 0; i < stops_n; i++)
        stop_trial(i, &aborted);
    emit_quantile("kill_known_p50_ms", &known, 0.5);
    emit_quantile("kill_known_p99_ms", &known, 0.99);
    emit_quantile("kill_known_max_ms", &known, 1);
    emit_quantile("kill_recovered_p50_ms", &again, 0.5);
    emit_quantile("kill_recovered_p99_ms", &again, 0.99);
    emit_quantile("stop_notice_p50_ms", &aborted, 0.5);
    emit_quantile("stop_notice_p99_ms", &aborted, 0.99);
    return 0;
}
