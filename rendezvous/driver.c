#include "rendezvous/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rand.h"
#include "rendezvous/driver_internal.h"

static void carry_out(struct er_driver *d);

static void step(struct er_driver *d, struct er_rdzv_event *e)
{
    if (d->over)
        return;
    d->random = er_rand_mix(d->random + 1);
    e->now_us = d->now_us;
    e->random = d->random;
    er_rdzv_step(d->core, e, &d->actions);
    carry_out(d);
}

static void feed(struct er_driver *d, enum er_rdzv_event_kind kind)
{
    step(d, &(struct er_rdzv_event){.kind = kind});
}

/* ---- the four own keys, and ckpt/latest ---- */

static const enum er_key_kind self_keys[DRIVER_SELF_KEYS] = {
    ER_KEY_WORLD, ER_KEY_LEADER, ER_KEY_NODE, ER_KEY_ASSIGN, ER_KEY_CKPT,
};

static struct er_bytes self_key(const struct er_driver *d, size_t i, char text[ER_KEY_MAX])
{
    struct er_key key = {.kind = self_keys[i]};

    memcpy(key.name, d->core->opts.node_id, sizeof(d->core->opts.node_id));
    return (struct er_bytes){text, er_key_format(d->core->root, &key, text)};
}

/* `put` false: the key isn't there as of kv->mod_rev. */
static void on_self_kv(struct er_driver *d, bool put, const struct er_store_kv *kv)
{
    struct er_key key;

    er_key_parse(d->core->root, kv->key, &key);
    if (key.kind == ER_KEY_CKPT) {
        if (put && er_ckpt_parse(kv->value, &d->latest, NULL) == 0)
            d->has_latest = true;
        return;
    }
    step(d, &(struct er_rdzv_event){
                .kind = ER_EV_SELF_KV, .change = put ? ER_STORE_PUT : ER_STORE_DELETE, .kv = kv});
}

static void close_self(struct er_driver *d)
{
    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++) {
        if (d->self_watch[i])
            d->store->ops->unwatch(d->store, d->self_watch[i]);
        d->self_watch[i] = 0;
    }
}

static void reread_self(struct er_driver *d)
{
    close_self(d);
    d->self_wanted = true;
    d->retry_us = d->now_us;
}

static void on_self_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                          uint64_t revision)
{
    struct er_driver *d = user;

    if (rc) {
        reread_self(d);
        return;
    }
    for (size_t i = 0; i < n; i++)
        on_self_kv(d, events[i].kind == ER_STORE_PUT, &events[i].kv);
}

static void watch_self(struct er_driver *d, uint64_t from)
{
    char text[ER_KEY_MAX];

    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++) {
        if (d->store->ops->watch(d->store, self_key(d, i, text), false, from, on_self_watch, d,
                                 &d->self_watch[i]) < 0) {
            d->self_watch[i] = 0;
            reread_self(d);
            d->retry_us = er_deadline_in(d->now_us, DRIVER_RETRY_US);
            return;
        }
    }
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
    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++) {
        struct er_store_kv none = {.key = self_key(d, i, text), .mod_rev = reply->revision};

        if (reply->range_n[i])
            on_self_kv(d, true, &reply->kvs[kv++]);
        else
            on_self_kv(d, false, &none);
    }
    watch_self(d, reply->revision + 1);
    feed(d, ER_EV_SELF_READY);
}

static void read_self(struct er_driver *d)
{
    struct er_store_op ops[DRIVER_SELF_KEYS];
    char text[DRIVER_SELF_KEYS][ER_KEY_MAX];
    struct er_store_txn txn = {.then_ops = ops, .then_n = DRIVER_SELF_KEYS};

    for (size_t i = 0; i < DRIVER_SELF_KEYS; i++)
        ops[i] = (struct er_store_op){.kind = ER_OP_RANGE, .key = self_key(d, i, text[i])};
    d->self_wanted = false;
    d->self_reading = d->store->ops->txn(d->store, &txn, on_self_read, d) == 0;
    if (!d->self_reading) {
        d->self_wanted = true;
        d->retry_us = er_deadline_in(d->now_us, DRIVER_RETRY_US);
    }
}

/* ---- the whole job, for the leader ---- */

static void close_job(struct er_driver *d)
{
    if (d->job_watch)
        d->store->ops->unwatch(d->store, d->job_watch);
    d->job_watch = 0;
}

