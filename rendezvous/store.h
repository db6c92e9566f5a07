#pragma once
/*
 * The store port: what the rendezvous needs of a key-value store, in etcd v3's terms (revisions,
 * leases, guarded transactions, watches), asynchronous throughout. Implementations: store_mem
 * (embedded, pure), and later store_etcd; both pass tests/contract.
 *
 * Every call returns at once. Its answer arrives through a callback made from er_store_dispatch(),
 * in the owner's thread, never from inside the call itself. A write whose answer is lost is
 * reported as ER_E_AMBIGUOUS: it may have been applied, may never be, or may be applied later.
 * -ENOTCONN means: certainly not applied.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_STORE_TXN_OPS_MAX 128 /* per list, as etcd counts */
/* Of a watch: from when the store opens it. etcd serves a watch from a past revision up to 100 ms
 * later than one that begins with what comes next. */
#define ER_STORE_OPENED UINT64_MAX

struct er_store; /* opaque handle; the first member of every implementation is its ops table */

struct er_bytes {
    const void *data; /* borrowed for the call (requests) or for the callback (answers) */
    size_t len;
};

struct er_store_kv {
    struct er_bytes key, value;
    uint64_t create_rev, mod_rev;
    uint64_t lease; /* 0: none */
};

enum er_cmp_target { ER_CMP_CREATE, ER_CMP_MOD, ER_CMP_VALUE };
enum er_cmp_result { ER_CMP_EQUAL, ER_CMP_NOT_EQUAL, ER_CMP_LESS, ER_CMP_GREATER };

struct er_store_cmp {
    enum er_cmp_target target;
    enum er_cmp_result result;
    struct er_bytes key;
    bool prefix;  /* all keys that start with `key`: CREATE == 0 is true only for an empty prefix */
    uint64_t rev; /* CREATE, MOD */
    struct er_bytes value; /* VALUE: a missing key compares false for EQUAL and for NOT_EQUAL */
};

enum er_store_op_kind { ER_OP_PUT, ER_OP_DELETE, ER_OP_RANGE };

struct er_store_op {
    enum er_store_op_kind kind;
    struct er_bytes key;
    bool prefix; /* DELETE, RANGE */
    struct er_bytes value;
    uint64_t lease; /* PUT: 0 none */
    /* RANGE of a prefix, in pages: at most `limit` keys (0: all), those behind `after` (len 0: from
     * the first), as of `revision` (0: now). A store may give more than `limit`, then all. */
    size_t limit;
    struct er_bytes after;
    uint64_t revision;
    bool keys_only; /* RANGE: values may be left out */
};

struct er_store_txn {
    const struct er_store_cmp *cmps;
    size_t cmp_n;
    const struct er_store_op *then_ops;
    size_t then_n;
    const struct er_store_op *else_ops;
    size_t else_n;
};

struct er_store_reply {
    bool succeeded;    /* compares held: `then` was carried out */
    uint64_t revision; /* of the store after it */
    const struct er_store_kv
        *kvs; /* results of all RANGE ops of the branch taken, one after the other */
    size_t kv_n;
    const size_t *range_n; /* how many of them belong to each RANGE op */
    size_t range_count;
};

/* rc 0: reply is valid; otherwise NULL. */
typedef void (*er_store_txn_fn)(void *user, int rc, const struct er_store_reply *reply);
/* rc 0: granted with ttl_us (may be longer than asked). */
typedef void (*er_store_lease_fn)(void *user, int rc, uint64_t lease, uint64_t ttl_us);

enum er_store_event_kind { ER_STORE_PUT, ER_STORE_DELETE };
struct er_store_event {
    enum er_store_event_kind kind;
    struct er_store_kv kv; /* DELETE: key and mod_rev only */
};
/* All events of one revision come in one call, in order. rc ER_E_STALE: history lost (compacted,
 * store restored): range again. A watch from ER_STORE_OPENED is first told, once, with n 0, the
 * revision after which it sees everything. */
typedef void (*er_store_watch_fn)(void *user, int rc, const struct er_store_event *events, size_t n,
                                  uint64_t revision);

struct er_store_ops {
    const char *name;
    void (*free)(struct er_store *store);
    int (*fd)(const struct er_store *store); /* becomes readable when there is something to
                                                dispatch; -1: ask pending */
    bool (*pending)(const struct er_store *store);
    uint64_t (*deadline)(
        const struct er_store *store); /* next time dispatch must run, ER_FOREVER */
    void (*dispatch)(struct er_store *store, uint64_t now_us);
    int (*txn)(struct er_store *store, const struct er_store_txn *txn, er_store_txn_fn done,
               void *user);
    int (*lease_grant)(struct er_store *store, uint64_t id, uint64_t ttl_us, er_store_lease_fn done,
                       void *user);
    /* Keeps a granted lease alive until it is revoked or lost; `lost` is called once when the store
     * says it is gone. */
    int (*lease_keep)(struct er_store *store, uint64_t id, er_store_lease_fn lost, void *user);
    int (*lease_revoke)(struct er_store *store, uint64_t id, er_store_lease_fn done, void *user);
    /* From `start_rev` on (0: after everything this client was told; ER_STORE_OPENED). Returns a
     * watch id > 0 through ret_id. */
    int (*watch)(struct er_store *store, struct er_bytes key, bool prefix, uint64_t start_rev,
                 er_store_watch_fn fn, void *user, uint64_t *ret_id);
    void (*unwatch)(struct er_store *store, uint64_t id);
    /* When the last request or keep-alive was sent that the store has answered; NULL: it cannot be
     * out of reach. */
    uint64_t (*heard)(const struct er_store *store);
    /* When the store was found to answer again after an interruption; 0: there was none. NULL:
     * there cannot be any. */
    uint64_t (*resumed)(const struct er_store *store);
    /* Until when the store is known to hold a lease: other answers than to keep-alives do not renew
     * it. 0: not known. NULL: a TTL from heard(). */
    uint64_t (*lease_until)(const struct er_store *store, uint64_t lease);
};

struct er_store {
    const struct er_store_ops *ops;
};
