/* Items of several ranks: everything that goes wrong, exact sums, generations. For correctness: on
 * one GPU NCCL goes through sockets, and kernels of different processes take turns. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/gpu/gpu_check.h"

enum { RANKS_MAX = GPU_RANKS_MAX, TRIALS = 8, SMALL = 1 << 20 };

static struct shared {
    _Atomic int ready_n;
    _Atomic uint64_t hit_us, error_us[RANKS_MAX], aborted_us[RANKS_MAX], again_us[RANKS_MAX];
} * shared;

static void share(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RANK_REQUIRE(shared != MAP_FAILED);
}

/* Several ranks on one GPU: NCCL must take each for a host of its own (docs/gpu.md). */
static void pose_as_hosts(int rank)
{
    static const char *const fixed[][2] = {{"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "=lo"},
                                           {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"},
                                           {"NCCL_IB_DISABLE", "1"},  {"NCCL_MNNVL_ENABLE", "0"},
                                           {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MAX_CTAS", "2"}};
    char id[32];

    for (size_t i = 0; i < ER_ARRAY_N(fixed); i++)
        setenv(fixed[i][0], fixed[i][1], 1);
    snprintf(id, sizeof(id), "er-gpu-check-%d", rank);
    setenv("NCCL_HOSTID", id, 1);
}

static int devices(void)
{
    return gpu_facts()->devices_n > 0 ? gpu_facts()->devices_n : 1;
}

int gpu_index(const struct rank *r)
{
    return r->rank % devices();
}

void gpu_pose(const struct rank *r)
{
    if (devices() < r->size)
        pose_as_hosts(r->rank);
}

struct er_device *gpu_device(struct rank *r)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = gpu_index(r)};
    struct er_error err = ER_ERROR_INIT;

    if (r->device)
        return r->device;
    gpu_pose(r);
    RANK_OK(er_device_open(&r->device, &opts, &err), err);
    return r->device;
}

struct er_comm *gpu_comm(struct rank *r, const struct er_comm_opts *opts)
{
    struct er_comm_opts mine = opts ? *opts : (struct er_comm_opts){0};

    mine.backend = ER_COMM_NCCL;
    mine.device = gpu_device(r);
    return rank_open(r, &mine);
}

static void fork_ranks(struct er_fake_world *world, int size, rank_fn fn, pid_t *ret)
{
    for (int i = 0; i < size; i++)
        ret[i] = fork_rank(world, &(struct ranks){.size_n = size, .transport_of = ER_TRANSPORT_SHM},
                           i, fn);
}

static void reap(const pid_t *pid, int size, int except)
{
    for (int i = 0; i < size; i++) {
        int status = -1;

        waitpid(pid[i], &status, 0);
        RANK_REQUIRE(i == except || status == 0);
    }
}

void gpu_finish(struct er_op *op)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_op_wait(op, RANK_WAIT_US, &err), err);
}

void gpu_ranks_but(int size, int lost, rank_fn fn)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];

    fork_ranks(world, size, fn, pid);
    reap(pid, size, lost);
    er_fake_world_free(world);
}

void gpu_ranks(int size, rank_fn fn)
{
    gpu_ranks_but(size, -1, fn);
}

static void wait_ready(int n)
{
    while (atomic_load(&shared->ready_n) < n)
        rank_pause_us(500);
}

/* ---- a rank is killed, two communicators at work ---- */

static int reduce_until_error(struct rank *r, struct er_comm *a, struct er_comm *b, float *x,
                              struct er_error *err)
{
    struct er_op *op[2] = {NULL, NULL};
    int rc;

    do {
        rc = er_all_reduce(a, x, SMALL / 4, ER_F32, ER_MAX, &op[0], err);
        if (rc == 0)
            rc = er_all_reduce(b, x + SMALL / 4, SMALL / 4, ER_F32, ER_MAX, &op[1], err);
        for (int i = 0; i < 2 && rc == 0; i++)
            rc = er_op_wait(op[i], RANK_WAIT_US, err);
    } while (rc == 0);
    atomic_store(&shared->error_us[r->rank], er_now_us());
    return rc;
}

