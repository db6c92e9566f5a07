#include "rendezvous/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/driver_internal.h"

/* Workers' keys and checkpoint commits. Every operation compares the fence of its generation in the
 * transaction that reads or writes; a failed compare of it means: superseded. */

#define RETRY_US   20000ull
#define NUMBER_MAX 24 /* an int64 as text */

enum op_kind { OP_PUT, OP_GET, OP_ADD, OP_COMMIT };
enum op_state {
    OP_SEND,   /* (again) at due_us */
    OP_FLIGHT, /* a transaction is under way */
    OP_WAIT,   /* GET: watching the key */
    OP_ANSWER  /* rc is the answer, due now */
};

struct op {
    struct er_list node;
    struct er_driver *driver;
    enum op_kind kind;
    enum op_state state;
    bool cancelled, written; /* written: the write of ADD, COMMIT has been sent at least once */
    uint64_t id, generation, deadline_us, due_us, watch;
    int rc;
    er_driver_kv_fn done;
    void *user;
    char key[ER_KEY_MAX], second[ER_KEY_MAX]; /* second: op key of ADD */
    size_t key_n, second_n, value_n;
    char *value; /* PUT: owned */
    int64_t delta;
    struct er_ckpt ckpt; /* COMMIT */
    char fence[ER_FENCE_MAX];
    bool write_next; /* ADD, COMMIT: what was read is in mod_rev and number */
    uint64_t mod_rev;
    char number[NUMBER_MAX]; /* ADD: the value to write */
};

static void op_free(struct op *op)
{
    if (op->watch)
        op->driver->store->ops->unwatch(op->driver->store, op->watch);
    er_list_remove(&op->node);
    free(op->value);
    free(op);
}

/* The answer is given at once: only called from dispatch. */
static void finish(struct op *op, int rc, const void *value, size_t n)
{
    er_driver_kv_fn done = op->cancelled ? NULL : op->done;
    void *user = op->user;
    char *copy = NULL;

    if (n && done) { /* the answer may point into the operation */
        copy = malloc(n);
        if (copy)
            memcpy(copy, value, n);
        else
            rc = -ENOMEM;
    }
    op_free(op);
    if (done)
        done(user, rc, rc ? NULL : (copy ? copy : ""), rc ? 0 : n);
    free(copy);
}

static void again(struct op *op, uint64_t delay_us)
{
    op->state = OP_SEND;
    op->due_us = er_deadline_in(op->driver->now_us, delay_us);
}

static void answer_later(struct op *op, int rc)
{
    op->state = OP_ANSWER;
    op->rc = rc;
    op->due_us = 0;
}

static struct er_bytes fence_key(const struct op *op, char text[ER_KEY_MAX])
{
    struct er_key key = {.kind = ER_KEY_FENCE};

    return (struct er_bytes){text, er_key_format(op->driver->core->root, &key, text)};
}

/* ---- answers of the store ---- */

static bool fence_holds(const struct op *op, const struct er_store_reply *r)
{
    return r->range_count && r->range_n[0] && r->kvs[0].value.len == strlen(op->fence) &&
           memcmp(r->kvs[0].value.data, op->fence, r->kvs[0].value.len) == 0;
}

/* The i-th range's key; NULL: not there. Ranges are of single keys. */
static const struct er_store_kv *kv_of(const struct er_store_reply *r, size_t i)
{
    size_t at = 0;

    for (size_t k = 0; k < i; k++)
        at += r->range_n[k];
    return i < r->range_count && r->range_n[i] ? &r->kvs[at] : NULL;
}

static int parse_number(struct er_bytes text, int64_t *ret)
{
    const char *at = text.data, *end = at + text.len;
    bool negative = text.len && *at == '-';
    int64_t v = 0;

    at += negative;
    if (at == end)
        return -EINVAL;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, *at - '0', &v))
            return -ERANGE;
    }
    return negative ? (*ret = v, 0) : __builtin_sub_overflow(0, v, ret) ? -ERANGE : 0;
}

static void format_number(int64_t v, char ret[NUMBER_MAX])
{
    struct er_text t = {ret, NUMBER_MAX, 0};

    ret[0] = 0;
    if (v < 0)
        er_text_add(&t, "-");
    er_text_u64(&t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

static void on_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                     uint64_t revision)
{
    struct op *op = user;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (events[i].kind == ER_STORE_PUT) {
            finish(op, 0, events[i].kv.value.data, events[i].kv.value.len);
            return;
        }
    }
    if (rc) {
        op->driver->store->ops->unwatch(op->driver->store, op->watch);
        op->watch = 0;
        again(op, 0);
    }
}

