#include "rendezvous/rdzv_internal.h"

#include <string.h>

#include "base/exit_codes.h"
#include "rendezvous/spec_text.h"

/* This node's part: being registered, saying how its workers did, leaving. */

#define DEREGISTER_US 5000000ull /* for the goodbye; the lease ends by itself after that */
#define REVOKE_US     2000000ull
#define STALE_US      20000ull
#define RUN_RETRY_US                                                                               \
    100000ull /* doubled up to 6.4 s: a thousand agents may wait for the last old one */
#define RUN_RETRY_SHIFTS 6
#define KILL_US          1000000ull /* from the end of the stop grace to the last worker's end */

/* This agent may begin a new run of the job, and nobody has since it started. */
static bool may_begin_run(const struct er_rdzv *c)
{
    return c->opts.new_run != ER_NEW_RUN_NO && !c->registered_once && c->first_run[0] &&
           strcmp(c->first_run, c->world.run) == 0;
}

bool rdzv_job_over(const struct er_rdzv *c)
{
    return c->k_world.present && rdzv_terminal(&c->world) && !may_begin_run(c);
}

void rdzv_leave(struct er_rdzv *c, int exit_code, const char *reason, uint64_t until_us)
{
    struct er_text t = {c->leave_reason, sizeof(c->leave_reason), 0};

    if (c->leaving) { /* a second wish can only make it shorter */
        c->leave_until_us = until_us < c->leave_until_us ? until_us : c->leave_until_us;
        return;
    }
    c->leaving = true;
    c->leave_until_us = until_us;
    c->leave_code = exit_code;
    er_text_add(&t, reason ? reason : "asked to leave");
}

/* ---- registration ---- */

static void lose_lease(struct er_rdzv *c)
{
    if (c->lead != ER_LEAD_NO)
        rdzv_depose(c);
    c->lease = 0;
    c->lease_held = c->lease_lost = c->lease_asked = false;
    rdzv_set_state(c, ER_RDZV_LEASING);
}

static void ask_lease(struct er_rdzv *c)
{
    struct er_rdzv_action *a;

    if (c->lease_asked || !rdzv_due(c, c->lease_retry_us))
        return;
    if (!c->lease)
        c->lease = rdzv_random(c) >> 1; /* an etcd lease id is a positive int64 */
    c->lease_asked = true;
    a = rdzv_act(c, ER_ACT_GRANT);
    a->lease.id = c->lease;
    a->lease.ttl_us = c->opts.lease_ttl_us;
}

/* Ends the lease of the record of my name, once; its DELETE is on its way then. */
static void evict(struct er_rdzv *c)
{
    if (c->evicted_lease == c->k_node.lease)
        return;
    c->evicted_lease = c->k_node.lease;
    rdzv_act(c, ER_ACT_REVOKE)->lease.id = c->evicted_lease;
}

/* The record of my name belongs to somebody else, or to an earlier life of this agent. */
static void name_taken(struct er_rdzv *c)
{
    char text[256] = "";
    struct er_text t = {text, sizeof(text), 0};

    if (!c->taken_us)
        c->taken_us = c->now_us;
    if (c->node.boot_id_hash == c->opts.boot_id_hash) {
        evict(c);
        return;
    }
    if (!rdzv_due(c, er_deadline_in(c->taken_us, 2 * c->opts.lease_ttl_us)))
        return;
    er_text_add(&t, "node name '");
    er_text_add(&t, c->opts.node_id);
    er_text_add(&t, "' is in use on host ");
    er_text_add(&t, c->node.host);
    rdzv_leave(c, ER_CODE_CONFIG, text, 0);
}

static bool protocol_fits(const struct er_rdzv *c)
{
    return !c->k_world.present ||
           (c->world.protocol_high <= ER_PROTOCOL + 1 && c->world.protocol_low + 1 >= ER_PROTOCOL);
}

static void refuse_protocol(struct er_rdzv *c)
{
    char text[256] = "";
    struct er_text t = {text, sizeof(text), 0};

    er_text_add(&t, "the job speaks protocol ");
    er_text_u64(&t, c->world.protocol_low);
    er_text_add(&t, " to ");
    er_text_u64(&t, c->world.protocol_high);
    er_text_add(&t, ", this agent ");
    er_text_u64(&t, ER_PROTOCOL);
    rdzv_leave(c, ER_CODE_PROTOCOL, text, 0);
}

static bool registered(const struct er_rdzv *c)
{
    return c->k_node.present && c->node.incarnation == c->opts.incarnation &&
           c->k_node.lease == c->lease;
}

/* Own keys are watched one by one: the record that came with a new run may be seen before the run,
 * and the old one's end is not this node's. The transaction's answer, or a read, shows both. */
