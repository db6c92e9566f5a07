/*
 * What the companion of an NCCL communicator costs: a shadow of each operation (er_op_shadow), on
 * the double of CUDA and NCCL, 2 ranks as processes. The owner's time to start one, the time until
 * all ranks have agreed on it, and a whole all-reduce of 4 KiB on the double beside it.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "runtime/comm_ops.h"
#include "tests/lib/fake_world.h"

enum { RANKS = 2, ELEMENTS = 1024, DEADLINE_US = 30000000 };

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

/* The module and the double's libraries are found by the environment, at the start of a process. */
static void run_on_double(char **argv)
{
    if (getenv("ER_BENCH_ON_DOUBLE"))
        return;
    setenv("ER_BENCH_ON_DOUBLE", "1", 1);
    setenv("ELASTIC_MODULE_DIR", bench_bin("."), 1);
    setenv("LD_LIBRARY_PATH", bench_bin("tests/fakecuda"), 1);
    setenv("FAKE_CUDA_ATS", "1", 1); /* any memory will do */
    execv("/proc/self/exe", argv);
    bench_fail("cannot start again on the double");
}

static struct er_comm *connect_rank(struct er_ctx *ctx, struct er_comm_opts opts)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    opts.open_timeout_us = DEADLINE_US;
    must(er_comm_open(&comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    return comm;
}

static struct er_device *open_device(int rank)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = rank};
    struct er_error err = ER_ERROR_INIT;
    struct er_device *device = NULL;

    must(er_device_open(&device, &opts, &err), &err);
    return device;
}

static void all_reduces(struct er_comm *comm, size_t runs, struct bench_series *whole)
{
    static float x[ELEMENTS];
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < runs; i++) {
        double began = bench_now_ms();
        struct er_op *op = NULL;

        must(er_all_reduce(comm, x, ELEMENTS, ER_F32, ER_SUM, &op, &err), &err);
        must(er_op_wait(op, DEADLINE_US, &err), &err);
        bench_add(whole, (bench_now_ms() - began) * 1e3);
    }
}

/* Shadows alone, in a communicator such as the companion is. */
static void shadows(struct er_comm *host, size_t runs, struct bench_series *start,
                    struct bench_series *agreed)
{
    struct er_op_desc desc = {.kind = ER_OP_ALL_REDUCE, .dtype = ER_F32, .n = ELEMENTS};
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < runs; i++) {
        struct er_comm_call call = {.desc = er_op_shadow(&desc)};
        double began = bench_now_ms();
        struct er_op *op = NULL;

        must(er_comm_start(host, &call, &op, &err), &err);
        bench_add(start, (bench_now_ms() - began) * 1e3);
        must(er_op_wait(op, DEADLINE_US, &err), &err);
        bench_add(agreed, (bench_now_ms() - began) * 1e3);
    }
}

static void run_rank(struct er_fake_world *world, int rank)
{
    static struct bench_series whole, start, agreed;
    struct er_ctx *ctx = er_fake_ctx(world, rank, RANKS, 1, 1);
    struct er_comm *comm = connect_rank(
        ctx, (struct er_comm_opts){.backend = ER_COMM_NCCL, .device = open_device(rank)});
    struct er_comm *host =
        connect_rank(ctx, (struct er_comm_opts){.backend = ER_COMM_HOST, .name = "like-companion"});

    all_reduces(comm, bench_runs(500, 100), &whole);
    shadows(host, bench_runs(4000, 2000), &start, &agreed);
    er_comm_abort(host);
    er_comm_abort(comm);
    if (rank != 0)
        return;
    bench_emit("shadow_start_us", &start);
    bench_emit("shadow_agreed_us", &agreed);
    bench_emit("allreduce_4KiB_on_double_us", &whole);
}

int main(int argc, char **argv)
{
    struct er_fake_world *world;
    int status = -1;
    pid_t pid;

    (void)argc;
    run_on_double(argv);
    world = er_fake_world_new();
    pid = fork();
    if (pid < 0)
        bench_fail("cannot fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_rank(world, 1);
        _exit(0);
    }
    run_rank(world, 0);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_fail("rank 1 ended with status 0x%x", (unsigned)status);
    er_fake_world_free(world);
    return 0;
}
