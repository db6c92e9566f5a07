#include "rendezvous/store_etcd.h"

#include <errno.h>
#include <stdlib.h>

#include "rendezvous/etcd_conn.h"

struct etcd_store {
    struct er_store base;
    struct er_etcd_conn *conn;
    struct er_list turns;
};

static struct er_etcd_conn *conn_of(const struct er_store *store)
{
    return ((const struct etcd_store *)(const void *)store)->conn;
}

static void store_free(struct er_store *store)
{
    if (!store)
        return;
    er_etcd_conn_free(conn_of(store));
    free(store);
}

static int store_fd(const struct er_store *store)
{
    return er_etcd_conn_fd(conn_of(store));
}

static bool store_pending(const struct er_store *store)
{
    return er_etcd_conn_pending(conn_of(store));
}

static uint64_t store_deadline(const struct er_store *store)
{
    return er_etcd_conn_deadline(conn_of(store));
}

/* The time that counts is the real one. */
static void store_dispatch(struct er_store *store, uint64_t now_us)
{
    er_etcd_conn_dispatch(conn_of(store));
}

static int store_txn(struct er_store *store, const struct er_store_txn *txn, er_store_txn_fn done,
                     void *user)
{
    struct etcd_store *s = (struct etcd_store *)(void *)store;

    return er_etcd_conn_txn(s->conn, &s->turns, txn, done, user);
}

static int store_grant(struct er_store *store, uint64_t id, uint64_t ttl_us, er_store_lease_fn done,
                       void *user)
{
    return er_etcd_conn_grant(conn_of(store), id, ttl_us, done, user);
}

static int store_keep(struct er_store *store, uint64_t id, er_store_lease_fn lost, void *user)
{
    return er_etcd_conn_keep(conn_of(store), id, lost, user);
}

static int store_revoke(struct er_store *store, uint64_t id, er_store_lease_fn done, void *user)
{
    er_etcd_conn_forget(conn_of(store), id); /* on purpose: not "lost" */
    return er_etcd_conn_revoke(conn_of(store), id, done, user);
}

static int store_watch(struct er_store *store, struct er_bytes key, bool prefix, uint64_t start_rev,
                       er_store_watch_fn fn, void *user, uint64_t *ret_id)
{
    return er_etcd_conn_watch(conn_of(store), key, prefix, start_rev, fn, user, ret_id);
}

static void store_unwatch(struct er_store *store, uint64_t id)
{
    er_etcd_conn_unwatch(conn_of(store), id);
}

static uint64_t store_heard(const struct er_store *store)
{
    return er_etcd_conn_heard(conn_of(store));
}

static uint64_t store_resumed(const struct er_store *store)
{
    return er_etcd_conn_resumed(conn_of(store));
}

static uint64_t store_lease_until(const struct er_store *store, uint64_t lease)
{
    return er_etcd_conn_lease_until(conn_of(store), lease);
}

static const struct er_store_ops etcd_ops = {
    .name = "etcd",
    .free = store_free,
    .fd = store_fd,
    .pending = store_pending,
    .deadline = store_deadline,
    .dispatch = store_dispatch,
    .txn = store_txn,
    .lease_grant = store_grant,
    .lease_keep = store_keep,
    .lease_revoke = store_revoke,
    .watch = store_watch,
    .unwatch = store_unwatch,
    .heard = store_heard,
    .resumed = store_resumed,
    .lease_until = store_lease_until,
};

int er_store_etcd_open(struct er_store **ret, const struct er_etcd_opts *opts, struct er_error *err)
{
    struct etcd_store *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return er_error_set(err, -ENOMEM, "etcd client: out of memory");
    s->base.ops = &etcd_ops;
    er_list_init(&s->turns);
    rc = er_etcd_conn_new(&s->conn, opts, NULL, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *ret = &s->base;
    return 0;
}

void er_store_etcd_status(const struct er_store *store, struct er_etcd_status *ret)
{
    er_etcd_conn_status(conn_of(store), ret);
}

uint64_t er_store_etcd_lease_until(const struct er_store *store, uint64_t lease)
{
    return er_etcd_conn_lease_until(conn_of(store), lease);
}

const struct er_etcd_counts *er_store_etcd_counts(const struct er_store *store)
{
    return er_etcd_conn_counts(conn_of(store));
}
