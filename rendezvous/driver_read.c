#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/driver_internal.h"

/* The driver's reads and the watches beside them: a node's own keys, and a leader's job. A watch is
 * opened first, and what is read is at least as new as its beginning: a watch that begins where a
 * read ended is in etcd's past, which it serves up to 100 ms late. What comes twice is known by its
 * revision. */

/* ---- the own keys, overrides, ckpt/latest, query and aside ---- */

static const enum er_key_kind self_keys[DRIVER_SELF_KEYS] = {
    ER_KEY_WORLD,     ER_KEY_LEADER, ER_KEY_NODE,  ER_KEY_ASSIGN,
    ER_KEY_OVERRIDES, ER_KEY_CKPT,   ER_KEY_QUERY, ER_KEY_ASIDE,
};

static struct er_bytes self_key(const struct er_driver *d, size_t i, char text[ER_KEY_MAX])
{
    struct er_key key = {.kind = self_keys[i]};

    memcpy(key.name, d->core->opts.node_id, sizeof(d->core->opts.node_id));
    return (struct er_bytes){text, er_key_format(d->core->root, &key, text)};
}

/* Each once, however often it is read. */
static void on_query(struct er_driver *d, const struct er_store_kv *kv)
{
    struct er_query query;

    if (d->over || !d->callbacks.query || er_query_parse(kv->value, &query, NULL) ||
        query.id == d->query_id)
        return;
    d->query_id = query.id;
    d->callbacks.query(d->user, &query);
}

static void on_answered(void *user, int rc, const struct er_store_reply *reply)
{
    /* Who asked has gone, or sees that this node says nothing. */
}

void er_driver_answer(struct er_driver *driver, const struct er_query *query, const void *value,
                      size_t n)
{
    struct er_key key = {.kind = ER_KEY_ANSWER};
    char text[ER_KEY_MAX];
    struct er_store_op op = {.kind = ER_OP_PUT, .value = {value, n}, .lease = query->lease};

    memcpy(key.name, driver->core->opts.node_id, sizeof(driver->core->opts.node_id));
    op.key = (struct er_bytes){text, er_key_format(driver->core->root, &key, text)};
    (void)driver->store->ops->txn(
        driver->store, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, on_answered, NULL);
}

/* Once for each change, and once that there are none at all. */
static void tell_overrides(struct er_driver *d)
{
    const struct er_overrides *now = er_driver_overrides(d);
    uint64_t rev = now ? d->core->k_overrides.mod_rev : 0;

    if (d->over || !d->callbacks.overrides || (d->overrides_told && rev == d->overrides_told_rev))
        return;
    d->overrides_told = true;
    d->overrides_told_rev = rev;
    d->callbacks.overrides(d->user, now);
}

/* Only told: plans are the leader's business. */
static void on_aside(struct er_driver *d, bool put, const struct er_store_kv *kv, uint64_t revision)
{
    if (revision < d->aside_rev)
        return;
    d->aside_rev = revision;
    if (!put || er_aside_parse(kv->value, &d->aside, NULL))
        d->aside.reason[0] = '\0';
}

/* As of `revision` the key is like that; `put` false: not there. */
static void on_self_kv(struct er_driver *d, bool put, const struct er_store_kv *kv,
                       uint64_t revision)
{
    struct er_key key;

    er_key_parse(d->core->root, kv->key, &key);
    if (key.kind == ER_KEY_QUERY) {
        if (put)
            on_query(d, kv);
        return;
    }
    if (key.kind == ER_KEY_CKPT) {
        if (revision < d->latest_rev)
            return;
        d->latest_rev = revision;
        if (put && er_ckpt_record_parse(kv->value, &d->latest, NULL) == 0)
            d->has_latest = true;
        return;
    }
    if (key.kind == ER_KEY_ASIDE) {
        on_aside(d, put, kv, revision);
        return;
    }
    driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_SELF_KV,
                                           .change = put ? ER_STORE_PUT : ER_STORE_DELETE,
                                           .revision = revision,
                                           .kv = kv});
    if (key.kind == ER_KEY_OVERRIDES)
        tell_overrides(d);
}

