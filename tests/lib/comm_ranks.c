#include "tests/lib/comm_ranks.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/lib/tap.h"

enum { GENERATION = 1 };

pid_t fork_rank(struct er_fake_world *world, const struct ranks *ranks, int rank, rank_fn fn)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        struct rank r = {
            .rank = rank, .size = ranks->size_n, .transport = ranks->transport_of, .world = world};

        r.ctx = er_fake_ctx(world, rank, ranks->size_n, ranks->nodes_apart ? ranks->size_n : 1,
                            GENERATION);
        fn(&r);
        er_device_close(r.device);
        er_close(r.ctx);
        exit(0);
    }
    er_tap_require(pid > 0);
    return pid;
}

void run_ranks(const struct ranks *ranks, rank_fn fn)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[ER_FAKE_RANKS_MAX];

    for (int i = 0; i < ranks->size_n; i++)
        pid[i] = fork_rank(world, ranks, i, fn);
    for (int i = 0; i < ranks->size_n; i++) {
        int status = -1;

        waitpid(pid[i], &status, 0);
        if (!er_tap_check(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            er_tap_note("rank %d ended with status 0x%x", i, (unsigned)status);
    }
    er_fake_world_free(world);
}

void run_both(int size_n, rank_fn fn)
{
    run_ranks(&(struct ranks){.size_n = size_n, .transport_of = ER_TRANSPORT_SHM}, fn);
    run_ranks(&(struct ranks){.size_n = size_n, .transport_of = ER_TRANSPORT_TCP}, fn);
}

bool rank_on_gpu(void)
{
    const char *wanted = getenv("ER_TEST_BACKEND");

    return wanted && strcmp(wanted, "nccl") == 0;
}

struct er_device *rank_device(struct rank *r)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = r->rank % 64};
    struct er_error err = ER_ERROR_INIT;

    if (!r->device)
        RANK_OK(er_device_open(&r->device, &opts, &err), err);
    return r->device;
}

struct er_comm_opts rank_opts(struct rank *r, const struct er_comm_opts *opts)
{
    struct er_comm_opts mine = opts ? *opts : (struct er_comm_opts){0};

    if (mine.transport == ER_TRANSPORT_AUTO)
        mine.transport = r->transport;
    if (rank_on_gpu() && mine.backend == ER_COMM_AUTO) {
        mine.backend = ER_COMM_NCCL;
        mine.device = rank_device(r);
    }
    return mine;
}

struct er_comm *rank_open(struct rank *r, const struct er_comm_opts *opts)
{
    struct er_comm_opts mine = rank_opts(r, opts);
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    if (!mine.open_timeout_us)
        mine.open_timeout_us = RANK_WAIT_US;
    RANK_OK(er_comm_open(&comm, r->ctx, &mine, &err), err);
    RANK_OK(er_comm_wait_ready(comm, &err), err);
    return comm;
}

void rank_meet(struct rank *r, const char *name)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_barrier(r->ctx, name, RANK_WAIT_US, &err), err);
}

void rank_next_generation(struct rank *r)
{
    rank_meet(r, "next-generation");
    er_fake_move(r->ctx, r->rank, r->size, er_world(r->ctx)->generation + 1);
}

void rank_pause_us(uint64_t us)
{
    struct timespec ts = {.tv_nsec = (long)us * 1000};

    nanosleep(&ts, NULL);
}

void rank_verify(struct er_comm *comm)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    int64_t x[1000];

    for (int i = 0; i < 1000; i++)
        x[i] = i * (er_comm_rank(comm) + 1);
    RANK_OK(er_all_reduce(comm, x, 1000, ER_I64, ER_SUM, &op, &err), err);
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    for (int i = 0; i < 1000; i++)
        RANK_REQUIRE(x[i] == i * er_comm_size(comm) * (er_comm_size(comm) + 1) / 2);
}
