#include "rendezvous/store_mem.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "rendezvous/store_mem_internal.h"

/* ---- blobs and keys ---- */

static struct mem_blob *blob_new(struct er_bytes key, struct er_bytes value)
{
    struct mem_blob *b = malloc(sizeof(*b) + key.len + value.len + 1);

    if (!b)
        return NULL;
    b->refs = 1;
    b->key_n = key.len;
    b->value_n = value.len;
    if (key.len)
        memcpy(b->bytes, key.data, key.len);
    if (value.len)
        memcpy(b->bytes + key.len, value.data, value.len);
    b->bytes[key.len + value.len] = 0;
    return b;
}

struct mem_blob *mem_blob_ref(struct mem_blob *b)
{
    b->refs++;
    return b;
}

void mem_blob_unref(struct mem_blob *b)
{
    if (b && --b->refs == 0)
        free(b);
}

static void point(struct mem_record *r)
{
    r->kv.key = (struct er_bytes){r->blob->bytes, r->blob->key_n};
    r->kv.value = (struct er_bytes){r->blob->bytes + r->blob->key_n, r->blob->value_n};
}

static int key_cmp(struct er_bytes a, struct er_bytes b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.data, b.data, n) : 0;

    return c ? c : (a.len > b.len) - (a.len < b.len);
}

bool mem_key_matches(struct er_bytes key, struct er_bytes want, bool prefix)
{
    if (prefix ? key.len < want.len : key.len != want.len)
        return false;
    return want.len == 0 || memcmp(key.data, want.data, want.len) == 0;
}

