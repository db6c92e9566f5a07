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
#include "runtime/host_algo.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    LINE_BYTES = 64,
    DEPTH = 2, /* pieces in flight per rank */
    PIECE_MAX_BYTES = 512 << 10,
    PIECE_MIN_BYTES = 64 << 10,
    SLOTS_BYTES = 4 << 20 /* wanted for all slots together, within the bounds of a piece */
};

_Static_assert(ER_SMALL_BYTES <= PIECE_MIN_BYTES, "a small operation is one piece");

/* Written by its rank, read by all. */
struct shm_rank {
    _Alignas(LINE_BYTES) _Atomic uint32_t in;
    _Atomic uint32_t red, done;
    _Alignas(LINE_BYTES) _Atomic uint32_t bell; /* futex word; rung by peers */
    _Atomic uint32_t asleep;
    _Alignas(LINE_BYTES) struct er_op_desc desc[DEPTH];
};

enum phase { PHASE_IN, PHASE_RED };

struct er_transport {
    const struct er_comm *comm;
    size_t map_bytes, piece_bytes;
    char *map;             /* owned mapping */
    struct shm_rank *rank; /* (size), in the mapping */
    char *slots;           /* (size, DEPTH, piece_bytes), in the mapping */
    const void **src;      /* (size); owned scratch of a reduction */
    uint32_t base;         /* pieces of all earlier operations */
    /* the operation at work */
    const struct er_op *op;
    size_t total;                      /* bytes at one rank */
    bool parted;                       /* each rank reduces its part */
    uint32_t pieces_n, piece, next_in; /* piece: at work; next_in: next to copy in */
    enum phase phase;
};

static size_t piece_bytes(int size)
{
    size_t bytes = (size_t)SLOTS_BYTES / DEPTH / (size_t)size / LINE_BYTES * LINE_BYTES;

    bytes = bytes > PIECE_MAX_BYTES ? PIECE_MAX_BYTES : bytes;
    return bytes < PIECE_MIN_BYTES ? PIECE_MIN_BYTES : bytes;
}

static size_t map_bytes(int size)
{
    return (size_t)size * (sizeof(struct shm_rank) + DEPTH * piece_bytes(size));
}

int er_shm_create(int size)
{
    return er_memfd("elastic-run-comm", map_bytes(size));
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
    madvise(t->map, t->map_bytes, MADV_POPULATE_WRITE); /* else pages come at first use, slower */
    t->rank = (struct shm_rank *)(void *)t->map;
    t->slots = t->map + (size_t)t->comm->size * sizeof(struct shm_rank);
    return 0;
}

static void close_shm(struct er_transport *t)
{
    if (!t)
        return;
    if (t->map)
        munmap(t->map, t->map_bytes);
    free(t->src);
    free(t);
}

ER_CLEANUP_FOR(close_shm, struct er_transport)

static int open_shm(struct er_transport **ret, struct er_comm *comm, struct er_mesh *mesh,
                    struct er_error *err)
{
    ER_CLEANUP(close_shm_cleanup) struct er_transport *t = calloc(1, sizeof(*t));
    ER_CLEANUP(er_cleanup_fd) int fd = er_mesh_take_segment(mesh);
    int rc;

    if (!t)
        return er_error_set(err, -ENOMEM, "shared memory: out of memory");
    t->src = calloc((size_t)comm->size, sizeof(*t->src));
    if (!t->src)
        return er_error_set(err, -ENOMEM, "shared memory: out of memory");
    t->comm = comm;
    t->piece_bytes = piece_bytes(comm->size);
    t->map_bytes = map_bytes(comm->size);
    rc = map_segment(t, fd, err);
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(t);
    return 0;
}

static char *slot_of(const struct er_transport *t, int rank, uint32_t piece)
{
    size_t i = (size_t)rank * DEPTH + (t->base + piece) % DEPTH;

    return t->slots + i * t->piece_bytes;
}

static size_t piece_begin(const struct er_transport *t, uint32_t piece)
{
    return (size_t)piece * t->piece_bytes;
}

static size_t piece_length(const struct er_transport *t, uint32_t piece)
{
    size_t left = t->total - piece_begin(t, piece);

    return left < t->piece_bytes ? left : t->piece_bytes;
}

/* Counters only grow and wrap; they are never further apart than a few pieces. */
static bool reached(uint32_t counter, uint32_t target)
{
    return (int32_t)(counter - target) >= 0;
}

