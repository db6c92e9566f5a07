/*
 * Collectives between ranks of this host, float32 in place: time of a small all-reduce and of the
 * step vote, bandwidth of large ones, beside Open MPI and PyTorch's gloo. Bandwidth of an
 * all-reduce is bytes of one rank / time (algorithm bandwidth); of all three kinds also what each
 * rank moves (bus bandwidth), which can be compared.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "bench/lib/bench.h"
#include "runtime/comm.h"
#include "tests/lib/fake_world.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MAX_BYTES = 256 * MIB, RANKS_MAX = 4, DEADLINE_US = 30000000 };

enum kind { VOTE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };
enum unit { TIME_US, RATE, BUS_RATE };

struct figure {
    const char *name;
    enum kind kind;
    enum unit unit;
    size_t bytes;
    size_t warm, runs, quick_runs;
    bool peers;
};

struct setting {
    enum er_comm_transport transport;
    int ranks;
    const char *mpi; /* how Open MPI goes the same way */
    struct figure figures[8];
};

static const struct setting settings[] = {
    {ER_TRANSPORT_SHM,
     2,
     "self,vader",
     {{"allreduce_shm_4KiB_us", ALL_REDUCE, TIME_US, 4 * KIB, 300, 4000, 2000, true},
      {"allreduce_shm_64KiB_us", ALL_REDUCE, TIME_US, 64 * KIB, 300, 2000, 1000, true},
      {"allreduce_shm_16MiB_GBps", ALL_REDUCE, RATE, 16 * MIB, 5, 100, 40, true},
      {"allreduce_shm_256MiB_GBps", ALL_REDUCE, RATE, 256 * MIB, 1, 10, 4, true},
      {"reducescatter_shm_16MiB_bus_GBps", REDUCE_SCATTER, BUS_RATE, 16 * MIB, 5, 100, 40, false},
      {"allgather_shm_16MiB_bus_GBps", ALL_GATHER, BUS_RATE, 16 * MIB, 5, 100, 40, false},
      {"vote_shm_us", VOTE, TIME_US, 0, 300, 4000, 2000, false}}},
    {ER_TRANSPORT_TCP,
     2,
     "self,tcp",
     {{"allreduce_tcp_4KiB_us", ALL_REDUCE, TIME_US, 4 * KIB, 300, 4000, 2000, true},
      {"allreduce_tcp_64KiB_us", ALL_REDUCE, TIME_US, 64 * KIB, 300, 2000, 1000, true},
      {"allreduce_tcp_16MiB_GBps", ALL_REDUCE, RATE, 16 * MIB, 5, 100, 40, true},
      {"reducescatter_tcp_16MiB_bus_GBps", REDUCE_SCATTER, BUS_RATE, 16 * MIB, 5, 100, 40, false},
      {"allgather_tcp_16MiB_bus_GBps", ALL_GATHER, BUS_RATE, 16 * MIB, 5, 100, 40, false},
      {"vote_tcp_us", VOTE, TIME_US, 0, 300, 4000, 2000, false}}},
    {ER_TRANSPORT_SHM,
     4,
     NULL,
     {{"allreduce_shm_4ranks_16MiB_GBps", ALL_REDUCE, RATE, 16 * MIB, 3, 40, 15, false}}},
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void once(struct er_comm *comm, float *x, const struct figure *f)
{
    size_t size = (size_t)er_comm_size(comm), n = f->bytes / sizeof(*x), block = n / size;
    float *mine = x + block * (size_t)er_comm_rank(comm);
    struct er_vote vote = {.ok = 1};
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    int rc = 0;

    switch (f->kind) {
    case VOTE:
        must(er_vote(comm, &vote, &err), &err);
        return;
    case ALL_REDUCE:
        rc = er_all_reduce(comm, x, n, ER_F32, ER_SUM, &op, &err);
        break;
    case REDUCE_SCATTER:
        rc = er_reduce_scatter(comm, x, mine, block, ER_F32, ER_SUM, &op, &err);
        break;
    case ALL_GATHER:
        rc = er_all_gather_to(comm, mine, x, block, ER_F32, &op, &err);
        break;
    }
    must(rc, &err);
    must(er_op_wait(op, DEADLINE_US, &err), &err);
}

static double as_unit(const struct figure *f, int ranks, double ms)
{
    double moved = f->kind == ALL_REDUCE ? 2 : 1;

    if (f->unit == TIME_US)
        return ms * 1e3;
    if (f->unit == BUS_RATE)
        return (double)f->bytes * moved * (ranks - 1) / ranks / ms / 1e6;
    return (double)f->bytes / ms / 1e6;
}

static void measure(struct er_comm *comm, float *x, const struct figure *f, struct bench_series *s)
{
    size_t runs = bench_runs(f->runs, f->quick_runs);

    s->n = 0;
    memset(x, 0, f->bytes);
    for (size_t i = 0; i < f->warm + runs; i++) {
        double began = bench_now_ms();

        once(comm, x, f);
        if (i >= f->warm)
            bench_add(s, as_unit(f, er_comm_size(comm), bench_now_ms() - began));
    }
}

/* ---- peers ---- */

/* Median microseconds of a peer's run of one size, or a failure of the benchmark. */
static double peer_us(const char *command)
{
    FILE *out = popen(command, "r");
    size_t bytes;
    double us = 0;

    if (!out || fscanf(out, "%zu %lf", &bytes, &us) != 2 || pclose(out) != 0)
        bench_fail("peer: %s", command);
    return us;
}

static void emit(const struct setting *setting, const struct figure *f, struct bench_series *s)
{
    static struct bench_series theirs;
    const char *folder = f->peers ? bench_peers() : NULL, *name = "gloo";
    size_t runs = bench_runs(f->runs, f->quick_runs);
    char command[1024];
    double gloo, mpi;

    if (!folder) {
        bench_emit(f->name, s);
        return;
    }
    snprintf(command, sizeof(command), "%s/bin/python %s/peers_collectives.py %zu %zu", folder,
             ER_BENCH_SOURCE, runs, f->bytes);
    gloo = peer_us(command);
    snprintf(command, sizeof(command),
             "mpirun --allow-run-as-root --oversubscribe -np %d --mca btl %s "
             "--mca pml ob1 %s %zu %zu 2>/dev/null",
             setting->ranks, setting->mpi, bench_bin("bench/peer_mpi"), runs, f->bytes);
    mpi = access(bench_bin("bench/peer_mpi"), X_OK) == 0 ? peer_us(command) : 0;
    if (mpi > 0 && mpi < gloo) {
        name = "Open MPI";
        gloo = mpi;
    }
    theirs.n = 0;
    bench_add(&theirs, as_unit(f, setting->ranks, gloo / 1e3));
    bench_emit_peer(f->name, s, name, &theirs);
}

/* ---- ranks ---- */

static struct er_comm *connect_rank(struct er_ctx *ctx, enum er_comm_transport transport)
{
    struct er_comm_opts opts = {.transport = transport, .open_timeout_us = DEADLINE_US};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    must(er_comm_open(&comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    return comm;
}

static size_t largest(const struct setting *setting)
{
    size_t bytes = 4 * KIB;

    for (const struct figure *f = setting->figures; f->name; f++)
        bytes = f->bytes > bytes ? f->bytes : bytes;
    return bytes;
}

/* All ranks do the same; the others wait at the next operation while rank 0 reports. */
static void bench_rank(struct er_fake_world *world, const struct setting *setting, int rank)
{
    static struct bench_series series[8];
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = er_fake_ctx(world, rank, setting->ranks, 1, 1);
    struct er_comm *comm = connect_rank(ctx, setting->transport);
    struct er_pool *pool = NULL;
    float *x;

    must(er_pool_new(&pool, largest(setting), &err), &err);
    x = er_pool_alloc(pool, largest(setting), 4096);
    for (int i = 0; setting->figures[i].name; i++)
        measure(comm, x, &setting->figures[i], &series[i]);
    er_comm_abort(comm);
    er_pool_free(pool);
    er_close(ctx);
    if (rank != 0)
        _exit(0);
    for (int i = 0; setting->figures[i].name; i++)
        emit(setting, &setting->figures[i], &series[i]);
}

static void bench_setting(const struct setting *setting)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];

    for (int i = 1; i < setting->ranks; i++) {
        pid[i] = fork();
        if (pid[i] < 0)
            bench_fail("cannot fork");
        if (pid[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            bench_rank(world, setting, i);
        }
    }
    bench_rank(world, setting, 0);
    for (int i = 1; i < setting->ranks; i++) {
        int status = -1;

        if (waitpid(pid[i], &status, 0) != pid[i] || status != 0)
            bench_fail("rank %d ended with status 0x%x", i, (unsigned)status);
    }
    er_fake_world_free(world);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        bench_setting(&settings[i]);
    return 0;
}
