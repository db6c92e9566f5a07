#include "rendezvous/store_mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/store_mem_internal.h"

/* One client of the embedded store: the port's operations, answers and watches under way. */

/* ---- answers ---- */

static struct mem_answer *answer_new(struct mem_client *c, enum answer_kind kind, void *user)
{
    struct mem_answer *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->kind = kind;
    a->user = user;
    a->due_us = er_deadline_in(c->store->now_us, c->reply_delay_us);
    return a;
}

static void answer_free(struct mem_answer *a)
{
    mem_reply_done(&a->reply);
    free(a);
}

static void deliver(struct mem_answer *a)
{
    struct er_store_reply reply = {.succeeded = a->reply.succeeded,
                                   .revision = a->reply.revision,
                                   .range_n = a->reply.range_n,
                                   .range_count = a->reply.range_count};
    struct er_store_kv *kvs = NULL;
    int rc = a->rc;

    if (a->kind == ANSWER_LEASE) {
        a->lease_done(a->user, rc, a->lease, a->ttl_us);
        return;
    }
    if (rc == 0 && a->reply.record_n) {
        kvs = malloc(a->reply.record_n * sizeof(*kvs));
        for (size_t i = 0; kvs && i < a->reply.record_n; i++)
            kvs[i] = a->reply.records[i].kv;
        rc = kvs ? 0 : ER_E_AMBIGUOUS; /* it may have changed something */
    }
    reply.kvs = kvs;
    reply.kv_n = a->reply.record_n;
    a->txn_done(a->user, rc, rc ? NULL : &reply);
    free(kvs);
}

/* Who hears nothing gives an answer up after a while: its request may have done something. */
static bool may_deliver(const struct mem_client *c, struct mem_answer *a)
{
    if (c->cut && a->rc != -ENOTCONN)
        return false;
    if (c->deaf && !a->given_up && a->rc != -ENOTCONN) {
        a->given_up = true;
        a->due_us = er_deadline_in(c->store->now_us, MEM_GIVE_UP_US);
        a->rc = ER_E_AMBIGUOUS;
    }
    return true;
}

/* Of the answers there now; what callbacks add waits for the next dispatch. */
static void deliver_answers(struct mem_client *c)
{
    struct er_list due;

    er_list_init(&due);
    er_list_for_each_safe (node, &c->answers) {
        struct mem_answer *a = ER_LIST_ITEM(node, struct mem_answer, node);

        if (!may_deliver(c, a) || a->due_us > c->store->now_us)
            continue;
        er_list_remove(node);
        er_list_push_back(&due, node);
    }
    while (!er_list_empty(&due)) {
        struct mem_answer *a = ER_LIST_ITEM(due.next, struct mem_answer, node);

        er_list_remove(&a->node);
        deliver(a);
        answer_free(a);
    }
}

void mem_client_lease_lost(struct mem_client *keeper, const struct mem_lease *lease)
{
    struct mem_answer *a = answer_new(keeper, ANSWER_LEASE, lease->user);

    if (!a)
        return; /* the owner also watches its own key */
    a->lease_done = lease->lost;
    a->lease = lease->id;
    a->ttl_us = lease->ttl_us;
    a->rc = -ENOENT;
    er_list_push_back(&keeper->answers, &a->node);
}

/* ---- watches ---- */

/* Index of the first event at or after the watch's position that it wants; moves the position over
 * what it doesn't want. */
static size_t next_event(const struct mem_client *c, struct mem_watch *w)
{
    const struct mem_store *s = c->store;
    size_t lo = 0, hi = s->event_n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (s->events[mid].record.kv.mod_rev < w->next_rev)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < s->event_n; lo++) {
        if (mem_key_matches(s->events[lo].record.kv.key, w->key, w->prefix))
            return lo;
    }
    if (w->next_rev <= s->revision && w->next_rev > s->compacted)
        w->next_rev = s->revision + 1;
    return s->event_n;
}

static uint64_t lag_of(const struct mem_client *c, const struct mem_watch *w)
{
    bool lags = c->lag_us && w->key.len == c->lag_key.len &&
                memcmp(w->key.data, c->lag_key.data, w->key.len) == 0;

    return lags ? c->lag_us : 0;
}

/* When the watch has something to say; ER_FOREVER: nothing. */
static uint64_t watch_due(const struct mem_client *c, struct mem_watch *w)
{
    size_t i;

    if (w->dead)
        return ER_FOREVER;
    if (w->opening || w->stale)
        return w->open_us;
    if (w->next_rev <= c->store->compacted)
        return 0;
    i = next_event(c, w);
    if (i == c->store->event_n)
        return ER_FOREVER;
    return er_deadline_in(c->store->events[i].at_us, c->watch_delay_us + lag_of(c, w));
}

