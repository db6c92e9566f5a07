#include "rendezvous/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rand.h"
#include "rendezvous/driver_internal.h"

static void carry_out(struct er_driver *d);

void driver_step(struct er_driver *d, struct er_rdzv_event *e)
{
    if (d->over)
        return;
    d->random = er_rand_mix(d->random + 1);
    if (e->kind == ER_EV_LEASE || (e->kind == ER_EV_REPLY && e->lane == ER_LANE_OWN))
        d->denied = e->rc == -EACCES;
    e->now_us = d->now_us;
    e->random = d->random;
    e->heard_us = d->store->ops->heard ? d->store->ops->heard(d->store) : d->now_us;
    e->resumed_us = d->store->ops->resumed ? d->store->ops->resumed(d->store) : 0;
    if (d->core->lease && d->store->ops->lease_until)
        e->lease_until_us = d->store->ops->lease_until(d->store, d->core->lease);
    er_rdzv_step(d->core, e, &d->actions);
    carry_out(d);
}

void driver_feed(struct er_driver *d, enum er_rdzv_event_kind kind)
{
    driver_step(d, &(struct er_rdzv_event){.kind = kind});
}

/* ---- leases and transactions ---- */

static void on_lease_lost(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    driver_step(user, &(struct er_rdzv_event){.kind = ER_EV_LEASE_LOST, .id = lease});
}

static void on_granted(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct er_driver *d = user;

    if ((rc == 0 || rc == -EEXIST) && lease == d->core->lease) {
        int kept = d->store->ops->lease_keep(d->store, lease, on_lease_lost, d);

        rc = kept < 0 ? kept : rc;
    }
    driver_step(
        d, &(struct er_rdzv_event){.kind = ER_EV_LEASE, .id = lease, .rc = rc, .ttl_us = ttl_us});
}

static void on_revoked(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    driver_step(user, &(struct er_rdzv_event){.kind = ER_EV_REVOKED, .id = lease, .rc = rc});
}

static void on_reply(struct er_driver *d, enum er_rdzv_lane_id lane, int rc,
                     const struct er_store_reply *reply)
{
    driver_step(
        d, &(struct er_rdzv_event){.kind = ER_EV_REPLY, .lane = lane, .rc = rc, .reply = reply});
}

static void on_own_reply(void *user, int rc, const struct er_store_reply *reply)
{
    on_reply(user, ER_LANE_OWN, rc, reply);
}

static void on_batch_reply(void *user, int rc, const struct er_store_reply *reply)
{
    on_reply(user, ER_LANE_BATCH, rc, reply);
}

static void on_lead_reply(void *user, int rc, const struct er_store_reply *reply)
{
    on_reply(user, ER_LANE_LEAD, rc, reply);
}

static void send_txn(struct er_driver *d, const struct er_rdzv_action *a)
{
    static const er_store_txn_fn answered[ER_LANE_COUNT] = {
        [ER_LANE_OWN] = on_own_reply,
        [ER_LANE_LEAD] = on_lead_reply,
        [ER_LANE_BATCH] = on_batch_reply,
    };
    int rc = d->store->ops->txn(d->store, a->txn, answered[a->lane], d);

    if (rc < 0)
        d->lane_failed[a->lane]++; /* certainly not applied; told in the next round */
}

