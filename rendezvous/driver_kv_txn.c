#include <errno.h>
#include <string.h>

#include "rendezvous/driver_kv_internal.h"

/* What an operation asks of the store, and what the answers mean. Every one that belongs to a
 * generation compares its fence in the transaction that reads or writes; a failed compare of it
 * means: superseded. */

#define RETRY_US 20000ull

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
            driver_op_finish(op, 0, events[i].kv.value.data, events[i].kv.value.len);
            return;
        }
    }
    if (rc) {
        op->driver->store->ops->unwatch(op->driver->store, op->watch);
        op->watch = 0;
        driver_op_again(op, 0);
    }
}

static void got(struct op *op, const struct er_store_reply *r)
{
    const struct er_store_kv *kv = kv_of(r, 1);
    struct er_driver *d = op->driver;

    if (kv) {
        driver_op_finish(op, 0, kv->value.data, kv->value.len);
    } else if (!op->deadline_us) {
        driver_op_finish(op, 1, NULL, 0);
    } else if (op->generation <= d->stopped) {
        driver_op_finish(op, ER_E_STALE, NULL, 0);
    } else if (d->store->ops->watch(d->store, (struct er_bytes){op->key, op->key_n}, false,
                                    r->revision + 1, on_watch, op, &op->watch) < 0) {
        op->watch = 0;
        driver_op_finish(op, -ENOMEM, NULL, 0);
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
        driver_op_finish(op, 0, done->value.data, done->value.len);
        return;
    }
    rc = kv ? parse_number(kv->value, &v) : 0;
    if (rc == 0 && __builtin_add_overflow(v, op->delta, &v))
        rc = -ERANGE;
    if (rc) {
        driver_op_finish(op, rc, NULL, 0);
        return;
    }
    format_number(v, op->number);
    op->mod_rev = kv ? kv->mod_rev : 0;
    op->write_next = true;
    driver_op_again(op, 0);
}

static bool same_ckpt(const struct er_ckpt_record *a, const struct er_ckpt_record *b)
{
    return a->generation == b->generation && a->step == b->step &&
           strcmp(a->digest, b->digest) == 0;
}

/* Within a generation steps only grow. A later one that went back (the newest checkpoint did not
 * verify) does the steps again: what it commits replaces the record. */
static void committed(struct op *op, const struct er_store_reply *r)
{
    const struct er_store_kv *kv = kv_of(r, 1);
    struct er_driver *d = op->driver;
    struct er_ckpt_record now;
    int rc = kv ? er_ckpt_record_parse(kv->value, &now, NULL) : 0;

    if (rc) {
        driver_op_finish(op, rc, NULL, 0);
        return;
    }
    if (kv) {
        d->latest = now;
        d->has_latest = true;
    }
    if (kv && op->written && same_ckpt(&now, &op->ckpt)) {
        driver_op_finish(op, 0, NULL, 0);
    } else if (kv && now.generation == op->ckpt.generation && now.step >= op->ckpt.step) {
        driver_op_finish(op, -EEXIST, NULL, 0);
    } else {
        op->mod_rev = kv ? kv->mod_rev : 0;
        op->write_next = true;
        driver_op_again(op, 0);
    }
}

/* Written by this operation, or by one of its attempts whose answer was lost? Else what is there is
 * merged, and written if nothing has changed since it was read. */
static void overridden(struct op *op, const struct er_store_reply *r)
{
    const struct er_store_kv *world = kv_of(r, 0), *kv = kv_of(r, 1);
    struct er_overrides now = {.seq = 0};
    struct er_job_record w;
    int rc = kv ? er_overrides_parse(kv->value, &now, NULL) : 0;

    if (!rc && !world)
        rc = -ENOENT;
    if (!rc)
        rc = er_job_record_parse(world->value, &w, NULL);
    if (!rc && op->written && strcmp(now.id, op->override->id) == 0) {
        driver_op_finish(op, 0, NULL, 0);
        return;
    }
    if (!rc && (w.phase == ER_WORLD_DONE || w.phase == ER_WORLD_FAILED))
        rc = ER_E_STALE;
    if (!rc && w.protocol_low < ER_PROTOCOL_OVERRIDES)
        rc = ER_E_PROTOCOL;
    if (!rc)
        rc = op->merge(op->user, &now, op->override);
    if (rc) {
        driver_op_finish(op, rc > 0 ? 0 : rc, NULL, 0);
        return;
    }
    op->override->seq = now.seq + 1;
    op->mod_rev = kv ? kv->mod_rev : 0;
    op->world_rev = world->mod_rev;
    op->write_next = true;
    driver_op_again(op, 0);
}