static void want_job(struct er_driver *d, uint64_t at_us)
{
    close_job(d);
    d->job_wanted = true;
    d->retry_us = at_us;
}

static void on_job_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                         uint64_t revision)
{
    struct er_driver *d = user;

    if (rc) {
        want_job(d, d->now_us);
        return;
    }
    for (size_t i = 0; i < n; i++)
        step(d, &(struct er_rdzv_event){
                    .kind = ER_EV_JOB_KV, .change = events[i].kind, .kv = &events[i].kv});
}

static void on_job_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_driver *d = user;
    struct er_bytes root = {d->core->root, strlen(d->core->root)};

    d->job_reading = false;
    if (!d->job_open || d->job_wanted)
        return; /* closed meanwhile, or to be read again anyway */
    if (rc || d->store->ops->watch(d->store, root, true, reply->revision + 1, on_job_watch, d,
                                   &d->job_watch) < 0) {
        d->job_watch = 0;
        want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
        return;
    }
    feed(d, ER_EV_JOB_RESET);
    for (size_t i = 0; i < reply->kv_n; i++)
        step(d, &(struct er_rdzv_event){
                    .kind = ER_EV_JOB_KV, .change = ER_STORE_PUT, .kv = &reply->kvs[i]});
    feed(d, ER_EV_JOB_READY);
}

static void read_job(struct er_driver *d)
{
    static const char *const parts[DRIVER_JOB_KEYS] = {"world", "leader", "n/", "a/", "r/"};
    struct er_store_op ops[DRIVER_JOB_KEYS];
    char text[DRIVER_JOB_KEYS][ER_ROOT_MAX + 8];
    struct er_store_txn txn = {.then_ops = ops, .then_n = DRIVER_JOB_KEYS};

    for (size_t i = 0; i < DRIVER_JOB_KEYS; i++) {
        struct er_text t = {text[i], sizeof(text[i]), 0};
        size_t n = strlen(parts[i]);

        er_text_add(&t, d->core->root);
        er_text_add(&t, parts[i]);
        ops[i] = (struct er_store_op){
            .kind = ER_OP_RANGE, .key = {text[i], t.len}, .prefix = parts[i][n - 1] == '/'};
    }
    d->job_wanted = false;
    d->job_reading = d->store->ops->txn(d->store, &txn, on_job_read, d) == 0;
    if (!d->job_reading)
        want_job(d, er_deadline_in(d->now_us, DRIVER_RETRY_US));
}

/* ---- leases and transactions ---- */

static void on_lease_lost(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    step(user, &(struct er_rdzv_event){.kind = ER_EV_LEASE_LOST, .id = lease});
}

static void on_granted(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct er_driver *d = user;

    if (rc == 0 || rc == -EEXIST) {
        int kept = d->store->ops->lease_keep(d->store, lease, on_lease_lost, d);

        rc = kept < 0 ? kept : rc;
    }
    step(d, &(struct er_rdzv_event){.kind = ER_EV_LEASE, .id = lease, .rc = rc, .ttl_us = ttl_us});
}

static void on_revoked(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    step(user, &(struct er_rdzv_event){.kind = ER_EV_REVOKED, .id = lease, .rc = rc});
}

static void on_reply(struct er_driver *d, enum er_rdzv_lane_id lane, int rc,
                     const struct er_store_reply *reply)
{
    step(d, &(struct er_rdzv_event){.kind = ER_EV_REPLY, .lane = lane, .rc = rc, .reply = reply});
}

static void on_own_reply(void *user, int rc, const struct er_store_reply *reply)
{
    on_reply(user, ER_LANE_OWN, rc, reply);
}

static void on_lead_reply(void *user, int rc, const struct er_store_reply *reply)
{
    on_reply(user, ER_LANE_LEAD, rc, reply);
}

static void send_txn(struct er_driver *d, const struct er_rdzv_action *a)
{
    int rc = d->store->ops->txn(d->store, a->txn,
                                a->lane == ER_LANE_OWN ? on_own_reply : on_lead_reply, d);

    if (rc < 0)
        d->lane_failed[a->lane] = -ENOTCONN; /* certainly not applied; told in the next round */
}

