#pragma once
/*
 * What may not overtake what. etcd carries out requests of one connection in any order, but the
 * port promises that transactions of one client that touch a common key, one of them writing it,
 * apply in the order of the calls. Pure.
 */
#include "rendezvous/store.h"

struct er_etcd_touch {
    uint64_t *written, *read; /* sorted hashes of keys, owned */
    size_t written_n, read_n;
    bool prefix_written, prefix_read; /* counts as every key */
};

/* -ENOMEM. */
int er_etcd_touch_init(struct er_etcd_touch *ret, const struct er_store_txn *txn);
void er_etcd_touch_done(struct er_etcd_touch *t);
/* Must one of them wait for the other? */
bool er_etcd_touch_conflict(const struct er_etcd_touch *a, const struct er_etcd_touch *b);