static void got(struct op *op, const struct er_store_reply *r)
{
    const struct er_store_kv *kv = kv_of(r, 1);
    struct er_driver *d = op->driver;

    if (kv) {
        finish(op, 0, kv->value.data, kv->value.len);
    } else if (!op->deadline_us) {
        finish(op, 1, NULL, 0);
    } else if (op->generation <= d->stopped) {
        finish(op, ER_E_STALE, NULL, 0);
    } else if (d->store->ops->watch(d->store, (struct er_bytes){op->key, op->key_n}, false,
                                    r->revision + 1, on_watch, op, &op->watch) < 0) {
        op->watch = 0;
        finish(op, -ENOMEM, NULL, 0);
    } else {
        op->state = OP_WAIT;
    }
}

static void added(struct op *op, const struct er_store_reply *r)
{
    const struct er_store_kv *kv = kv_of(r, 1), *done = kv_of(r, 2);
    int64_t v = 0;
    int rc;

    if (done) { /* applied, now or earlier, with its own result */
        finish(op, 0, done->value.data, done->value.len);
        return;
    }
    rc = kv ? parse_number(kv->value, &v) : 0;
    if (rc == 0 && __builtin_add_overflow(v, op->delta, &v))
        rc = -ERANGE;
    if (rc) {
        finish(op, rc, NULL, 0);
        return;
    }
    format_number(v, op->number);
    op->mod_rev = kv ? kv->mod_rev : 0;
    op->write_next = true;
    again(op, 0);
}

static bool same_ckpt(const struct er_ckpt *a, const struct er_ckpt *b)
{
    return a->generation == b->generation && a->step == b->step &&
           strcmp(a->digest, b->digest) == 0;
}

static void committed(struct op *op, const struct er_store_reply *r)
{
    const struct er_store_kv *kv = kv_of(r, 1);
    struct er_driver *d = op->driver;
    struct er_ckpt now;
    int rc = kv ? er_ckpt_parse(kv->value, &now, NULL) : 0;

    if (rc) {
        finish(op, rc, NULL, 0);
        return;
    }
    if (kv) {
        d->latest = now;
        d->has_latest = true;
    }
    if (kv && op->written && same_ckpt(&now, &op->ckpt)) {
        finish(op, 0, NULL, 0);
    } else if (kv && now.step >= op->ckpt.step) {
        finish(op, -EEXIST, NULL, 0);
    } else {
        op->mod_rev = kv ? kv->mod_rev : 0;
        op->write_next = true;
        again(op, 0);
    }
}

static void on_reply(void *user, int rc, const struct er_store_reply *reply)
{
    struct op *op = user;

    op->write_next = false;
    if (op->cancelled) {
        finish(op, 0, NULL, 0);
    } else if (rc == -ENOTCONN || rc == ER_E_AMBIGUOUS) {
        again(op, RETRY_US); /* reads first, where writing twice would matter */
    } else if (rc) {
        finish(op, rc, NULL, 0);
    } else if (!fence_holds(op, reply)) {
        finish(op, ER_E_STALE, NULL, 0);
    } else if (op->kind == OP_PUT) {
        finish(op, 0, NULL, 0);
    } else if (op->kind == OP_GET) {
        got(op, reply);
    } else if (op->kind == OP_ADD) {
        added(op, reply);
    } else {
        committed(op, reply);
    }
}

/* ---- requests ---- */

struct request {
    struct er_store_cmp cmps[3];
    struct er_store_op then_ops[5], else_ops[3];
    struct er_store_txn txn;
    char fence[ER_KEY_MAX];
    unsigned char bytes[ER_CKPT_BYTES_MAX];
};

static void req_put(struct request *q, struct er_bytes key, const void *value, size_t n)
{
    q->then_ops[q->txn.then_n++] =
        (struct er_store_op){.kind = ER_OP_PUT, .key = key, .value = {value, n}};
}

static void req_read(struct request *q, struct er_bytes key)
{
    struct er_store_op op = {.kind = ER_OP_RANGE, .key = key};

    q->then_ops[q->txn.then_n++] = op;
    q->else_ops[q->txn.else_n++] = op;
}