static void on_reply(void *user, int rc, const struct er_store_reply *reply)
{
    struct op *op = user;

    op->write_next = false;
    if (op->cancelled) {
        driver_op_finish(op, 0, NULL, 0);
    } else if (rc == -ENOTCONN || rc == ER_E_AMBIGUOUS) {
        driver_op_again(op, RETRY_US); /* reads first, where writing twice would matter */
    } else if (rc) {
        driver_op_finish(op, rc, NULL, 0);
    } else if (op->kind == OP_REQUEST) { /* there now, or earlier by an attempt without an answer */
        driver_op_finish(op, 0, NULL, 0);
    } else if (op->kind == OP_OVERRIDE) {
        overridden(op, reply);
    } else if (!fence_holds(op, reply)) {
        driver_op_finish(op, ER_E_STALE, NULL, 0);
    } else if (op->kind == OP_PUT) {
        driver_op_finish(op, 0, NULL, 0);
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
    char fence[ER_KEY_MAX]; /* key of fence, or of world */
    unsigned char bytes[ER_RECORD_BYTES_MAX];
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

/* Created once, and by nobody's leave: a request needs no generation. */
static void build_request(struct op *op, struct request *q)
{
    struct er_bytes key = {op->key, op->key_n};

    req_cmp(q, ER_CMP_CREATE, key, 0);
    req_put(q, key, q->bytes, er_ask_encode(&op->ctl, q->bytes));
}

/* Read first, then written if neither the record nor the job's has changed since. */
static void build_override(struct op *op, struct request *q)
{
    const struct er_key of_world = {.kind = ER_KEY_WORLD};
    struct er_bytes key = {op->key, op->key_n};
    struct er_bytes world = {q->fence, er_key_format(op->driver->core->root, &of_world, q->fence)};

    if (op->write_next) {
        req_cmp(q, ER_CMP_MOD, world, op->world_rev);
        req_cmp(q, ER_CMP_MOD, key, op->mod_rev);
        req_put(q, key, q->bytes, er_overrides_encode(op->override, q->bytes));
    }
    op->written |= op->write_next;
    req_read(q, world);
    req_read(q, key);
}

/* ADD and COMMIT read first, then write what they read; both branches show how it stands. */
static void build(struct op *op, struct request *q)
{
    struct er_bytes key = {op->key, op->key_n}, second = {op->second, op->second_n}, fence;

    memset(&q->txn, 0, sizeof(q->txn));
    q->txn.cmps = q->cmps;
    q->txn.then_ops = q->then_ops;
    q->txn.else_ops = q->else_ops;
    if (op->kind == OP_REQUEST) {
        build_request(op, q);
        return;
    }
    if (op->kind == OP_OVERRIDE) {
        build_override(op, q);
        return;
    }
    fence = fence_key(op, q->fence);
    if (!(er_bug(COMMIT_NOT_FENCED) && op->write_next)) {
        req_cmp(q, ER_CMP_VALUE, fence, 0);
        q->cmps[0].value = (struct er_bytes){op->fence, strlen(op->fence)};
    }
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
        req_put(q, key, q->bytes, er_ckpt_record_encode(&op->ckpt, q->bytes));
    op->written |= op->write_next;
    req_read(q, fence);
    if (op->kind != OP_PUT)
        req_read(q, key);
    if (op->kind == OP_ADD)
        req_read(q, second);
}

void driver_op_send(struct op *op)
{
    struct er_driver *d = op->driver;
    struct request q;

    build(op, &q);
    op->state = OP_FLIGHT;
    if (d->store->ops->txn(d->store, &q.txn, on_reply, op) < 0)
        driver_op_answer(op, -ENOMEM);
}
