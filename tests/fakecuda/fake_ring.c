#include "tests/fakecuda/fake_ring.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/host_algo.h"
#include "tests/fakecuda/fake.h"

struct pair {
    _Atomic uint64_t head, tail;
    char bytes[RING_PAIR];
};

struct ring_shared {
    _Atomic int attached;
    _Atomic uint32_t bell;
    _Atomic uint64_t arrived[RING_RANKS_MAX];
    struct er_op_desc desc[RING_RANKS_MAX];
    char rest[]; /* (size, 2, RING_SLOT) slots, (size, size) pairs */
};

static char *slot(const struct ring *r, int rank, uint64_t turn)
{
    return r->shared->rest + ((size_t)rank * 2 + turn % 2) * RING_SLOT;
}

static struct pair *pair_of(const struct ring *r, int from, int to)
{
    char *pairs = r->shared->rest + (size_t)r->size * 2 * RING_SLOT;

    return (struct pair *)(pairs +
                           ((size_t)from * (size_t)r->size + (size_t)to) * sizeof(struct pair));
}

/* ---- joining ---- */

static void ring_bell(struct ring *r)
{
    atomic_fetch_add(&r->shared->bell, 1);
    syscall(SYS_futex, &r->shared->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Each rank holds a lock on its byte; the kernel lets go of it with the process. */
static bool peer_lost(struct ring *r)
{
    for (int i = 0; i < r->size; i++) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = i, .l_len = 1};

        if (i != r->rank && fcntl(r->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
            return true;
    }
    return false;
}

/* `seen`: the bell before the caller looked for what it waits for. A peer that is gone is missed
 * only if it did nothing since: its last act may have been what was waited for. */
static void doze(struct ring *r, uint32_t seen)
{
    struct timespec ts = {.tv_nsec = 2000000};

    if (syscall(SYS_futex, &r->shared->bell, FUTEX_WAIT, seen, &ts, NULL, 0) < 0 &&
        atomic_load(&r->shared->attached) == r->size && peer_lost(r) &&
        atomic_load(&r->shared->bell) == seen)
        atomic_store(&r->lost, true);
}

int ring_open(struct ring *r, const char *name, int rank, int size)
{
    struct flock lock = {.l_type = F_WRLCK, .l_start = rank, .l_len = 1};
    size_t ranks = (size_t)size;

    if (size > RING_RANKS_MAX)
        fake_fail("more than %d ranks", RING_RANKS_MAX);
    snprintf(r->name, sizeof(r->name), "%s", name);
    r->rank = rank;
    r->size = size;
    r->bytes =
        sizeof(struct ring_shared) + ranks * 2 * RING_SLOT + ranks * ranks * sizeof(struct pair);
    r->fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r->fd < 0 || ftruncate(r->fd, (off_t)r->bytes) < 0)
        fake_fail("shared memory %s", name);
    r->shared = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (r->shared == MAP_FAILED)
        fake_fail("shared memory %s", name);
    if (fcntl(r->fd, F_OFD_SETLK, &lock) < 0)
        fake_fail("two processes are rank %d of one communicator, or an id was used twice", rank);
    if (atomic_fetch_add(&r->shared->attached, 1) + 1 == size)
        shm_unlink(name);
    ring_bell(r);
    while (atomic_load(&r->shared->attached) < size) {
        uint32_t seen = atomic_load(&r->shared->bell);

        if (atomic_load(&r->abort)) {
            shm_unlink(name);
            return -1;
        }
        if (atomic_load(&r->shared->attached) < size)
            doze(r, seen);
    }
    return 0;
}

void ring_close(struct ring *r)
{
    if (!r->shared)
        return;
    munmap(r->shared, r->bytes);
    close(r->fd);
    r->shared = NULL;
}

void ring_hang(struct ring *r)
{
    while (!atomic_load(&r->abort))
        doze(r, atomic_load(&r->shared->bell));
}

/* ---- collectives ---- */

static bool arrived(const struct ring *r, uint64_t turn)
{
    for (int i = 0; i < r->size; i++)
        if (atomic_load(&r->shared->arrived[i]) < turn)
            return false;
    return true;
}

/* What all have written before is seen by all after. */
static bool meet(struct ring *r)
{
    uint64_t turn = ++r->turn;

    atomic_store(&r->shared->arrived[r->rank], turn);
    ring_bell(r);
    for (;;) {
        uint32_t seen = atomic_load(&r->shared->bell);

        if (arrived(r, turn))
            return true;
        if (atomic_load(&r->abort))
            return false;
        doze(r, seen);
    }
}

/* Different operations: NCCL's kernels would hang or crash. */
static bool agree(struct ring *r, const struct ring_op *op)
{
    struct er_op_desc mine = {.seq = ++r->ops,
                              .n = op->n,
                              .kind = op->kind,
                              .dtype = op->dtype,
                              .reduce = op->reduce,
                              .root = (uint32_t)op->root};

    r->shared->desc[r->rank] = mine;
    if (!meet(r))
        return false;
    for (int i = 0; i < r->size; i++) {
        if (memcmp(&r->shared->desc[i], &mine, sizeof(mine)) == 0)
            continue;
        if (fake_env("FAKE_NCCL_MISMATCH_DIES", 0))
            fake_fail("ranks %d and %d start different operations", r->rank, i);
        ring_hang(r);
        return false;
    }
    return meet(r);
}

static void reduce_slots(const struct ring *r, const struct ring_op *op, void *out, size_t n,
                         uint64_t turn)
{
    const void *src[RING_RANKS_MAX];

    for (int i = 0; i < r->size; i++)
        src[i] = slot(r, i, turn);
    er_algo_reduce(out, src, r->size, n, op->dtype, op->reduce);
}

/* One chunk: `in` NULL: this rank brings nothing. The slots to read are those of the turn before
 * the meeting. */
static bool share(struct ring *r, const void *in, size_t bytes, uint64_t *ret_turn)
{
    *ret_turn = r->turn;
    if (in && bytes)
        memcpy(slot(r, r->rank, r->turn), in, bytes);
    return meet(r);
}

/* The block at `in` of all, reduced, at `out` (NULL: not for this rank). */
static bool reduce(struct ring *r, const struct ring_op *op, const char *in, char *out)
{
    size_t width = er_dtype_size(op->dtype), bytes = op->n * width;

    for (size_t at = 0; at < bytes; at += RING_SLOT) {
        size_t n = bytes - at < RING_SLOT ? bytes - at : RING_SLOT;
        uint64_t turn;

        if (!share(r, in + at, n, &turn))
            return false;
        if (out)
            reduce_slots(r, op, out + at, n / width, turn);
    }
    return true;
}

static bool reduce_scatter(struct ring *r, const struct ring_op *op)
{
    size_t block = op->n * er_dtype_size(op->dtype);
    bool ok = true;

    for (int i = 0; i < r->size && ok; i++)
        ok = reduce(r, op, (const char *)op->in + (size_t)i * block, i == r->rank ? op->out : NULL);
    return ok;
}

static bool gather(struct ring *r, const struct ring_op *op)
{
    size_t bytes = op->n * er_dtype_size(op->dtype);

    for (size_t at = 0; at < bytes; at += RING_SLOT) {
        size_t n = bytes - at < RING_SLOT ? bytes - at : RING_SLOT;
        uint64_t turn;

        if (!share(r, (const char *)op->in + at, n, &turn))
            return false;
        for (int i = 0; i < r->size; i++)
            memcpy((char *)op->out + (size_t)i * bytes + at, slot(r, i, turn), n);
    }
    return true;
}

static bool broadcast(struct ring *r, const struct ring_op *op)
{
    size_t bytes = op->n * er_dtype_size(op->dtype);

    for (size_t at = 0; at < bytes; at += RING_SLOT) {
        size_t n = bytes - at < RING_SLOT ? bytes - at : RING_SLOT;
        uint64_t turn;

        if (!share(r, r->rank == op->root ? (const char *)op->in + at : NULL, n, &turn))
            return false;
        memmove((char *)op->out + at, slot(r, op->root, turn), n);
    }
    return true;
}

static bool collective(struct ring *r, const struct ring_op *op)
{
    if (!agree(r, op))
        return false;
    switch (op->kind) {
    case ER_OP_ALL_REDUCE:
        return reduce(r, op, op->in, op->out);
    case ER_OP_REDUCE:
        return reduce(r, op, op->in, r->rank == op->root ? op->out : NULL);
    case ER_OP_REDUCE_SCATTER:
        return reduce_scatter(r, op);
    case ER_OP_ALL_GATHER:
        return gather(r, op);
    case ER_OP_BROADCAST:
        return broadcast(r, op);
    case ER_OP_ALL_TO_ALL:
    case ER_OP_BARRIER:
    case ER_OP_VOTE:
    case ER_OP_SEND:
    case ER_OP_RECV:
    case ER_OP_KIND_COUNT:
        break;
    }
    fake_fail("not a collective of NCCL's");
}

/* ---- messages ---- */

static bool push(struct ring *r, const struct ring_op *op, size_t *at)
{
    struct pair *p = pair_of(r, r->rank, op->root);
    size_t bytes = op->n * er_dtype_size(op->dtype), begun = *at;
    uint64_t head = atomic_load(&p->head);

    while (*at < bytes && head < atomic_load(&p->tail) + RING_PAIR)
        p->bytes[head++ % RING_PAIR] = ((const char *)op->in)[(*at)++];
    atomic_store(&p->head, head);
    return *at > begun;
}

static bool pull(struct ring *r, const struct ring_op *op, size_t *at)
{
    struct pair *p = pair_of(r, op->root, r->rank);
    size_t bytes = op->n * er_dtype_size(op->dtype), begun = *at;
    uint64_t tail = atomic_load(&p->tail);

    while (*at < bytes && tail < atomic_load(&p->head))
        ((char *)op->out)[(*at)++] = p->bytes[tail++ % RING_PAIR];
    atomic_store(&p->tail, tail);
    return *at > begun;
}

/* Messages of a pair go one after another: an earlier one of the same kind and peer is not done. */
static bool blocked(const struct ring_op *ops, const size_t *at, int i)
{
    for (int k = 0; k < i; k++)
        if (ops[k].kind == ops[i].kind && ops[k].root == ops[i].root &&
            at[k] < ops[k].n * er_dtype_size(ops[k].dtype))
            return true;
    return false;
}

static bool messages(struct ring *r, const struct ring_op *ops, int ops_n)
{
    size_t at[1024] = {0};
    bool moved, left;

    if (ops_n > 1024)
        fake_fail("a group of %d operations", ops_n);
    do {
        uint32_t seen = atomic_load(&r->shared->bell);

        moved = left = false;
        for (int i = 0; i < ops_n; i++) {
            bool sends = ops[i].kind == ER_OP_SEND;

            if ((!sends && ops[i].kind != ER_OP_RECV) || blocked(ops, at, i))
                continue;
            moved |= sends ? push(r, &ops[i], &at[i]) : pull(r, &ops[i], &at[i]);
        }
        for (int i = 0; i < ops_n; i++)
            left |= (ops[i].kind == ER_OP_SEND || ops[i].kind == ER_OP_RECV) &&
                    at[i] < ops[i].n * er_dtype_size(ops[i].dtype);
        if (moved)
            ring_bell(r);
        else if (left)
            doze(r, seen);
    } while (left && !atomic_load(&r->abort));
    return !left;
}

bool ring_run(struct ring *r, const struct ring_op *ops, int ops_n)
{
    bool ok = messages(r, ops, ops_n);

    for (int i = 0; i < ops_n && ok; i++)
        if (ops[i].kind != ER_OP_SEND && ops[i].kind != ER_OP_RECV)
            ok = collective(r, &ops[i]);
    return ok;
}