static bool world_is_older(const struct er_rdzv *c)
{
    return c->k_world.present && rdzv_terminal(&c->world) && c->k_world.rev < c->k_node.mod_rev;
}

/* A run that is over is followed by another at once, a running one only if no node is left of it.
 */
static bool begins_run(const struct er_rdzv *c)
{
    return c->k_world.present && may_begin_run(c) && (rdzv_terminal(&c->world) || !c->run_tries);
}

static void join(struct er_rdzv *c)
{
    struct er_rdzv_lane *lane = &c->lanes[ER_LANE_OWN];

    if (registered(c) && !world_is_older(c)) {
        c->registered_once = true;
        c->taken_us = 0;
        rdzv_set_state(c, ER_RDZV_IN);
        return;
    }
    if (!c->self_ready || !rdzv_lane_free(c, ER_LANE_OWN))
        return;
    if (!protocol_fits(c)) {
        refuse_protocol(c);
    } else if (begins_run(c)) {
        rdzv_send_run(c);
    } else if (!c->k_node.present) {
        rdzv_send_join(c);
    } else if (c->node.incarnation != c->opts.incarnation) {
        name_taken(c);
    } else { /* my record under the lease I lost: look again until it is gone */
        evict(c);
        lane->reread = true;
        lane->retry_us = er_deadline_in(c->now_us, STALE_US);
        rdzv_wake(c, lane->retry_us);
    }
}

/* Out of the store's reach, or kept out, for too long at the beginning. */
static void give_up_joining(struct er_rdzv *c)
{
    if (c->registered_once || c->leaving || rdzv_job_over(c))
        return;
    if (rdzv_due(c, er_deadline_in(c->begun_us, c->opts.join_timeout_us)))
        rdzv_leave(c, ER_CODE_UNAVAILABLE, "could not register in the store within join_timeout",
                   0);
}

/* When workers that are not to outlive the lease are told to stop, so that a second is left when
 * they are gone. Keep-alives alone renew it, and er_driver_stop_lease_us() leaves time for them. */
static uint64_t stop_at(const struct er_rdzv *c)
{
    uint64_t stop_us = c->opts.stop_grace_us + 2 * KILL_US;
    uint64_t until_us =
        c->lease_until_us ? c->lease_until_us : er_deadline_in(c->heard_us, c->opts.lease_ttl_us);

    return until_us > stop_us ? until_us - stop_us : 0;
}

/* The store is out of reach: when the workers must be told to stop, or the node gives up. */
static void ride_decide(struct er_rdzv *c)
{
    if (c->opts.max_nodes == 1 || !c->registered_once || c->leaving || rdzv_job_over(c))
        return;
    if (c->opts.store_loss_stop && c->run == ER_RUN_UP && rdzv_due(c, stop_at(c)))
        rdzv_stop_workers(c);
    if (c->opts.store_loss_limit_us &&
        rdzv_due(c, er_deadline_in(c->heard_us, c->opts.store_loss_limit_us)))
        rdzv_leave(c, ER_CODE_UNAVAILABLE, "the store was out of reach for store_loss.limit", 0);
}

/* ---- records ---- */

bool rdzv_slots_vary(const struct er_rdzv *c)
{
    return c->k_world.present && c->world.protocol_low >= ER_PROTOCOL_SLOTS;
}

/* A wish for more is told while nobody plans, as far as is known here: what a plan rests on should
 * not move under it. Idle, what the node said with `left` holds. */
static void offer_slots(struct er_rdzv *c)
{
    const struct er_job_record *w = &c->world;

    if (c->run == ER_RUN_UP && !c->preparing && w->phase == ER_WORLD_SEALED && !w->next &&
        w->generation == c->run_generation && c->offer >= c->run_slots && rdzv_slots_vary(c))
        c->slots = c->offer;
}

/* It was deleted, or its lease is gone and we weren't told yet. A lease that lives would go on
 * holding the leader's key, and nobody would lead. */
static void lose_record(struct er_rdzv *c)
{
    if (rdzv_leader_key_mine(c))
        rdzv_act(c, ER_ACT_REVOKE)->lease.id = c->lease;
    lose_lease(c);
    rdzv_wake(c, c->now_us); /* for another one, before the grace is over */
}

