/*
 * Backend `host`: the progress thread, operations, failures.
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
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/host_internal.h"
#include "runtime/host_shm.h"

enum {
    WAIT_SLICE_US = 1000, /* between looks at peers and at the agent's notice */
    BULK_SLICE_US = 2000, /* instead, while bytes keep coming */
    AT_FIRST_STOP = 0,    /* a deadline: as soon as a peer is to be waited for */
    QUICK_SPINS = 32,     /* before that: 1 to 2 us, about what waking a thread costs */
    QUICK_YIELDS = 16,    /* instead, where ranks share CPUs: the one that is waited for runs */
    AT_ONCE_BYTES = 512 << 10, /* over all ranks: 10 to 30 us with two */
    OWNER_SPIN_US = 50,        /* its core has nothing else to do */
    THREAD_SPIN_US = 5,        /* its core may be computing */
    TICK_US = 250,             /* between looks of a progress thread that is not woken */
    TICKS_IDLE = 40,           /* without a new operation: it sleeps until it is woken */
    AT_ONCE_LEAST = 16,        /* operations in a row for which the owner came at once ... */
    AT_ONCE_US = 20            /* ... that is, so soon */
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

/*
 * The next unit of the batch: first all its messages, which go side by side, then each collective
 * alone. False: there is none.
 */
static bool next_unit(struct host *h, const struct er_op *first)
{
    bool messages = h->batch != first;

    if (messages) {
        h->batch = first;
        h->batch_at = 0;
    }
    h->unit_n = 0;
    for (uint32_t i = messages ? 0 : h->batch_at; i < first->batch; i++) {
        struct er_op *op = er_comm_at(h->comm, first->number + i);

        if (er_op_is_pair(&op->desc) != messages)
            continue;
        h->unit[h->unit_n++] = op;
        if (messages)
            continue;
        h->batch_at = i + 1;
        return true;
    }
    return h->unit_n > 0 || (messages && next_unit(h, first));
}

