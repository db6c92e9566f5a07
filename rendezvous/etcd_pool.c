#include "rendezvous/etcd_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/etcd_conn.h"
#include "rendezvous/etcd_grpc.h"

struct er_etcd_pool {
    struct er_grpc *grpc;
    struct er_etcd_conn **conns;
    size_t conn_n, next_conn;
    struct er_list ready;   /* stores with answers */
    struct er_list orphans; /* calls whose store was freed */
    size_t store_n;
};

struct pool_store {
    struct er_store base;
    struct er_etcd_pool *pool;
    struct er_etcd_conn *conn;
    void *user;
    struct er_list ready, turns;
    struct er_list calls;   /* what the connection may still answer */
    struct er_list answers; /* to be told by the next dispatch */
};

enum call_kind { CALL_TXN, CALL_LEASE, CALL_KEEP, CALL_WATCH };

struct call {
    struct er_list node;
    struct pool_store *store; /* NULL: freed meanwhile */
    enum call_kind kind;
    uint64_t id; /* KEEP: lease; WATCH: watch */
    er_store_txn_fn txn_done;
    er_store_lease_fn lease_done;
    er_store_watch_fn watch_fn;
    void *user;
};

/* One callback to be made; what it points to lies behind it. */
struct answer {
    struct er_list node;
    struct call call;         /* a copy; its store and node mean nothing */
    const struct call *watch; /* WATCH: whose it is */
    int rc;
    struct er_store_reply reply;
    uint64_t lease, ttl_us, revision;
    struct er_store_event *events;
    size_t event_n;
};

static struct pool_store *self(const struct er_store *store)
{
    return (struct pool_store *)(uintptr_t)store;
}

/* ---- answers wait here until their store is dispatched ---- */

static size_t kv_room(const struct er_store_kv *kv)
{
    return kv->key.len + kv->value.len;
}

static struct er_bytes keep_bytes(char **at, struct er_bytes from)
{
    struct er_bytes kept = {*at, from.len};

    if (from.len)
        memcpy(*at, from.data, from.len);
    *at += from.len;
    return kept;
}

static struct er_store_kv keep_kv(char **at, const struct er_store_kv *from)
{
    struct er_store_kv kept = *from;

    kept.key = keep_bytes(at, from->key);
    kept.value = keep_bytes(at, from->value);
    return kept;
}

static struct answer *answer_new(const struct call *c, int rc, size_t room)
{
    struct answer *a = calloc(1, sizeof(*a) + room);

    assert(a); /* an answer that is dropped would never be missed: better to end */
    a->call = *c;
    a->rc = rc;
    er_list_push_back(&c->store->answers, &a->node);
    er_list_remove(&c->store->ready);
    er_list_push_back(&c->store->pool->ready, &c->store->ready);
    return a;
}

static void answer_free(struct answer *a)
{
    er_list_remove(&a->node);
    free(a);
}

static void call_free(struct call *c)
{
    er_list_remove(&c->node);
    free(c);
}

static void on_txn(void *user, int rc, const struct er_store_reply *r)
{
    struct call *c = user;
    size_t room = 0;

    for (size_t i = 0; r && i < r->kv_n; i++)
        room += kv_room(&r->kvs[i]);
    if (r)
        room += r->kv_n * sizeof(*r->kvs) + r->range_count * sizeof(*r->range_n);
    if (c->store) {
        struct answer *a = answer_new(c, rc, room);
        struct er_store_kv *kvs = (struct er_store_kv *)(a + 1);
        size_t *range_n = r ? (size_t *)(kvs + r->kv_n) : NULL;
        char *at = r ? (char *)(range_n + r->range_count) : NULL;

        for (size_t i = 0; r && i < r->kv_n; i++)
            kvs[i] = keep_kv(&at, &r->kvs[i]);
        if (r && r->range_count)
            memcpy(range_n, r->range_n, r->range_count * sizeof(*range_n));
        if (r)
            a->reply = (struct er_store_reply){r->succeeded, r->revision, kvs,
                                               r->kv_n,      range_n,     r->range_count};
    }
    call_free(c);
}

