/*
 * What stays of a job that has ended, and for how long. Who wrote the end gives the record
 * (`j/world`, `ckpt/latest`, `overrides`) a lease of the retention, so that it is there for nodes
 * that come late and for --resume, and then goes by itself; what nobody reads any more goes at
 * once. A new run writes `j/world` without a lease, and its first commit `ckpt/latest`; it has no
 * `overrides`. Whatever fails here costs the job nothing: the record then stays until the next run.
 *
 * A stop that leaves time to save leaves the generation its keys and its fence, too: then who is
 * the last to go does all that.
 */
#include "rendezvous/driver_internal.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rand.h"

#define RETIRE_US    (5 * ER_US_PER_S) /* at most this between the end and the verdict's word */
#define RETIRE_TRIES 3                 /* a commit that was under way may come between */

/* Below the job's root: what is of use while it runs. */
static const char *const PASSING[] = {"a/", "j/r/", "j/ctl/", "kv/", "op/"};

/* What stays; the first is the record that says how the job ended. */
static const enum er_key_kind KEPT[DRIVER_KEPT] = {ER_KEY_WORLD, ER_KEY_CKPT, ER_KEY_OVERRIDES};

static void end(struct er_driver *d)
{
    if (!d->retire.on)
        return;
    d->retire.on = false;
    d->callbacks.verdict(d->user, &d->core->verdict);
}

static struct er_bytes key_of(const struct er_driver *d, enum er_key_kind kind,
                              char text[ER_KEY_MAX])
{
    const struct er_key key = {.kind = kind};

    return (struct er_bytes){text, er_key_format(d->core->root, &key, text)};
}

static bool mine(const struct er_driver *d, const struct er_job_record *w)
{
    return (w->phase == ER_WORLD_DONE || w->phase == ER_WORLD_FAILED) &&
           (w->stop_us || w->writer == d->core->opts.incarnation);
}

static int read_record(struct er_driver *d);

static void on_settled(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;

    if (!d->retire.on)
        return;
    if (rc || reply->succeeded || ++d->retire.tries == RETIRE_TRIES || read_record(d) < 0)
        end(d);
}

/* One transaction, for the record that was read. */
static void settle(struct er_driver *d)
{
    char text[DRIVER_KEPT + 3][ER_KEY_MAX], parts[ER_ARRAY_N(PASSING)][ER_ROOT_MAX + 8];
    struct er_store_cmp cmps[DRIVER_KEPT];
    struct er_store_op ops[DRIVER_KEPT + 3 + ER_ARRAY_N(PASSING)];
    struct er_store_txn txn = {.cmps = cmps, .cmp_n = DRIVER_KEPT, .then_ops = ops};
    int rc;

    for (size_t i = 0; i < ER_ARRAY_N(PASSING); i++) {
        struct er_text t = {parts[i], sizeof(parts[i]), 0};

        er_text_add(&t, d->core->root);
        er_text_add(&t, PASSING[i]);
        ops[txn.then_n++] =
            (struct er_store_op){.kind = ER_OP_DELETE, .key = {t.at, t.len}, .prefix = true};
    }
    ops[txn.then_n++] = (struct er_store_op){.kind = ER_OP_DELETE,
                                             .key = key_of(d, ER_KEY_SPEC, text[DRIVER_KEPT])};
    ops[txn.then_n++] = (struct er_store_op){.kind = ER_OP_DELETE,
                                             .key = key_of(d, ER_KEY_FENCE, text[DRIVER_KEPT + 2])};
    ops[txn.then_n++] = (struct er_store_op){
        .kind = ER_OP_DELETE, .key = key_of(d, ER_KEY_SPEC_NEXT, text[DRIVER_KEPT + 1])};
    for (size_t i = 0; i < DRIVER_KEPT; i++) {
        const struct er_bytes key = key_of(d, KEPT[i], text[i]);

        cmps[i] =
            (struct er_store_cmp){.target = ER_CMP_MOD, .key = key, .rev = d->retire.kept[i].rev};
        if (d->retire.lease && d->retire.kept[i].rev)
            ops[txn.then_n++] =
                (struct er_store_op){.kind = ER_OP_PUT,
                                     .key = key,
                                     .value = {d->retire.kept[i].bytes, d->retire.kept[i].n},
                                     .lease = d->retire.lease};
    }
    rc = d->store->ops->txn(d->store, &txn, on_settled, d);
    if (rc < 0)
        end(d);
}

static void on_granted(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct er_driver *d = user;

    if (!d->retire.on)
        return;
    if (rc && rc != -EEXIST) {
        end(d);
        return;
    }
    d->retire.lease = lease;
    settle(d);
}

/* The keys as they are, in the order of KEPT; false: one is not what it should be. */
static bool keep(struct er_driver *d, const struct er_store_reply *reply)
{
    size_t kv = 0;

    for (size_t i = 0; i < DRIVER_KEPT; i++) {
        const struct er_store_kv *at = reply->range_n[i] ? &reply->kvs[kv++] : NULL;

        d->retire.kept[i].rev = 0;
        if (!at)
            continue;
        if (at->value.len > sizeof(d->retire.kept[i].bytes))
            return false;
        memcpy(d->retire.kept[i].bytes, at->value.data, at->value.len);
        d->retire.kept[i].n = at->value.len;
        d->retire.kept[i].rev = at->mod_rev;
    }
    return true;
}

/* The same for all who find nobody left: of a lease each, all but one would stay without a key. */
static uint64_t lease_of(const struct er_job_record *w)
{
    return er_rand_mix(w->writer ^ er_rand_mix(w->seq)) >> 1 | 1;
}

static void on_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;
    struct er_job_record w;

    if (!d->retire.on)
        return;
    if (rc || !reply->range_n[0] || er_job_record_parse(reply->kvs[0].value, &w, NULL) ||
        !mine(d, &w) || (w.stop_us && reply->range_n[DRIVER_KEPT]) || !keep(d, reply))
        end(d);
    else if (d->retire.lease || d->core->opts.retention_us == ER_FOREVER)
        settle(d);
    else if (d->store->ops->lease_grant(d->store, lease_of(&w), d->core->opts.retention_us,
                                        on_granted, d) < 0)
        end(d);
}

static int read_record(struct er_driver *d)
{
    const struct er_key node = {.kind = ER_KEY_NODE, .name = "x"};
    char text[DRIVER_KEPT + 1][ER_KEY_MAX];
    struct er_store_op ops[DRIVER_KEPT + 1];
    const struct er_store_txn txn = {.then_ops = ops, .then_n = DRIVER_KEPT + 1};

    for (size_t i = 0; i < DRIVER_KEPT; i++)
        ops[i] = (struct er_store_op){.kind = ER_OP_RANGE, .key = key_of(d, KEPT[i], text[i])};
    /* And a node that is still there, if any is. */
    ops[DRIVER_KEPT] = (struct er_store_op){
        .kind = ER_OP_RANGE,
        .key = {text[DRIVER_KEPT], er_key_format(d->core->root, &node, text[DRIVER_KEPT]) - 1},
        .prefix = true,
        .limit = 1};
    return d->store->ops->txn(d->store, &txn, on_read, d);
}

void driver_retire(struct er_driver *d)
{
    const struct er_rdzv *c = d->core;

    d->retire.on = true;
    d->retire.until_us = er_deadline_in(d->now_us, RETIRE_US);
    if (!c->opts.retention_us || !c->k_world.present || !mine(d, &c->world) || read_record(d) < 0)
        end(d);
}

void driver_retire_step(struct er_driver *d)
{
    if (d->retire.on && d->now_us >= d->retire.until_us)
        end(d);
}
