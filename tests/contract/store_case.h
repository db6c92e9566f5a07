#pragma once
/* Two clients of one store: what they are asked, and waiting for the answers. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/contract/store_factory.h"
#include "tests/lib/tap.h"

static const struct store_factory *const the = &store_factory;
static struct er_store *client[2];

#define KVS_MAX 16

struct answer {
    unsigned n;
    int rc;
    bool succeeded;
    uint64_t revision, lease, ttl_us;
    size_t kv_n, range_count, range_n[KVS_MAX];
    char key[KVS_MAX][64], value[KVS_MAX][64];
    uint64_t create_rev[KVS_MAX], mod_rev[KVS_MAX], kv_lease[KVS_MAX];
};

struct changes {
    unsigned calls, n, stale;
    uint64_t opened; /* what a call without events said */
    enum er_store_event_kind kind[KVS_MAX];
    char key[KVS_MAX][64], value[KVS_MAX][64];
    uint64_t revision[KVS_MAX];
};

static inline void copy(char ret[64], struct er_bytes b)
{
    snprintf(ret, 64, "%.*s", (int)b.len, b.len ? (const char *)b.data : "");
}

static inline void on_txn(void *user, int rc, const struct er_store_reply *r)
{
    struct answer *a = user;

    a->n++;
    a->rc = rc;
    er_tap_check((rc == 0) == (r != NULL));
    if (!r)
        return;
    a->succeeded = r->succeeded;
    a->revision = r->revision;
    a->range_count = r->range_count;
    for (size_t i = 0; i < r->range_count && i < KVS_MAX; i++)
        a->range_n[i] = r->range_n[i];
    a->kv_n = r->kv_n;
    for (size_t i = 0; i < r->kv_n && i < KVS_MAX; i++) {
        copy(a->key[i], r->kvs[i].key);
        copy(a->value[i], r->kvs[i].value);
        a->create_rev[i] = r->kvs[i].create_rev;
        a->mod_rev[i] = r->kvs[i].mod_rev;
        a->kv_lease[i] = r->kvs[i].lease;
    }
}

static inline void on_lease(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct answer *a = user;

    a->n++;
    a->rc = rc;
    a->lease = lease;
    a->ttl_us = ttl_us;
}

static inline void on_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                            uint64_t revision)
{
    struct changes *c = user;

    c->calls++;
    c->stale += rc == ER_E_STALE;
    if (rc == 0 && n == 0)
        c->opened = revision;
    for (size_t i = 0; i < n && c->n < KVS_MAX; i++, c->n++) {
        c->kind[c->n] = events[i].kind;
        copy(c->key[c->n], events[i].kv.key);
        copy(c->value[c->n], events[i].kv.value);
        c->revision[c->n] = revision;
        er_tap_check(events[i].kv.mod_rev == revision);
    }
}

/* Dispatch both clients until `*n` reaches `want`, at most `us`. */
static inline bool wait_n(const unsigned *n, unsigned want, uint64_t us)
{
    uint64_t until = the->now_us() + us;

    for (;;) {
        for (int i = 0; i < 2; i++) {
            if (client[i])
                client[i]->ops->dispatch(client[i], the->now_us());
        }
        if (*n >= want)
            return true;
        if (the->now_us() >= until)
            return false;
        the->idle(client, until);
    }
}

#define LONG_US (20 * ER_US_PER_S)

static inline struct er_bytes b(const char *text)
{
    return (struct er_bytes){text, strlen(text)};
}

static inline struct er_store_op put(const char *key, const char *value, uint64_t lease)
{
    return (struct er_store_op){
        .kind = ER_OP_PUT, .key = b(key), .value = b(value), .lease = lease};
}

static inline struct er_store_op get(const char *key, bool prefix)
{
    return (struct er_store_op){.kind = ER_OP_RANGE, .key = b(key), .prefix = prefix};
}

static inline struct er_store_op del(const char *key, bool prefix)
{
    return (struct er_store_op){.kind = ER_OP_DELETE, .key = b(key), .prefix = prefix};
}

static inline struct answer txn(const struct er_store_cmp *cmps, size_t cmp_n,
                                const struct er_store_op *then_ops, size_t then_n,
                                const struct er_store_op *else_ops, size_t else_n)
{
    struct er_store_txn t = {cmps, cmp_n, then_ops, then_n, else_ops, else_n};
    struct answer a = {0};

    er_tap_require(client[0]->ops->txn(client[0], &t, on_txn, &a) == 0);
    er_tap_check(a.n == 0); /* never from inside the call */
    er_tap_require(wait_n(&a.n, 1, LONG_US));
    return a;
}

static inline struct answer do_put(const char *key, const char *value, uint64_t lease)
{
    struct er_store_op op = put(key, value, lease);

    return txn(NULL, 0, &op, 1, NULL, 0);
}

static inline struct answer do_get(const char *key, bool prefix)
{
    struct er_store_op op = get(key, prefix);

    return txn(NULL, 0, &op, 1, NULL, 0);
}

static inline bool holds(struct er_store_cmp cmp)
{
    return txn(&cmp, 1, NULL, 0, NULL, 0).succeeded;
}

static inline struct answer grant(uint64_t id)
{
    struct answer a = {0};

    er_tap_require(client[0]->ops->lease_grant(client[0], id, the->ttl_us, on_lease, &a) == 0);
    er_tap_require(wait_n(&a.n, 1, LONG_US));
    return a;
}
