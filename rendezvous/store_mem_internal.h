#pragma once
/* The embedded store's insides: store_mem.c (keys, history, transactions), store_mem_time.c
 * (leases, late transactions), store_mem_client.c (the port), store_mem_hook.c (faults). */
#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/store_mem.h"

/* Key and value in one piece, shared by the key space, the history and answers under way. */
struct mem_blob {
    unsigned refs;
    size_t key_n, value_n;
    char bytes[];
};

struct mem_record {
    struct er_store_kv kv; /* points into blob */
    struct mem_blob *blob; /* one reference */
};

struct mem_event {
    enum er_store_event_kind kind;
    struct mem_record record;
    uint64_t at_us; /* when it was applied */
};

struct mem_lease {
    struct er_list node;
    uint64_t id, ttl_us;
    uint64_t expires_us;       /* ER_FOREVER while kept */
    struct mem_client *keeper; /* NULL: nobody keeps it */
    er_store_lease_fn lost;
    void *user;
};

/* A transaction that is applied later than it was answered. */
struct mem_late {
    struct er_list node;
    uint64_t due_us;
    struct er_store_txn txn; /* deep copy, one allocation */
};

struct mem_store {
    struct mem_record *records; /* sorted by key */
    size_t record_n, record_cap;
    struct mem_event *events; /* oldest first */
    size_t event_n, event_cap;
    uint64_t revision, compacted; /* newest; newest that is forgotten */
    uint64_t now_us;
    bool out; /* of order: no lease ends */
    struct er_list leases, late, clients;
    struct er_store_kv peek;
};

/* Result of a transaction; records hold references. */
struct mem_reply {
    bool succeeded;
    uint64_t revision;
    struct mem_record *records;
    size_t *range_n;
    size_t record_n, range_count;
};

struct mem_store *mem_store_new(void);
void mem_store_free(struct mem_store *s);
/* Expire leases and apply late transactions up to `now_us`. */
void mem_store_advance(struct mem_store *s, uint64_t now_us);
uint64_t mem_store_deadline(const struct mem_store *s);
/* Errors: -EINVAL (too many operations, the same key put twice), -ENOENT (no such lease), -E2BIG,
 * -ENOMEM; nothing is applied then. */
int mem_store_txn(struct mem_store *s, const struct er_store_txn *txn, struct mem_reply *ret);
void mem_reply_done(struct mem_reply *r);
/* Deep copy in one allocation, for free(); NULL: out of memory. */
struct mem_late *mem_txn_copy(const struct er_store_txn *txn);
struct mem_lease *mem_lease_find(struct mem_store *s, uint64_t id);
void mem_lease_end(struct mem_store *s, struct mem_lease *lease);
void mem_store_compact(struct mem_store *s, uint64_t rev);
/* But for its clients and the clock. */
void mem_store_wipe(struct mem_store *s);
const struct mem_record *mem_store_get(const struct mem_store *s, struct er_bytes key);

struct mem_blob *mem_blob_ref(struct mem_blob *b);
void mem_blob_unref(struct mem_blob *b);
static inline struct mem_blob *mem_blob_of(const struct er_store_kv *kv)
{
    return (struct mem_blob *)((uintptr_t)kv->key.data - offsetof(struct mem_blob, bytes));
}
bool mem_key_matches(struct er_bytes key, struct er_bytes want, bool prefix);

/* Told by the store when a lease ended that `keeper` keeps. */
void mem_client_lease_lost(struct mem_client *keeper, const struct mem_lease *lease);

/* ---- clients ---- */

#define MEM_GIVE_UP_US 5000000ull /* an answer that does not arrive */

enum answer_kind { ANSWER_TXN, ANSWER_LEASE };

struct mem_answer {
    struct er_list node;
    enum answer_kind kind;
    bool given_up;
    uint64_t due_us;
    int rc;
    void *user;
    er_store_txn_fn txn_done;
    struct mem_reply reply;
    er_store_lease_fn lease_done;
    uint64_t lease, ttl_us;
};

struct mem_watch {
    struct er_list node;
    uint64_t id, next_rev;
    struct er_bytes key; /* owned */
    bool prefix, dead;
    bool opening; /* that it is open is yet to be told, at open_us */
    bool stale;   /* told at open_us, too: the store it watched is not there any more */
    uint64_t open_us;
    er_store_watch_fn fn;
    void *user;
};

struct mem_client {
    struct er_store base;
    struct mem_store *store;
    struct er_list node, answers, watches;
    uint64_t next_watch;
    bool cut, deaf, dispatching; /* deaf: nothing arrives here */
    int64_t skew_us;             /* this client's clock is ahead by */
    uint64_t cut_us;             /* since when */
    uint64_t resumed_us;         /* neither, after one of them, since when */
    enum er_store_mem_fault fault;
    uint64_t fault_delay_us, reply_delay_us, watch_delay_us;
    struct er_bytes lag_key; /* borrowed */
    uint64_t lag_us;
    struct er_store_event *scratch; /* one revision's events */
    size_t scratch_cap;
};

static inline struct mem_client *mem_client_of(const struct er_store *store)
{
    return (struct mem_client *)(uintptr_t)store;
}

/* What this client waits for will not come from the store that it asked. */
void mem_client_wiped(struct mem_client *c);
/* From now on kept alive, or not. */
void mem_client_keep(struct mem_client *c, bool keep);
/* Of store_mem.c, for leases that end: room for more events (-ENOMEM), and a record's end. */
int mem_store_reserve(struct mem_store *s, size_t more);
void mem_store_delete_at(struct mem_store *s, size_t i);
void mem_store_drop_events(struct mem_store *s, size_t n);