static void in_decide(struct er_rdzv *c)
{
    if (!c->k_node.present) {
        if (!er_bug(NO_REREGISTER))
            lose_record(c);
        return;
    }
    if (c->node.incarnation != c->opts.incarnation) {
        rdzv_leave(c, ER_CODE_TEMPFAIL, "another agent has taken over this node's name", 0);
        return;
    }
    offer_slots(c);
    if (!rdzv_lane_free(c, ER_LANE_OWN))
        return;
    if (c->result_due)
        rdzv_send_result(c);
    else if (c->node.left != c->left || c->node.slots != c->slots ||
             c->node.draining != c->leaving || c->node.planned != c->planned ||
             c->node.prepared != c->prepared || strcmp(c->node.address, c->opts.address) != 0)
        rdzv_send_left(c);
}

/* ---- the end ---- */

static void build_verdict(struct er_rdzv *c)
{
    struct er_verdict *v = &c->verdict;
    const struct er_job_record *w = &c->world;

    memset(v, 0, sizeof(*v));
    v->restarts = c->k_world.present ? w->restarts : 0;
    if (!rdzv_job_over(c)) {
        v->kind = ER_VERDICT_STOPPED;
        v->exit_code = c->leave_code;
        memcpy(v->reason, c->leave_reason, sizeof(v->reason));
        return;
    }
    v->kind = w->phase == ER_WORLD_DONE ? ER_VERDICT_SUCCEEDED
              : w->stopped              ? ER_VERDICT_STOPPED
                                        : ER_VERDICT_FAILED;
    v->exit_code = w->exit_code;
    if (w->has_cause)
        v->cause = w->cause;
    memcpy(v->reason, w->verdict, sizeof(w->verdict));
}

static void begin_revoke(struct er_rdzv *c)
{
    if (c->lead != ER_LEAD_NO)
        rdzv_depose(c);
    if (c->state == ER_RDZV_NEW)
        rdzv_set_state(c, ER_RDZV_LEASING);
    rdzv_set_state(c, ER_RDZV_REVOKING);
    c->revoke_us = er_deadline_in(c->now_us, REVOKE_US);
    c->revoked = c->lease == 0;
    if (c->lease)
        rdzv_act(c, ER_ACT_REVOKE)->lease.id = c->lease;
}

/* A leader that leaves first ends the generation it is a member of, then names its successor. */
static bool handed_on(struct er_rdzv *c)
{
    const struct er_view_node *me = er_view_find(&c->view, c->opts.node_id);

    if (c->lead == ER_LEAD_NO)
        return true;
    if (c->lead != ER_LEAD_REST || c->view.world_rev < c->k_world.mod_rev ||
        c->lanes[ER_LANE_LEAD].kind != ER_TXN_NONE)
        return false;
    return (c->view.world.phase == ER_WORLD_FORMING || !me || !er_view_alive_member(&c->view, me) ||
            er_view_succeeded(&c->view, me)) &&
           rdzv_hand_over(c);
}

/* Has the goodbye been said? */
static bool said_goodbye(struct er_rdzv *c)
{
    if (c->state != ER_RDZV_IN)
        return true;
    if (!c->deregister_us)
        c->deregister_us = er_deadline_in(c->now_us, DEREGISTER_US);
    if (rdzv_due(c, c->deregister_us))
        return true;
    if (!c->node.draining || c->node.left != c->left || c->result_due)
        return false;
    return handed_on(c);
}

static void end_decide(struct er_rdzv *c)
{
    if (c->state != ER_RDZV_REVOKING && c->run == ER_RUN_IDLE &&
        (rdzv_job_over(c) || (c->leaving && said_goodbye(c))))
        begin_revoke(c);
    if (c->state == ER_RDZV_REVOKING && (c->revoked || rdzv_due(c, c->revoke_us))) {
        rdzv_set_state(c, ER_RDZV_OVER);
        build_verdict(c);
        rdzv_act(c, ER_ACT_VERDICT)->verdict = &c->verdict;
    }
}

/* A spec that was the job's, or was to be, and is neither any more. */
static void watch_spec(struct er_rdzv *c)
{
    if (!c->registered_once || !c->k_world.present || c->world.spec == c->spec_seen)
        return;
    if (c->spec_seen && c->world.spec != c->spec_hash)
        rdzv_leave(
            c, ER_CODE_PROTOCOL,
            "the job goes on with another spec than this node's: start it again with that one", 0);
    c->spec_seen = c->world.spec;
}

/* The end of the time that was given belongs to the stop ladder: its grace, at most half of it. */
static void heed_drain(struct er_rdzv *c)
{
    uint64_t time_us = c->assign.drain_us, ladder_us = c->opts.stop_grace_us;

    if (time_us && !c->deadline_us)
        c->deadline_us = er_deadline_in(c->now_us, time_us);
    if (time_us)
        time_us -= ladder_us < time_us / 2 ? ladder_us : time_us / 2;
    else
        time_us = c->opts.resize_grace_us;
    rdzv_leave(c, c->assign.drain_code, "drained by request",
               c->planned ? er_deadline_in(c->now_us, time_us) : 0);
}