static void begin_unit(struct host *h)
{
    for (int i = 0; i < h->unit_n; i++) {
        const struct er_op_desc *desc = &h->unit[i]->desc;

        if (desc->kind == ER_OP_SEND)
            h->sent[desc->root] = desc->seq;
        else if (desc->kind == ER_OP_RECV)
            h->received[desc->root] = desc->seq;
        else
            h->collectives = desc->seq;
    }
    if (h->comm->page && h->unit[0]->number > h->comm->hidden)
        atomic_store_explicit(&h->comm->page->from_worker.collective,
                              h->unit[0]->number - h->comm->hidden, memory_order_relaxed);
    if (!h->spin && h->ops->roomy && h->ops->roomy(h->transport))
        h->spin = true;
    h->ops->begin(h->transport, h->unit, h->unit_n);
    h->moved_us = 0; /* drive() looks at the clock when it must */
    h->said_waiting = false;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* How to wait for bytes: before sleeping, so many steps where ranks have CPUs of their own, so many
 * where they share them, or so long; then in a way that wakes rather seldom than soon (bulk). */
struct patience {
    int spins, yields;
    uint64_t spin_us;
    bool bulk;
};

static const struct patience owners = {QUICK_SPINS, QUICK_YIELDS, OWNER_SPIN_US, false};
/* Its core may be computing. It does not yield to that: it would give up its slice, and come late
 * to the bytes that it will soon be woken for. */
static const struct patience threads = {QUICK_SPINS, 0, THREAD_SPIN_US, true};

/* Carry the unit on: 0 done, ER_IN_PROGRESS at the deadline or when stopping, negative failed. */
static int drive(struct host *h, uint64_t deadline_us, const struct patience *patience,
                 struct er_error *err)
{
    bool moved = false; /* since the clock was read, which costs as much as a small step */
    uint64_t now, slice_us;
    int rc, quick = 0;

    for (;;) {
        rc = h->ops->step(h->transport, err);
        if (rc <= 0)
            return rc;
        if (rc == ER_STEP_MOVED && (!moved || deadline_us == AT_FIRST_STOP)) {
            moved = true;
            continue;
        }
        if (rc == ER_STEP_BLOCKED && quick++ < (h->spin ? patience->spins : patience->yields)) {
            h->spin ? relax() : (void)sched_yield();
            continue;
        }
        now = er_now_us();
        if (rc == ER_STEP_MOVED || moved || !h->moved_us) {
            h->moved_us = now;
            h->said_waiting = false;
            moved = false;
        }
        if (now >= deadline_us || atomic_load_explicit(&h->stopping, memory_order_relaxed))
            return ER_IN_PROGRESS;
        if (rc == ER_STEP_MOVED)
            continue;
        if (h->spin && now < h->moved_us + patience->spin_us) {
            relax();
            continue;
        }
        if (er_mesh_watch(h->mesh))
            continue;
        rc = er_host_judge(h, err);
        if (rc < 0)
            return rc;
        slice_us =
            patience->bulk && now < h->moved_us + WAIT_SLICE_US ? BULK_SLICE_US : WAIT_SLICE_US;
        h->ops->wait(h->transport, deadline_us - now < slice_us ? deadline_us - now : slice_us,
                     patience->bulk);
    }
}

static int drive_batch(struct host *h, const struct er_op *first, uint64_t deadline_us,
                       const struct patience *patience, struct er_error *err)
{
    int rc;

    for (;;) {
        if (h->unit_n == 0) {
            if (!next_unit(h, first))
                return 0;
            begin_unit(h);
        }
        rc = drive(h, deadline_us, patience, err);
        if (rc != 0)
            return rc;
        h->unit_n = 0;
    }
}

/* Carry out what stands in the queue, up to the operation `until` (0: all) or the deadline. The
 * caller holds the engine. */
static void run(struct host *h, uint64_t until, uint64_t deadline_us,
                const struct patience *patience)
{
    struct er_error why = ER_ERROR_INIT;
    struct er_op *first;

    while ((first = er_comm_next(h->comm)) != NULL) {
        uint64_t last = first->number + first->batch - 1;
        int rc = atomic_load(&h->comm->failed);

        if (!rc)
            rc = drive_batch(h, first, deadline_us, patience, &why);
        if (rc == ER_IN_PROGRESS)
            return;
        if (rc < 0)
            fail_and_tell(h, rc, &why);
        h->batch = NULL;
        h->unit_n = 0;
        er_comm_finish(h->comm, first, rc);
        if (until && last >= until)
            return;
    }
}

/* What the progress thread remembers between ticks. */
struct ticks {
    uint64_t begun;
    int idle_n;
};

/*
 * Until the bell rings. While the owner is lazy (post_host()) the thread looks for work itself now
 * and then. It stops that before it looks for the last time, and the owner looks whether it ticks
 * after it has published an operation: either sees the other.
 */
static void doze(struct host *h, uint32_t seen, struct ticks *ticks)
{
    static const struct timespec tick = {.tv_nsec = TICK_US * 1000L};
    bool lazy = atomic_load(&h->lazy);
    uint64_t begun;

    if (lazy != (atomic_load_explicit(&h->ticking, memory_order_relaxed) != 0)) {
        atomic_store(&h->ticking, lazy);
        ticks->idle_n = 0;
        return;
    }
    atomic_store(&h->asleep, 1);
    if (!atomic_load(&h->stopping))
        futex_wait(&h->bell, seen, lazy ? &tick : NULL);
    atomic_store(&h->asleep, 0);
    if (!lazy)
        return;
    begun = atomic_load_explicit(&h->comm->begun, memory_order_relaxed);
    ticks->idle_n = begun == ticks->begun ? ticks->idle_n + 1 : 0;
    ticks->begun = begun;
    if (ticks->idle_n >= TICKS_IDLE)
        atomic_store(&h->lazy, 0);
}

void er_host_progress(struct host *h)
{
    struct ticks ticks = {0};

    while (!atomic_load(&h->stopping)) {
        uint32_t seen = atomic_load(&h->bell);

        if (er_comm_next(h->comm) && take_engine(h)) {
            run(h, 0, ER_FOREVER, &threads);
            release_engine(h);
            continue;
        }
        doze(h, seen, &ticks);
    }
}

/* ---- the backend ---- */

/*
 * A small collective whose peers come to it at about the same time is over before the bell would
 * have woken the progress thread. Returns whether it is.
 */
static bool finish_at_once(struct host *h)
{
    const struct er_op *op = er_comm_next(h->comm);

    if (!h->spin || h->ops != &er_host_shm_ops || !op || op->number != h->comm->staged ||
        er_op_is_pair(&op->desc) ||
        er_op_bytes(&op->desc) > AT_ONCE_BYTES / (size_t)h->comm->size || !take_engine(h))
        return false;
    run(h, op->number, AT_FIRST_STOP, &owners);
    release_engine(h);
    return er_comm_next(h->comm) == NULL;
}

/*
 * Waking the progress thread costs a system call and, where it shares the owner's CPU, two
 * switches: for nothing if the owner comes to wait at once. An owner that did so for the last
 * operations is trusted to do so again. If it does not, the thread finds the operation at its next
 * tick.
 */
static void post_host(struct er_comm *comm, bool async)
{
    struct host *h = comm->impl;
    bool lazy;

    if (!async || finish_at_once(h)) /* the owner comes at once to carry it out */
        return;
    h->at_once_n = h->came_at_once ? h->at_once_n + 1 : 0;
    h->came_at_once = false;
    lazy = h->at_once_n >= AT_ONCE_LEAST;
    atomic_store(&h->lazy, lazy);
    if (!lazy || !atomic_load(&h->ticking))
        ring_bell(h); /* and the thread may run in our place before this returns */
    h->posted = comm->staged;
    h->posted_us = er_now_us();
}

static void come_host(struct er_comm *comm, const struct er_op *op)
{
    struct host *h = comm->impl;

    if (op->number == h->posted && er_now_us() <= h->posted_us + AT_ONCE_US)
        h->came_at_once = true;
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
            run(h, op->number, deadline_us, &owners);
            release_engine(h);
            if (er_comm_next(comm))
                ring_bell(h);
        } else {
            sleep_on(op, deadline_us);
        }
    }
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
        rc = er_host_judge_idle(h, &why);
    if (rc < 0)
        fail_and_tell(h, rc, &why);
    release_engine(h);
    if (er_comm_next(comm))
        ring_bell(h);
}

