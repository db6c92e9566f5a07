/*
 * Backend `host`: connecting, the progress thread, failures.
 *
 * The *engine* carries operations out, one after the other. Whoever holds it may touch the mesh and
 * the transport: the progress thread, or the owner while it waits for an operation (which saves two
 * thread switches). Nobody waits for the engine: who does not get it sleeps until its operation is
 * done or there is new work.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "runtime/host_mesh.h"
#include "runtime/host_shm.h"
#include "runtime/host_tcp.h"

enum {
    WAIT_SLICE_US = 1000, /* between looks at peers and at the agent's notice */
    CONNECT_SLICE_US = 5000,
    LOST_GRACE_US = 10000, /* a lost peer that the operation does not need: others may fail first */
    LEFT_GRACE_US = 1000000, /* a peer that left after the operation: its data may be on the way */
    OWNER_SPIN_US = 50,      /* its core has nothing else to do */
    THREAD_SPIN_US = 5,      /* its core may be computing */
    THREAD_STACK_BYTES = 256 << 10
};

struct host {
    struct er_comm *comm;
    struct er_mesh *mesh;
    const struct er_transport_ops *ops;
    struct er_transport *transport;
    uint64_t deadline_us;
    bool spin; /* no more ranks on this host than processors */
    pthread_t thread;
    bool thread_runs;
    _Atomic int engine;      /* 1: held */
    _Atomic uint32_t bell;   /* futex word of the progress thread */
    _Atomic uint32_t asleep; /* the progress thread sleeps on it */
    _Atomic int stopping;
    /* the holder's */
    const struct er_op *current; /* begun in the transport */
    uint64_t moved_us;           /* its last progress */
    bool said_waiting;           /* since then */
    const char *told;            /* the peer's words, when the failure came from a peer */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, const struct timespec *ts)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ts, NULL, 0);
}

static bool take_engine(struct host *h)
{
    int free_engine = 0;

    return atomic_compare_exchange_strong(&h->engine, &free_engine, 1);
}

static void release_engine(struct host *h)
{
    atomic_store(&h->engine, 0);
}