static void on_lease(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct call *c = user;

    if (c->store && c->lease_done) {
        struct answer *a = answer_new(c, rc, 0);

        a->lease = lease;
        a->ttl_us = ttl_us;
    }
    call_free(c);
}

static void on_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                     uint64_t revision)
{
    struct call *c = user;
    size_t room = n * sizeof(*events);
    struct answer *a;
    char *at;

    for (size_t i = 0; i < n; i++)
        room += kv_room(&events[i].kv);
    a = answer_new(c, rc, room);
    a->watch = c;
    a->events = (struct er_store_event *)(a + 1);
    a->event_n = n;
    a->revision = revision;
    at = (char *)(a->events + n);
    for (size_t i = 0; i < n; i++)
        a->events[i] = (struct er_store_event){events[i].kind, keep_kv(&at, &events[i].kv)};
}

/* A watch that ended has no more answers. */
static void end_watch(struct call *c)
{
    er_list_for_each_safe (node, &c->store->answers) {
        struct answer *a = ER_LIST_ITEM(node, struct answer, node);

        if (a->watch == c)
            answer_free(a);
    }
    call_free(c);
}

static struct call *find_call(struct pool_store *s, enum call_kind kind, uint64_t id)
{
    er_list_for_each (node, &s->calls) {
        struct call *c = ER_LIST_ITEM(node, struct call, node);

        if (c->kind == kind && c->id == id)
            return c;
    }
    return NULL;
}

static void tell(struct pool_store *s, const struct answer *a)
{
    switch (a->call.kind) {
    case CALL_TXN:
        a->call.txn_done(a->call.user, a->rc, a->rc ? NULL : &a->reply);
        break;
    case CALL_LEASE:
    case CALL_KEEP:
        a->call.lease_done(a->call.user, a->rc, a->lease, a->ttl_us);
        break;
    case CALL_WATCH:
        if (a->rc) {
            struct call *c = find_call(s, CALL_WATCH, a->call.id);

            if (c)
                end_watch(c);
        }
        a->call.watch_fn(a->call.user, a->rc, a->events, a->event_n, a->revision);
        break;
    }
}

static void store_dispatch(struct er_store *store, uint64_t now_us)
{
    struct pool_store *s = self(store);

    er_list_remove(&s->ready);
    while (!er_list_empty(&s->answers)) {
        struct answer *a = ER_LIST_ITEM(s->answers.next, struct answer, node);

        er_list_remove(&a->node); /* nobody else frees it now */
        tell(s, a);
        free(a);
    }
}

/* ---- the port ---- */

static int store_fd(const struct er_store *store)
{
    return -1;
}

static bool store_pending(const struct er_store *store)
{
    return !er_list_empty(&self(store)->answers);
}

static uint64_t store_deadline(const struct er_store *store)
{
    return store_pending(store) ? 0 : ER_FOREVER;
}

static struct call *call_new(struct pool_store *s, enum call_kind kind, uint64_t id, void *user)
{
    struct call *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->store = s;
    c->kind = kind;
    c->id = id;
    c->user = user;
    er_list_push_back(&s->calls, &c->node);
    return c;
}

/* Taken, or not to be answered at all. */
static int called(struct call *c, int rc)
{
    if (rc < 0)
        call_free(c);
    return rc;
}

static int store_txn(struct er_store *store, const struct er_store_txn *txn, er_store_txn_fn done,
                     void *user)
{
    struct pool_store *s = self(store);
    struct call *c = call_new(s, CALL_TXN, 0, user);

    if (!c)
        return -ENOMEM;
    c->txn_done = done;
    return called(c, er_etcd_conn_txn(s->conn, &s->turns, txn, on_txn, c));
}

static int store_grant(struct er_store *store, uint64_t id, uint64_t ttl_us, er_store_lease_fn done,
                       void *user)
{
    struct pool_store *s = self(store);
    struct call *c = call_new(s, CALL_LEASE, 0, user);

    if (!c)
        return -ENOMEM;
    c->lease_done = done;
    return called(c, er_etcd_conn_grant(s->conn, id, ttl_us, on_lease, c));
}

