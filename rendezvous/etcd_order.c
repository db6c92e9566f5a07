#include "rendezvous/etcd_order.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a: a collision makes one wait for nothing. */
static uint64_t hash(struct er_bytes key)
{
    const unsigned char *at = key.data;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < key.len; i++)
        h = (h ^ at[i]) * 0x100000001b3u;
    return h;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void add_ops(struct er_etcd_touch *t, const struct er_store_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool reads = ops[i].kind == ER_OP_RANGE;

        if (ops[i].prefix && ops[i].kind != ER_OP_PUT)
            *(reads ? &t->prefix_read : &t->prefix_written) = true;
        else if (reads)
            t->read[t->read_n++] = hash(ops[i].key);
        else
            t->written[t->written_n++] = hash(ops[i].key);
    }
}

int er_etcd_touch_init(struct er_etcd_touch *ret, const struct er_store_txn *txn)
{
    size_t ops = txn->then_n + txn->else_n;
    struct er_etcd_touch t = {
        .written = calloc(ops + 1, sizeof(uint64_t)),
        .read = calloc(ops + txn->cmp_n + 1, sizeof(uint64_t)),
    };

    if (!t.written || !t.read) {
        er_etcd_touch_done(&t);
        return -ENOMEM;
    }
    for (size_t i = 0; i < txn->cmp_n; i++) {
        if (txn->cmps[i].prefix)
            t.prefix_read = true;
        else
            t.read[t.read_n++] = hash(txn->cmps[i].key);
    }
    add_ops(&t, txn->then_ops, txn->then_n);
    add_ops(&t, txn->else_ops, txn->else_n);
    qsort(t.written, t.written_n, sizeof(uint64_t), by_value);
    qsort(t.read, t.read_n, sizeof(uint64_t), by_value);
    *ret = t;
    return 0;
}

void er_etcd_touch_done(struct er_etcd_touch *t)
{
    free(t->written);
    free(t->read);
    memset(t, 0, sizeof(*t));
}

static bool intersect(const uint64_t *a, size_t a_n, const uint64_t *b, size_t b_n)
{
    size_t i = 0, k = 0;

    while (i < a_n && k < b_n) {
        if (a[i] == b[k])
            return true;
        if (a[i] < b[k])
            i++;
        else
            k++;
    }
    return false;
}

/* Does what `a` writes matter to `b`? */
static bool writes_into(const struct er_etcd_touch *a, const struct er_etcd_touch *b)
{
    bool b_writes = b->written_n || b->prefix_written, b_reads = b->read_n || b->prefix_read;

    if (a->prefix_written)
        return b_writes || b_reads;
    if (a->written_n && (b->prefix_written || b->prefix_read))
        return true;
    return intersect(a->written, a->written_n, b->written, b->written_n) ||
           intersect(a->written, a->written_n, b->read, b->read_n);
}

bool er_etcd_touch_conflict(const struct er_etcd_touch *a, const struct er_etcd_touch *b)
{
    return writes_into(a, b) || writes_into(b, a);
}
