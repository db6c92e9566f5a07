/* Items of several ranks: collectives, and everything that goes wrong. For correctness: on one GPU
 * NCCL goes through sockets, and kernels of different processes take turns. */
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

enum { RANKS_MAX = 4, TRIALS = 8, SMALL = 1 << 20 };

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

struct er_device *gpu_device(struct rank *r)
{
    int devices_n = gpu_facts()->devices_n > 0 ? gpu_facts()->devices_n : 1;
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = r->rank % devices_n};
    struct er_error err = ER_ERROR_INIT;

    if (r->device)
        return r->device;
    if (devices_n < r->size)
        pose_as_hosts(r->rank);
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

void gpu_ranks(int size, rank_fn fn)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];

    fork_ranks(world, size, fn, pid);
    reap(pid, size, -1);
    er_fake_world_free(world);
}

static void wait_ready(int n)
{
    while (atomic_load(&shared->ready_n) < n)
        rank_pause_us(500);
}

/* ---- every operation and type ---- */

struct work {
    struct er_comm *comm;
    struct er_stream *stream;
    char *in, *out;   /* device */
    char *host, *got; /* pinned */
    int rank, size;
};

/* Small whole numbers: exact in every type, in any order of summation. */
static void put(char *at, enum er_dtype dtype, size_t n, int rank)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200}, bf16[] = {0, 0x3f80, 0x4000, 0x4040};

    for (size_t i = 0; i < n; i++) {
        unsigned v = (unsigned)((i + (size_t)rank) % 4);

        switch (dtype) {
        case ER_F32:
            ((float *)at)[i] = (float)v;
            break;
        case ER_F64:
            ((double *)at)[i] = v;
            break;
        case ER_I32:
            ((int32_t *)at)[i] = (int32_t)v;
            break;
        case ER_I64:
            ((int64_t *)at)[i] = (int64_t)v;
            break;
        case ER_U8:
            ((uint8_t *)at)[i] = (uint8_t)v;
            break;
        case ER_F16:
            ((uint16_t *)at)[i] = f16[v];
            break;
        case ER_BF16:
            ((uint16_t *)at)[i] = bf16[v];
            break;
        case ER_DTYPE_COUNT:
            break;
        }
    }
}

static void finish(struct er_op *op)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_op_wait(op, RANK_WAIT_US, &err), err);
}

static void load(struct work *w, enum er_dtype dtype, size_t n)
{
    size_t bytes = n * er_dtype_size(dtype);
    struct er_error err = ER_ERROR_INIT;

    put(w->host, dtype, n, w->rank);
    gpu_copy(w->stream, w->in, w->host, bytes, ER_COPY_TO_DEVICE);
    RANK_OK(er_comm_after(w->comm, w->stream, &err), err);
}

/* `out` holds what rank `of` put. */
static void require_of(struct work *w, const char *out, enum er_dtype dtype, size_t n, int of)
{
    size_t bytes = n * er_dtype_size(dtype);

    put(w->host, dtype, n, of);
    if (bytes)
        gpu_copy(w->stream, w->got, out, bytes, ER_COPY_TO_HOST);
    RANK_REQUIRE(memcmp(w->got, w->host, bytes) == 0);
}

static void check_moves(struct work *w, enum er_dtype dtype, size_t n)
{
    size_t bytes = n * er_dtype_size(dtype);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL, *other = NULL;
    int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;

    load(w, dtype, n);
    RANK_OK(er_all_gather_to(w->comm, w->in, w->out, n, dtype, &op, &err), err);
    finish(op);
    for (int i = 0; i < w->size; i++)
        require_of(w, w->out + (size_t)i * bytes, dtype, n, i);
    RANK_OK(er_broadcast_to(w->comm, w->in, w->out, n, dtype, w->size - 1, &op, &err), err);
    finish(op);
    require_of(w, w->out, dtype, n, w->size - 1);
    RANK_OK(er_group_begin(w->comm, &err), err);
    RANK_OK(er_send(w->comm, w->in, n, dtype, next, &op, &err), err);
    RANK_OK(er_recv(w->comm, w->out, n, dtype, before, &other, &err), err);
    RANK_OK(er_group_end(w->comm, &err), err);
    finish(op);
    finish(other);
    require_of(w, w->out, dtype, n, before);
}

/* The maximum of all ranks at i is 3 if any of them has one there; at one element in four it is
 * another number. Sums are compared as integers where they are. */
