#pragma once
/*
 * All watches of a client on one stream: what to ask for, what the answers mean, and where to go on
 * when the stream broke. Pure: it sends nothing itself and knows no clock.
 *
 *            next_request          created             events
 *   FRESH ---------------> ASKED ----------> LIVE ----------------> fn(0, events)
 *     ^                      |                |
 *     +------ connected() ---+----------------+   compacted, cancelled: fn(ER_E_STALE), gone
 *
 * Every watch knows the revision it wants next, so that after a break nothing is lost and nothing
 * comes twice. "From now" is from the newest revision the client has seen when it asked; a watch
 * from ER_STORE_OPENED begins where the server opens it, also when it is asked for again. Events of
 * one revision are delivered in one call, even when the server sends them in fragments.
 *
 * Callbacks are made from er_etcd_watches_answer() and er_etcd_watches_stale(); they may add and
 * remove watches.
 */
#include "rendezvous/etcd_codec.h"

#define ER_ETCD_WATCHES_MAX 65536
#define ER_ETCD_HELD_MAX    64 /* fragments of one revision; beyond: ER_E_STALE */

struct er_etcd_watches; /* opaque */

int er_etcd_watches_new(struct er_etcd_watches **ret); /* -ENOMEM */
void er_etcd_watches_free(struct er_etcd_watches *ws);

/* start_rev 0: after `known_rev`, or after that of the next connected() when it is 0. -ENOMEM,
 * ER_E_LIMIT. */
int er_etcd_watches_add(struct er_etcd_watches *ws, struct er_bytes key, bool prefix,
                        uint64_t start_rev, uint64_t known_rev, er_store_watch_fn fn, void *user,
                        uint64_t *ret_id);
void er_etcd_watches_remove(struct er_etcd_watches *ws, uint64_t id);
size_t er_etcd_watches_n(const struct er_etcd_watches *ws);
/* Has next_request() something to send? */
bool er_etcd_watches_pending(const struct er_etcd_watches *ws);

/* A new stream: everything is asked for again. `known_rev`: of the store, after everything that
 * this client has been told. */
void er_etcd_watches_connected(struct er_etcd_watches *ws, uint64_t known_rev);
/* What to send next on the stream; false: nothing. `ret` is valid until the next call. */
bool er_etcd_watches_next_request(struct er_etcd_watches *ws, struct er_etcd_watch_request *ret);

enum er_etcd_watch_outcome {
    ER_ETCD_WATCH_HANDLED,
    ER_ETCD_WATCH_LOGIN, /* permission denied, perhaps by an old token: log in again, then
                            connected() */
};
/* Takes over what `a` owns. `may_login`: see the outcome; a watch that is denied again is told
 * -EACCES. */
enum er_etcd_watch_outcome er_etcd_watches_answer(struct er_etcd_watches *ws,
                                                  struct er_etcd_watch_answer *a, bool may_login);
/* History is lost for all: the store is another one, or went back in time. */
void er_etcd_watches_stale(struct er_etcd_watches *ws);
