#include "rendezvous/rdzv.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/rand.h"
#include "rendezvous/rdzv_internal.h"

#define RETRY_MIN_US 20000ull
#define RETRY_MAX_US 2000000ull
#define BIT(x)       (1u << (x))

/* ---- the one way to change a state ---- */

static const unsigned state_next[ER_RDZV_STATE_COUNT] = {
    [ER_RDZV_NEW] = BIT(ER_RDZV_LEASING),
    [ER_RDZV_LEASING] = BIT(ER_RDZV_JOINING) | BIT(ER_RDZV_REVOKING),
    [ER_RDZV_JOINING] = BIT(ER_RDZV_IN) | BIT(ER_RDZV_LEASING) | BIT(ER_RDZV_REVOKING),
    [ER_RDZV_IN] = BIT(ER_RDZV_LEASING) | BIT(ER_RDZV_REVOKING),
    [ER_RDZV_REVOKING] = BIT(ER_RDZV_OVER),
    [ER_RDZV_OVER] = 0,
};

static const unsigned run_next[ER_RUN_COUNT] = {
    [ER_RUN_IDLE] = BIT(ER_RUN_UP),
    [ER_RUN_UP] = BIT(ER_RUN_STOPPING) | BIT(ER_RUN_IDLE),
    [ER_RUN_STOPPING] = BIT(ER_RUN_IDLE),
};

static const unsigned lead_next[ER_LEAD_COUNT] = {
    [ER_LEAD_NO] = BIT(ER_LEAD_READING),
    [ER_LEAD_READING] = BIT(ER_LEAD_REST) | BIT(ER_LEAD_NO),
    [ER_LEAD_REST] = BIT(ER_LEAD_ASSIGNING) | BIT(ER_LEAD_READING) | BIT(ER_LEAD_NO),
    [ER_LEAD_ASSIGNING] =
        BIT(ER_LEAD_SEALING) | BIT(ER_LEAD_REST) | BIT(ER_LEAD_READING) | BIT(ER_LEAD_NO),
    [ER_LEAD_SEALING] = BIT(ER_LEAD_REST) | BIT(ER_LEAD_READING) | BIT(ER_LEAD_NO),
};

void rdzv_set_state(struct er_rdzv *c, enum er_rdzv_state next)
{
    assert(state_next[c->state] & BIT(next));
    c->state = next;
}

void rdzv_set_run(struct er_rdzv *c, enum er_rdzv_run next)
{
    assert(run_next[c->run] & BIT(next));
    c->run = next;
}

void rdzv_set_lead(struct er_rdzv *c, enum er_rdzv_lead next)
{
    assert(lead_next[c->lead] & BIT(next));
    c->lead = next;
}

/* ---- small things ---- */

bool rdzv_terminal(const struct er_job_record *w)
{
    return w->phase == ER_WORLD_DONE || w->phase == ER_WORLD_FAILED;
}

/* Room for what must not be dropped is kept free: notes use half at most. */
struct er_rdzv_action *rdzv_act(struct er_rdzv *c, enum er_rdzv_action_kind kind)
{
    struct er_rdzv_action *a;

    assert(c->out->n < ER_RDZV_ACTIONS_MAX);
    a = &c->out->list[c->out->n++];
    memset(a, 0, sizeof(*a));
    a->kind = kind;
    return a;
}

void rdzv_wake(struct er_rdzv *c, uint64_t at_us)
{
    if (at_us < c->wake_us)
        c->wake_us = at_us;
}

bool rdzv_due(struct er_rdzv *c, uint64_t at_us)
{
    if (c->now_us >= at_us)
        return true;
    rdzv_wake(c, at_us);
    return false;
}

uint64_t rdzv_random(struct er_rdzv *c)
{
    do
        c->random = er_rand_mix(c->random);
    while (c->random == 0);
    return c->random;
}

bool rdzv_lane_free(struct er_rdzv *c, enum er_rdzv_lane_id id)
{
    return c->lanes[id].kind == ER_TXN_NONE && !c->lanes[id].reread &&
           rdzv_due(c, c->lanes[id].retry_us);
}

/* ---- what is known ---- */

static bool newer(struct er_rdzv_known *k, bool put, const struct er_store_kv *kv, uint64_t rev)
{
    if (rev < k->rev)
        return false;
    k->rev = rev;
    k->present = put;
    k->mod_rev = put ? kv->mod_rev : 0;
    k->lease = put ? kv->lease : 0;
    return true;
}