static int store_keep(struct er_store *store, uint64_t id, er_store_lease_fn lost, void *user)
{
    struct pool_store *s = self(store);
    struct call *was = find_call(s, CALL_KEEP, id), *c = call_new(s, CALL_KEEP, id, user);
    int rc;

    if (!c)
        return -ENOMEM;
    c->lease_done = lost;
    rc = called(c, er_etcd_conn_keep(s->conn, id, on_lease, c));
    if (rc == 0 && was) /* replaced */
        call_free(was);
    return rc;
}

static void forget_lease(struct pool_store *s, uint64_t id)
{
    struct call *c = find_call(s, CALL_KEEP, id);

    if (c) { /* another store may keep it too, and is to hear of its end */
        er_etcd_conn_forget(s->conn, id);
        call_free(c);
    }
    er_list_for_each_safe (node, &s->answers) {
        struct answer *a = ER_LIST_ITEM(node, struct answer, node);

        if (a->call.kind == CALL_KEEP && a->call.id == id)
            answer_free(a);
    }
}

static int store_revoke(struct er_store *store, uint64_t id, er_store_lease_fn done, void *user)
{
    struct pool_store *s = self(store);
    struct call *c = call_new(s, CALL_LEASE, 0, user);
    int rc;

    if (!c)
        return -ENOMEM;
    c->lease_done = done;
    rc = called(c, er_etcd_conn_revoke(s->conn, id, on_lease, c));
    if (rc == 0)
        forget_lease(s, id);
    return rc;
}

static int store_watch(struct er_store *store, struct er_bytes key, bool prefix, uint64_t start_rev,
                       er_store_watch_fn fn, void *user, uint64_t *ret_id)
{
    struct pool_store *s = self(store);
    struct call *c = call_new(s, CALL_WATCH, 0, user);
    int rc;

    if (!c)
        return -ENOMEM;
    c->watch_fn = fn;
    rc = called(c, er_etcd_conn_watch(s->conn, key, prefix, start_rev, on_watch, c, &c->id));
    if (rc == 0)
        *ret_id = c->id;
    return rc;
}

static void store_unwatch(struct er_store *store, uint64_t id)
{
    struct pool_store *s = self(store);
    struct call *c = find_call(s, CALL_WATCH, id);

    if (!c)
        return;
    er_etcd_conn_unwatch(s->conn, id);
    end_watch(c);
}

static uint64_t store_heard(const struct er_store *store)
{
    return er_etcd_conn_heard(self(store)->conn);
}

static void store_free(struct er_store *store)
{
    struct pool_store *s = self(store);

    if (!store)
        return;
    er_list_for_each_safe (node, &s->calls) {
        struct call *c = ER_LIST_ITEM(node, struct call, node);

        c->store = NULL;
        er_list_remove(&c->node);
        if (c->kind == CALL_WATCH)
            er_etcd_conn_unwatch(s->conn, c->id);
        else if (c->kind == CALL_KEEP)
            er_etcd_conn_forget(s->conn, c->id);
        if (c->kind == CALL_WATCH || c->kind == CALL_KEEP)
            free(c);
        else
            er_list_push_back(&s->pool->orphans, &c->node);
    }
    er_list_for_each_safe (node, &s->answers)
        answer_free(ER_LIST_ITEM(node, struct answer, node));
    er_etcd_turns_end(&s->turns);
    er_list_remove(&s->ready);
    s->pool->store_n--;
    free(s);
}

static const struct er_store_ops pool_ops = {
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
};

int er_etcd_pool_store(struct er_etcd_pool *pool, void *user, struct er_store **ret,
                       struct er_error *err)
{
    struct pool_store *s = calloc(1, sizeof(*s));

    if (!s)
        return er_error_set(err, -ENOMEM, "etcd client: out of memory");
    s->base.ops = &pool_ops;
    s->pool = pool;
    s->conn = pool->conns[pool->next_conn];
    pool->next_conn = (pool->next_conn + 1) % pool->conn_n;
    s->user = user;
    er_list_init(&s->ready);
    er_list_init(&s->turns);
    er_list_init(&s->calls);
    er_list_init(&s->answers);
    pool->store_n++;
    *ret = &s->base;
    return 0;
}