static void req_cmp(struct request *q, enum er_cmp_target target, struct er_bytes key, uint64_t rev)
{
    q->cmps[q->txn.cmp_n++] =
        (struct er_store_cmp){.target = target, .result = ER_CMP_EQUAL, .key = key, .rev = rev};
}

/* ADD and COMMIT read first, then write what they read; both branches show how it stands. */
static void build(struct op *op, struct request *q)
{
    struct er_bytes key = {op->key, op->key_n}, second = {op->second, op->second_n}, fence;

    memset(&q->txn, 0, sizeof(q->txn));
    q->txn.cmps = q->cmps;
    q->txn.then_ops = q->then_ops;
    q->txn.else_ops = q->else_ops;
    fence = fence_key(op, q->fence);
    req_cmp(q, ER_CMP_VALUE, fence, 0);
    q->cmps[0].value = (struct er_bytes){op->fence, strlen(op->fence)};
    if (op->kind == OP_PUT)
        req_put(q, key, op->value, op->value_n);
    if (op->write_next)
        req_cmp(q, ER_CMP_MOD, key, op->mod_rev);
    if (op->write_next && op->kind == OP_ADD) {
        req_cmp(q, ER_CMP_CREATE, second, 0);
        req_put(q, key, op->number, strlen(op->number));
        req_put(q, second, op->number, strlen(op->number));
    }
    if (op->write_next && op->kind == OP_COMMIT)
        req_put(q, key, q->bytes, er_ckpt_encode(&op->ckpt, q->bytes));
    op->written |= op->write_next;
    req_read(q, fence);
    if (op->kind != OP_PUT)
        req_read(q, key);
    if (op->kind == OP_ADD)
        req_read(q, second);
}

static void send(struct op *op)
{
    struct er_driver *d = op->driver;
    struct request q;

    build(op, &q);
    op->state = OP_FLIGHT;
    if (d->store->ops->txn(d->store, &q.txn, on_reply, op) < 0)
        answer_later(op, -ENOMEM);
}

static struct op *op_new(struct er_driver *d, enum op_kind kind, uint64_t generation,
                         er_driver_kv_fn done, void *user)
{
    struct op *op = calloc(1, sizeof(*op));

    if (!op)
        return NULL;
    op->driver = d;
    op->kind = kind;
    op->generation = generation;
    op->done = done;
    op->user = user;
    op->id = ++d->next_op;
    op->state = OP_SEND;
    er_list_push_back(&d->ops, &op->node);
    if (d->over || !er_rdzv_fence(d->core, generation, op->fence))
        answer_later(op, ER_E_STALE);
    return op;
}

static bool set_key(struct op *op, const char *key)
{
    struct er_key k = {.kind = ER_KEY_KV, .generation = op->generation};
    size_t n = strlen(key);

    if (n == 0 || n >= ER_KV_KEY_MAX) {
        answer_later(op, -EINVAL);
        return false;
    }
    memcpy(k.name, key, n + 1);
    op->key_n = er_key_format(op->driver->core->root, &k, op->key);
    if (!op->key_n)
        answer_later(op, -EINVAL);
    return op->key_n != 0;
}

void er_driver_kv_put(struct er_driver *driver, uint64_t generation, const char *key,
                      const void *value, size_t n, er_driver_kv_fn done, void *user)
{
    struct op *op = op_new(driver, OP_PUT, generation, done, user);

    if (!op || !set_key(op, key))
        return;
    op->value = malloc(n ? n : 1);
    op->value_n = n;
    if (!op->value)
        answer_later(op, -ENOMEM);
    else if (n)
        memcpy(op->value, value, n);
}

uint64_t er_driver_kv_get(struct er_driver *driver, uint64_t generation, const char *key,
                          uint64_t deadline_us, er_driver_kv_fn done, void *user)
{
    struct op *op = op_new(driver, OP_GET, generation, done, user);

    if (!op || !set_key(op, key) || op->state == OP_ANSWER)
        return 0;
    op->deadline_us = deadline_us;
    return op->id;
}

void er_driver_kv_cancel(struct er_driver *driver, uint64_t id)
{
    er_list_for_each_safe (node, &driver->ops) {
        struct op *op = ER_LIST_ITEM(node, struct op, node);

        if (op->id != id)
            continue;
        op->cancelled = true;
        if (op->state != OP_FLIGHT)
            answer_later(op, ER_E_ABORTED); /* freed by the next dispatch, not told */
    }
}

