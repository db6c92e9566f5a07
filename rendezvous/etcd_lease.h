#pragma once
/*
 * Leases that are kept alive: when to ask, what an answer means, when an answer is overdue. Pure.
 *
 * A lease is renewed a third of its TTL after the last request that was answered was sent, so that
 * the store never holds it for less than two thirds of its TTL from then on. An answer that is
 * overdue (0.6 s or a sixth of the TTL, whichever is longer) says that the endpoint is not worth
 * waiting for: with etcd 3.4, 24 of 24 live leases of 2 s died on a frozen leader whose clients
 * just waited.
 */
#include "rendezvous/store.h"

#define ER_ETCD_OVERDUE_MIN_US 600000u
#define ER_ETCD_LEASES_MAX     65536

struct er_etcd_leases; /* opaque */

int er_etcd_leases_new(struct er_etcd_leases **ret); /* -ENOMEM */
void er_etcd_leases_free(struct er_etcd_leases *ls);

/* Granted by a request sent at `sent_us`. -ENOMEM, ER_E_LIMIT. */
int er_etcd_leases_granted(struct er_etcd_leases *ls, uint64_t id, uint64_t ttl_us,
                           uint64_t sent_us);
/* Keep it; one that is not known here is asked for at once, which tells its TTL. A second keep
 * replaces `lost`. -ENOMEM, ER_E_LIMIT. */
int er_etcd_leases_keep(struct er_etcd_leases *ls, uint64_t id, uint64_t now_us,
                        er_store_lease_fn lost, void *user);
/* Forget it: `lost` is not called. */
void er_etcd_leases_remove(struct er_etcd_leases *ls, uint64_t id);
bool er_etcd_leases_any(const struct er_etcd_leases *ls); /* is one kept? */

/* A new stream: what was asked on the old one is asked again, at once. */
void er_etcd_leases_connected(struct er_etcd_leases *ls, uint64_t now_us);
/* The next lease to ask for now; false: none. It counts as asked. */
bool er_etcd_leases_next(struct er_etcd_leases *ls, uint64_t now_us, uint64_t *ret_id);
/* When the request under way for it was sent; 0: none is. */
uint64_t er_etcd_leases_asked(const struct er_etcd_leases *ls, uint64_t id);
/* ttl_us 0: gone; `lost` is called with -ENOENT. */
void er_etcd_leases_answer(struct er_etcd_leases *ls, uint64_t id, uint64_t ttl_us,
                           uint64_t now_us);
/* When something is to be asked, or an answer becomes overdue. */
uint64_t er_etcd_leases_deadline(const struct er_etcd_leases *ls);
bool er_etcd_leases_overdue(const struct er_etcd_leases *ls, uint64_t now_us);
/* The endpoint is slow, but speaks: wait longer for what is overdue. False: half of a TTL has gone
 * by. */
bool er_etcd_leases_bear(struct er_etcd_leases *ls, uint64_t now_us);
/* Until when the store is known to hold it: TTL after the sending of the last request that was
 * answered. 0: not known. */
uint64_t er_etcd_leases_until(const struct er_etcd_leases *ls, uint64_t id);