/* `kv` NULL: the key isn't there as of `rev`. */
static void learn(struct er_rdzv *c, struct er_bytes name, const struct er_store_kv *kv,
                  uint64_t rev)
{
    struct er_key key;

    er_key_parse(c->root, name, &key);
    if (key.kind == ER_KEY_WORLD) {
        struct er_job_record w;
        bool put = kv && er_job_record_parse(kv->value, &w, NULL) == 0;

        if (newer(&c->k_world, put, kv, rev) && put) {
            c->world = w;
            c->seen = w.generation > c->seen ? w.generation : c->seen;
            c->seen = w.taken > c->seen ? w.taken : c->seen;
        }
    } else if (key.kind == ER_KEY_LEADER) {
        struct er_leader l;
        bool put = kv && er_leader_parse(kv->value, &l, NULL) == 0;

        put = put && kv->value.len <= sizeof(c->leader_bytes);
        if (newer(&c->k_leader, put, kv, rev) && put) {
            c->leader = l;
            c->leader_n = kv->value.len;
            memcpy(c->leader_bytes, kv->value.data, kv->value.len);
        }
    } else if (key.kind == ER_KEY_NODE && strcmp(key.name, c->opts.node_id) == 0) {
        struct er_member m;
        bool put = kv && er_member_parse(kv->value, &m, NULL) == 0;

        if (newer(&c->k_node, put, kv, rev) && put)
            c->node = m;
    } else if (key.kind == ER_KEY_ASSIGN && strcmp(key.name, c->opts.node_id) == 0) {
        struct er_assign a;
        bool put = kv && er_assign_parse(kv->value, &a, NULL) == 0;

        if (newer(&c->k_assign, put, kv, rev) && put)
            c->assign = a;
    } else if (key.kind == ER_KEY_OVERRIDES) {
        struct er_overrides o;
        bool put = kv != NULL;

        /* What cannot be read changes nothing: going back to the spec would be a change, too. */
        if (put && er_overrides_parse(kv->value, &o, NULL))
            return;
        if (newer(&c->k_overrides, put, kv, rev) && put)
            c->overrides = o;
    }
}

/* What the ranges of the branch taken say. */
static void learn_reply(struct er_rdzv *c, const struct er_store_txn *txn,
                        const struct er_store_reply *reply)
{
    const struct er_store_op *ops = reply->succeeded ? txn->then_ops : txn->else_ops;
    size_t n = reply->succeeded ? txn->then_n : txn->else_n, kv = 0, range = 0;

    for (size_t i = 0; i < n && range < reply->range_count; i++) {
        if (ops[i].kind != ER_OP_RANGE)
            continue;
        learn(c, ops[i].key, reply->range_n[range] ? &reply->kvs[kv] : NULL, reply->revision);
        kv += reply->range_n[range++];
    }
}

static void on_job_kv(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    if (c->lead == ER_LEAD_NO)
        return;
    er_view_apply(&c->view, c->root, e->change, e->kv, c->now_us);
    if (e->change == ER_STORE_PUT)
        rdzv_note_join(c, e->kv);
}

/* ---- answers ---- */

static void on_failed_reply(struct er_rdzv *c, struct er_rdzv_lane *lane, int rc)
{
    unsigned shift = lane->tries < 7 ? lane->tries : 7;
    uint64_t wait = RETRY_MIN_US << shift;

    lane->tries++;
    lane->retry_us = er_deadline_in(c->now_us, wait < RETRY_MAX_US ? wait : RETRY_MAX_US);
    if (rc != -ENOTCONN)
        lane->reread = true;
}

/* A batch whose outcome is bad or unknown voids the plan: the next one takes another number, so
 * nothing needs to be read. */
static void on_batch_reply(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    struct er_rdzv_lane *lead = &c->lanes[ER_LANE_LEAD];

    if (e->rc)
        on_failed_reply(c, lead, -ENOTCONN);
    else if (!e->reply->succeeded)
        lead->retry_us = c->now_us + RETRY_MIN_US;
    rdzv_lead_reply(c, ER_TXN_ASSIGN, e->rc ? NULL : e->reply);
}