static void verify(struct rank *r, struct er_comm *comm, int64_t *x)
{
    struct er_device *d = gpu_device(r);
    struct er_error err = ER_ERROR_INIT;
    struct er_stream *s = NULL;
    struct er_op *op = NULL;
    int64_t *host = gpu_alloc(d, ER_MEMORY_PINNED, 8000);

    RANK_OK(er_stream_new(&s, d, ER_STREAM_NORMAL, &err), err);
    for (int i = 0; i < 1000; i++)
        host[i] = i * (er_comm_rank(comm) + 1);
    gpu_copy(s, x, host, 8000, ER_COPY_TO_DEVICE);
    RANK_OK(er_comm_after(comm, s, &err), err);
    RANK_OK(er_all_reduce(comm, x, 1000, ER_I64, ER_SUM, &op, &err), err);
    gpu_finish(op);
    RANK_OK(er_comm_barrier(comm, &err), err);
    gpu_copy(s, host, x, 8000, ER_COPY_TO_HOST);
    for (int i = 0; i < 1000; i++)
        RANK_REQUIRE(host[i] == i * er_comm_size(comm) * (er_comm_size(comm) + 1) / 2);
    er_stream_free(s);
    er_device_free(d, ER_MEMORY_PINNED, host);
}

static void survive(struct rank *r)
{
    struct er_comm_opts second = {.name = "second"};
    struct er_comm *comms[2] = {gpu_comm(r, NULL), gpu_comm(r, &second)};
    float *x = gpu_alloc(gpu_device(r), ER_MEMORY_DEVICE, 2 * SMALL);
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;

    atomic_fetch_add(&shared->ready_n, 1);
    RANK_REQUIRE(reduce_until_error(r, comms[0], comms[1], x, &err) == ER_E_PEER_LOST);
    RANK_REQUIRE(strstr(err.text, "rank 1"));
    er_comm_abort_all(comms, 2);
    atomic_store(&shared->aborted_us[r->rank], er_now_us());
    er_fake_move(r->ctx, r->rank - (r->rank > 1), r->size - 1, 2);
    comm = gpu_comm(r, NULL);
    verify(r, comm, (int64_t *)(void *)x);
    atomic_store(&shared->again_us[r->rank], er_now_us());
    er_comm_abort(comm);
}

static double after_ms(uint64_t at_us)
{
    return at_us > shared->hit_us ? (double)(at_us - shared->hit_us) / 1e3 : 0;
}

void item_kill(void)
{
    double told = 0, aborted = 0, again = 0;

    share();
    for (int trial = 0; trial < TRIALS; trial++) {
        struct er_fake_world *world = er_fake_world_new();
        pid_t pid[RANKS_MAX];

        memset(shared, 0, sizeof(*shared));
        fork_ranks(world, 3, survive, pid);
        wait_ready(3);
        rank_pause_us(1000u * (unsigned)(trial + 1));
        kill(pid[1], SIGKILL);
        atomic_store(&shared->hit_us, er_now_us());
        reap(pid, 3, 1);
        for (int i = 0; i < 3; i += 2) {
            told = after_ms(shared->error_us[i]) > told ? after_ms(shared->error_us[i]) : told;
            aborted = after_ms(shared->aborted_us[i]) > aborted ? after_ms(shared->aborted_us[i])
                                                                : aborted;
            again = after_ms(shared->again_us[i]) > again ? after_ms(shared->again_us[i]) : again;
        }
        er_fake_world_free(world);
    }
    say("trials", TRIALS);
    say("told_max_ms", told);
    say("aborted_max_ms", aborted);
    say("verified_again_max_ms", again);
}

/* ---- a rank is stopped; the agent's word ---- */

