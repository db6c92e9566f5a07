/*
 * What stays of a job that has ended, and for how long. Who wrote the end gives the record
 * (`j/world`, `ckpt/latest`) a lease of the retention, so that it is there for nodes that come
 * late and for --resume, and then goes by itself; what nobody reads any more goes at once. A new
 * run writes `j/world` without a lease, and its first commit `ckpt/latest`. Whatever fails here
 * costs the job nothing: the record then stays until the next run.
 */
#include "rendezvous/driver_internal.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rand.h"

#define RETIRE_US    (2 * ER_US_PER_S) /* at most this between the end and the verdict's word */
#define RETIRE_TRIES 3                 /* a commit that was under way may come between */

/* Below the job's root: what is of use while it runs. */
static const char *const PASSING[] = {"a/", "j/r/", "j/ctl/", "kv/", "op/"};

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
           w->writer == d->core->opts.incarnation;
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
    char text[4][ER_KEY_MAX], parts[ER_ARRAY_N(PASSING)][ER_ROOT_MAX + 8];
    const struct er_bytes world = key_of(d, ER_KEY_WORLD, text[0]);
    const struct er_bytes ckpt = key_of(d, ER_KEY_CKPT, text[1]);
    struct er_store_cmp cmps[] = {
        {.target = ER_CMP_MOD, .key = world, .rev = d->retire.world_rev},
        {.target = ER_CMP_MOD, .key = ckpt, .rev = d->retire.ckpt_rev},
    };
    struct er_store_op ops[4 + ER_ARRAY_N(PASSING)];
    struct er_store_txn txn = {.cmps = cmps, .cmp_n = 2, .then_ops = ops};
    int rc;

    for (size_t i = 0; i < ER_ARRAY_N(PASSING); i++) {
        struct er_text t = {parts[i], sizeof(parts[i]), 0};

        er_text_add(&t, d->core->root);
        er_text_add(&t, PASSING[i]);
        ops[txn.then_n++] =
            (struct er_store_op){.kind = ER_OP_DELETE, .key = {t.at, t.len}, .prefix = true};
    }
    ops[txn.then_n++] =
        (struct er_store_op){.kind = ER_OP_DELETE, .key = key_of(d, ER_KEY_SPEC, text[2])};
    ops[txn.then_n++] =
        (struct er_store_op){.kind = ER_OP_DELETE, .key = key_of(d, ER_KEY_SPEC_NEXT, text[3])};
    if (d->retire.lease) {
        ops[txn.then_n++] = (struct er_store_op){.kind = ER_OP_PUT,
                                                 .key = world,
                                                 .value = {d->retire.world, d->retire.world_n},
                                                 .lease = d->retire.lease};
        if (d->retire.ckpt_rev)
            ops[txn.then_n++] = (struct er_store_op){.kind = ER_OP_PUT,
                                                     .key = ckpt,
                                                     .value = {d->retire.ckpt, d->retire.ckpt_n},
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

static bool keep(const struct er_store_kv *kv, char *to, size_t cap, size_t *ret_n,
                 uint64_t *ret_rev)
{
    if (kv->value.len > cap)
        return false;
    memcpy(to, kv->value.data, kv->value.len);
    *ret_n = kv->value.len;
    *ret_rev = kv->mod_rev;
    return true;
}

static void on_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;
    struct er_job_record w;
    bool ok;

    if (!d->retire.on)
        return;
    ok = !rc && reply->range_n[0] && er_job_record_parse(reply->kvs[0].value, &w, NULL) == 0 &&
         mine(d, &w) &&
         keep(&reply->kvs[0], d->retire.world, sizeof(d->retire.world), &d->retire.world_n,
              &d->retire.world_rev);
    d->retire.ckpt_rev = 0;
    if (ok && reply->range_n[1])
        ok = keep(&reply->kvs[1], d->retire.ckpt, sizeof(d->retire.ckpt), &d->retire.ckpt_n,
                  &d->retire.ckpt_rev);
    if (!ok)
        end(d);
    else if (d->retire.lease || d->core->opts.retention_us == ER_FOREVER)
        settle(d);
    else if (d->store->ops->lease_grant(d->store, er_rand_mix(d->random + 1) >> 1 | 1,
                                        d->core->opts.retention_us, on_granted, d) < 0)
        end(d);
}

static int read_record(struct er_driver *d)
{
    char text[2][ER_KEY_MAX];
    const struct er_store_op ops[] = {
        {.kind = ER_OP_RANGE, .key = key_of(d, ER_KEY_WORLD, text[0])},
        {.kind = ER_OP_RANGE, .key = key_of(d, ER_KEY_CKPT, text[1])},
    };
    const struct er_store_txn txn = {.then_ops = ops, .then_n = 2};

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
