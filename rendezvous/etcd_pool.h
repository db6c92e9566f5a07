#pragma once
/*
 * Many clients of one process on a few connections: each is a store of its own, but channels,
 * streams and the queue thread are shared. For whoever plays many nodes at once (benchmarks); an
 * agent has one client, and store_etcd.h for it.
 *
 *     poll(er_etcd_pool_fd()) until er_etcd_pool_deadline()
 *     er_etcd_pool_dispatch()                 answers arrive, and wait with the stores they are for
 *     while ((store = er_etcd_pool_next()))   ... who are told by their own dispatch
 *         dispatch the store, or the driver on it
 *
 * One thread. A store's deadline() is now, or never.
 */
#include "rendezvous/store_etcd.h"

#define ER_ETCD_POOL_CHANNELS_MAX 4096

struct er_etcd_pool; /* opaque */

/* As er_store_etcd_open(), with `channels` connections. */
int er_etcd_pool_open(struct er_etcd_pool **ret, const struct er_etcd_opts *opts, size_t channels,
                      struct er_error *err);
void er_etcd_pool_free(struct er_etcd_pool *pool); /* after its stores */
int er_etcd_pool_fd(const struct er_etcd_pool *pool);
uint64_t er_etcd_pool_deadline(const struct er_etcd_pool *pool);
void er_etcd_pool_dispatch(struct er_etcd_pool *pool);
/* A store with something to tell; NULL: none. It comes again only after it was dispatched. */
struct er_store *er_etcd_pool_next(struct er_etcd_pool *pool);

/* Stores take turns with the connections. Freeing one is like a node that lost its power: its
 * leases are renewed no more, nothing is revoked. `user`: for er_etcd_pool_user(). -ENOMEM. */
int er_etcd_pool_store(struct er_etcd_pool *pool, void *user, struct er_store **ret,
                       struct er_error *err);
void *er_etcd_pool_user(const struct er_store *store);
/* All connections have a session. */
bool er_etcd_pool_connected(const struct er_etcd_pool *pool);
/* Of the first one that has none; of any if all have. */
void er_etcd_pool_status(const struct er_etcd_pool *pool, struct er_etcd_status *ret);
