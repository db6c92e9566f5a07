#pragma once
/*
 * The embedded store: an etcd-like key-value store in memory, for single-node jobs and for tests.
 * Pure: no I/O, no clock; time is what er_store_ops.dispatch() is given.
 *
 * One store may have several clients, each an er_store of its own (own queue of answers, watches
 * and leases); it lives until its last client is freed. Transactions apply at the call, in call
 * order; answers and watch events are delivered by the client's dispatch(). A kept lease lives as
 * long as its client is there and not cut off; after that it ends one TTL later.
 *
 * One thread. A client must not be freed from inside its own dispatch().
 */
#include "rendezvous/store.h"

#define ER_STORE_MEM_HISTORY_MAX 8192 /* events kept for watches; older ones are compacted */
#define ER_STORE_MEM_VALUE_MAX   (1536 * 1024) /* bytes of key + value, as etcd's request limit */

/* A new store with one client. Freed by ret->ops->free(). Errors: -ENOMEM. */
int er_store_mem_new(struct er_store **ret, struct er_error *err);
/* Another client of the same store. Errors: -ENOMEM. */
int er_store_mem_client(struct er_store *of, struct er_store **ret, struct er_error *err);

uint64_t er_store_mem_revision(const struct er_store *store);
/* Direct look without a transaction, for tests; NULL: not there. Valid until the next change. */
const struct er_store_kv *er_store_mem_peek(const struct er_store *store, struct er_bytes key);

/* Faults, for tests. */
enum er_store_mem_fault {
    ER_FAULT_NONE,
    ER_FAULT_LOST_REPLY, /* applied, answered ER_E_AMBIGUOUS */
    ER_FAULT_LATE,       /* answered ER_E_AMBIGUOUS, applied `delay_us` later */
    ER_FAULT_LOST,       /* answered ER_E_AMBIGUOUS, never applied */
    ER_FAULT_DUPLICATE,  /* applied, answered, and applied again `delay_us` later */
    ER_FAULT_REFUSED     /* answered -ENOTCONN, never applied */
};
/* Applies to the next transaction of this client. */
void er_store_mem_fault(struct er_store *store, enum er_store_mem_fault fault, uint64_t delay_us);
/* Answers and watch events of this client are delivered that much later (0: at once). */
void er_store_mem_delay(struct er_store *store, uint64_t reply_us, uint64_t watch_us);
/* What happens to `key` reaches this client's watch of it alone that much later still, as watches
 * of etcd overtake each other; one key at a time, borrowed. */
void er_store_mem_lag(struct er_store *store, struct er_bytes key, uint64_t lag_us);
/* Cut off: requests answer -ENOTCONN, watches are silent, leases are not kept alive. */
void er_store_mem_cut(struct er_store *store, bool cut);
/* Nothing arrives at this client: its requests are carried out, their answers are given up after 5
 * s as ER_E_AMBIGUOUS, watches are silent; leases are kept. */
void er_store_mem_deaf(struct er_store *store, bool deaf);
/* This client's clock is ahead of the store's (or behind, when negative). */
void er_store_mem_skew(struct er_store *store, int64_t skew_us);
/* No lease ends while the store is out of order, nor within one TTL after it. Cut the clients too.
 */
void er_store_mem_outage(struct er_store *store, bool out);
/* The store ends a lease although its owner lives. -ENOENT: no such lease. */
int er_store_mem_drop_lease(struct er_store *store, uint64_t lease);
/* How many there are. */
size_t er_store_mem_leases(const struct er_store *store);
/* Everything is gone, and revisions begin anew, as when etcd comes back on an empty folder: watches
 * get ER_E_STALE, leases are lost, answers under way become ER_E_AMBIGUOUS. Not from a callback. */
void er_store_mem_wipe(struct er_store *store);
/* Forget history up to and including `rev`: watches behind it get ER_E_STALE. */
void er_store_mem_compact(struct er_store *store, uint64_t rev);