void driver_close_self(struct er_driver *d)
{
    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++) {
        if (d->self_watch[i])
            d->store->ops->unwatch(d->store, d->self_watch[i]);
        d->self_watch[i] = 0;
    }
    d->self_opening = 0;
    d->latest_rev = d->aside_rev = 0; /* a restored store counts anew */
}

void driver_reread_self(struct er_driver *d)
{
    driver_close_self(d);
    d->self_wanted = true;
    d->retry_us = d->now_us;
}

static void read_self_keys(struct er_driver *d);

static void on_self_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                          uint64_t revision)
{
    struct er_driver *d = user;

    if (rc) {
        driver_reread_self(d);
        return;
    }
    if (n == 0 && --d->self_opening == 0)
        read_self_keys(d);
    if (n > 0 && revision > d->self_rev)
        d->self_rev = revision;
    for (size_t i = 0; i < n; i++)
        on_self_kv(d, events[i].kind == ER_STORE_PUT, &events[i].kv, events[i].kv.mod_rev);
}

static void on_self_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;
    char text[ER_KEY_MAX];
    size_t kv = 0;

    d->self_reading = false;
    if (rc) {
        d->self_wanted = true;
        d->retry_us = er_deadline_in(d->now_us, DRIVER_RETRY_US);
    }
    if (d->self_wanted)
        return;
    /* A read is never older than what was known before it: this is not the store that it was. */
    if (reply->revision < d->self_floor) {
        driver_feed(d, ER_EV_FORGET);
        d->overrides_told = false; /* the same revision may be of another record */
        d->self_rev = 0;
        read_self_keys(d); /* what the watches said of the new store was forgotten, too */
        return;
    }
    if (reply->revision > d->self_rev)
        d->self_rev = reply->revision;
    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++) {
        struct er_store_kv none = {.key = self_key(d, i, text)};
        bool put = reply->range_n[i] != 0;

        on_self_kv(d, put, put ? &reply->kvs[kv++] : &none, reply->revision);
    }
    driver_feed(d, ER_EV_SELF_READY);
}

static void read_self_keys(struct er_driver *d)
{
    struct er_store_op ops[DRIVER_SELF_KEYS];
    char text[DRIVER_SELF_KEYS][ER_KEY_MAX];
    struct er_store_txn txn = {.then_ops = ops, .then_n = DRIVER_SELF_KEYS};

    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++)
        ops[i] = (struct er_store_op){.kind = ER_OP_RANGE, .key = self_key(d, i, text[i])};
    d->self_floor = er_rdzv_known_rev(d->core);
    if (d->self_rev > d->self_floor)
        d->self_floor = d->self_rev;
    d->self_reading = d->store->ops->txn(d->store, &txn, on_self_read, d) == 0;
    if (!d->self_reading) {
        d->self_wanted = true;
        d->retry_us = er_deadline_in(d->now_us, DRIVER_RETRY_US);
    }
}

/* Anew, or only the read again when the watches are there. */
void driver_read_self(struct er_driver *d)
{
    char text[ER_KEY_MAX];

    d->self_wanted = false;
    if (d->self_watch[0]) {
        read_self_keys(d);
        return;
    }
    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++) {
        if (d->store->ops->watch(d->store, self_key(d, i, text), false, ER_STORE_OPENED,
                                 on_self_watch, d, &d->self_watch[i]) < 0) {
            d->self_watch[i] = 0;
            driver_reread_self(d);
            d->retry_us = er_deadline_in(d->now_us, DRIVER_RETRY_US);
            return;
        }
        d->self_opening++;
    }
}

/* ---- the whole job, for the leader ---- */

/* What a leader reads, a page of each first; what it watches is the prefix of all but the last. */
static const struct {
    const char *head;
    bool prefix;
} job_parts[DRIVER_JOB_PARTS] = {
    {"j/world", false}, {"j/leader", false}, {"j/ctl/", true}, {"j/aside/", true},
    {"j/n/", true},     {"j/r/", true},      {"a/", true},
};
#define WATCHED "j/"

