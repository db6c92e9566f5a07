#include "runtime/host_tcp_internal.h"

#include <string.h>

#include "runtime/host_algo.h"

static struct er_segment part_of(const struct er_transport *t, int owner)
{
    struct er_segment s = er_algo_segment((size_t)t->op->desc.n, t->comm->size, owner);

    return (struct er_segment){.begin = s.begin * t->width, .end = s.end * t->width};
}

/* Each rank reduces its part, which then goes to all, or to the root. */
static void plan_parted(struct er_transport *t)
{
    struct er_segment mine = part_of(t, t->comm->rank);
    const char *in = t->op->in;
    char *out = t->op->out;
    bool to_root = t->op->desc.kind == ER_OP_REDUCE;
    int root = (int)t->op->desc.root;

    t->own = in + mine.begin;
    t->part_n = mine.end - mine.begin;
    t->part = out ? out + mine.begin : t->lane[t->comm->rank].ring;
    t->part_to = out ? -1 : root;
    for (int i = 0; i < t->comm->size; i++) {
        struct er_segment theirs = part_of(t, i);
        struct lane *l = &t->lane[i];

        l->out_first = in + theirs.begin;
        l->out_first_n = theirs.end - theirs.begin;
        l->in_first_n = t->part_n;
        l->out_second = t->part;
        l->out_second_n = !to_root || i == root ? t->part_n : 0;
        if (out) {
            l->in_second = out + theirs.begin;
            l->in_second_n = theirs.end - theirs.begin;
        }
    }
}

static size_t block_n(const struct er_op *op, int rank)
{
    return er_op_block(op, rank + 1) - er_op_block(op, rank);
}

/* Block r of everybody's array goes to rank r: to be reduced there, or as it is. */
static void plan_scattered(struct er_transport *t, bool reducing)
{
    const struct er_op *op = t->op;
    size_t mine_n = block_n(op, t->comm->rank);

    for (int i = 0; i < t->comm->size; i++) {
        struct lane *l = &t->lane[i];

        l->out_first = (const char *)op->in + er_op_block(op, i);
        l->out_first_n = block_n(op, i);
        l->in_first = reducing ? NULL : (char *)op->out + er_op_block(op, i);
        l->in_first_n = mine_n;
    }
    t->own = t->lane[t->comm->rank].out_first;
    if (reducing) {
        t->part = op->out;
        t->part_n = mine_n;
    } else if (mine_n > 0) {
        memmove(t->lane[t->comm->rank].in_first, t->own, mine_n);
    }
}

/* Everybody's whole contribution to everybody. */
static void plan_gather(struct er_transport *t)
{
    const struct er_op *op = t->op;
    size_t mine_n = block_n(op, t->comm->rank);

    for (int i = 0; i < t->comm->size; i++) {
        struct lane *l = &t->lane[i];

        l->out_first = op->in;
        l->out_first_n = mine_n;
        l->in_first = (char *)op->out + er_op_block(op, i);
        l->in_first_n = block_n(op, i);
    }
    if (mine_n > 0 && t->lane[t->comm->rank].in_first != op->in)
        memmove(t->lane[t->comm->rank].in_first, op->in, mine_n);
}

/* The same, to be reduced once all have come: by everybody, or by the root. */
static void plan_small(struct er_transport *t, size_t n)
{
    bool to_root = t->op->desc.kind == ER_OP_REDUCE;
    int root = (int)t->op->desc.root;

    for (int i = 0; i < t->comm->size; i++) {
        struct lane *l = &t->lane[i];

        l->out_first = t->op->in;
        l->out_first_n = !to_root || i == root ? n : 0;
        l->in_first_n = !to_root || t->comm->rank == root ? n : 0;
    }
    t->whole = !to_root || t->comm->rank == root ? t->op->in : NULL;
}

static void plan_broadcast(struct er_transport *t, size_t n)
{
    const struct er_op *op = t->op;
    int root = (int)op->desc.root;

    for (int i = 0; i < t->comm->size; i++) {
        t->lane[i].out_first = op->in;
        t->lane[i].out_first_n = root == t->comm->rank ? n : 0;
        t->lane[i].in_first = op->out;
        t->lane[i].in_first_n = root == i ? n : 0;
    }
    if (root == t->comm->rank && op->in != op->out && n > 0)
        memcpy(op->out, op->in, n);
}

void er_tcp_plan(struct er_transport *t)
{
    size_t bytes = er_op_bytes(&t->op->desc);

    switch ((enum er_op_kind)t->op->desc.kind) {
    case ER_OP_ALL_REDUCE:
    case ER_OP_REDUCE:
        if (bytes > ER_SMALL_BYTES / (size_t)t->comm->size)
            plan_parted(t);
        else
            plan_small(t, bytes);
        break;
    case ER_OP_BROADCAST:
        plan_broadcast(t, bytes);
        break;
    case ER_OP_ALL_GATHER:
    case ER_OP_VOTE:
        plan_gather(t);
        break;
    case ER_OP_REDUCE_SCATTER:
        plan_scattered(t, true);
        break;
    case ER_OP_ALL_TO_ALL:
        plan_scattered(t, false);
        break;
    case ER_OP_BARRIER:
    case ER_OP_SEND:
    case ER_OP_RECV:
    case ER_OP_KIND_COUNT:
        break;
    }
}

/* The next message of the list to, or from, the lane's peer; NULL: no more. */
static const struct er_op *next_message(const struct er_transport *t, const struct lane *l,
                                        enum er_op_kind kind, int *at)
{
    while (*at < t->ops_n) {
        const struct er_op *op = t->ops[(*at)++];

        if (op->desc.kind == kind && op->desc.root == (uint32_t)(l - t->lane))
            return op;
    }
    return NULL;
}

void er_tcp_load_out(struct er_transport *t, struct lane *l)
{
    l->out = next_message(t, l, ER_OP_SEND, &l->out_at);
    l->sent = 0;
    l->out_first = l->out ? l->out->in : NULL;
    l->out_first_n = l->out ? er_op_bytes(&l->out->desc) : 0;
}

void er_tcp_load_in(struct er_transport *t, struct lane *l)
{
    l->in = next_message(t, l, ER_OP_RECV, &l->in_at);
    l->got = 0;
    l->checked = false;
    l->in_first = l->in ? l->in->out : NULL;
    l->in_first_n = l->in ? er_op_bytes(&l->in->desc) : 0;
}