static void carry_out_one(struct er_driver *d, const struct er_rdzv_action *a)
{
    switch (a->kind) {
    case ER_ACT_GRANT:
        if (d->store->ops->lease_grant(d->store, a->lease.id, a->lease.ttl_us, on_granted, d) < 0)
            d->grant_failed[a->lease.once] = a->lease.id; /* told in the next round */
        break;
    case ER_ACT_REVOKE:
        d->store->ops->lease_revoke(d->store, a->lease.id, on_revoked, d);
        break;
    case ER_ACT_TXN:
        send_txn(d, a);
        break;
    case ER_ACT_WATCH_SELF:
        driver_reread_self(d);
        break;
    case ER_ACT_WATCH_JOB:
        d->job_open = true;
        driver_want_job(d, d->now_us);
        break;
    case ER_ACT_UNWATCH_JOB:
        driver_close_job(d);
        d->job_open = d->job_wanted = false;
        break;
    case ER_ACT_START:
        /* Sealed while the owner's word was on its way that its workers, started ahead, are gone.
         */
        if (!d->said.left || a->start->generation > d->said.left_generation)
            d->callbacks.start(d->user, a->start);
        break;
    case ER_ACT_PREPARE:
        d->callbacks.prepare(d->user, a->start);
        break;
    case ER_ACT_NOTICE:
        d->callbacks.notice(d->user, a->stays ? ER_DRIVER_NOTICE_REJOIN : ER_DRIVER_NOTICE_LEAVE,
                            a->generation);
        break;
    case ER_ACT_STOP:
        if (!d->core->deadline_us) /* who has time to save may need the others for it */
            driver_kv_stop(d, a->generation);
        d->callbacks.stop(d->user, a->generation, a->reason);
        break;
    case ER_ACT_VERDICT:
        d->over = true;
        driver_kv_end(d);
        driver_close_self(d);
        driver_retire(d);
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

void er_driver_address(struct er_driver *driver, const char *address)
{
    struct er_text t = {driver->said.address, sizeof(driver->said.address), 0};

    er_text_add(&t, address);
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

void er_driver_drain(struct er_driver *driver, int exit_code, const char *reason,
                     uint64_t deadline_us)
{
    struct er_text t = {driver->said.reason, sizeof(driver->said.reason), 0};

    if (driver->said.leave) {
        if (deadline_us < driver->said.leave_until_us)
            driver->said.leave_until_us = deadline_us;
        return;
    }
    driver->said.leave = true;
    driver->said.exit_code = exit_code;
    driver->said.leave_until_us = deadline_us;
    er_text_add(&t, reason ? reason : "asked to leave");
}

void er_driver_leave(struct er_driver *driver, int exit_code, const char *reason)
{
    er_driver_drain(driver, exit_code, reason, 0);
}

void er_driver_planned(struct er_driver *driver, bool on)
{
    driver->said.planned = true;
    driver->said.planned_on = on && driver->callbacks.prepare && driver->callbacks.notice;
}

void er_driver_warm(struct er_driver *driver, bool on)
{
    driver->said.warm = true;
    driver->said.warm_on = on;
}

void er_driver_tune(struct er_driver *driver, const struct er_driver_tuning *tuning)
{
    driver->said.tune = true;
    driver->said.tuning = *tuning;
}

void er_driver_prepared(struct er_driver *driver, uint64_t generation)
{
    driver->said.prepared_generation = generation;
}

void er_driver_slots(struct er_driver *driver, int slots)
{
    driver->said.slots = slots;
}

static bool anything_said(const struct er_driver *d)
{
    const struct driver_said *s = &d->said;

    return s->port || s->progress || s->result || s->left || s->leave || s->planned || s->warm ||
           s->tune || s->prepared_generation || s->slots || s->address[0];
}

/* Progress counts for the result it came with, and a result is written before "left". */
static void tell_core(struct er_driver *d)
{
    struct driver_said s;

    if (!anything_said(d))
        return;
    s = d->said;
    memset(&d->said, 0, sizeof(d->said));
    if (s.tune) /* first: what follows may have to be decided by it */
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_TUNE, .tuning = &s.tuning});
    if (s.port)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_PORT, .value = s.port_value});
    if (s.address[0])
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_ADDRESS, .address = s.address});
    if (s.planned)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_PLANNED, .value = s.planned_on});
    if (s.warm)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_WARM, .value = s.warm_on});
    if (s.prepared_generation)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_PREPARED,
                                               .generation = s.prepared_generation});
    if (s.progress)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_PROGRESS,
                                               .generation = s.progress_generation});
    if (s.result)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_RESULT,
                                               .generation = s.result_generation,
                                               .cause = s.failed ? &s.cause : NULL});
    if (s.slots)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_SLOTS, .value = s.slots});
    if (s.left)
        driver_step(d,
                    &(struct er_rdzv_event){.kind = ER_EV_LEFT, .generation = s.left_generation});
    if (s.leave)
        driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_LEAVE,
                                               .value = s.exit_code,
                                               .reason = s.reason,
                                               .until_us = s.leave_until_us});
}