void rdzv_node_decide(struct er_rdzv *c)
{
    if (c->state == ER_RDZV_REVOKING) {
        end_decide(c);
        return;
    }
    if (c->state == ER_RDZV_NEW && !c->leaving) {
        rdzv_act(c, ER_ACT_WATCH_SELF);
        rdzv_set_state(c, ER_RDZV_LEASING);
    }
    if (c->lease_lost && !er_bug(NO_REREGISTER) &&
        (c->state == ER_RDZV_IN || c->state == ER_RDZV_JOINING))
        lose_lease(c);
    if (c->state == ER_RDZV_LEASING && c->lease_held)
        rdzv_set_state(c, ER_RDZV_JOINING);
    if (c->state == ER_RDZV_LEASING && !c->leaving && !rdzv_job_over(c))
        ask_lease(c);
    if (c->state == ER_RDZV_JOINING && !c->leaving && !rdzv_job_over(c))
        join(c);
    if (c->state == ER_RDZV_IN && c->k_assign.present && c->assign.drain == c->opts.incarnation)
        heed_drain(c);
    watch_spec(c);
    rdzv_workers_decide(c);
    ride_decide(c);
    if (c->state == ER_RDZV_IN && !rdzv_job_over(c))
        in_decide(c);
    give_up_joining(c);
    end_decide(c);
}

static bool is_mine(const struct er_rdzv *c, const struct er_store_kv *kv)
{
    return kv->value.len == strlen(c->spec) && memcmp(kv->value.data, c->spec, kv->value.len) == 0;
}

/* This node's file was changed to what was set while the job runs: the job's spec is its own. */
static bool adopt_spec(struct er_rdzv *c, const struct er_store_kv *kv)
{
    if (!kv || !c->k_overrides.present || kv->value.len > ER_SPEC_BYTES_MAX ||
        !er_spec_agrees(c->spec, kv->value.data, kv->value.len, c->overrides.text))
        return false;
    memcpy(c->spec, kv->value.data, kv->value.len);
    c->spec[kv->value.len] = 0;
    c->spec_hash = er_spec_hash(c->spec);
    return true;
}

/* The join was refused: which of the job's specs is this node's? With neither it leaves, or makes
 * its own the next one. */
static void settle_spec(struct er_rdzv *c, const struct er_store_reply *reply)
{
    const struct er_store_kv *now = reply->kvs, *next = reply->range_n[1] ? &reply->kvs[1] : NULL;
    char text[ER_REASON_MAX];

    c->join_next = !is_mine(c, now) && next && is_mine(c, next);
    if (is_mine(c, now) || c->join_next || adopt_spec(c, now))
        return;
    c->join_next = adopt_spec(c, next);
    if (c->join_next)
        return;
    if (c->opts.update_spec && !c->respecced) {
        rdzv_send_respec(c, now->mod_rev, next ? next->mod_rev : 0);
        return;
    }
    er_spec_difference(c->spec, now->value.data, now->value.len, text, sizeof(text));
    rdzv_leave(c, ER_CODE_PROTOCOL, text, 0);
}

/* Somebody was faster, as the answer says: the next attempt is another one. */
static bool join_outrun(const struct er_rdzv *c)
{
    return (c->join_first && c->k_world.present) || (c->join_elect && c->k_leader.present);
}

void rdzv_node_reply(struct er_rdzv *c, enum er_rdzv_txn kind, const struct er_store_reply *reply)
{
    if (kind == ER_TXN_RUN && !reply->succeeded) { /* somebody lives, or was faster */
        uint64_t wait = RUN_RETRY_US
                        << (c->run_tries < RUN_RETRY_SHIFTS ? c->run_tries : RUN_RETRY_SHIFTS);

        c->run_tries++;
        c->lanes[ER_LANE_OWN].retry_us =
            er_deadline_in(c->now_us, wait / 2 + rdzv_random(c) % wait);
    }
    if (kind == ER_TXN_RESPEC && reply->succeeded)
        c->respecced = true;
    if (kind == ER_TXN_RESULT)
        c->result_due = false; /* written; or there already; or the generation is superseded */
    if (!reply->succeeded && (kind == ER_TXN_LEFT || (kind == ER_TXN_JOIN && join_outrun(c))))
        c->lanes[ER_LANE_OWN].retry_us = 0; /* the record as it is now has been read */
    if (kind == ER_TXN_JOIN && !reply->succeeded && reply->range_count && reply->range_n[0])
        settle_spec(c, reply);
}