static struct er_bytes job_key(const struct er_driver *d, const char *head,
                               char text[ER_ROOT_MAX + 8])
{
    struct er_text t = {text, ER_ROOT_MAX + 8, 0};

    er_text_add(&t, d->core->root);
    er_text_add(&t, head);
    return (struct er_bytes){text, t.len};
}

static void early_drop(struct er_driver *d)
{
    for (size_t i = 0; i < d->early.n; i++)
        free(d->early.list[i].text);
    free(d->early.list);
    memset(&d->early, 0, sizeof(d->early));
}

void driver_close_job(struct er_driver *d)
{
    if (d->job_watch)
        d->store->ops->unwatch(d->store, d->job_watch);
    d->job_watch = 0;
    early_drop(d);
}

void driver_want_job(struct er_driver *d, uint64_t at_us)
{
    driver_close_job(d);
    d->job_wanted = true;
    d->retry_us = at_us;
}

static void feed_job(struct er_driver *d, enum er_store_event_kind kind,
                     const struct er_store_kv *kv)
{
    driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_JOB_KV, .change = kind, .kv = kv});
}

/* A copy that waits for the end of the read. */
static int early_keep(struct er_driver *d, const struct er_store_event *e)
{
    size_t cap = d->early.cap ? d->early.cap * 2 : 64, key_n = e->kv.key.len;
    struct driver_early *list, *to;

    if (d->early.n == DRIVER_EARLY_MAX)
        return ER_E_LIMIT;
    if (d->early.n == d->early.cap) {
        list = reallocarray(d->early.list, cap, sizeof(*list));
        if (!list)
            return -ENOMEM;
        d->early.list = list;
        d->early.cap = cap;
    }
    to = &d->early.list[d->early.n];
    to->text = malloc(key_n + e->kv.value.len + 1);
    if (!to->text)
        return -ENOMEM;
    memcpy(to->text, e->kv.key.data, key_n);
    if (e->kv.value.len)
        memcpy(to->text + key_n, e->kv.value.data, e->kv.value.len);
    to->event = *e;
    to->event.kv.key.data = to->text;
    to->event.kv.value.data = to->text + key_n;
    d->early.n++;
    return 0;
}

static void on_job_open(struct er_driver *d);

static void on_job_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                         uint64_t revision)
{
    struct er_driver *d = user;

    if (rc == 0 && n == 0)
        on_job_open(d);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (d->early.on)
            rc = early_keep(d, &events[i]);
        else
            feed_job(d, events[i].kind, &events[i].kv);
    }
    if (rc)
        driver_want_job(d, d->now_us);
}

/* All pages are there, all as of the first one's revision; then what has changed since. */
static void job_complete(struct er_driver *d)
{
    for (size_t i = 0; i < d->early.n; i++) {
        const struct er_store_event *e = &d->early.list[i].event;

        if (e->kv.mod_rev > d->page.revision)
            feed_job(d, e->kind, &e->kv);
    }
    early_drop(d);
    driver_feed(d, ER_EV_JOB_READY);
}

/* Remembers where the part goes on. A store that doesn't know pages gave all of it. */
static void note_page(struct er_driver *d, size_t part, const struct er_store_kv *kvs, size_t n)
{
    const struct er_bytes *last = n ? &kvs[n - 1].key : NULL;

    d->page.open[part] = n == DRIVER_PAGE && last->len < ER_KEY_MAX;
    if (!d->page.open[part])
        return;
    memcpy(d->page.after[part], last->data, last->len);
    d->page.after_n[part] = last->len;
}

static void read_page(struct er_driver *d);

static void on_page(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;
    size_t part = d->page.part;

    d->job_reading = false;
    if (!d->job_open || d->job_wanted)
        return;
    if (rc) {
        driver_want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
        return;
    }
    for (size_t i = 0; i < reply->kv_n; i++)
        feed_job(d, ER_STORE_PUT, &reply->kvs[i]);
    if (reply->kv_n && reply->kvs[0].key.len == d->page.after_n[part] &&
        memcmp(reply->kvs[0].key.data, d->page.after[part], reply->kvs[0].key.len) <= 0)
        d->page.open[part] = false; /* the same page again: the store knows none */
    else
        note_page(d, part, reply->kvs, reply->kv_n);
    read_page(d);
}