static int reserve_scratch(struct mem_client *c, size_t n)
{
    struct er_store_event *more;

    if (n <= c->scratch_cap)
        return 0;
    more = realloc(c->scratch, (n + 16) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    c->scratch = more;
    c->scratch_cap = n + 16;
    return 0;
}

static void watch_stale(struct mem_watch *w)
{
    w->dead = true;
    w->fn(w->user, ER_E_STALE, NULL, 0, 0);
}

/* The events of one revision, in one call. */
static void deliver_revision(struct mem_client *c, struct mem_watch *w, size_t i)
{
    struct mem_store *s = c->store;
    uint64_t rev = s->events[i].record.kv.mod_rev;
    size_t n = 0, last = i;

    while (last < s->event_n && s->events[last].record.kv.mod_rev == rev)
        last++;
    if (reserve_scratch(c, last - i) < 0) {
        watch_stale(w);
        return;
    }
    for (size_t k = i; k < last; k++) {
        const struct mem_event *e = &s->events[k];

        if (!mem_key_matches(e->record.kv.key, w->key, w->prefix))
            continue;
        mem_blob_ref(e->record.blob); /* the callback may compact history */
        c->scratch[n++] = (struct er_store_event){e->kind, e->record.kv};
    }
    w->next_rev = rev + 1;
    w->fn(w->user, 0, c->scratch, n, rev);
    for (size_t k = 0; k < n; k++)
        mem_blob_unref(mem_blob_of(&c->scratch[k].kv));
}

static void tell_open(struct mem_watch *w)
{
    w->opening = false;
    w->fn(w->user, 0, NULL, 0, w->next_rev - 1);
}

static void deliver_watch(struct mem_client *c, struct mem_watch *w)
{
    while (watch_due(c, w) <= c->store->now_us) {
        if (w->opening)
            tell_open(w);
        else if (w->stale || w->next_rev <= c->store->compacted)
            watch_stale(w);
        else
            deliver_revision(c, w, next_event(c, w));
    }
}

static void watch_free(struct mem_watch *w)
{
    er_list_remove(&w->node);
    free((void *)(uintptr_t)w->key.data);
    free(w);
}

static void reap_watches(struct mem_client *c)
{
    er_list_for_each_safe (node, &c->watches) {
        struct mem_watch *w = ER_LIST_ITEM(node, struct mem_watch, node);

        if (w->dead)
            watch_free(w);
    }
}

void mem_client_wiped(struct mem_client *c)
{
    er_list_for_each (node, &c->answers) {
        struct mem_answer *a = ER_LIST_ITEM(node, struct mem_answer, node);

        if (a->kind == ANSWER_TXN && a->rc == 0) {
            mem_reply_done(&a->reply);
            a->rc = ER_E_AMBIGUOUS;
        }
    }
    er_list_for_each (node, &c->watches) {
        struct mem_watch *w = ER_LIST_ITEM(node, struct mem_watch, node);

        w->stale = true;
        w->opening = false;
        w->open_us = er_deadline_in(c->store->now_us, c->watch_delay_us);
    }
    if (!c->cut && !c->deaf)
        c->resumed_us = c->store->now_us;
}

/* ---- the port ---- */

static int client_fd(const struct er_store *store)
{
    return -1;
}

/* The client's clock. */
static uint64_t local(const struct mem_client *c, uint64_t at_us)
{
    return (uint64_t)((int64_t)at_us + c->skew_us);
}

static uint64_t client_heard(const struct er_store *store)
{
    const struct mem_client *c = mem_client_of(store);

    return local(c, c->cut || c->deaf ? c->cut_us : c->store->now_us);
}

static uint64_t client_resumed(const struct er_store *store)
{
    const struct mem_client *c = mem_client_of(store);

    return c->resumed_us ? local(c, c->resumed_us) : 0;
}

static uint64_t client_deadline(const struct er_store *store)
{
    const struct mem_client *c = mem_client_of(store);
    uint64_t at = mem_store_deadline(c->store);

    er_list_for_each (node, &c->answers) {
        struct mem_answer *a = ER_LIST_ITEM(node, struct mem_answer, node);

        if (may_deliver(c, a) && a->due_us < at)
            at = a->due_us;
    }
    er_list_for_each (node, &c->watches) {
        uint64_t due = c->cut || c->deaf ? ER_FOREVER
                                         : watch_due(c, ER_LIST_ITEM(node, struct mem_watch, node));

        at = due < at ? due : at;
    }
    return at == ER_FOREVER || at == 0 ? at : local(c, at);
}

static bool client_pending(const struct er_store *store)
{
    const struct mem_client *c = mem_client_of(store);

    return client_deadline(store) <= local(c, c->store->now_us);
}

static void client_dispatch(struct er_store *store, uint64_t now_us)
{
    struct mem_client *c = mem_client_of(store);

    mem_store_advance(c->store, (uint64_t)((int64_t)now_us - c->skew_us));
    c->dispatching = true;
    deliver_answers(c);
    if (!c->cut && !c->deaf) {
        /* A watch that is opened in a callback is appended, and runs in this pass. */
        er_list_for_each (node, &c->watches)
            deliver_watch(c, ER_LIST_ITEM(node, struct mem_watch, node));
    }
    c->dispatching = false;
    reap_watches(c);
}

static void apply_later(struct mem_client *c, const struct er_store_txn *txn)
{
    struct mem_late *late = mem_txn_copy(txn);

    if (!late)
        return;
    late->due_us = er_deadline_in(c->store->now_us, c->fault_delay_us);
    er_list_push_back(&c->store->late, &late->node);
}

static void run_txn(struct mem_client *c, const struct er_store_txn *txn, struct mem_answer *a)
{
    enum er_store_mem_fault fault = c->cut ? ER_FAULT_REFUSED : c->fault;

    c->fault = ER_FAULT_NONE;
    switch (fault) {
    case ER_FAULT_NONE:
        a->rc = mem_store_txn(c->store, txn, &a->reply);
        break;
    case ER_FAULT_LOST_REPLY:
        a->rc = mem_store_txn(c->store, txn, &a->reply) ? -EINVAL : ER_E_AMBIGUOUS;
        break;
    case ER_FAULT_DUPLICATE:
        a->rc = mem_store_txn(c->store, txn, &a->reply);
        apply_later(c, txn);
        break;
    case ER_FAULT_LATE:
        apply_later(c, txn);
        a->rc = ER_E_AMBIGUOUS;
        break;
    case ER_FAULT_LOST:
        a->rc = ER_E_AMBIGUOUS;
        break;
    case ER_FAULT_REFUSED:
        a->rc = -ENOTCONN;
        break;
    }
}

static int client_txn(struct er_store *store, const struct er_store_txn *txn, er_store_txn_fn done,
                      void *user)
{
    struct mem_client *c = mem_client_of(store);
    struct mem_answer *a = answer_new(c, ANSWER_TXN, user);

    if (!a)
        return -ENOMEM;
    a->txn_done = done;
    run_txn(c, txn, a);
    er_list_push_back(&c->answers, &a->node);
    return 0;
}

static int answer_lease(struct mem_client *c, int rc, const struct mem_lease *lease, uint64_t id,
                        er_store_lease_fn done, void *user)
{
    struct mem_answer *a;

    if (!done)
        return 0;
    a = answer_new(c, ANSWER_LEASE, user);
    if (!a)
        return -ENOMEM;
    a->rc = rc;
    a->lease = id;
    a->ttl_us = lease ? lease->ttl_us : 0;
    a->lease_done = done;
    er_list_push_back(&c->answers, &a->node);
    return 0;
}

static int client_grant(struct er_store *store, uint64_t id, uint64_t ttl_us,
                        er_store_lease_fn done, void *user)
{
    struct mem_client *c = mem_client_of(store);
    struct mem_lease *lease = NULL;
    int rc = c->cut ? -ENOTCONN : id == 0 ? -EINVAL : mem_lease_find(c->store, id) ? -EEXIST : 0;

    if (rc == 0) {
        lease = calloc(1, sizeof(*lease));
        if (!lease)
            return -ENOMEM;
        lease->id = id;
        lease->ttl_us = ttl_us;
        lease->expires_us = er_deadline_in(c->store->now_us, ttl_us);
        er_list_push_back(&c->store->leases, &lease->node);
    }
    return answer_lease(c, rc, lease, id, done, user);
}

static int client_keep(struct er_store *store, uint64_t id, er_store_lease_fn lost, void *user)
{
    struct mem_client *c = mem_client_of(store);
    struct mem_lease *lease = mem_lease_find(c->store, id);

    if (!lease)
        return answer_lease(c, -ENOENT, NULL, id, lost, user);
    lease->keeper = c;
    lease->lost = lost;
    lease->user = user;
    lease->expires_us = c->cut ? er_deadline_in(c->store->now_us, lease->ttl_us) : ER_FOREVER;
    return 0;
}

static int client_revoke(struct er_store *store, uint64_t id, er_store_lease_fn done, void *user)
{
    struct mem_client *c = mem_client_of(store);
    struct mem_lease *lease = mem_lease_find(c->store, id);

    if (c->cut)
        return answer_lease(c, -ENOTCONN, NULL, id, done, user);
    if (!lease)
        return answer_lease(c, -ENOENT, NULL, id, done, user);
    if (lease->keeper == c)
        lease->keeper = NULL; /* on purpose: not "lost" */
    mem_lease_end(c->store, lease);
    return answer_lease(c, 0, NULL, id, done, user);
}

static int client_watch(struct er_store *store, struct er_bytes key, bool prefix,
                        uint64_t start_rev, er_store_watch_fn fn, void *user, uint64_t *ret_id)
{
    struct mem_client *c = mem_client_of(store);
    struct mem_watch *w = calloc(1, sizeof(*w));
    char *copy = malloc(key.len + 1);

    if (!w || !copy) {
        free(w);
        free(copy);
        return -ENOMEM;
    }
    if (key.len)
        memcpy(copy, key.data, key.len);
    w->id = ++c->next_watch;
    w->key = (struct er_bytes){copy, key.len};
    w->prefix = prefix;
    w->opening = start_rev == ER_STORE_OPENED;
    w->open_us = er_deadline_in(c->store->now_us, c->reply_delay_us);
    w->next_rev = start_rev && !w->opening ? start_rev : c->store->revision + 1;
    w->fn = fn;
    w->user = user;
    er_list_push_back(&c->watches, &w->node);
    *ret_id = w->id;
    return 0;
}

static void client_unwatch(struct er_store *store, uint64_t id)
{
    struct mem_client *c = mem_client_of(store);

    er_list_for_each (node, &c->watches) {
        struct mem_watch *w = ER_LIST_ITEM(node, struct mem_watch, node);

        if (w->id == id)
            w->dead = true;
    }
    if (!c->dispatching)
        reap_watches(c);
}

static void client_free(struct er_store *store)
{
    struct mem_client *c = mem_client_of(store);

    if (!store)
        return;
    mem_client_keep(c, false);
    er_list_for_each (node, &c->store->leases) {
        struct mem_lease *l = ER_LIST_ITEM(node, struct mem_lease, node);

        if (l->keeper == c)
            l->keeper = NULL;
    }
    er_list_for_each_safe (node, &c->answers)
        answer_free(ER_LIST_ITEM(node, struct mem_answer, node));
    er_list_for_each_safe (node, &c->watches)
        watch_free(ER_LIST_ITEM(node, struct mem_watch, node));
    er_list_remove(&c->node);
    if (er_list_empty(&c->store->clients))
        mem_store_free(c->store);
    free(c->scratch);
    free(c);
}

static const struct er_store_ops mem_ops = {
    .name = "embedded",
    .free = client_free,
    .fd = client_fd,
    .pending = client_pending,
    .deadline = client_deadline,
    .dispatch = client_dispatch,
    .txn = client_txn,
    .lease_grant = client_grant,
    .lease_keep = client_keep,
    .lease_revoke = client_revoke,
    .watch = client_watch,
    .unwatch = client_unwatch,
    .heard = client_heard,
    .resumed = client_resumed,
};

/* ---- life ---- */

static int client_new(struct mem_store *s, struct er_store **ret, struct er_error *err)
{
    struct mem_client *c = s ? calloc(1, sizeof(*c)) : NULL;

    if (!c)
        return er_error_set(err, -ENOMEM, "embedded store: out of memory");
    c->base.ops = &mem_ops;
    c->store = s;
    er_list_init(&c->answers);
    er_list_init(&c->watches);
    er_list_push_back(&s->clients, &c->node);
    *ret = &c->base;
    return 0;
}

int er_store_mem_new(struct er_store **ret, struct er_error *err)
{
    struct mem_store *s = mem_store_new();
    int rc = client_new(s, ret, err);

    if (rc)
        mem_store_free(s);
    return rc;
}

int er_store_mem_client(struct er_store *of_store, struct er_store **ret, struct er_error *err)
{
    return client_new(mem_client_of(of_store)->store, ret, err);
}
