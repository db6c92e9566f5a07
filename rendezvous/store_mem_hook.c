#include "rendezvous/store_mem.h"

#include <errno.h>

#include "rendezvous/store_mem_internal.h"

/* Looks and faults, for tests. */

void mem_client_keep(struct mem_client *c, bool keep)
{
    er_list_for_each (node, &c->store->leases) {
        struct mem_lease *l = ER_LIST_ITEM(node, struct mem_lease, node);

        if (l->keeper == c)
            l->expires_us = keep ? ER_FOREVER : er_deadline_in(c->store->now_us, l->ttl_us);
    }
}

uint64_t er_store_mem_revision(const struct er_store *store)
{
    return mem_client_of(store)->store->revision;
}

const struct er_store_kv *er_store_mem_peek(const struct er_store *store, struct er_bytes key)
{
    const struct mem_record *r = mem_store_get(mem_client_of(store)->store, key);

    return r ? &r->kv : NULL;
}

void er_store_mem_fault(struct er_store *store, enum er_store_mem_fault fault, uint64_t delay_us)
{
    mem_client_of(store)->fault = fault;
    mem_client_of(store)->fault_delay_us = delay_us;
}

void er_store_mem_delay(struct er_store *store, uint64_t reply_us, uint64_t watch_us)
{
    mem_client_of(store)->reply_delay_us = reply_us;
    mem_client_of(store)->watch_delay_us = watch_us;
}

void er_store_mem_lag(struct er_store *store, struct er_bytes key, uint64_t lag_us)
{
    mem_client_of(store)->lag_key = key;
    mem_client_of(store)->lag_us = lag_us;
}

/* Cut off or deaf begins or ends. */
static void note_reach(struct mem_client *c, bool within)
{
    if (within)
        c->resumed_us = c->store->now_us;
    else
        c->cut_us = c->store->now_us;
}

void er_store_mem_cut(struct er_store *store, bool cut)
{
    struct mem_client *c = mem_client_of(store);

    if (c->cut == cut)
        return;
    c->cut = cut;
    note_reach(c, !cut);
    mem_client_keep(c, !cut);
}

int er_store_mem_drop_lease(struct er_store *store, uint64_t lease)
{
    struct mem_lease *l = mem_lease_find(mem_client_of(store)->store, lease);

    if (!l)
        return -ENOENT;
    mem_lease_end(mem_client_of(store)->store, l);
    return 0;
}

size_t er_store_mem_leases(const struct er_store *store)
{
    size_t n = 0;

    er_list_for_each (node, &mem_client_of(store)->store->leases)
        n++;
    return n;
}

void er_store_mem_compact(struct er_store *store, uint64_t rev)
{
    mem_store_compact(mem_client_of(store)->store, rev);
}

void er_store_mem_wipe(struct er_store *store)
{
    struct mem_store *s = mem_client_of(store)->store;

    er_list_for_each (node, &s->clients)
        mem_client_wiped(ER_LIST_ITEM(node, struct mem_client, node));
    mem_store_wipe(s);
}

void er_store_mem_deaf(struct er_store *store, bool deaf)
{
    struct mem_client *c = mem_client_of(store);

    if (c->deaf == deaf)
        return;
    c->deaf = deaf;
    note_reach(c, !deaf);
}

void er_store_mem_skew(struct er_store *store, int64_t skew_us)
{
    mem_client_of(store)->skew_us = skew_us;
}

void er_store_mem_outage(struct er_store *store, bool out)
{
    struct mem_store *s = mem_client_of(store)->store;

    s->out = out;
    if (out)
        return;
    er_list_for_each (node, &s->leases) {
        struct mem_lease *l = ER_LIST_ITEM(node, struct mem_lease, node);

        if (l->expires_us != ER_FOREVER)
            l->expires_us = er_deadline_in(s->now_us, l->ttl_us);
    }
}