static void on_reply(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    struct er_rdzv_lane *lane = &c->lanes[e->lane];
    enum er_rdzv_txn kind = lane->kind;

    if (e->lane == ER_LANE_BATCH) {
        on_batch_reply(c, e);
        return;
    }
    lane->kind = ER_TXN_NONE;
    if (kind == ER_TXN_NONE)
        return;
    if (e->rc) {
        on_failed_reply(c, lane, e->rc);
        if (e->lane == ER_LANE_LEAD)
            rdzv_lead_reply(c, kind, NULL);
        return;
    }
    learn_reply(c, &lane->txn, e->reply);
    if (kind == ER_TXN_READ) {
        lane->reread = false;
        lane->retry_us = 0;
        return;
    }
    lane->tries = 0;
    /* A compare that failed although everything known says it holds must not spin. */
    lane->retry_us = e->reply->succeeded ? 0 : c->now_us + RETRY_MIN_US;
    if (e->lane == ER_LANE_OWN)
        rdzv_node_reply(c, kind, e->reply);
    else
        rdzv_lead_reply(c, kind, e->reply);
}

static void on_lease(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    unsigned shift = c->lease_tries < 7 ? c->lease_tries : 7;

    if (e->id == c->aside.lease && c->aside.lease) {
        rdzv_aside_lease(c, e->rc);
        return;
    }
    if (e->id != c->lease || !c->lease_asked)
        return;
    c->lease_asked = false;
    if (e->rc == 0 || e->rc == -EEXIST) { /* granted before, and the answer was lost */
        c->lease_held = true;
        c->lease_tries = 0;
        return;
    }
    c->lease_tries++;
    c->lease_retry_us = er_deadline_in(c->now_us, RETRY_MIN_US << shift);
}

/* ---- the owner's events ---- */

static void on_result(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    if (e->generation != c->run_generation || c->run == ER_RUN_IDLE ||
        e->generation <= c->result_generation)
        return;
    if (c->preparing) { /* nothing to report in: it is not sealed */
        c->prepare_failed = true;
        return;
    }
    c->result_generation = e->generation;
    c->result_due = true;
    memset(&c->result, 0, sizeof(c->result));
    c->result.ok = !e->cause;
    c->result.progressed = c->progressed == e->generation;
    c->result.incarnation = c->opts.incarnation;
    if (e->cause) {
        c->result.cause = *e->cause;
        c->result.cause.generation = e->generation;
        memcpy(c->result.cause.node_id, c->opts.node_id, sizeof(c->result.cause.node_id));
        memcpy(c->result.cause.host, c->opts.host, sizeof(c->result.cause.host));
    }
}

static void on_left(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    if (c->run == ER_RUN_IDLE || e->generation != c->run_generation)
        return;
    rdzv_set_run(c, ER_RUN_IDLE);
    if (!c->preparing)
        c->slots = rdzv_slots_vary(c) ? c->offer : c->opts.slots;
    c->preparing = false;
    c->left = c->run_generation;
}

static void on_slots(struct er_rdzv *c, int slots)
{
    c->offer = slots < 1 ? 1 : slots > c->opts.slots ? c->opts.slots : slots;
}

static void on_address(struct er_rdzv *c, const char *address)
{
    struct er_text t = {c->opts.address, sizeof(c->opts.address), 0};

    er_text_add(&t, address);
}

/* What was known by its revision is not known any more: nothing is decided before the own keys
 * have been read again. The lease, which the store may not know either, tells by itself. */
static void forget(struct er_rdzv *c)
{
    if (c->lead != ER_LEAD_NO)
        rdzv_depose(c);
    memset(&c->k_world, 0, sizeof(c->k_world));
    memset(&c->k_leader, 0, sizeof(c->k_leader));
    memset(&c->k_node, 0, sizeof(c->k_node));
    memset(&c->k_assign, 0, sizeof(c->k_assign));
    memset(&c->k_overrides, 0, sizeof(c->k_overrides));
    c->lead_rev = 0;
    c->self_ready = false;
}

uint64_t er_rdzv_known_rev(const struct er_rdzv *core)
{
    const struct er_rdzv_known *known[] = {&core->k_world, &core->k_leader, &core->k_node,
                                           &core->k_assign, &core->k_overrides};
    uint64_t rev = 0;

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        rev = known[i]->rev > rev ? known[i]->rev : rev;
    return rev;
}

