#pragma once
/*
 * One client's connection to an etcd cluster: a session with one endpoint at a time.
 *
 *            time          password?             revision, cluster
 *   WAITING -----> LOGIN -----------> HELLO ------------------------> UP
 *      ^             |                  |                              |
 *      +-------------+------------------+------------------------------+
 *         refused, cut, no answer in time, no leader: the next endpoint (etcd_rotate.h)
 *
 * HELLO is a linearizable read: an endpoint that can't answer it can't serve us. Requests wait
 * until the session is UP. Watches and keep-alives have a stream each, opened when there is
 * something to say.
 *
 * etcd_conn.c: session and timers; etcd_request.c: unary requests; etcd_stream.c: the streams.
 * One thread; all callbacks come from er_etcd_conn_dispatch().
 */
#include "base/list.h"
#include "rendezvous/store_etcd.h"

#define ER_ETCD_REQUESTS_MAX 16384 /* waiting and under way; beyond: ER_E_LIMIT */
#define ER_ETCD_FLYING_MAX   32    /* sent at once; the rest waits */

struct er_etcd_conn; /* opaque */
struct er_grpc;

/* `shared`: a queue that several connections use, which outlives them; NULL: one of its own. */
int er_etcd_conn_new(struct er_etcd_conn **ret, const struct er_etcd_opts *opts,
                     struct er_grpc *shared, struct er_error *err);
void er_etcd_conn_free(struct er_etcd_conn *c);
int er_etcd_conn_fd(const struct er_etcd_conn *c);
bool er_etcd_conn_pending(const struct er_etcd_conn *c);
uint64_t er_etcd_conn_deadline(const struct er_etcd_conn *c);
void er_etcd_conn_dispatch(struct er_etcd_conn *c);
/* The same in two halves, with er_grpc_dispatch() of the shared queue between them. */
void er_etcd_conn_begin(struct er_etcd_conn *c);
void er_etcd_conn_finish(struct er_etcd_conn *c);

/* As the port's operations. `turns`: the transactions of one client, whose order counts; an
 * initialised list that lives until they are answered or er_etcd_turns_end(). */
int er_etcd_conn_txn(struct er_etcd_conn *c, struct er_list *turns, const struct er_store_txn *txn,
                     er_store_txn_fn done, void *user);
void er_etcd_turns_end(struct er_list *turns);
int er_etcd_conn_grant(struct er_etcd_conn *c, uint64_t id, uint64_t ttl_us, er_store_lease_fn done,
                       void *user);
int er_etcd_conn_keep(struct er_etcd_conn *c, uint64_t id, er_store_lease_fn lost, void *user);
int er_etcd_conn_revoke(struct er_etcd_conn *c, uint64_t id, er_store_lease_fn done, void *user);
int er_etcd_conn_watch(struct er_etcd_conn *c, struct er_bytes key, bool prefix, uint64_t start_rev,
                       er_store_watch_fn fn, void *user, uint64_t *ret_id);
void er_etcd_conn_unwatch(struct er_etcd_conn *c, uint64_t id);
void er_etcd_conn_forget(struct er_etcd_conn *c, uint64_t lease); /* keep it no more */

void er_etcd_conn_status(const struct er_etcd_conn *c, struct er_etcd_status *ret);
const struct er_etcd_counts *er_etcd_conn_counts(const struct er_etcd_conn *c);
uint64_t er_etcd_conn_heard(const struct er_etcd_conn *c);
uint64_t er_etcd_conn_resumed(const struct er_etcd_conn *c);
uint64_t er_etcd_conn_lease_until(const struct er_etcd_conn *c, uint64_t lease);
