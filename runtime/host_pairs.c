#include "runtime/host_pairs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/host_transport.h"

enum {
    RING_MIN_BYTES = 4 << 10,
    RINGS_BYTES = 16 << 20, /* wanted for all together; untouched rings take no memory */
    DESC_BYTES = sizeof(struct er_op_desc)
};

static size_t ring_bytes(int size)
{
    size_t bytes = ER_PAIRS_RING_MAX;

    while (bytes > RING_MIN_BYTES && bytes * (size_t)size * (size_t)size > RINGS_BYTES)
        bytes /= 2;
    return bytes;
}

size_t er_pairs_bytes(int size)
{
    return (size_t)size * (size_t)size * (sizeof(struct er_pairs_ring) + ring_bytes(size));
}

int er_pairs_open(struct er_pairs *p, char *base, int rank, int size)
{
    p->rank = rank;
    p->size = size;
    p->ring_bytes = ring_bytes(size);
    p->base = base;
    p->out = calloc((size_t)size, sizeof(*p->out));
    p->in = calloc((size_t)size, sizeof(*p->in));
    p->moved = calloc((size_t)size, sizeof(*p->moved));
    return p->out && p->in && p->moved ? 0 : -ENOMEM;
}

void er_pairs_close(struct er_pairs *p)
{
    free(p->out);
    free(p->in);
    free(p->moved);
}

static struct er_pairs_ring *ring_of(const struct er_pairs *p, int from, int to)
{
    size_t i = (size_t)from * (size_t)p->size + (size_t)to;

    return (void *)(p->base + i * (sizeof(struct er_pairs_ring) + p->ring_bytes));
}

static void load(const struct er_pairs *p, struct er_pairs_end *end, enum er_op_kind kind, int peer)
{
    end->op = NULL;
    end->done = 0;
    while (!end->op && end->at < p->ops_n) {
        const struct er_op *op = p->ops[end->at++];

        if (op->desc.kind == kind && op->desc.root == (uint32_t)peer)
            end->op = op;
    }
}

void er_pairs_begin(struct er_pairs *p, struct er_op *const *ops, int ops_n)
{
    p->ops = ops;
    p->ops_n = ops_n;
    for (int i = 0; i < p->size; i++) {
        p->out[i].at = p->in[i].at = 0;
        load(p, &p->out[i], ER_OP_SEND, i);
        load(p, &p->in[i], ER_OP_RECV, i);
    }
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* The next stretch of a message that lies in one piece at both sides, at most `room` bytes of it.
 */
static size_t stretch(const struct er_pairs *p, const struct er_pairs_end *end, uint64_t position,
                      uint64_t room)
{
    size_t total = DESC_BYTES + er_op_bytes(&end->op->desc);
    size_t left = end->done < DESC_BYTES ? DESC_BYTES - end->done : total - end->done;

    return smallest(left, (size_t)room, p->ring_bytes - (size_t)(position % p->ring_bytes));
}

static bool complete(const struct er_pairs_end *end)
{
    return end->done == DESC_BYTES + er_op_bytes(&end->op->desc);
}

static void push(struct er_pairs *p, int peer)
{
    struct er_pairs_ring *ring = ring_of(p, p->rank, peer);
    struct er_pairs_end *end = &p->out[peer];
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    while (end->op) {
        uint64_t used = head - atomic_load_explicit(&ring->tail, memory_order_acquire);
        size_t n = used < p->ring_bytes ? stretch(p, end, head, p->ring_bytes - used) : 0;
        const char *from = end->done < DESC_BYTES
                               ? (const char *)&end->op->desc + end->done
                               : (const char *)end->op->in + (end->done - DESC_BYTES);

        if (n == 0)
            break;
        memcpy((char *)(ring + 1) + head % p->ring_bytes, from, n);
        head += n;
        end->done += n;
        atomic_store(&ring->head, head);
        p->moved[peer] = true;
        if (complete(end))
            load(p, end, ER_OP_SEND, peer);
    }
}

static int pull(struct er_pairs *p, int peer, struct er_error *err)
{
    struct er_pairs_ring *ring = ring_of(p, peer, p->rank);
    struct er_pairs_end *end = &p->in[peer];
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    while (end->op) {
        uint64_t there = atomic_load_explicit(&ring->head, memory_order_acquire) - tail;
        size_t n = there <= p->ring_bytes ? stretch(p, end, tail, there) : 0;
        char *to = end->done < DESC_BYTES ? (char *)&end->desc + end->done
                                          : (char *)end->op->out + (end->done - DESC_BYTES);

        if (n == 0)
            break;
        memcpy(to, (char *)(ring + 1) + tail % p->ring_bytes, n);
        tail += n;
        end->done += n;
        atomic_store(&ring->tail, tail);
        p->moved[peer] = true;
        if (end->done == DESC_BYTES) {
            int rc = er_op_agree(&end->op->desc, p->rank, &end->desc, peer, err);

            if (rc < 0)
                return rc;
        }
        if (complete(end))
            load(p, end, ER_OP_RECV, peer);
    }
    return 0;
}

int er_pairs_step(struct er_pairs *p, struct er_error *err)
{
    bool moved = false, left = false;

    for (int i = 0; i < p->size; i++) {
        int rc;

        if (p->out[i].op)
            push(p, i);
        rc = p->in[i].op ? pull(p, i, err) : 0;
        if (rc < 0)
            return rc;
        moved = moved || p->moved[i];
        left = left || er_pairs_needs(p, i);
    }
    if (!left)
        return 0;
    return moved ? ER_STEP_MOVED : ER_STEP_BLOCKED;
}

bool er_pairs_may_step(const struct er_pairs *p)
{
    for (int i = 0; i < p->size; i++) {
        struct er_pairs_ring *out = ring_of(p, p->rank, i), *in = ring_of(p, i, p->rank);

        if (p->out[i].op && atomic_load(&out->head) - atomic_load(&out->tail) < p->ring_bytes)
            return true;
        if (p->in[i].op && atomic_load(&in->head) != atomic_load(&in->tail))
            return true;
    }
    return false;
}

bool er_pairs_needs(const struct er_pairs *p, int peer)
{
    return p->out[peer].op || p->in[peer].op;
}
