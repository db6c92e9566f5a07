#include "rendezvous/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/driver_kv_internal.h"

/* The life of an operation on workers' keys: every one is answered, once, from a dispatch. */

static void op_free(struct op *op)
{
    if (op->watch)
        op->driver->store->ops->unwatch(op->driver->store, op->watch);
    er_list_remove(&op->node);
    free(op->value);
    free(op->override);
    free(op);
}

/* The answer is given at once: only called from dispatch. */
void driver_op_finish(struct op *op, int rc, const void *value, size_t n)
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

void driver_op_again(struct op *op, uint64_t delay_us)
{
    op->state = OP_SEND;
    op->due_us = er_deadline_in(op->driver->now_us, delay_us);
}

void driver_op_answer(struct op *op, int rc)
{
    op->state = OP_ANSWER;
    op->rc = rc;
    op->due_us = 0;
}

/* No memory to remember it: the next dispatch says so; with too many of them, at once. */
static void refuse(struct er_driver *d, er_driver_kv_fn done, void *user)
{
    if (d->refused_n == DRIVER_REFUSED) {
        done(user, -ENOMEM, NULL, 0);
        return;
    }
    d->refused[d->refused_n].done = done;
    d->refused[d->refused_n++].user = user;
}

static void tell_refused(struct er_driver *d)
{
    while (d->refused_n) {
        d->refused_n--;
        d->refused[d->refused_n].done(d->refused[d->refused_n].user, -ENOMEM, NULL, 0);
    }
}

static struct op *op_new(struct er_driver *d, enum op_kind kind, uint64_t generation,
                         er_driver_kv_fn done, void *user)
{
    struct op *op = calloc(1, sizeof(*op));

    if (!op) {
        refuse(d, done, user);
        return NULL;
    }
    op->driver = d;
    op->kind = kind;
    op->generation = generation;
    op->done = done;
    op->user = user;
    op->id = ++d->next_op;
    op->state = OP_SEND;
    er_list_push_back(&d->ops, &op->node);
    if (d->over || (kind < OP_REQUEST && !er_rdzv_fence(d->core, generation, op->fence)))
        driver_op_answer(op, ER_E_STALE);
    return op;
}

static bool set_key(struct op *op, const char *key)
{
    struct er_key k = {.kind = ER_KEY_KV, .generation = op->generation};
    size_t n = strlen(key);

    if (n == 0 || n >= ER_KV_KEY_MAX) {
        driver_op_answer(op, -EINVAL);
        return false;
    }
    memcpy(k.name, key, n + 1);
    op->key_n = er_key_format(op->driver->core->root, &k, op->key);
    if (!op->key_n)
        driver_op_answer(op, -EINVAL);
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
        driver_op_answer(op, -ENOMEM);
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
            driver_op_answer(op, ER_E_ABORTED); /* freed by the next dispatch, not told */
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
        driver_op_answer(op, -EINVAL);
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

void er_driver_request(struct er_driver *driver, const char *id, const struct er_ask *ctl,
                       er_driver_kv_fn done, void *user)
{
    struct op *op = op_new(driver, OP_REQUEST, 0, done, user);
    struct er_key k = {.kind = ER_KEY_CTL};

    if (!op)
        return;
    if (!er_name_valid(id)) {
        driver_op_answer(op, -EINVAL);
        return;
    }
    memcpy(k.name, id, strlen(id) + 1);
    op->key_n = er_key_format(driver->core->root, &k, op->key);
    op->ctl = *ctl;
}

void er_driver_override(struct er_driver *driver, uint64_t deadline_us, er_driver_merge_fn merge,
                        er_driver_kv_fn done, void *user)
{
    struct op *op = op_new(driver, OP_OVERRIDE, 0, done, user);
    struct er_key k = {.kind = ER_KEY_OVERRIDES};

    if (!op)
        return;
    op->key_n = er_key_format(driver->core->root, &k, op->key);
    op->deadline_us = deadline_us;
    op->merge = merge;
    op->override = calloc(1, sizeof(*op->override));
    if (!op->override)
        driver_op_answer(op, -ENOMEM);
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

/* Its generation is claimed, and not sealed yet. */
static bool held(const struct op *op)
{
    const struct er_rdzv *core = op->driver->core;

    return op->state == OP_SEND && op->kind < OP_REQUEST && core->preparing &&
           core->run == ER_RUN_UP && op->generation == core->run_generation;
}

void driver_kv_stop(struct er_driver *d, uint64_t generation)
{
    if (generation > d->stopped)
        d->stopped = generation;
    er_list_for_each (node, &d->ops) {
        struct op *op = ER_LIST_ITEM(node, struct op, node);

        if (op->generation <= d->stopped && (op->state == OP_WAIT || held(op)))
            driver_op_answer(op, ER_E_STALE);
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

    tell_refused(d);
    while ((op = next_open(d, id, last))) {
        id = op->id;
        if (op->state != OP_FLIGHT) {
            driver_op_finish(op, ER_E_STALE, NULL, 0);
            continue;
        }
        op->cancelled = true; /* the store may still answer it */
        op->done(op->user, ER_E_STALE, NULL, 0);
    }
}

static uint64_t due(const struct op *op)
{
    bool acts = (op->state == OP_SEND && !held(op)) || op->state == OP_ANSWER;
    uint64_t at = acts ? op->due_us : ER_FOREVER;

    return op->deadline_us && op->deadline_us < at && op->state != OP_FLIGHT ? op->deadline_us : at;
}

uint64_t driver_kv_deadline(const struct er_driver *d)
{
    uint64_t at = d->refused_n ? 0 : ER_FOREVER;

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
        driver_op_finish(op, op->rc, NULL, 0);
    else if (op->state == OP_SEND && op->due_us <= now_us && !held(op))
        driver_op_send(op);
    else if (op->state != OP_FLIGHT && op->deadline_us && op->deadline_us <= now_us)
        driver_op_finish(op, -ETIMEDOUT, NULL, 0);
}

/* A callback may add operations (they go to the end) or cancel others (they stay in the list), so
 * the walk is by id, from the front. */
void driver_kv_run(struct er_driver *d)
{
    uint64_t last = d->next_op, done = 0;
    bool any = true;

    tell_refused(d);
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