static void carry_out_one(struct er_driver *d, const struct er_rdzv_action *a)
{
    switch (a->kind) {
    case ER_ACT_GRANT:
        /* Without an answer the core's own retry applies. */
        if (d->store->ops->lease_grant(d->store, a->lease.id, a->lease.ttl_us, on_granted, d) < 0)
            d->core->lease_asked = false;
        break;
    case ER_ACT_REVOKE:
        d->store->ops->lease_revoke(d->store, a->lease.id, on_revoked, d);
        break;
    case ER_ACT_TXN:
        send_txn(d, a);
        break;
    case ER_ACT_WATCH_SELF:
        reread_self(d);
        break;
    case ER_ACT_WATCH_JOB:
        d->job_open = true;
        want_job(d, d->now_us);
        break;
    case ER_ACT_UNWATCH_JOB:
        close_job(d);
        d->job_open = d->job_wanted = false;
        break;
    case ER_ACT_START:
        d->callbacks.start(d->user, a->start);
        break;
    case ER_ACT_STOP:
        driver_kv_stop(d, a->generation);
        d->callbacks.stop(d->user, a->generation, a->reason);
        break;
    case ER_ACT_VERDICT:
        d->over = true;
        driver_kv_end(d);
        close_self(d);
        d->callbacks.verdict(d->user, a->verdict);
        break;
    case ER_ACT_NOTE:
        if (d->callbacks.note)
            d->callbacks.note(d->user, &a->note);
        break;
    }
}

static void carry_out(struct er_driver *d)
{
    for (size_t i = 0; i < d->actions.n; i++)
        carry_out_one(d, &d->actions.list[i]);
    d->actions.n = 0;
}

/* ---- what the owner says ---- */

void er_driver_port(struct er_driver *driver, int port)
{
    driver->said.port = true;
    driver->said.port_value = port;
}

void er_driver_result(struct er_driver *driver, uint64_t generation, const struct er_cause *cause)
{
    struct driver_said *s = &driver->said;

    if (s->result && s->result_generation == generation)
        return;
    s->result = true;
    s->result_generation = generation;
    s->failed = cause != NULL;
    if (cause)
        s->cause = *cause;
}

void er_driver_left(struct er_driver *driver, uint64_t generation)
{
    driver->said.left = true;
    driver->said.left_generation = generation;
}

void er_driver_progress(struct er_driver *driver, uint64_t generation)
{
    if (generation <= driver->core->progressed)
        return;
    driver->said.progress = true;
    driver->said.progress_generation = generation;
}

void er_driver_leave(struct er_driver *driver, int exit_code, const char *reason)
{
    struct er_text t = {driver->said.reason, sizeof(driver->said.reason), 0};

    if (driver->said.leave)
        return;
    driver->said.leave = true;
    driver->said.exit_code = exit_code;
    er_text_add(&t, reason ? reason : "asked to leave");
}

static bool anything_said(const struct er_driver *d)
{
    const struct driver_said *s = &d->said;

    return s->port || s->progress || s->result || s->left || s->leave;
}

/* Progress counts for the result it came with, and a result is written before "left". */
static void tell_core(struct er_driver *d)
{
    struct driver_said s;

    if (!anything_said(d))
        return;
    s = d->said;
    memset(&d->said, 0, sizeof(d->said));
    if (s.port)
        step(d, &(struct er_rdzv_event){.kind = ER_EV_PORT, .value = s.port_value});
    if (s.progress)
        step(d,
             &(struct er_rdzv_event){.kind = ER_EV_PROGRESS, .generation = s.progress_generation});
    if (s.result)
        step(d, &(struct er_rdzv_event){.kind = ER_EV_RESULT,
                                        .generation = s.result_generation,
                                        .cause = s.failed ? &s.cause : NULL});
    if (s.left)
        step(d, &(struct er_rdzv_event){.kind = ER_EV_LEFT, .generation = s.left_generation});
    if (s.leave)
        step(d, &(struct er_rdzv_event){
                    .kind = ER_EV_LEAVE, .value = s.exit_code, .reason = s.reason});
}

/* ---- dispatch ---- */

static bool lanes_failed(const struct er_driver *d)
{
    return d->lane_failed[ER_LANE_OWN] || d->lane_failed[ER_LANE_LEAD];
}

int er_driver_fd(const struct er_driver *driver)
{
    return driver->store->ops->fd(driver->store);
}

