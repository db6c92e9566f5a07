/* The double of NCCL: its contract, and what goes wrong on demand (README.md). */
#include "tests/fakecuda/fake_nccl.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/rand.h"
#include "tests/fakecuda/fake.h"

enum { MAGIC = 0x6e63636c, DEAD = 0x64656164, GROUP_MAX = 1024, COMMS_MAX = 64, DEAD_KEPT = 64 };

struct ncclComm {
    unsigned magic;
    struct ring ring;
    char id[64];
    pthread_t init;
    bool init_joined;
    _Atomic int state;        /* ncclResult_t of opening */
    _Atomic int async;        /* of operations */
    double busy_until_us;     /* a launch is in progress; 0: none */
    struct fake_stream *busy; /* on this stream */
    pid_t owner;
    uint64_t ops;
    bool aborted, finalized;
    _Atomic int running; /* batches in streams */
};

struct batch {
    ncclComm_t comm;
    struct fake_stream *stream;
    struct ring_op ops[GROUP_MAX];
    int ops_n;
    bool hang;
};

static _Thread_local int depth;
static _Thread_local struct batch *group[COMMS_MAX];
static _Thread_local int group_n;
static _Thread_local ncclComm_t aborts[COMMS_MAX];
static _Thread_local int aborts_n;
static char last_text[128];

static void pause_ms(long ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&ts, NULL);
}

/* ---- rules that hold for every call ---- */

static void check_comm(ncclComm_t comm, const char *who)
{
    if (!comm || comm->magic != MAGIC)
        fake_fail("%s on a communicator that was aborted or destroyed", who);
    if (comm->owner != gettid())
        fake_fail("%s from a second thread", who);
}

/* Also: nothing is in progress. */
static void check_idle(ncclComm_t comm, const char *who)
{
    check_comm(comm, who);
    if (atomic_load(&comm->state) == ncclInProgress)
        fake_fail("%s while ncclCommInitRankConfig is in progress", who);
    if (comm->busy_until_us > 0)
        fake_fail("%s while the last call is in progress: ask ncclCommGetAsyncError first", who);
}

/* ---- versions, ids, texts ---- */

FAKE_API ncclResult_t ncclGetVersion(int *ret)
{
    *ret = (int)fake_env("FAKE_NCCL_VERSION", NCCL_VERSION_CODE);
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclGetUniqueId(ncclUniqueId *ret)
{
    uint64_t random;

    if (getrandom(&random, sizeof(random), 0) < 0)
        return ncclSystemError;
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->internal, sizeof(ret->internal), "/fake-nccl-%016llx",
             (unsigned long long)random);
    return ncclSuccess;
}

FAKE_API const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError    ? "remote process exited or there was a network error"
           : result == ncclInvalidUsage ? "invalid usage"
           : result == ncclSystemError  ? "unhandled system error"
                                        : "an error";
}

FAKE_API const char *ncclGetLastError(ncclComm_t comm)
{
    return last_text;
}

/* ---- opening ---- */

static void *open_ring(void *arg)
{
    ncclComm_t comm = arg;

    pause_ms(fake_env("FAKE_NCCL_INIT_DELAY_MS", 0));
    while (fake_env("FAKE_NCCL_INIT_HANGS", 0) && !atomic_load(&comm->ring.abort))
        pause_ms(1);
    if (!atomic_load(&comm->ring.abort) &&
        ring_open(&comm->ring, comm->id, comm->ring.rank, comm->ring.size) == 0)
        atomic_store(&comm->state,
                     fake_env("FAKE_NCCL_INIT_FAILS", 0) ? ncclSystemError : ncclSuccess);
    return NULL;
}

static ncclResult_t begin(ncclComm_t *ret, const char *id, int rank, int size,
                          const ncclConfig_t *config)
{
    ncclComm_t comm = calloc(1, sizeof(*comm));

    if (!comm)
        return ncclSystemError;
    if (config->blocking != 0)
        fake_fail("a communicator without blocking = 0: its calls can't be given up");
    if (getenv("NCCL_COMM_BLOCKING") || getenv("NCCL_COMM_ID"))
        fake_fail("NCCL_COMM_BLOCKING and NCCL_COMM_ID override the configuration");
    if (depth > 0)
        fake_fail("opening a communicator within a group of operations");
    comm->magic = MAGIC;
    comm->owner = gettid();
    comm->ring.rank = rank;
    comm->ring.size = size;
    atomic_store(&comm->state, ncclInProgress);
    snprintf(comm->id, sizeof(comm->id), "%s", id);
    pthread_create(&comm->init, NULL, open_ring, comm);
    *ret = comm;
    return ncclInProgress;
}