void er_driver_kv_add(struct er_driver *driver, uint64_t generation, const char *key, int64_t delta,
                      er_driver_kv_fn done, void *user)
{
    struct op *op = op_new(driver, OP_ADD, generation, done, user);
    struct er_key k = {.kind = ER_KEY_OP, .generation = generation, .seq = ++driver->op_seq};

    if (!op || !set_key(op, key))
        return;
    op->delta = delta;
    memcpy(k.name, driver->core->opts.node_id, sizeof(driver->core->opts.node_id));
    op->second_n = er_key_format(driver->core->root, &k, op->second);
}

void er_driver_commit(struct er_driver *driver, uint64_t generation, uint64_t step,
                      const char *digest, const char *path, er_driver_kv_fn done, void *user)
{
    struct op *op = op_new(driver, OP_COMMIT, generation, done, user);
    struct er_key k = {.kind = ER_KEY_CKPT};
    struct er_text t;

    if (!op)
        return;
    if (strlen(digest) >= ER_CKPT_DIGEST_MAX || strlen(path) >= ER_CKPT_PATH_MAX) {
        answer_later(op, -EINVAL);
        return;
    }
    op->key_n = er_key_format(driver->core->root, &k, op->key);
    op->ckpt.generation = generation;
    op->ckpt.step = step;
    t = (struct er_text){op->ckpt.digest, sizeof(op->ckpt.digest), 0};
    er_text_add(&t, digest);
    t = (struct er_text){op->ckpt.path, sizeof(op->ckpt.path), 0};
    er_text_add(&t, path);
}

/* ---- running ---- */

void driver_kv_init(struct er_driver *d)
{
    er_list_init(&d->ops);
}

void driver_kv_done(struct er_driver *d)
{
    while (!er_list_empty(&d->ops))
        op_free(ER_LIST_ITEM(d->ops.next, struct op, node));
}

void driver_kv_stop(struct er_driver *d, uint64_t generation)
{
    if (generation > d->stopped)
        d->stopped = generation;
    er_list_for_each (node, &d->ops) {
        struct op *op = ER_LIST_ITEM(node, struct op, node);

        if (op->generation <= d->stopped && op->state == OP_WAIT)
            answer_later(op, ER_E_STALE);
    }
}

static struct op *next_open(struct er_driver *d, uint64_t after, uint64_t last)
{
    er_list_for_each (node, &d->ops) {
        struct op *op = ER_LIST_ITEM(node, struct op, node);

        if (!op->cancelled && op->id > after && op->id <= last)
            return op;
    }
    return NULL;
}

void driver_kv_end(struct er_driver *d)
{
    uint64_t last = d->next_op, id = 0;
    struct op *op;

    while ((op = next_open(d, id, last))) {
        id = op->id;
        if (op->state != OP_FLIGHT) {
            finish(op, ER_E_STALE, NULL, 0);
            continue;
        }
        op->cancelled = true; /* the store may still answer it */
        op->done(op->user, ER_E_STALE, NULL, 0);
    }
}

static uint64_t due(const struct op *op)
{
    uint64_t at = op->state == OP_SEND || op->state == OP_ANSWER ? op->due_us : ER_FOREVER;

    return op->deadline_us && op->deadline_us < at && op->state != OP_FLIGHT ? op->deadline_us : at;
}

uint64_t driver_kv_deadline(const struct er_driver *d)
{
    uint64_t at = ER_FOREVER;

    er_list_for_each (node, &d->ops) {
        uint64_t next = due(ER_LIST_ITEM(node, struct op, node));

        at = next < at ? next : at;
    }
    return at;
}

static void run_op(struct op *op)
{
    uint64_t now_us = op->driver->now_us;

    if (op->state == OP_ANSWER)
        finish(op, op->rc, NULL, 0);
    else if (op->state == OP_SEND && op->due_us <= now_us)
        send(op);
    else if (op->state == OP_WAIT && op->deadline_us <= now_us)
        finish(op, -ETIMEDOUT, NULL, 0);
}

/* A callback may add operations (they go to the end) or cancel others (they stay in the list), so
 * the walk is by id, from the front. */
void driver_kv_run(struct er_driver *d)
{
    uint64_t last = d->next_op, done = 0;
    bool any = true;

    while (any) {
        any = false;
        er_list_for_each (node, &d->ops) {
            struct op *op = ER_LIST_ITEM(node, struct op, node);

            if (op->id > last || op->id <= done || due(op) > d->now_us)
                continue;
            done = op->id;
            run_op(op);
            any = true;
            break;
        }
    }
}