static void until_notice(struct rank *r)
{
    struct er_comm_opts second = {.name = "second"};
    struct er_comm *comms[2] = {gpu_comm(r, NULL), gpu_comm(r, &second)};
    float *x = gpu_alloc(gpu_device(r), ER_MEMORY_DEVICE, 2 * SMALL);
    struct er_error err = ER_ERROR_INIT;
    int rc;

    atomic_fetch_add(&shared->ready_n, 1);
    rc = reduce_until_error(r, comms[0], comms[1], x, &err);
    RANK_REQUIRE(r->rank == 1 || rc == ER_E_ABORTED);
    er_comm_abort_all(comms, 2);
    atomic_store(&shared->aborted_us[r->rank], er_now_us());
}

void item_stop(void)
{
    struct er_fake_world *world = er_fake_world_new();
    double told = 0, aborted = 0;
    pid_t pid[RANKS_MAX];

    share();
    fork_ranks(world, 3, until_notice, pid);
    wait_ready(3);
    kill(pid[1], SIGSTOP);
    rank_pause_us(100000);
    for (int i = 0; i < 3; i++)
        er_fake_notice(world, i, 1, ER_NOTICE_STOP);
    atomic_store(&shared->hit_us, er_now_us());
    while (!shared->aborted_us[0] || !shared->aborted_us[2])
        rank_pause_us(500);
    for (int i = 0; i < 3; i += 2) {
        told = after_ms(shared->error_us[i]) > told ? after_ms(shared->error_us[i]) : told;
        aborted =
            after_ms(shared->aborted_us[i]) > aborted ? after_ms(shared->aborted_us[i]) : aborted;
    }
    kill(pid[1], SIGKILL);
    reap(pid, 3, 1);
    er_fake_world_free(world);
    say("told_max_ms", told);
    say("aborted_max_ms", aborted);
}

/* ---- a rank never comes ---- */

static void wait_for_missing(struct rank *r)
{
    struct er_comm_opts opts = {
        .backend = ER_COMM_NCCL, .device = gpu_device(r), .open_timeout_us = 500000};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    if (r->rank == 1)
        return;
    RANK_OK(er_comm_open(&comm, r->ctx, &opts, &err), err);
    RANK_REQUIRE(er_comm_wait_ready(comm, &err) == -ETIMEDOUT && strstr(err.text, "rank 1"));
    er_comm_abort(comm);
}

void item_missing(void)
{
    gpu_ranks(3, wait_for_missing);
}

/* ---- an abort lets streams go on: the optimizer must not run on what they left ---- */

static void step_without_peer(struct rank *r)
{
    struct er_comm_opts opts = {.op_timeout_us = 500000};
    struct er_comm *comm = gpu_comm(r, &opts);
    struct er_device *d = gpu_device(r);
    float *x = gpu_alloc(d, ER_MEMORY_DEVICE, SMALL);
    int32_t *param = gpu_alloc(d, ER_MEMORY_DEVICE, 4096);
    int32_t *host = gpu_alloc(d, ER_MEMORY_PINNED, 4096);
    struct er_error err = ER_ERROR_INIT;
    struct er_stream *s = NULL;
    struct er_op *op = NULL;

    RANK_OK(er_stream_new(&s, d, ER_STREAM_NORMAL, &err), err);
    RANK_OK(er_stream_fill(s, param, 7, 4096, &err), err);
    RANK_OK(er_stream_sync(s, &err), err);
    rank_meet(r, "filled");
    if (r->rank == 1) {
        rank_meet(r, "over");
        er_comm_abort(comm);
        er_stream_free(s);
        return;
    }
    RANK_OK(er_all_reduce(comm, x, SMALL / 4, ER_F32, ER_SUM, &op, &err), err);
    RANK_REQUIRE(er_op_wait(op, RANK_WAIT_US, &err) == -ETIMEDOUT); /* so no vote, no apply */
    er_comm_abort(comm);
    RANK_OK(er_stream_sync(s, &err), err);
    gpu_copy(s, host, param, 4096, ER_COPY_TO_HOST);
    for (int i = 0; i < 1024; i++)
        RANK_REQUIRE(host[i] == 0x07070707);
    rank_meet(r, "over");
    er_stream_free(s);
}

void item_released(void)
{
    gpu_ranks(2, step_without_peer);
}

/* ---- exact mode: two ranks get what one gets ---- */

enum { SHARDS = 4, ELEMENTS = 50021 };