FAKE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int size, ncclUniqueId id, int rank,
                                             ncclConfig_t *config)
{
    if (strncmp(id.internal, "/fake-nccl-", 11) != 0)
        fake_fail("not an id of ncclGetUniqueId");
    return begin(ret, id.internal, rank, size, config);
}

static void finish_launch(ncclComm_t comm)
{
    if (comm->busy)
        comm->busy->nccl_busy = false;
    comm->busy = NULL;
    comm->busy_until_us = 0;
}

FAKE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *ret)
{
    check_comm(comm, "ncclCommGetAsyncError");
    *ret = (ncclResult_t)atomic_load(&comm->state);
    if (*ret == ncclSuccess && atomic_load(&comm->async))
        *ret = (ncclResult_t)atomic_load(&comm->async);
    if (*ret == ncclSuccess && atomic_load(&comm->ring.lost))
        *ret = ncclRemoteError;
    if (*ret == ncclSuccess && comm->busy_until_us > 0) {
        pthread_mutex_lock(&fake_lock);
        if (fake_now_us() < comm->busy_until_us)
            *ret = ncclInProgress;
        else
            finish_launch(comm);
        pthread_mutex_unlock(&fake_lock);
    }
    if (*ret != ncclSuccess && *ret != ncclInProgress)
        snprintf(last_text, sizeof(last_text), "rank %d of the double", comm->ring.rank);
    return ncclSuccess;
}

/* ---- abort ---- */

static void let_go(ncclComm_t comm)
{
    while (fake_env("FAKE_NCCL_ABORT_HANGS", 0))
        pause_ms(1000);
    atomic_store(&comm->ring.abort, true);
    pthread_mutex_lock(&fake_lock);
    finish_launch(comm);
    pthread_mutex_unlock(&fake_lock);
}

/* As NCCL: joins the opening thread, waits for its kernels, frees. */
static void reclaim(ncclComm_t comm)
{
    static ncclComm_t kept[DEAD_KEPT]; /* for a while, so that a later use is seen */
    static unsigned kept_n;

    pthread_join(comm->init, NULL);
    pthread_mutex_lock(&fake_lock);
    while (atomic_load(&comm->running) > 0)
        pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
    ring_close(&comm->ring);
    comm->magic = DEAD;
    free(kept[kept_n % DEAD_KEPT]);
    kept[kept_n++ % DEAD_KEPT] = comm;
}

FAKE_API ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    check_comm(comm, "ncclCommAbort");
    if (aborts_n == COMMS_MAX)
        fake_fail("more than %d communicators in a group", COMMS_MAX);
    aborts[aborts_n++] = comm;
    if (depth > 0)
        return ncclSuccess;
    let_go(comm);
    reclaim(comm);
    aborts_n = 0;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    check_idle(comm, "ncclCommFinalize");
    comm->finalized = true;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    check_idle(comm, "ncclCommDestroy");
    return ncclCommAbort(comm);
}

FAKE_API ncclResult_t ncclCommShrink(ncclComm_t parent, int *left_out, int left_out_n,
                                     ncclComm_t *ret, ncclConfig_t *config, int flags)
{
    char id[64];
    uint64_t hash = 1;
    int rank, size;

    check_comm(parent, "ncclCommShrink");
    if (left_out_n <= 0 || flags != NCCL_SHRINK_ABORT)
        fake_fail("ncclCommShrink without ranks to leave out, or of a running communicator");
    if (fake_env("FAKE_NCCL_SHRINK_FAILS", 0))
        return ncclSystemError;
    rank = parent->ring.rank;
    size = parent->ring.size - left_out_n;
    for (int i = 0; i < left_out_n; i++) {
        hash = er_rand_mix(hash ^ (uint64_t)left_out[i]);
        rank -= left_out[i] < parent->ring.rank;
        if (left_out[i] == parent->ring.rank)
            fake_fail("ncclCommShrink by a rank that it leaves out");
    }
    let_go(parent);
    snprintf(id, sizeof(id), "%.28s-%016llx", parent->id, (unsigned long long)hash);
    return begin(ret, id, rank, size, config);
}

/* ---- operations ---- */