static void ring_bell(struct host *h)
{
    atomic_fetch_add(&h->bell, 1);
    if (atomic_load(&h->asleep))
        syscall(SYS_futex, &h->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The agent says that this generation is over. */
static bool told_to_stop(const struct er_comm *comm)
{
    uint64_t word;

    if (!comm->page)
        return false;
    word = atomic_load_explicit(&comm->page->to_worker.word, memory_order_acquire);
    return (word & 0xff) == ER_NOTICE_STOP && word >> 8 == comm->generation;
}

/* ---- failures ---- */

/* The first peer that has told of a failure, or -1. Its words explain more than connections that
 * close because of it. */
static int find_told(struct host *h)
{
    for (int i = 0; i < h->comm->size; i++)
        if (er_mesh_peer(h->mesh, i)->life == ER_MESH_FAILED) {
            h->told = er_mesh_peer(h->mesh, i)->in.text;
            return i;
        }
    return -1;
}

/* What a peer's end means for the operation: 0 nothing yet, or a failure. */
static int judge_peer(const struct host *h, const struct er_op *op, int i, uint64_t now,
                      struct er_error *err)
{
    const struct er_mesh_peer *p = er_mesh_peer(h->mesh, i);
    bool left = p->life == ER_MESH_LEFT;
    char text[ER_COMM_OP_TEXT_MAX];

    if (p->life == ER_MESH_ALIVE)
        return 0;
    if (left && p->in.seq < op->desc.seq)
        return er_error_set(err, ER_E_PEER_LOST, "rank %d left the communicator before %s", i,
                            er_op_text(&op->desc, text));
    if (!h->ops->needs(h->transport, i) && (left || now < p->since_us + LOST_GRACE_US))
        return 0;
    if (left && now < p->since_us + LEFT_GRACE_US)
        return 0;
    return er_error_set(err, ER_E_PEER_LOST, "rank %d closed its connection during %s", i,
                        er_op_text(&op->desc, text));
}

/* Who holds the operation up: a peer it needs something from that has not said to be waiting
 * itself.
 */
static int find_silent(const struct host *h, const struct er_op *op)
{
    int needed = -1;

    for (int i = 0; i < h->comm->size; i++) {
        if (i == h->comm->rank || !h->ops->needs(h->transport, i))
            continue;
        if (er_mesh_peer(h->mesh, i)->waiting != op->desc.seq)
            return i;
        needed = needed < 0 ? i : needed;
    }
    return needed;
}

/* Why a blocked operation cannot go on: 0 no reason. */
static int judge(struct host *h, const struct er_op *op, struct er_error *err)
{
    uint64_t now = er_now_us();
    char text[ER_COMM_OP_TEXT_MAX];
    int rc, teller = find_told(h);

    er_op_text(&op->desc, text);
    if (teller >= 0)
        return er_error_set(err, er_mesh_peer(h->mesh, teller)->in.code,
                            "%s (told by rank %d during %s)", h->told, teller, text);
    if (told_to_stop(h->comm))
        return er_error_set(err, ER_E_ABORTED, "rank %d was told by its agent to stop during %s",
                            h->comm->rank, text);
    for (int i = 0; i < h->comm->size; i++) {
        rc = i == h->comm->rank ? 0 : judge_peer(h, op, i, now, err);

        if (rc < 0)
            return rc;
    }
    if (!h->said_waiting && now >= er_deadline_in(h->moved_us, h->comm->op_timeout_us / 2)) {
        er_mesh_tell(h->mesh, ER_MESH_ALIVE, 0, op->desc.seq, "");
        h->said_waiting = true;
    }
    if (now < er_deadline_in(h->moved_us, h->comm->op_timeout_us))
        return 0;
    return er_error_set(err, -ETIMEDOUT, "rank %d made no progress for %.1f s during %s",
                        find_silent(h, op), (double)h->comm->op_timeout_us / 1e6, text);
}

static void fail_and_tell(struct host *h, int code, const struct er_error *why)
{
    if (atomic_load(&h->comm->failed))
        return;
    er_comm_fail(h->comm, code, why);
    /* What we were told is told on, though all have been told: our connections close soon, perhaps
     * before a peer has heard the first word. */
    er_mesh_tell(h->mesh, ER_MESH_FAILED, code, 0, h->told ? h->told : h->comm->failure.text);
}

/* ---- the engine ---- */

static void begin(struct host *h, const struct er_op *op)
{
    if (h->comm->page)
        atomic_store_explicit(&h->comm->page->from_worker.collective, op->desc.seq,
                              memory_order_relaxed);
    h->ops->begin(h->transport, op);
    h->current = op;
    h->moved_us = er_now_us();
    h->said_waiting = false;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/*
 * Carry one operation on: 0 done, ER_IN_PROGRESS at the deadline or when stopping, negative failed.
 * A peer's end is judged only after a further step has found the operation still blocked: what the
 * peer did before its end still counts.
 */
static int drive(struct host *h, const struct er_op *op, uint64_t deadline_us, uint64_t spin_us,
                 struct er_error *err)
{
    uint64_t now;
    int rc;

    if (h->current != op)
        begin(h, op);
    for (;;) {
        rc = h->ops->step(h->transport, err);
        if (rc <= 0)
            return rc;
        now = er_now_us();
        if (rc == ER_STEP_MOVED) {
            h->moved_us = now;
            h->said_waiting = false;
        }
        if (now >= deadline_us || atomic_load_explicit(&h->stopping, memory_order_relaxed))
            return ER_IN_PROGRESS;
        if (rc == ER_STEP_MOVED)
            continue;
        if (h->spin && now < h->moved_us + spin_us) {
            relax();
            continue;
        }
        if (er_mesh_watch(h->mesh))
            continue;
        rc = judge(h, op, err);
        if (rc < 0)
            return rc;
        h->ops->wait(h->transport,
                     deadline_us - now < WAIT_SLICE_US ? deadline_us - now : WAIT_SLICE_US);
    }
}

/* Carry out what stands in the queue, up to the operation `until` (0: all) or the deadline. The
 * caller holds the engine. */
static void run(struct host *h, uint64_t until, uint64_t deadline_us, uint64_t spin_us)
{
    struct er_error why = ER_ERROR_INIT;
    struct er_op *op;

    while ((op = er_comm_next(h->comm)) != NULL) {
        uint64_t seq = op->desc.seq;
        int rc = atomic_load(&h->comm->failed);

        if (!rc)
            rc = drive(h, op, deadline_us, spin_us, &why);
        if (rc == ER_IN_PROGRESS)
            return;
        if (rc < 0)
            fail_and_tell(h, rc, &why);
        h->current = NULL;
        er_comm_finish(h->comm, op, rc);
        if (seq == until)
            return;
    }
}

static void *progress(void *arg)
{
    struct host *h = arg;

    while (!atomic_load(&h->stopping)) {
        uint32_t seen = atomic_load(&h->bell);

        if (er_comm_next(h->comm) && take_engine(h)) {
            run(h, 0, ER_FOREVER, THREAD_SPIN_US);
            release_engine(h);
            continue;
        }
        atomic_store(&h->asleep, 1);
        if (!atomic_load(&h->stopping))
            futex_wait(&h->bell, seen, NULL);
        atomic_store(&h->asleep, 0);
    }
    return NULL;
}

/* The progress thread takes no signals: they belong to the program. */
static int start_thread(struct host *h, struct er_error *err)
{
    pthread_attr_t attr;
    sigset_t all, before;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&h->thread, &attr, progress, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return er_error_set(err, -rc, "start the progress thread: %s", er_error_name(-rc));
    pthread_setname_np(h->thread, "er-progress");
    h->thread_runs = true;
    return 0;
}

/* ---- the backend ---- */

static int open_host(struct er_comm *comm, struct er_error *err)
{
    struct host *h = calloc(1, sizeof(*h));
    struct er_mesh_config config = {.ctx = comm->ctx,
                                    .rank = comm->rank,
                                    .size = comm->size,
                                    .generation = comm->generation,
                                    .name = comm->name,
                                    .address = comm->address,
                                    .transport = comm->transport,
                                    .local = comm->one_host,
                                    .pace_bytes_per_s = comm->pace_bytes_per_s,
                                    .segment_fd = -1};

    if (!h)
        return er_error_set(err, -ENOMEM, "out of memory");
    comm->impl = h;
    h->comm = comm;
    h->deadline_us = er_deadline_in(er_now_us(), comm->open_timeout_us);
    h->ops = comm->transport == ER_TRANSPORT_SHM ? &er_host_shm_ops : &er_host_tcp_ops;
    if (comm->transport == ER_TRANSPORT_SHM && comm->rank == 0) {
        config.segment_fd = er_shm_create(comm->size);
        if (config.segment_fd < 0)
            return er_error_set(err, config.segment_fd, "shared segment: %s",
                                er_error_name(config.segment_fd));
    }
    return er_mesh_open(&h->mesh, &config, err);
}

static int count_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int become_ready(struct host *h, struct er_error *err)
{
    int rc = h->ops->open(&h->transport, h->comm, h->mesh, err);

    if (rc < 0)
        return rc;
    h->spin = er_world(h->comm->ctx)->local_size <= count_cpus();
    return start_thread(h, err);
}

static int connect_host(struct er_comm *comm, uint64_t wait_us, struct er_error *err)
{
    struct host *h = comm->impl;
    uint64_t end_us = er_deadline_in(er_now_us(), wait_us), now;
    char missing[256];
    int rc;

    do {
        now = er_now_us();
        rc = er_mesh_step(h->mesh,
                          now >= end_us                     ? 0
                          : end_us - now < CONNECT_SLICE_US ? end_us - now
                                                            : CONNECT_SLICE_US,
                          err);
        if (rc == 0)
            rc = become_ready(h, err);
        else if (rc > 0 && told_to_stop(comm))
            rc = er_error_set(err, ER_E_ABORTED, "told by the agent to stop while connecting");
        now = er_now_us();
        if (rc > 0 && now >= h->deadline_us) {
            er_mesh_missing(h->mesh, missing, sizeof(missing));
            rc = er_error_set(err, -ETIMEDOUT, "%s within %.1f s (generation %llu)", missing,
                              (double)comm->open_timeout_us / 1e6,
                              (unsigned long long)comm->generation);
        }
    } while (rc > 0 && now < end_us);
    if (rc < 0)
        er_mesh_tell(h->mesh, ER_MESH_FAILED, rc, 0, err ? err->text : "connecting failed");
    return rc;
}

static void post_host(struct er_comm *comm, struct er_op *op, bool async)
{
    if (async) /* else the owner comes at once to carry it out itself */
        ring_bell(comm->impl);
}

/* Until the operation is done; somebody else holds the engine. */
static void sleep_on(struct er_op *op, uint64_t deadline_us)
{
    uint64_t now = er_now_us(), left_us = deadline_us > now ? deadline_us - now : 0;
    struct timespec ts = {.tv_sec = (time_t)(left_us / ER_US_PER_S),
                          .tv_nsec = (long)(left_us % ER_US_PER_S) * 1000};
    uint32_t pending = ER_OP_PENDING;

    atomic_compare_exchange_strong(&op->state, &pending, ER_OP_AWAITED);
    futex_wait(&op->state, ER_OP_AWAITED, deadline_us == ER_FOREVER ? NULL : &ts);
}

static void wait_host(struct er_comm *comm, struct er_op *op, uint64_t deadline_us)
{
    struct host *h = comm->impl;

    while (atomic_load_explicit(&op->state, memory_order_acquire) != ER_OP_DONE &&
           er_now_us() < deadline_us) {
        if (take_engine(h)) {
            run(h, op->desc.seq, deadline_us, OWNER_SPIN_US);
            release_engine(h);
            if (er_comm_next(comm))
                ring_bell(h);
        } else {
            sleep_on(op, deadline_us);
        }
    }
}

/* As judge(), without an operation. */
static int judge_idle(struct host *h, struct er_error *err)
{
    int teller = find_told(h);

    if (teller >= 0)
        return er_error_set(err, er_mesh_peer(h->mesh, teller)->in.code, "%s (told by rank %d)",
                            h->told, teller);
    for (int i = 0; i < h->comm->size; i++) {
        enum er_mesh_life life = er_mesh_peer(h->mesh, i)->life;

        if (life != ER_MESH_ALIVE)
            return er_error_set(err, ER_E_PEER_LOST, "rank %d %s between operations", i,
                                life == ER_MESH_LEFT ? "left" : "closed its connection");
    }
    return 0;
}

static void check_host(struct er_comm *comm)
{
    struct host *h = comm->impl;
    struct er_error why = ER_ERROR_INIT;
    int rc = 0;

    if (atomic_load(&comm->failed) || !take_engine(h))
        return;
    er_mesh_watch(h->mesh);
    if (!er_comm_next(comm))
        rc = judge_idle(h, &why);
    if (rc < 0)
        fail_and_tell(h, rc, &why);
    release_engine(h);
    if (er_comm_next(comm))
        ring_bell(h);
}

static void close_host(struct er_comm *comm)
{
    struct host *h = comm->impl;

    if (!h)
        return;
    atomic_store(&h->stopping, 1);
    if (h->thread_runs) {
        ring_bell(h);
        pthread_join(h->thread, NULL);
    }
    if (h->mesh) /* after a failure peers have heard of that, and do not listen any more */
        er_mesh_tell(h->mesh, ER_MESH_LEFT, ER_E_ABORTED, atomic_load(&comm->finished), "");
    h->ops->close(h->transport);
    er_mesh_close(h->mesh);
    free(h);
    comm->impl = NULL;
}

const struct er_comm_ops er_comm_host_ops = {
    .name = "host",
    .open = open_host,
    .connect = connect_host,
    .post = post_host,
    .wait = wait_host,
    .check = check_host,
    .close = close_host,
};