#define ALL_REACHED(t, field, target)                                                              \
    ({                                                                                             \
        bool all_ = true;                                                                          \
        for (int i_ = 0; i_ < (t)->comm->size && all_; i_++)                                       \
            all_ = reached(atomic_load(&(t)->rank[i_].field), (target));                           \
        all_;                                                                                      \
    })

/* Publish a counter and wake who sleeps. Sequentially consistent, as in wait_shm(): either the
 * sleeper sees the counter or we see the sleeper. */
static void publish(struct er_transport *t, _Atomic uint32_t *counter, uint32_t value)
{
    atomic_store(counter, value);
    for (int i = 0; i < t->comm->size; i++) {
        struct shm_rank *r = &t->rank[i];

        if (i == t->comm->rank || !atomic_load(&r->asleep))
            continue;
        atomic_fetch_add_explicit(&r->bell, 1, memory_order_release);
        syscall(SYS_futex, &r->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static void begin_shm(struct er_transport *t, const struct er_op *op)
{
    t->base += t->pieces_n;
    t->op = op;
    t->total = er_op_bytes(&op->desc);
    t->parted =
        op->desc.kind == ER_OP_ALL_REDUCE && t->total > ER_SMALL_BYTES / (size_t)t->comm->size;
    t->pieces_n = t->total ? (uint32_t)((t->total + t->piece_bytes - 1) / t->piece_bytes) : 1;
    t->piece = t->next_in = 0;
    t->phase = PHASE_IN;
}

/* The part of a piece that a rank reduces, in bytes from the beginning of the piece. */
static struct er_segment part(const struct er_transport *t, uint32_t piece, int owner)
{
    size_t width = er_dtype_size((enum er_dtype)t->op->desc.dtype);
    struct er_segment s = er_algo_segment(piece_length(t, piece) / width, t->comm->size, owner);

    return (struct er_segment){.begin = s.begin * width, .end = s.end * width};
}

static void copy_in(struct er_transport *t)
{
    struct shm_rank *me = &t->rank[t->comm->rank];
    const struct er_op *op = t->op;
    uint32_t piece = t->next_in;
    size_t n = piece_length(t, piece);
    const char *from = (const char *)(op->mine ? op->mine : op->buf) + piece_begin(t, piece);
    char *to = slot_of(t, t->comm->rank, piece);

    if (piece == 0)
        me->desc[op->desc.seq % DEPTH] = op->desc;
    if (t->parted) {
        struct er_segment own = part(t, piece, t->comm->rank);

        memcpy(to, from, own.begin);
        memcpy(to + own.end, from + own.end, n - own.end);
    } else if (n > 0 &&
               (op->desc.kind != ER_OP_BROADCAST || op->desc.root == (uint32_t)t->comm->rank)) {
        memcpy(to, from, n);
    }
    t->next_in++;
    publish(t, &me->in, t->base + t->next_in);
}

static int check_descs(const struct er_transport *t, struct er_error *err)
{
    int rc = 0;

    for (int i = 0; i < t->comm->size && rc == 0; i++)
        rc = er_op_agree(&t->op->desc, t->comm->rank, &t->rank[i].desc[t->op->desc.seq % DEPTH], i,
                         err);
    return rc;
}

static void reduce_from_slots(struct er_transport *t, char *dst, struct er_segment bytes,
                              const char *own)
{
    size_t width = er_dtype_size((enum er_dtype)t->op->desc.dtype);

    for (int i = 0; i < t->comm->size; i++)
        t->src[i] = i == t->comm->rank ? own : slot_of(t, i, t->piece) + bytes.begin;
    er_algo_reduce(dst, t->src, t->comm->size, (bytes.end - bytes.begin) / width,
                   (enum er_dtype)t->op->desc.dtype, (enum er_reduce)t->op->desc.reduce);
}

/* Reduce our part into our own slot, where peers fetch it, and home. */
static void reduce_part(struct er_transport *t)
{
    struct er_segment own = part(t, t->piece, t->comm->rank);
    char *home = (char *)t->op->buf + piece_begin(t, t->piece) + own.begin;
    char *dst = slot_of(t, t->comm->rank, t->piece) + own.begin;

    if (own.end > own.begin) {
        reduce_from_slots(t, dst, own, home);
        memcpy(home, dst, own.end - own.begin);
    }
    publish(t, &t->rank[t->comm->rank].red, t->base + t->piece + 1);
    t->phase = PHASE_RED;
}

static void fetch_parts(struct er_transport *t)
{
    char *home = (char *)t->op->buf + piece_begin(t, t->piece);

    for (int i = 0; i < t->comm->size; i++) {
        struct er_segment s = part(t, t->piece, i);

        if (i != t->comm->rank && s.end > s.begin)
            memcpy(home + s.begin, slot_of(t, i, t->piece) + s.begin, s.end - s.begin);
    }
}

static void fetch_gathered(struct er_transport *t)
{
    size_t n = piece_length(t, t->piece), at = piece_begin(t, t->piece);

    for (int i = 0; i < t->comm->size && n > 0; i++) {
        char *to = (char *)t->op->buf + (size_t)i * t->total + at;

        memcpy(to, slot_of(t, i, t->piece), n);
    }
}

/* Everything of this piece that is not reduced in parts. */
static void fetch_whole(struct er_transport *t)
{
    size_t n = piece_length(t, t->piece);
    char *home = (char *)t->op->buf + piece_begin(t, t->piece);
    int root = (int)t->op->desc.root;

    switch ((enum er_op_kind)t->op->desc.kind) {
    case ER_OP_ALL_REDUCE:
        if (n > 0)
            reduce_from_slots(t, home, (struct er_segment){0, n},
                              slot_of(t, t->comm->rank, t->piece));
        break;
    case ER_OP_BROADCAST:
        if (n > 0 && root != t->comm->rank)
            memcpy(home, slot_of(t, root, t->piece), n);
        break;
    case ER_OP_ALL_GATHER:
    case ER_OP_VOTE:
        fetch_gathered(t);
        break;
    case ER_OP_BARRIER:
    case ER_OP_KIND_COUNT:
        break;
    }
}

static void piece_done(struct er_transport *t)
{
    t->piece++;
    t->phase = PHASE_IN;
    publish(t, &t->rank[t->comm->rank].done, t->base + t->piece);
}

static bool may_copy_in(const struct er_transport *t)
{
    return t->next_in < t->pieces_n && t->next_in <= t->piece + 1 &&
           ALL_REACHED(t, done, t->base + t->next_in + 1 - DEPTH);
}

static int step_shm(struct er_transport *t, struct er_error *err)
{
    int rc;

    if (t->piece == t->pieces_n)
        return 0;
    if (t->next_in > t->piece && t->phase == PHASE_IN &&
        ALL_REACHED(t, in, t->base + t->piece + 1)) {
        rc = t->piece == 0 ? check_descs(t, err) : 0;
        if (rc < 0)
            return rc;
        if (t->parted) {
            reduce_part(t);
        } else {
            fetch_whole(t);
            piece_done(t);
        }
    } else if (t->phase == PHASE_RED && ALL_REACHED(t, red, t->base + t->piece + 1)) {
        fetch_parts(t);
        piece_done(t);
    } else if (may_copy_in(t)) {
        copy_in(t);
    } else {
        return ER_STEP_BLOCKED;
    }
    return t->piece == t->pieces_n ? 0 : ER_STEP_MOVED;
}

static bool needs_shm(const struct er_transport *t, int peer)
{
    const struct shm_rank *r = &t->rank[peer];

    if (t->next_in == t->piece) /* our slot is not free yet */
        return !reached(atomic_load(&r->done), t->base + t->piece + 1 - DEPTH);
    if (t->phase == PHASE_RED)
        return !reached(atomic_load(&r->red), t->base + t->piece + 1);
    return !reached(atomic_load(&r->in), t->base + t->piece + 1);
}

static bool may_step(const struct er_transport *t)
{
    if (t->next_in > t->piece &&
        (t->phase == PHASE_RED ? ALL_REACHED(t, red, t->base + t->piece + 1)
                               : ALL_REACHED(t, in, t->base + t->piece + 1)))
        return true;
    return may_copy_in(t);
}

static void wait_shm(struct er_transport *t, uint64_t us)
{
    struct shm_rank *me = &t->rank[t->comm->rank];
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    uint32_t seen = atomic_load_explicit(&me->bell, memory_order_acquire);

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
    .wait = wait_shm,
    .close = close_shm,
};