void *er_etcd_pool_user(const struct er_store *store)
{
    return self(store)->user;
}

/* ---- the pool ---- */

int er_etcd_pool_fd(const struct er_etcd_pool *pool)
{
    return er_grpc_fd(pool->grpc);
}

uint64_t er_etcd_pool_deadline(const struct er_etcd_pool *pool)
{
    uint64_t at = er_list_empty(&pool->ready) ? ER_FOREVER : 0;

    for (size_t i = 0; i < pool->conn_n && at; i++) {
        uint64_t mine = er_etcd_conn_deadline(pool->conns[i]);

        at = mine < at ? mine : at;
    }
    return at;
}

void er_etcd_pool_dispatch(struct er_etcd_pool *pool)
{
    for (size_t i = 0; i < pool->conn_n; i++)
        er_etcd_conn_begin(pool->conns[i]);
    er_grpc_dispatch(pool->grpc);
    for (size_t i = 0; i < pool->conn_n; i++)
        er_etcd_conn_finish(pool->conns[i]);
}

struct er_store *er_etcd_pool_next(struct er_etcd_pool *pool)
{
    struct pool_store *s;

    if (er_list_empty(&pool->ready))
        return NULL;
    s = ER_LIST_ITEM(pool->ready.next, struct pool_store, ready);
    er_list_remove(&s->ready);
    return &s->base;
}

/* One without a session, if there is one. */
static const struct er_etcd_conn *worst(const struct er_etcd_pool *pool)
{
    for (size_t i = 0; i < pool->conn_n; i++) {
        struct er_etcd_status status;

        er_etcd_conn_status(pool->conns[i], &status);
        if (!status.connected)
            return pool->conns[i];
    }
    return NULL;
}

void er_etcd_pool_status(const struct er_etcd_pool *pool, struct er_etcd_status *ret)
{
    const struct er_etcd_conn *c = worst(pool);

    er_etcd_conn_status(c ? c : pool->conns[0], ret);
}

bool er_etcd_pool_connected(const struct er_etcd_pool *pool)
{
    return !worst(pool);
}

int er_etcd_pool_open(struct er_etcd_pool **ret, const struct er_etcd_opts *opts, size_t channels,
                      struct er_error *err)
{
    struct er_etcd_pool *p;
    int rc;

    if (channels == 0 || channels > ER_ETCD_POOL_CHANNELS_MAX)
        return er_error_set(err, ER_E_CONFIG, "etcd client: %zu channels, not 1 to %d", channels,
                            ER_ETCD_POOL_CHANNELS_MAX);
    p = calloc(1, sizeof(*p));
    if (!p)
        return er_error_set(err, -ENOMEM, "etcd client: out of memory");
    er_list_init(&p->ready);
    er_list_init(&p->orphans);
    p->conns = calloc(channels, sizeof(struct er_etcd_conn *));
    rc = p->conns ? er_grpc_new(&p->grpc, opts->log, err)
                  : er_error_set(err, -ENOMEM, "etcd client: out of memory");
    for (size_t i = 0; i < channels && rc == 0; i++) {
        struct er_etcd_opts mine = *opts;

        mine.seed += i;
        rc = er_etcd_conn_new(&p->conns[i], &mine, p->grpc, err);
        p->conn_n += rc == 0;
    }
    if (rc < 0) {
        er_etcd_pool_free(p);
        return rc;
    }
    *ret = p;
    return 0;
}

void er_etcd_pool_free(struct er_etcd_pool *pool)
{
    if (!pool)
        return;
    assert(pool->store_n == 0);
    for (size_t i = 0; i < pool->conn_n; i++)
        er_etcd_conn_free(pool->conns[i]);
    er_grpc_free(pool->grpc);
    er_list_for_each_safe (node, &pool->orphans)
        call_free(ER_LIST_ITEM(node, struct call, node));
    free(pool->conns);
    free(pool);
}