void er_driver_opts_tune(struct er_driver_opts *opts, const struct er_driver_tuning *t)
{
    opts->restart_max = t->restart_max;
    opts->restart_window_us = t->restart_window_us;
    opts->backoff_initial_us = t->backoff_initial_us;
    opts->backoff_max_us = t->backoff_max_us;
    opts->strike_max = t->strike_max;
    opts->strike_window_us = t->strike_window_us;
    opts->strike_cooldown_us = t->strike_cooldown_us;
    opts->resize_settle_us = t->resize_settle_us;
    opts->resize_min_interval_us = t->resize_min_interval_us;
    opts->prepare_us = t->prepare_us;
}

static void take_pace(struct er_rdzv *c)
{
    const struct er_driver_opts *o = &c->opts;

    c->settle_us = o->resize_settle_us ? o->resize_settle_us : ER_RDZV_SETTLE_US;
    c->min_interval_us =
        o->resize_min_interval_us ? o->resize_min_interval_us : ER_RDZV_MIN_INTERVAL_US;
}

/* What was decided stays; what is decided from now on goes by the new values. */
static void tune(struct er_rdzv *c, const struct er_driver_tuning *t)
{
    er_driver_opts_tune(&c->opts, t);
    take_pace(c);
}

static void absorb(struct er_rdzv *c, const struct er_rdzv_event *e)
{
    switch (e->kind) {
    case ER_EV_TICK:
        break;
    case ER_EV_LEASE:
        on_lease(c, e);
        break;
    case ER_EV_LEASE_LOST:
        if (e->id == c->lease && c->lease_held)
            c->lease_lost = true;
        break;
    case ER_EV_REVOKED:
        if (e->id == c->lease)
            c->revoked = true;
        break;
    case ER_EV_REPLY:
        on_reply(c, e);
        break;
    case ER_EV_SELF_KV:
        learn(c, e->kv->key, e->change == ER_STORE_PUT ? e->kv : NULL, e->revision);
        break;
    case ER_EV_SELF_READY:
        if (!c->self_ready && c->k_world.present)
            memcpy(c->first_run, c->world.run, sizeof(c->first_run));
        c->self_ready = true;
        break;
    case ER_EV_JOB_RESET:
        er_view_reset(&c->view);
        if (c->lead != ER_LEAD_NO && c->lead != ER_LEAD_READING)
            rdzv_set_lead(c, ER_LEAD_READING);
        break;
    case ER_EV_JOB_KV:
        on_job_kv(c, e);
        break;
    case ER_EV_JOB_READY:
        if (c->lead == ER_LEAD_READING)
            rdzv_lead_ready(c);
        break;
    case ER_EV_PORT:
        c->port = e->value;
        break;
    case ER_EV_ADDRESS:
        on_address(c, e->address);
        break;
    case ER_EV_RESULT:
        on_result(c, e);
        break;
    case ER_EV_LEFT:
        on_left(c, e);
        break;
    case ER_EV_PROGRESS:
        c->progressed = e->generation > c->progressed ? e->generation : c->progressed;
        break;
    case ER_EV_LEAVE:
        rdzv_leave(c, e->value, e->reason, e->until_us);
        break;
    case ER_EV_PLANNED:
        c->planned = e->value != 0;
        break;
    case ER_EV_WARM:
        c->warm = e->value != 0;
        break;
    case ER_EV_PREPARED:
        if (c->preparing && e->generation == c->run_generation)
            c->prepared = e->generation;
        break;
    case ER_EV_SLOTS:
        on_slots(c, e->value);
        break;
    case ER_EV_TUNE:
        tune(c, e->tuning);
        break;
    case ER_EV_FORGET:
        forget(c);
        break;
    }
}

/* ---- step ---- */

static void decide(struct er_rdzv *c)
{
    c->wake_us = ER_FOREVER;
    for (unsigned i = 0; i < ER_LANE_COUNT; i++) {
        struct er_rdzv_lane *lane = &c->lanes[i];

        if (lane->kind == ER_TXN_NONE && lane->reread && rdzv_due(c, lane->retry_us))
            rdzv_send_read(c, (enum er_rdzv_lane_id)i);
    }
    rdzv_lead_decide(c);
    rdzv_node_decide(c);
}

void er_rdzv_step(struct er_rdzv *core, const struct er_rdzv_event *event,
                  struct er_rdzv_actions *ret_actions)
{
    ret_actions->n = 0;
    if (core->state == ER_RDZV_OVER)
        return;
    core->out = ret_actions;
    if (event->now_us > core->now_us)
        core->now_us = event->now_us;
    if (event->heard_us > core->heard_us)
        core->heard_us = event->heard_us;
    core->lease_until_us = event->lease_until_us;
    if (event->resumed_us > core->resumed_us)
        core->resumed_us = event->resumed_us;
    core->random = er_rand_mix(core->random ^ event->random);
    absorb(core, event);
    if (event->kind != ER_EV_SELF_KV && event->kind != ER_EV_JOB_KV && event->kind != ER_EV_FORGET)
        decide(core);
    core->out = NULL;
}

