#include <stdlib.h>
#include <string.h>

#include "rendezvous/store_mem_internal.h"

/* The embedded store over time: leases, and transactions that are applied late. */

struct mem_lease *mem_lease_find(struct mem_store *s, uint64_t id)
{
    er_list_for_each (node, &s->leases) {
        struct mem_lease *l = ER_LIST_ITEM(node, struct mem_lease, node);

        if (l->id == id)
            return l;
    }
    return NULL;
}

/* One revision for all its keys, as etcd does. */
void mem_lease_end(struct mem_store *s, struct mem_lease *lease)
{
    bool any = false;
    size_t n = 0;

    er_list_remove(&lease->node);
    for (size_t i = 0; i < s->record_n; i++)
        n += s->records[i].kv.lease == lease->id;
    (void)mem_store_reserve(s, n); /* add_event() copes */
    for (size_t i = 0; i < s->record_n;) {
        if (s->records[i].kv.lease != lease->id) {
            i++;
            continue;
        }
        if (!any)
            s->revision++;
        any = true;
        mem_store_delete_at(s, i);
    }
    if (lease->keeper)
        mem_client_lease_lost(lease->keeper, lease);
    free(lease);
}

static void apply_late(struct mem_store *s, struct mem_late *late)
{
    struct mem_reply reply;

    er_list_remove(&late->node);
    if (mem_store_txn(s, &late->txn, &reply) == 0)
        mem_reply_done(&reply);
    free(late);
}

void mem_store_advance(struct mem_store *s, uint64_t now_us)
{
    if (now_us > s->now_us)
        s->now_us = now_us;
    er_list_for_each_safe (node, &s->late) {
        struct mem_late *late = ER_LIST_ITEM(node, struct mem_late, node);

        if (late->due_us <= s->now_us)
            apply_late(s, late);
    }
    er_list_for_each_safe (node, &s->leases) {
        struct mem_lease *l = ER_LIST_ITEM(node, struct mem_lease, node);

        if (!s->out && l->expires_us <= s->now_us)
            mem_lease_end(s, l);
    }
}

uint64_t mem_store_deadline(const struct mem_store *s)
{
    uint64_t at = ER_FOREVER;

    er_list_for_each (node, &s->late) {
        const struct mem_late *late = ER_LIST_ITEM(node, struct mem_late, node);

        at = late->due_us < at ? late->due_us : at;
    }
    er_list_for_each (node, &s->leases) {
        const struct mem_lease *l = ER_LIST_ITEM(node, struct mem_lease, node);

        at = !s->out && l->expires_us < at ? l->expires_us : at;
    }
    return at;
}

/* ---- deep copy of a transaction ---- */

static struct er_bytes keep(char **at, struct er_bytes b)
{
    struct er_bytes copy = {*at, b.len};

    if (b.len)
        memcpy(*at, b.data, b.len);
    *at += b.len;
    return copy;
}

static void copy_ops(char **at, struct er_store_op *to, const struct er_store_op *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = from[i];
        to[i].key = keep(at, from[i].key);
        to[i].value = keep(at, from[i].value);
        to[i].after = (struct er_bytes){NULL, 0}; /* nobody reads the answer */
    }
}

static size_t ops_bytes(const struct er_store_op *ops, size_t n)
{
    size_t bytes = n * sizeof(*ops);

    for (size_t i = 0; i < n; i++)
        bytes += ops[i].key.len + ops[i].value.len;
    return bytes;
}

struct mem_late *mem_txn_copy(const struct er_store_txn *txn)
{
    size_t bytes = sizeof(struct mem_late) + txn->cmp_n * sizeof(*txn->cmps) +
                   ops_bytes(txn->then_ops, txn->then_n) + ops_bytes(txn->else_ops, txn->else_n);
    struct mem_late *late;
    struct er_store_cmp *cmps;
    struct er_store_op *then_ops, *else_ops;
    char *at;

    for (size_t i = 0; i < txn->cmp_n; i++)
        bytes += txn->cmps[i].key.len + txn->cmps[i].value.len;
    late = malloc(bytes);
    if (!late)
        return NULL;
    cmps = (struct er_store_cmp *)(late + 1);
    then_ops = (struct er_store_op *)(cmps + txn->cmp_n);
    else_ops = then_ops + txn->then_n;
    at = (char *)(else_ops + txn->else_n);
    for (size_t i = 0; i < txn->cmp_n; i++) {
        cmps[i] = txn->cmps[i];
        cmps[i].key = keep(&at, txn->cmps[i].key);
        cmps[i].value = keep(&at, txn->cmps[i].value);
    }
    copy_ops(&at, then_ops, txn->then_ops, txn->then_n);
    copy_ops(&at, else_ops, txn->else_ops, txn->else_n);
    late->txn =
        (struct er_store_txn){cmps, txn->cmp_n, then_ops, txn->then_n, else_ops, txn->else_n};
    er_list_init(&late->node);
    return late;
}