/* Whoever holds the engine, now or in a moment, finds the wish. */
static void fail_host(struct er_comm *comm, int code, const struct er_error *why)
{
    struct host *h = comm->impl;

    if (atomic_load(&h->asked) || !comm->ready)
        return;
    h->ask = *why;
    atomic_store(&h->asked, code);
    check_host(comm);
}

static int look_host(struct er_comm *comm, bool *ret_left, struct er_error *err)
{
    struct host *h = comm->impl;
    int rc = er_comm_check(comm, err);

    *ret_left = false;
    if (rc || er_comm_next(comm) || !take_engine(h))
        return rc;
    er_mesh_watch(h->mesh);
    if (!er_comm_next(comm))
        rc = er_host_judge_idle(h, err);
    *ret_left = rc < 0;
    for (int i = 0; i < comm->size; i++)
        if (er_mesh_peer(h->mesh, i)->life != ER_MESH_ALIVE &&
            er_mesh_peer(h->mesh, i)->life != ER_MESH_LEFT)
            *ret_left = false;
    release_engine(h);
    if (er_comm_next(comm))
        ring_bell(h);
    return rc;
}

static void say_waiting_host(struct er_comm *comm, uint64_t first, uint32_t n)
{
    struct host *h = comm->impl;

    if (!take_engine(h))
        return;
    er_host_say_waiting(h, first, n);
    release_engine(h);
    if (er_comm_next(comm))
        ring_bell(h);
}

static int find_silent_host(struct er_comm *comm, uint64_t first, uint32_t n)
{
    return er_host_find_silent(comm->impl, first, n);
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
        er_mesh_tell(h->mesh, ER_MESH_LEFT, ER_E_ABORTED, atomic_load(&comm->collectives_done), "");
    if (h->ops)
        h->ops->close(h->transport);
    er_mesh_close(h->mesh);
    free(h->sent);
    free(h->received);
    free(h);
    comm->impl = NULL;
}

const struct er_comm_ops er_comm_host_ops = {
    .name = "host",
    .open = er_host_open,
    .connect = er_host_connect,
    .post = post_host,
    .come = come_host,
    .wait = wait_host,
    .check = check_host,
    .close = close_host,
    .fail = fail_host,
    .look = look_host,
    .say_waiting = say_waiting_host,
    .find_silent = find_silent_host,
};