/* First record whose key is not below `key`. */
static size_t lower_bound(const struct mem_store *s, struct er_bytes key)
{
    size_t lo = 0, hi = s->record_n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (key_cmp(s->records[mid].kv.key, key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct mem_record *mem_store_get(const struct mem_store *s, struct er_bytes key)
{
    size_t i = lower_bound(s, key);

    return i < s->record_n && key_cmp(s->records[i].kv.key, key) == 0 ? &s->records[i] : NULL;
}

/* ---- history ---- */

void mem_store_drop_events(struct mem_store *s, size_t n)
{
    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++)
        mem_blob_unref(s->events[i].record.blob);
    s->event_n -= n;
    memmove(s->events, s->events + n, s->event_n * sizeof(*s->events));
}

void mem_store_compact(struct mem_store *s, uint64_t rev)
{
    size_t n = 0;

    while (n < s->event_n && s->events[n].record.kv.mod_rev <= rev)
        n++;
    mem_store_drop_events(s, n);
    if (rev > s->compacted)
        s->compacted = rev < s->revision ? rev : s->revision;
}

/* Room for `more` events before anything is changed, so that a transaction can't fail half-way. */
int mem_store_reserve(struct mem_store *s, size_t more)
{
    size_t cap = s->event_cap ? s->event_cap : 64;
    struct mem_event *events;

    if (s->event_n + more > ER_STORE_MEM_HISTORY_MAX && s->event_n)
        mem_store_compact(s, s->events[s->event_n / 4].record.kv.mod_rev);
    if (s->event_n + more <= s->event_cap)
        return 0;
    while (cap < s->event_n + more)
        cap *= 2;
    events = realloc(s->events, cap * sizeof(*events));
    if (!events)
        return -ENOMEM;
    s->events = events;
    s->event_cap = cap;
    return 0;
}

static void add_event(struct mem_store *s, enum er_store_event_kind kind, struct mem_record record)
{
    struct mem_event *e;

    if (s->event_n == s->event_cap) { /* a lease ended without memory: watches must read again */
        mem_store_compact(s, s->revision);
        return;
    }
    e = &s->events[s->event_n++];
    e->kind = kind;
    e->record = record;
    e->record.blob = mem_blob_ref(record.blob);
    e->at_us = s->now_us;
    if (kind == ER_STORE_DELETE) {
        e->record.kv.mod_rev = s->revision;
        e->record.kv.create_rev = e->record.kv.lease = 0;
        e->record.kv.value = (struct er_bytes){NULL, 0};
    }
}

/* ---- changes; room has been made before ---- */

static int reserve_records(struct mem_store *s, size_t more)
{
    size_t cap = s->record_cap ? s->record_cap : 32;
    struct mem_record *records;

    if (s->record_n + more <= s->record_cap)
        return 0;
    while (cap < s->record_n + more)
        cap *= 2;
    records = realloc(s->records, cap * sizeof(*records));
    if (!records)
        return -ENOMEM;
    s->records = records;
    s->record_cap = cap;
    return 0;
}

static void put(struct mem_store *s, struct mem_blob *blob, uint64_t lease)
{
    struct mem_record r = {.blob = blob};
    size_t i;

    point(&r);
    r.kv.mod_rev = r.kv.create_rev = s->revision;
    r.kv.lease = lease;
    i = lower_bound(s, r.kv.key);
    if (i < s->record_n && key_cmp(s->records[i].kv.key, r.kv.key) == 0) {
        r.kv.create_rev = s->records[i].kv.create_rev;
        mem_blob_unref(s->records[i].blob);
    } else {
        memmove(s->records + i + 1, s->records + i, (s->record_n - i) * sizeof(*s->records));
        s->record_n++;
    }
    s->records[i] = r;
    add_event(s, ER_STORE_PUT, r);
}

void mem_store_delete_at(struct mem_store *s, size_t i)
{
    add_event(s, ER_STORE_DELETE, s->records[i]);
    mem_blob_unref(s->records[i].blob);
    s->record_n--;
    memmove(s->records + i, s->records + i + 1, (s->record_n - i) * sizeof(*s->records));
}

static void delete_keys(struct mem_store *s, struct er_bytes key, bool prefix)
{
    size_t i = lower_bound(s, key);

    while (i < s->record_n && mem_key_matches(s->records[i].kv.key, key, prefix))
        mem_store_delete_at(s, i);
}

static size_t count_keys(const struct mem_store *s, struct er_bytes key, bool prefix)
{
    size_t first = lower_bound(s, key), i = first;

    while (i < s->record_n && mem_key_matches(s->records[i].kv.key, key, prefix))
        i++;
    return i - first;
}

/* ---- compares ---- */

static bool holds(int order, enum er_cmp_result result)
{
    switch (result) {
    case ER_CMP_EQUAL:
        return order == 0;
    case ER_CMP_NOT_EQUAL:
        return order != 0;
    case ER_CMP_LESS:
        return order < 0;
    case ER_CMP_GREATER:
        return order > 0;
    }
    return false;
}

static bool record_holds(const struct mem_record *r, const struct er_store_cmp *c)
{
    uint64_t rev = 0;

    if (c->target == ER_CMP_VALUE)
        return r && holds(key_cmp(r->kv.value, c->value), c->result);
    if (r)
        rev = c->target == ER_CMP_CREATE ? r->kv.create_rev : r->kv.mod_rev;
    return holds((rev > c->rev) - (rev < c->rev), c->result);
}

/* A prefix compare holds when it holds for every key; for an empty one as for a missing key. */
static bool compare(const struct mem_store *s, const struct er_store_cmp *c)
{
    size_t i;

    if (!c->prefix)
        return record_holds(mem_store_get(s, c->key), c);
    i = lower_bound(s, c->key);
    if (i == s->record_n || !mem_key_matches(s->records[i].kv.key, c->key, true))
        return record_holds(NULL, c);
    for (; i < s->record_n && mem_key_matches(s->records[i].kv.key, c->key, true); i++) {
        if (!record_holds(&s->records[i], c))
            return false;
    }
    return true;
}

/* ---- transactions ---- */

static bool same_put(const struct er_store_op *a, const struct er_store_op *b)
{
    return a->kind == ER_OP_PUT && b->kind == ER_OP_PUT && mem_key_matches(a->key, b->key, false);
}

/* As etcd does, statically, for both branches. */
static int check_ops(const struct er_store_op *ops, size_t n)
{
    if (n > ER_STORE_TXN_OPS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (ops[i].key.len + ops[i].value.len > ER_STORE_MEM_VALUE_MAX)
            return -E2BIG;
        for (size_t k = 0; k < i; k++) {
            if (same_put(&ops[i], &ops[k]))
                return -EINVAL;
        }
    }
    return 0;
}

static int prepare(struct mem_store *s, const struct er_store_op *ops, size_t n,
                   struct mem_blob **blobs)
{
    size_t changes = 0, puts = 0;

    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == ER_OP_RANGE && ops[i].revision && ops[i].revision != s->revision)
            return ER_E_STALE; /* old values are not kept */
        if (ops[i].kind == ER_OP_DELETE)
            changes += count_keys(s, ops[i].key, ops[i].prefix) + puts;
        if (ops[i].kind != ER_OP_PUT)
            continue;
        if (ops[i].lease && !mem_lease_find(s, ops[i].lease))
            return -ENOENT;
        blobs[i] = blob_new(ops[i].key, ops[i].value);
        if (!blobs[i])
            return -ENOMEM;
        changes++;
        puts++;
    }
    return mem_store_reserve(s, changes) < 0 || reserve_records(s, n) < 0 ? -ENOMEM : 0;
}

/* Does the branch change anything? Only then it takes a revision. */
static bool changes_any(const struct mem_store *s, const struct er_store_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == ER_OP_PUT ||
            (ops[i].kind == ER_OP_DELETE && count_keys(s, ops[i].key, ops[i].prefix)))
            return true;
    }
    return false;
}