static struct batch *batch_of(ncclComm_t comm, cudaStream_t stream)
{
    struct batch *b;

    for (int i = 0; i < group_n; i++)
        if (group[i]->comm == comm)
            return group[i];
    if (group_n == COMMS_MAX)
        fake_fail("more than %d communicators in a group", COMMS_MAX);
    b = calloc(1, sizeof(*b));
    if (!b)
        fake_fail("out of memory");
    b->comm = comm;
    pthread_mutex_lock(&fake_lock);
    b->stream = fake_stream_of(stream, "NCCL");
    pthread_mutex_unlock(&fake_lock);
    group[group_n++] = b;
    return b;
}

static void run_batch(struct fake_stream *s, void *arg)
{
    struct batch *b = *(struct batch **)arg;
    bool done = false;

    if (b->hang)
        ring_hang(&b->comm->ring);
    else
        done = ring_run(&b->comm->ring, b->ops, b->ops_n);
    pthread_mutex_lock(&fake_lock);
    s->poisoned |= !done;
    atomic_fetch_sub(&b->comm->running, 1);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    free(b);
}

static void touch_op(struct fake_stream *s, const struct ring_op *op, const struct ring *r)
{
    size_t bytes = op->n * er_dtype_size(op->dtype), all = bytes * (size_t)r->size;
    bool scatters = op->kind == ER_OP_REDUCE_SCATTER, gathers = op->kind == ER_OP_ALL_GATHER;
    bool reads = op->in && (op->kind != ER_OP_BROADCAST || r->rank == op->root);
    bool writes = op->out && (op->kind != ER_OP_REDUCE || r->rank == op->root);

    if (reads)
        fake_touch(s, op->in, scatters ? all : bytes, false, "NCCL");
    if (writes)
        fake_touch(s, op->out, gathers ? all : bytes, true, "NCCL");
}

static void launch(struct batch *b)
{
    ncclComm_t comm = b->comm;

    if (fake_pending())
        fake_fail("CUDA's last error is %d: NCCL takes it for its own", fake_pending());
    comm->ops++;
    b->hang = comm->ops == (uint64_t)fake_env("FAKE_NCCL_OP_HANGS", 0);
    if (comm->ops == (uint64_t)fake_env("FAKE_NCCL_OP_FAILS", 0)) {
        b->hang = true;
        atomic_store(&comm->async, ncclSystemError);
    }
    pthread_mutex_lock(&fake_lock);
    atomic_fetch_add(&comm->running, 1);
    fake_push(b->stream, run_batch, &b, sizeof(b));
    for (int i = 0; i < b->ops_n; i++)
        touch_op(b->stream, &b->ops[i], &comm->ring);
    comm->busy_until_us = fake_now_us() + (double)fake_env("FAKE_NCCL_LAUNCH_US", 20);
    comm->busy = b->stream;
    comm->busy->nccl_busy = true;
    pthread_mutex_unlock(&fake_lock);
}

FAKE_API ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclGroupEnd(void)
{
    bool launched = group_n > 0;

    if (depth <= 0)
        fake_fail("ncclGroupEnd without ncclGroupStart");
    if (--depth > 0)
        return ncclSuccess;
    if (launched && aborts_n > 0)
        fake_fail("operations and aborts in one group");
    for (int i = 0; i < group_n; i++)
        launch(group[i]);
    group_n = 0;
    for (int i = 0; i < aborts_n; i++)
        let_go(aborts[i]);
    for (int i = 0; i < aborts_n; i++)
        reclaim(aborts[i]);
    aborts_n = 0;
    return launched ? ncclInProgress : ncclSuccess;
}

ncclResult_t fake_nccl_add(const struct ring_op *op, ncclComm_t comm, cudaStream_t stream)
{
    struct batch *b;

    check_idle(comm, "an operation");
    if (op->n > 0 && ((!op->in && op->kind != ER_OP_RECV &&
                       (op->kind != ER_OP_BROADCAST || comm->ring.rank == op->root)) ||
                      (!op->out && op->kind != ER_OP_SEND &&
                       (op->kind != ER_OP_REDUCE || comm->ring.rank == op->root))))
        return ncclInvalidArgument;
    ncclGroupStart();
    b = batch_of(comm, stream);
    if (b->ops_n == GROUP_MAX)
        fake_fail("more than %d operations in a group", GROUP_MAX);
    b->ops[b->ops_n++] = *op;
    return ncclGroupEnd();
}
