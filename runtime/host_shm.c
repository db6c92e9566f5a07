#include "runtime/host_shm.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "runtime/host_shm_internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    PIECE_MAX_BYTES = 1 << 20,
    PIECE_MIN_BYTES = 64 << 10,
    SLOTS_BYTES = 8 << 20 /* wanted for all slots together, within the bounds of a piece */
};

_Static_assert(ER_SMALL_BYTES <= PIECE_MIN_BYTES, "a small operation is one piece");

static size_t piece_bytes(int size)
{
    size_t bytes = (size_t)SLOTS_BYTES / DEPTH / (size_t)size / LINE_BYTES * LINE_BYTES;

    bytes = bytes > PIECE_MAX_BYTES ? PIECE_MAX_BYTES : bytes;
    return bytes < PIECE_MIN_BYTES ? PIECE_MIN_BYTES : bytes;
}

/* Counters and slots; the rings of messages follow. */
static size_t slots_end(int size)
{
    return (size_t)size * (sizeof(struct shm_rank) + DEPTH * piece_bytes(size));
}

static size_t map_bytes(int size)
{
    return slots_end(size) + er_pairs_bytes(size);
}

int er_shm_create(int size)
{
    return er_memfd("elastic-run-comm", map_bytes(size));
}

/* Else pages come at first use, slower. Each rank its own slots: fresh pages are most of the time
 * that connecting takes, and the peers' are mapped many at a time once they are there. Messages are
 * rarer. */
static void populate_own(struct er_transport *t)
{
    size_t bytes = DEPTH * t->piece_bytes, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t at = (size_t)(t->slots - t->map) + (size_t)t->comm->rank * bytes;

    madvise(t->map + at / page * page, bytes + at % page, MADV_POPULATE_WRITE);
}