static int range(const struct mem_store *s, const struct er_store_op *op, struct mem_reply *r)
{
    size_t first = lower_bound(s, op->key), n = count_keys(s, op->key, op->prefix);

    if (op->after.len) {
        size_t next = lower_bound(s, op->after), end = first + n;

        next += next < end && key_cmp(s->records[next].kv.key, op->after) == 0;
        first = next < end ? next : end;
        n = end - first;
    }
    if (op->limit && n > op->limit)
        n = op->limit;
    if (n) {
        struct mem_record *more = realloc(r->records, (r->record_n + n) * sizeof(*more));

        if (!more)
            return -ENOMEM;
        r->records = more;
    }
    for (size_t i = 0; i < n; i++) {
        r->records[r->record_n] = s->records[first + i];
        mem_blob_ref(r->records[r->record_n++].blob);
    }
    r->range_n[r->range_count++] = n;
    return 0;
}

static int run_ops(struct mem_store *s, const struct er_store_op *ops, size_t n,
                   struct mem_blob **blobs, struct mem_reply *r)
{
    int rc = 0;

    r->range_n = n ? calloc(n, sizeof(*r->range_n)) : NULL;
    if (n && !r->range_n)
        return -ENOMEM;
    if (changes_any(s, ops, n))
        s->revision++;
    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == ER_OP_PUT)
            put(s, ER_TAKE(blobs[i]), ops[i].lease);
        else if (ops[i].kind == ER_OP_DELETE)
            delete_keys(s, ops[i].key, ops[i].prefix);
        else if (rc == 0)
            rc = range(s, &ops[i], r);
    }
    return rc;
}

int mem_store_txn(struct mem_store *s, const struct er_store_txn *txn, struct mem_reply *ret)
{
    struct mem_blob *blobs[ER_STORE_TXN_OPS_MAX] = {NULL};
    const struct er_store_op *ops;
    size_t n;
    int rc;

    memset(ret, 0, sizeof(*ret));
    if (txn->cmp_n > ER_STORE_TXN_OPS_MAX)
        return -EINVAL;
    if ((rc = check_ops(txn->then_ops, txn->then_n)) ||
        (rc = check_ops(txn->else_ops, txn->else_n)))
        return rc;
    ret->succeeded = true;
    for (size_t i = 0; i < txn->cmp_n && ret->succeeded; i++)
        ret->succeeded = compare(s, &txn->cmps[i]);
    ops = ret->succeeded ? txn->then_ops : txn->else_ops;
    n = ret->succeeded ? txn->then_n : txn->else_n;
    rc = prepare(s, ops, n, blobs);
    if (rc == 0)
        rc = run_ops(s, ops, n, blobs, ret);
    for (size_t i = 0; i < n; i++)
        mem_blob_unref(blobs[i]);
    ret->revision = s->revision;
    if (rc)
        mem_reply_done(ret);
    return rc;
}

void mem_reply_done(struct mem_reply *r)
{
    for (size_t i = 0; i < r->record_n; i++)
        mem_blob_unref(r->records[i].blob);
    free(r->records);
    free(r->range_n);
    memset(r, 0, sizeof(*r));
}

/* ---- life ---- */

struct mem_store *mem_store_new(void)
{
    struct mem_store *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->revision = 1; /* as an empty etcd */
    er_list_init(&s->leases);
    er_list_init(&s->late);
    er_list_init(&s->clients);
    return s;
}

void mem_store_wipe(struct mem_store *s)
{
    er_list_for_each_safe (node, &s->late) {
        er_list_remove(node);
        free(ER_LIST_ITEM(node, struct mem_late, node));
    }
    for (size_t i = 0; i < s->record_n; i++)
        mem_blob_unref(s->records[i].blob);
    mem_store_drop_events(s, s->event_n);
    s->record_n = 0;
    s->revision = 1;
    s->compacted = 0;
    er_list_for_each_safe (node, &s->leases) /* no key is left that they could take along */
        mem_lease_end(s, ER_LIST_ITEM(node, struct mem_lease, node));
}

void mem_store_free(struct mem_store *s)
{
    if (!s)
        return;
    assert(er_list_empty(&s->clients));
    er_list_for_each_safe (node, &s->leases)
        free(ER_LIST_ITEM(node, struct mem_lease, node));
    er_list_for_each_safe (node, &s->late)
        free(ER_LIST_ITEM(node, struct mem_late, node));
    for (size_t i = 0; i < s->record_n; i++)
        mem_blob_unref(s->records[i].blob);
    mem_store_drop_events(s, s->event_n);
    free(s->records);
    free(s->events);
    free(s);
}