/* The next page of the first part that has more, at the revision of the first ones. */
static void read_page(struct er_driver *d)
{
    char text[ER_ROOT_MAX + 8];
    struct er_store_op op = {.kind = ER_OP_RANGE, .prefix = true, .limit = DRIVER_PAGE};
    struct er_store_txn txn = {.then_ops = &op, .then_n = 1};
    size_t part = 0;

    while (part < DRIVER_JOB_PARTS && !d->page.open[part])
        part++;
    if (part == DRIVER_JOB_PARTS) {
        job_complete(d);
        return;
    }
    d->page.part = part;
    op.key = job_key(d, job_parts[part].head, text);
    op.after = (struct er_bytes){d->page.after[part], d->page.after_n[part]};
    op.revision = d->page.revision;
    d->job_reading = d->store->ops->txn(d->store, &txn, on_page, d) == 0;
    if (!d->job_reading)
        driver_want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
}

static void on_job_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;
    size_t kv = 0;

    d->job_reading = false;
    if (!d->job_open || d->job_wanted)
        return; /* closed meanwhile, or to be read again anyway */
    if (rc) {
        driver_want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
        return;
    }
    driver_feed(d, ER_EV_JOB_RESET);
    for (size_t i = 0; i < reply->kv_n; i++)
        feed_job(d, ER_STORE_PUT, &reply->kvs[i]);
    d->page.revision = reply->revision;
    for (size_t i = 0; i < DRIVER_JOB_PARTS; i++) {
        note_page(d, i, reply->kvs ? reply->kvs + kv : NULL, reply->range_n[i]);
        kv += reply->range_n[i];
    }
    read_page(d);
}

/* Twice as much, when the last view was too small, or as the job's bounds ask for. */
static void make_room(struct er_driver *d)
{
    const struct er_view *v = &d->core->view;
    size_t cap = d->core->grown_from == v->cap ? v->cap * 2 : v->cap;
    size_t wanted = d->core->k_world.present ? er_rdzv_capacity(d->core->world.max_nodes) : 0;
    struct er_view_node *nodes;
    struct er_plan_node *scratch;

    cap = wanted > cap ? wanted : cap;
    if (cap == v->cap)
        return;
    nodes = calloc(cap, sizeof(*nodes));
    scratch = calloc(cap, sizeof(*scratch));
    if (!nodes || !scratch) { /* go on with less: who has no room is no member */
        free(nodes);
        free(scratch);
        return;
    }
    er_rdzv_resize(d->core, nodes, scratch, cap);
    free(d->nodes);
    free(d->scratch);
    d->nodes = nodes;
    d->scratch = scratch;
}

static void on_job_open(struct er_driver *d)
{
    struct er_store_op ops[DRIVER_JOB_PARTS];
    char text[DRIVER_JOB_PARTS][ER_ROOT_MAX + 8];
    struct er_store_txn txn = {.then_ops = ops, .then_n = DRIVER_JOB_PARTS};

    for (size_t i = 0; i < DRIVER_JOB_PARTS; i++)
        ops[i] = (struct er_store_op){.kind = ER_OP_RANGE,
                                      .key = job_key(d, job_parts[i].head, text[i]),
                                      .prefix = job_parts[i].prefix,
                                      .limit = job_parts[i].prefix ? DRIVER_PAGE : 0};
    d->job_reading = d->store->ops->txn(d->store, &txn, on_job_read, d) == 0;
    if (!d->job_reading)
        driver_want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
}

void driver_read_job(struct er_driver *d)
{
    char text[ER_ROOT_MAX + 8];

    driver_feed(d, ER_EV_JOB_RESET); /* the view is void from here on; its memory may move */
    make_room(d);
    d->job_wanted = false;
    d->early.on = true;
    if (d->store->ops->watch(d->store, job_key(d, WATCHED, text), true, ER_STORE_OPENED,
                             on_job_watch, d, &d->job_watch) < 0) {
        d->job_watch = 0;
        driver_want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
    }
}