/* A peer handed us this descriptor: it must be as long as we expect and unable to shrink. */
static int map_segment(struct er_transport *t, int fd, struct er_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (fstat(fd, &st) < 0 || (size_t)st.st_size != t->map_bytes || seals < 0 ||
        !(seals & F_SEAL_SHRINK))
        return er_error_set(err, ER_E_PROTOCOL, "the shared segment of rank 0 is not as expected");
    t->map = mmap(NULL, t->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (t->map == MAP_FAILED) {
        t->map = NULL;
        return er_error_errno(err, "map the shared segment (%zu bytes)", t->map_bytes);
    }
    t->rank = (struct shm_rank *)(void *)t->map;
    t->slots = t->map + (size_t)t->comm->size * sizeof(struct shm_rank);
    populate_own(t);
    return 0;
}

static void say_cpus(struct shm_rank *me)
{
    uint64_t words[CPU_WORDS] = {0};
    long n = syscall(SYS_sched_getaffinity, 0, sizeof(words), words); /* fails beyond 1024 CPUs */

    for (int i = 0; i < CPU_WORDS && n > 0; i++)
        atomic_store_explicit(&me->cpus[i], words[i], memory_order_relaxed);
}

bool er_shm_roomy(const struct er_transport *t)
{
    uint64_t all[CPU_WORDS] = {0};
    int n = 0;

    for (int i = 0; i < t->comm->size; i++) {
        uint64_t any = 0;

        for (int w = 0; w < CPU_WORDS; w++) {
            uint64_t word = atomic_load_explicit(&t->rank[i].cpus[w], memory_order_relaxed);

            all[w] |= word;
            any |= word;
        }
        if (!any)
            return false;
    }
    for (int w = 0; w < CPU_WORDS; w++)
        n += __builtin_popcountll(all[w]);
    return n >= t->comm->size;
}

static void close_shm(struct er_transport *t)
{
    if (!t)
        return;
    if (t->map)
        munmap(t->map, t->map_bytes);
    er_pairs_close(&t->pairs);
    free(t->src);
    free(t->aside);
    free(t);
}

ER_CLEANUP_FOR(close_shm, struct er_transport)

static int open_shm(struct er_transport **ret, struct er_comm *comm, struct er_mesh *mesh,
                    struct er_error *err)
{
    ER_CLEANUP(close_shm_cleanup) struct er_transport *t = calloc(1, sizeof(*t));
    ER_CLEANUP(er_cleanup_fd) int fd = er_mesh_take_segment(mesh);
    size_t others = (size_t)comm->size - 1;
    int rc;

    if (!t)
        return er_error_set(err, -ENOMEM, "shared memory: out of memory");
    t->src = calloc((size_t)comm->size, sizeof(*t->src));
    t->aside = malloc(HOME_BYTES);
    if (!t->src || !t->aside)
        return er_error_set(err, -ENOMEM, "shared memory: out of memory");
    t->comm = comm;
    t->piece_bytes = piece_bytes(comm->size);
    t->region_bytes = t->piece_bytes / (others ? others : 1) / LINE_BYTES * LINE_BYTES;
    t->map_bytes = map_bytes(comm->size);
    rc = map_segment(t, fd, err);
    if (rc < 0)
        return rc;
    if (er_pairs_open(&t->pairs, t->map + slots_end(comm->size), comm->rank, comm->size) < 0)
        return er_error_set(err, -ENOMEM, "shared memory: out of memory");
    say_cpus(&t->rank[comm->rank]);
    *ret = ER_TAKE(t);
    return 0;
}

/* Counters only grow and wrap; they are never further apart than a few pieces. */
static bool reached(uint32_t counter, uint32_t target)
{
    return (int32_t)(counter - target) >= 0;
}

static void wake(struct shm_rank *r)
{
    if (!atomic_load(&r->asleep))
        return;
    atomic_fetch_add_explicit(&r->bell, 1, memory_order_release);
    syscall(SYS_futex, &r->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Whether all ranks' counters of this kind have come as far as `value`: `mine` is one of them. */
static bool last_to_reach(const struct er_transport *t, const _Atomic uint32_t *mine,
                          uint32_t value)
{
    size_t at = (size_t)((const char *)mine - (const char *)&t->rank[t->comm->rank]);

    for (int i = 0; i < t->comm->size; i++)
        if (!reached(atomic_load(
                         (const _Atomic uint32_t *)(const void *)((const char *)&t->rank[i] + at)),
                     value))
            return false;
    return true;
}

/* Whether all ranks have brought piece t->piece in, or reduced it. What that says of earlier pieces
 * saves looking at their `done`: who is at an operation has finished those before it. */
static bool all_in(struct er_transport *t)
{
    uint32_t target = t->base + t->piece + 1;

    for (int i = 0; i < t->comm->size; i++)
        if (!reached(atomic_load(&mail_of(t, i, t->piece)->in), target))
            return false;
    t->cleared = t->piece == 0 ? t->base : t->cleared;
    return true;
}

static bool all_red(struct er_transport *t)
{
    for (int i = 0; i < t->comm->size; i++)
        if (!reached(atomic_load(&t->rank[i].red), t->base + t->piece + 1))
            return false;
    t->cleared = t->base + t->piece;
    return true;
}

/* Whether all have finished so many pieces. */
static bool all_done(struct er_transport *t, uint32_t target)
{
    for (int i = 0; i < t->comm->size && !reached(t->cleared, target); i++)
        if (!reached(atomic_load(&t->rank[i].done), target))
            return false;
    return true;
}

/*
 * Publish a counter. Sleepers wait until all have come as far as this, so it is the last one who
 * wakes them. Sequentially consistent, as in wait_shm(): either the sleeper sees the counter or we
 * see the sleeper.
 */
static void publish(struct er_transport *t, _Atomic uint32_t *counter, uint32_t value)
{
    atomic_store(counter, value);
    if (t->comm->size > 2 && !last_to_reach(t, counter, value))
        return;
    for (int i = 0; i < t->comm->size; i++)
        if (i != t->comm->rank)
            wake(&t->rank[i]);
}

static void begin_shm(struct er_transport *t, struct er_op *const *ops, int ops_n)
{
    t->base += t->pieces_n;
    t->pieces_n = t->piece = t->next_in = 0;
    t->phase = PHASE_IN;
    t->op = er_op_is_pair(&ops[0]->desc) ? NULL : ops[0];
    if (!t->op) {
        er_pairs_begin(&t->pairs, ops, ops_n);
        return;
    }
    er_shm_plan(t);
    t->pieces_n = t->total ? (uint32_t)((t->total + t->unit - 1) / t->unit) : 1;
}

static void bring_in(struct er_transport *t)
{
    struct shm_mail *mail = mail_of(t, t->comm->rank, t->next_in);

    if (t->next_in == 0)
        mail->desc = t->op->desc;
    er_shm_copy_in(t);
    t->next_in++;
    publish(t, &mail->in, t->base + t->next_in);
}

static int check_descs(const struct er_transport *t, struct er_error *err)
{
    int rc = 0;

    for (int i = 0; i < t->comm->size && rc == 0; i++)
        rc = er_op_agree(&t->op->desc, t->comm->rank, &mail_of(t, i, 0)->desc, i, err);
    return rc;
}

static void part_done(struct er_transport *t)
{
    publish(t, &t->rank[t->comm->rank].red, t->base + t->piece + 1);
    t->phase = PHASE_RED;
}

/* Nobody waits for the end of the last piece: that all have begun the next operation says it. */
static void piece_done(struct er_transport *t)
{
    _Atomic uint32_t *done = &t->rank[t->comm->rank].done;

    t->piece++;
    t->phase = PHASE_IN;
    if (t->piece < t->pieces_n)
        publish(t, done, t->base + t->piece);
    else
        atomic_store_explicit(done, t->base + t->piece, memory_order_release);
}

static bool may_copy_in(struct er_transport *t)
{
    return t->next_in < t->pieces_n && t->next_in < t->piece + DEPTH &&
           all_done(t, t->base + t->next_in + 1 - DEPTH);
}

static int step_messages(struct er_transport *t, struct er_error *err)
{
    int rc = er_pairs_step(&t->pairs, err);

    for (int i = 0; i < t->comm->size; i++) {
        if (t->pairs.moved[i])
            wake(&t->rank[i]);
        t->pairs.moved[i] = false;
    }
    return rc;
}

static int step_shm(struct er_transport *t, struct er_error *err)
{
    int rc;

    if (!t->op)
        return step_messages(t, err);
    if (t->piece == t->pieces_n)
        return 0;
    if (t->next_in > t->piece && t->phase == PHASE_IN && all_in(t)) {
        rc = t->piece == 0 ? check_descs(t, err) : 0;
        if (rc < 0)
            return rc;
        er_shm_fetch(t);
        t->plan == PLAN_PARTED ? part_done(t) : piece_done(t);
    } else if (t->phase == PHASE_RED && all_red(t)) {
        er_shm_fetch_parts(t);
        piece_done(t);
    } else if (may_copy_in(t)) {
        bring_in(t);
    } else {
        return ER_STEP_BLOCKED;
    }
    return t->piece == t->pieces_n ? 0 : ER_STEP_MOVED;
}

static bool needs_shm(const struct er_transport *t, int peer)
{
    const struct shm_rank *r = &t->rank[peer];

    if (!t->op)
        return er_pairs_needs(&t->pairs, peer);
    if (t->next_in == t->piece) /* our slot is not free yet */
        return !reached(atomic_load(&r->done), t->base + t->piece + 1 - DEPTH);
    if (t->phase == PHASE_RED)
        return !reached(atomic_load(&r->red), t->base + t->piece + 1);
    return !reached(atomic_load(&mail_of(t, peer, t->piece)->in), t->base + t->piece + 1);
}

static const struct er_op *sending_shm(const struct er_transport *t, int peer)
{
    return t->pairs.out[peer].op;
}

static const struct er_op *receiving_shm(const struct er_transport *t, int peer)
{
    return t->pairs.in[peer].op;
}

static bool may_step(struct er_transport *t)
{
    if (!t->op)
        return er_pairs_may_step(&t->pairs);
    if (t->next_in > t->piece && (t->phase == PHASE_RED ? all_red(t) : all_in(t)))
        return true;
    return may_copy_in(t);
}

static void wait_shm(struct er_transport *t, uint64_t us, bool bulk)
{
    struct shm_rank *me = &t->rank[t->comm->rank];
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    uint32_t seen = atomic_load_explicit(&me->bell, memory_order_acquire);

    (void)bulk;
    atomic_store(&me->asleep, 1);
    if (!may_step(t))
        syscall(SYS_futex, &me->bell, FUTEX_WAIT, seen, &ts, NULL, 0);
    atomic_store_explicit(&me->asleep, 0, memory_order_relaxed);
}

const struct er_transport_ops er_host_shm_ops = {
    .open = open_shm,
    .begin = begin_shm,
    .step = step_shm,
    .needs = needs_shm,
    .sending = sending_shm,
    .receiving = receiving_shm,
    .roomy = er_shm_roomy,
    .eager_bytes = ER_PAIRS_RING_MAX,
    .wait = wait_shm,
    .close = close_shm,
};