/* The sum of all shards in 64-bit fixed point, this rank adding its own. */
static void add_shards(struct rank *r)
{
    struct er_comm *comm = gpu_comm(r, NULL);
    struct er_device *d = gpu_device(r);
    float *x = gpu_alloc(d, ER_MEMORY_DEVICE, ELEMENTS * 4);
    int64_t *acc = gpu_alloc(d, ER_MEMORY_DEVICE, (ELEMENTS + 1) * 8);
    int64_t *host = gpu_alloc(d, ER_MEMORY_PINNED, ELEMENTS * 8);
    struct er_kernel_exact_args a = {.sums = acc,
                                     .g = x,
                                     .words = (uint64_t *)(acc + ELEMENTS),
                                     .n = ELEMENTS,
                                     .unit = 1024.0 * 1024 * 1024 * 1024,
                                     .limit = 1e6,
                                     .adds = 1};
    struct er_error err = ER_ERROR_INIT;
    struct er_stream *s = NULL;
    struct er_op *op = NULL;
    uint64_t sum = 0;

    RANK_OK(er_stream_new(&s, d, ER_STREAM_NORMAL, &err), err);
    RANK_OK(er_stream_fill(s, acc, 0, ELEMENTS * 8, &err), err);
    for (int shard = 0; shard < SHARDS; shard++) {
        if (shard * r->size / SHARDS != r->rank)
            continue;
        for (int i = 0; i < ELEMENTS; i++)
            ((float *)host)[i] = (float)((shard + 1) * (i % 1009)) / 997;
        gpu_copy(s, x, host, ELEMENTS * 4, ER_COPY_TO_DEVICE);
        gpu_run(s, ER_KERNEL_exact_put, &a, sizeof(a), 8);
    }
    RANK_OK(er_comm_after(comm, s, &err), err);
    RANK_OK(er_all_reduce(comm, acc, ELEMENTS, ER_I64, ER_SUM, &op, &err), err);
    gpu_finish(op);
    RANK_OK(er_op_before(op, s, &err), err);
    gpu_copy(s, host, acc, ELEMENTS * 8, ER_COPY_TO_HOST);
    for (int i = 0; i < ELEMENTS; i++)
        sum = sum * 31 + (uint64_t)host[i];
    atomic_store(&shared->again_us[r->rank], sum);
    RANK_OK(er_comm_barrier(comm, &err), err);
    er_comm_abort(comm);
    er_stream_free(s);
}

void item_exact(void)
{
    uint64_t alone;

    share();
    gpu_ranks(1, add_shards);
    alone = shared->again_us[0];
    gpu_ranks(2, add_shards);
    RANK_REQUIRE(shared->again_us[0] == alone && shared->again_us[1] == alone);
}

/* ---- generations ---- */

static int count_in(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;

    RANK_REQUIRE(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void live_long(struct rank *r)
{
    enum { WARM = 3, GENERATIONS = 20 };
    uint64_t free_bytes = 0, total = 0, before = 0;
    int64_t *x = gpu_alloc(gpu_device(r), ER_MEMORY_DEVICE, 8000);
    struct er_error err = ER_ERROR_INIT;
    int fds = 0, threads = 0;

    for (int g = 0; g < GENERATIONS; g++) {
        struct er_comm *comm = gpu_comm(r, NULL);

        verify(r, comm, x);
        er_comm_abort(comm);
        RANK_OK(er_device_memory(gpu_device(r), &free_bytes, &total, &err), err);
        if (g == WARM) {
            before = free_bytes;
            fds = count_in("/proc/self/fd");
            threads = count_in("/proc/self/task");
        }
        rank_next_generation(r);
    }
    if (r->rank == 0) {
        say("memory_grew_mb", ((double)before - (double)free_bytes) / 1e6);
        say("fds_grew", count_in("/proc/self/fd") - fds);
        say("threads_grew", count_in("/proc/self/task") - threads);
    }
    RANK_REQUIRE(count_in("/proc/self/fd") <= fds + 2);
}

void item_generations(void)
{
    gpu_ranks(2, live_long);
}