static void check_reductions(struct work *w, enum er_dtype dtype, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    size_t block = n / (size_t)w->size;

    load(w, dtype, n);
    RANK_OK(er_all_reduce_to(w->comm, w->in, w->out, n, dtype, ER_MAX, &op, &err), err);
    finish(op);
    RANK_OK(er_all_reduce_to(w->comm, w->in, w->out, n, dtype, ER_SUM, &op, &err), err);
    finish(op);
    if (dtype == ER_I64 && n > 0) {
        gpu_copy(w->stream, w->got, w->out, n * 8, ER_COPY_TO_HOST);
        for (size_t i = 0; i < n; i++) {
            int64_t want = 0;

            for (int r = 0; r < w->size; r++)
                want += (int64_t)((i + (size_t)r) % 4);
            RANK_REQUIRE(((int64_t *)w->got)[i] == want);
        }
    }
    /* in pieces and put together it is the same */
    RANK_OK(er_reduce_scatter(w->comm, w->in,
                              w->in + (size_t)w->rank * block * er_dtype_size(dtype), block, dtype,
                              ER_SUM, &op, &err),
            err);
    finish(op);
    RANK_OK(er_all_gather_to(w->comm, w->in + (size_t)w->rank * block * er_dtype_size(dtype), w->in,
                             block, dtype, &op, &err),
            err);
    finish(op);
    if (block > 0) {
        size_t bytes = block * (size_t)w->size * er_dtype_size(dtype);

        gpu_copy(w->stream, w->got, w->out, bytes, ER_COPY_TO_HOST);
        gpu_copy(w->stream, w->host, w->in, bytes, ER_COPY_TO_HOST);
        RANK_REQUIRE(memcmp(w->got, w->host, bytes) == 0);
    }
}

static void check_uneven(struct work *w)
{
    size_t counts[RANKS_MAX], total = 0;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    for (int i = 0; i < w->size; i++)
        total += counts[i] = i == 1 ? 0 : 1001u * (unsigned)(i + 1);
    load(w, ER_I32, total);
    RANK_OK(er_all_gather_v(w->comm, w->in, w->out, counts, ER_I32, &op, &err), err);
    finish(op);
    require_of(w, w->out, ER_I32, counts[0], 0);
    RANK_OK(er_reduce_scatter_v(w->comm, w->in, w->out, counts, ER_I32, ER_SUM, &op, &err), err);
    finish(op);
}

static void all_collectives(struct rank *r)
{
    size_t large = gpu_facts()->is_double ? 70000 : (size_t)2 << 20;
    const size_t sizes[] = {0, 1, 4099, large};
    uint64_t began_us = er_now_us();
    struct er_device *d = gpu_device(r);
    struct er_error err = ER_ERROR_INIT;
    struct work w = {.rank = r->rank, .size = r->size};

    w.comm = gpu_comm(r, NULL);
    if (r->rank == 0)
        say("open_ms", (double)(er_now_us() - began_us) / 1e3);
    RANK_OK(er_stream_new(&w.stream, d, ER_STREAM_NORMAL, &err), err);
    w.in = gpu_alloc(d, ER_MEMORY_DEVICE, large * 8 * RANKS_MAX);
    w.out = gpu_alloc(d, ER_MEMORY_DEVICE, large * 8 * RANKS_MAX);
    w.host = gpu_alloc(d, ER_MEMORY_PINNED, large * 8 * RANKS_MAX);
    w.got = gpu_alloc(d, ER_MEMORY_PINNED, large * 8 * RANKS_MAX);
    for (int k = 0; k < ER_DTYPE_COUNT; k++)
        for (size_t i = 0; i < ER_ARRAY_N(sizes); i++) {
            check_moves(&w, (enum er_dtype)k, sizes[i]);
            check_reductions(&w, (enum er_dtype)k, sizes[i]);
        }
    check_uneven(&w);
    RANK_OK(er_comm_barrier(w.comm, &err), err);
    er_comm_abort(w.comm);
    er_stream_free(w.stream);
}

void item_collectives(void)
{
    gpu_ranks(2, all_collectives);
}

void item_three(void)
{
    gpu_ranks(3, all_collectives);
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
    finish(op);
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
    int64_t *acc = gpu_alloc(d, ER_MEMORY_DEVICE, ELEMENTS * 8);
    int64_t *host = gpu_alloc(d, ER_MEMORY_PINNED, ELEMENTS * 8);
    struct er_kernel_args a = {.y = acc, .x = x, .n = ELEMENTS, .s = 1024.0 * 1024 * 1024 * 1024};
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
        gpu_run(s, ER_KERNEL_fixed_add_f32, &a, sizeof(a), 8);
    }
    RANK_OK(er_comm_after(comm, s, &err), err);
    RANK_OK(er_all_reduce(comm, acc, ELEMENTS, ER_I64, ER_SUM, &op, &err), err);
    finish(op);
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