/* ---- dispatch ---- */

static bool anything_failed(const struct er_driver *d)
{
    return d->lane_failed[ER_LANE_OWN] || d->lane_failed[ER_LANE_LEAD] ||
           d->lane_failed[ER_LANE_BATCH] || d->grant_failed[0] || d->grant_failed[1];
}

/* What the store did not take has certainly not been done. */
static void tell_failures(struct er_driver *d)
{
    for (unsigned i = 0; i < ER_LANE_COUNT; i++) {
        unsigned n = d->lane_failed[i];

        d->lane_failed[i] = 0;
        while (n--)
            on_reply(d, (enum er_rdzv_lane_id)i, -ENOTCONN, NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        uint64_t id = d->grant_failed[i];

        d->grant_failed[i] = 0;
        if (id)
            driver_step(d, &(struct er_rdzv_event){.kind = ER_EV_LEASE, .id = id, .rc = -ENOTCONN});
    }
}

int er_driver_fd(const struct er_driver *driver)
{
    return driver->store->ops->fd(driver->store);
}

bool er_driver_pending(const struct er_driver *driver)
{
    if (driver->over)
        return driver->retire.on && driver->store->ops->pending(driver->store);
    return !driver->started || anything_said(driver) || anything_failed(driver) ||
           driver->store->ops->pending(driver->store) ||
           driver_kv_deadline(driver) <= driver->now_us;
}

uint64_t er_driver_deadline(const struct er_driver *driver)
{
    uint64_t at, other;

    if (driver->over && !driver->retire.on)
        return ER_FOREVER;
    if (driver->over) {
        at = driver->store->ops->deadline(driver->store);
        return at < driver->retire.until_us ? at : driver->retire.until_us;
    }
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
        driver_read_self(d);
    if (d->job_wanted && !d->job_reading)
        driver_read_job(d);
}

static void one_round(struct er_driver *d)
{
    d->store->ops->dispatch(d->store, d->now_us);
    tell_core(d);
    if (anything_failed(d))
        tell_failures(d);
    driver_feed(d, ER_EV_TICK);
    read_wanted(d);
    driver_kv_run(d);
    driver_retire_step(d);
}

void er_driver_dispatch(struct er_driver *driver, uint64_t now_us)
{
    unsigned round = 0;

    if (now_us > driver->now_us)
        driver->now_us = now_us;
    driver->started = true;
    do
        one_round(driver);
    while ((er_driver_pending(driver) || er_rdzv_deadline(driver->core) <= driver->now_us) &&
           ++round < DRIVER_ROUNDS);
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
    driver_close_self(driver);
    driver_close_job(driver);
    free(driver->core);
    free(driver->nodes);
    free(driver->scratch);
    free(driver);
}

const struct er_overrides *er_driver_overrides(const struct er_driver *driver)
{
    return driver->core->k_overrides.present ? &driver->core->overrides : NULL;
}

const char *er_driver_spec(const struct er_driver *driver)
{
    return driver->core->spec;
}

bool er_driver_latest(const struct er_driver *driver, uint64_t *ret_step)
{
    if (driver->has_latest)
        *ret_step = driver->latest.step;
    return driver->has_latest;
}

void er_driver_look(const struct er_driver *driver, struct er_look *ret)
{
    er_rdzv_look(driver->core, ret);
    ret->denied = driver->denied;
    ret->aside = driver->aside.reason;
}

size_t er_driver_look_nodes(const struct er_driver *driver, struct er_node_look *list, size_t max)
{
    return er_rdzv_look_nodes(driver->core, list, max);
}

const char *er_driver_phase(const struct er_driver *driver)
{
    const struct er_rdzv *c = driver->core;

    if ((driver->over && c->verdict.kind == ER_VERDICT_STOPPED) || (c->leaving && !c->run))
        return "stopped";
    return c->k_world.present ? er_view_phase_name(&c->world) : "forming";
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