uint64_t er_rdzv_deadline(const struct er_rdzv *core)
{
    return core->state == ER_RDZV_OVER ? ER_FOREVER : core->wake_us;
}

void er_rdzv_resize(struct er_rdzv *core, struct er_view_node *nodes, struct er_plan_node *scratch,
                    size_t cap)
{
    er_view_init(&core->view, nodes, cap);
    core->scratch = scratch;
}

bool er_rdzv_fence(const struct er_rdzv *core, uint64_t generation, char ret_text[ER_FENCE_MAX])
{
    if (generation == 0 || generation != core->run_generation)
        return false;
    er_fence_format(generation, core->run_nonce, ret_text);
    return true;
}

size_t er_rdzv_capacity(uint32_t max_nodes)
{
    return (size_t)max_nodes * 2 + 16;
}

uint64_t er_driver_stop_lease_us(uint64_t stop_grace_us)
{
    uint64_t us = er_deadline_in(stop_grace_us, 3 * ER_US_PER_S);

    return er_deadline_in(us, us / 2);
}

static int check_opts(const struct er_driver_opts *o, struct er_error *err)
{
    if (!er_name_valid(o->job) || !er_name_valid(o->node_id))
        return er_error_set(err, ER_E_CONFIG,
                            "job and node names are 1 to 63 of [A-Za-z0-9._-], not '%s' and '%s'",
                            o->job, o->node_id);
    if (o->min_nodes == 0 || o->min_nodes > o->max_nodes)
        return er_error_set(err, ER_E_CONFIG, "node bounds %u:%u make no sense", o->min_nodes,
                            o->max_nodes);
    if (o->slots < 1)
        return er_error_set(err, ER_E_CONFIG, "a node without workers (%d slots)", o->slots);
    if (o->incarnation == 0)
        return er_error_set(err, ER_E_CONFIG, "an agent's incarnation must not be 0");
    if (!o->spec || strlen(o->spec) > ER_SPEC_BYTES_MAX)
        return er_error_set(err, ER_E_CONFIG, "the agreed part of the spec exceeds %d bytes",
                            ER_SPEC_BYTES_MAX);
    if (o->store_loss_stop && o->max_nodes > 1 &&
        o->lease_ttl_us < er_driver_stop_lease_us(o->stop_grace_us))
        return er_error_set(err, ER_E_CONFIG,
                            "workers cannot be stopped before the lease ends: the lease must be at "
                            "least 1.5 times the stop grace + 3s");
    if (o->first_generation >= ER_GEN_MAX / 2)
        return er_error_set(err, ER_E_CONFIG, "generation %llu is out of range",
                            (unsigned long long)o->first_generation);
    if (strlen(o->prefix) + strlen(o->job) + 3 > ER_ROOT_MAX)
        return er_error_set(err, ER_E_CONFIG, "key prefix '%s' is too long", o->prefix);
    return 0;
}

int er_rdzv_init(struct er_rdzv *core, const struct er_driver_opts *opts,
                 struct er_view_node *nodes, struct er_plan_node *scratch, struct er_error *err)
{
    int rc = check_opts(opts, err);
    struct er_text root = {core->root, sizeof(core->root), 0};

    if (rc)
        return rc;
    core->opts = *opts;
    core->slots = core->offer = opts->slots;
    memcpy(core->spec, opts->spec, strlen(opts->spec) + 1);
    core->opts.spec = core->spec;
    core->spec_hash = er_spec_hash(core->spec);
    take_pace(core);
    er_text_add(&root, opts->prefix);
    er_text_add(&root, "/");
    er_text_add(&root, opts->job);
    er_text_add(&root, "/");
    core->now_us = core->begun_us = core->heard_us = opts->now_us;
    core->random = er_rand_mix(opts->seed ^ er_rand_mix(opts->incarnation));
    core->wake_us = 0; /* the first step starts it */
    er_view_init(&core->view, nodes, er_rdzv_capacity(opts->max_nodes));
    core->scratch = scratch;
    return 0;
}