bool er_driver_pending(const struct er_driver *driver)
{
    if (driver->over)
        return false;
    return !driver->started || anything_said(driver) || lanes_failed(driver) ||
           driver->store->ops->pending(driver->store) ||
           driver_kv_deadline(driver) <= driver->now_us;
}

uint64_t er_driver_deadline(const struct er_driver *driver)
{
    uint64_t at, other;

    if (driver->over)
        return ER_FOREVER;
    at = er_rdzv_deadline(driver->core);
    other = driver->store->ops->deadline(driver->store);
    at = other < at ? other : at;
    other = driver_kv_deadline(driver);
    at = other < at ? other : at;
    if (((driver->self_wanted && !driver->self_reading) ||
         (driver->job_wanted && !driver->job_reading)) &&
        driver->retry_us < at)
        at = driver->retry_us;
    return at;
}

static void read_wanted(struct er_driver *d)
{
    if (d->over || d->now_us < d->retry_us)
        return;
    if (d->self_wanted && !d->self_reading)
        read_self(d);
    if (d->job_wanted && !d->job_reading)
        read_job(d);
}

static void one_round(struct er_driver *d)
{
    d->store->ops->dispatch(d->store, d->now_us);
    tell_core(d);
    for (unsigned i = 0; i < ER_LANE_COUNT; i++) {
        int rc = d->lane_failed[i];

        d->lane_failed[i] = 0;
        if (rc)
            on_reply(d, (enum er_rdzv_lane_id)i, rc, NULL);
    }
    feed(d, ER_EV_TICK);
    read_wanted(d);
    driver_kv_run(d);
}

void er_driver_dispatch(struct er_driver *driver, uint64_t now_us)
{
    unsigned round = 0;

    if (now_us > driver->now_us)
        driver->now_us = now_us;
    driver->started = true;
    do
        one_round(driver);
    while (er_driver_pending(driver) && ++round < DRIVER_ROUNDS);
}

/* ---- life and status ---- */

int er_driver_new(struct er_driver **ret, struct er_store *store, const struct er_driver_opts *opts,
                  const struct er_driver_callbacks *callbacks, void *user, struct er_error *err)
{
    struct er_driver *d = calloc(1, sizeof(*d));
    size_t cap = er_rdzv_capacity(opts->max_nodes);
    int rc;

    if (!d)
        return er_error_set(err, -ENOMEM, "rendezvous: out of memory");
    d->store = store;
    d->callbacks = *callbacks;
    d->user = user;
    d->now_us = opts->now_us;
    d->random = er_rand_mix(opts->seed);
    driver_kv_init(d);
    d->core = calloc(1, sizeof(*d->core));
    d->nodes = calloc(cap, sizeof(*d->nodes));
    d->scratch = calloc(cap, sizeof(*d->scratch));
    if (!d->core || !d->nodes || !d->scratch)
        rc = er_error_set(err, -ENOMEM, "rendezvous: out of memory");
    else
        rc = er_rdzv_init(d->core, opts, d->nodes, d->scratch, err);
    if (rc) {
        er_driver_free(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void er_driver_free(struct er_driver *driver)
{
    if (!driver)
        return;
    driver_kv_done(driver);
    close_self(driver);
    close_job(driver);
    free(driver->core);
    free(driver->nodes);
    free(driver->scratch);
    free(driver);
}

bool er_driver_latest(const struct er_driver *driver, uint64_t *ret_step)
{
    if (driver->has_latest)
        *ret_step = driver->latest.step;
    return driver->has_latest;
}

const char *er_driver_phase(const struct er_driver *driver)
{
    static const char *const names[ER_WORLD_PHASE_COUNT] = {
        [ER_WORLD_FORMING] = "forming",
        [ER_WORLD_SEALED] = "running",
        [ER_WORLD_DONE] = "succeeded",
        [ER_WORLD_FAILED] = "failed",
    };
    const struct er_rdzv *c = driver->core;

    if ((driver->over && c->verdict.kind == ER_VERDICT_STOPPED) || (c->leaving && !c->run))
        return "stopped";
    return c->k_world.present ? names[c->world.phase] : "forming";
}

uint64_t er_driver_generation(const struct er_driver *driver)
{
    return driver->core->world.last_sealed;
}

uint32_t er_driver_restarts(const struct er_driver *driver)
{
    return driver->core->world.restarts;
}

const char *er_driver_run(const struct er_driver *driver)
{
    return driver->core->world.run;
}
