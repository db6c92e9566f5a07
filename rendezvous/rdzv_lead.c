#include "rendezvous/rdzv_internal.h"

#include <assert.h>
#include <string.h>

/* The leader's part: look at the job, end a generation, say how the job ended. It decides from its
 * view only, and not before the view shows the newest world it has heard of. */

#define READY_EXTRA_US 15000000ull /* beyond the stop grace: kill, and clean up; at least */
#define EXIT_HANG      124

/* ---- what the view says ---- */

/* The newest absence of a lost member, and the oldest newcomer's coming. */
static void survey_times(const struct er_view *v, struct rdzv_survey *s)
{
    bool joined = false;

    for (size_t i = 0; i < v->n; i++) {
        const struct er_view_node *n = &v->nodes[i];

        if (n->traits >> ER_TRAIT_ABSENT & 1 && n->gone_us > s->last_gone_us)
            s->last_gone_us = n->gone_us;
        if (n->traits >> ER_TRAIT_NEWCOMER & 1 && (!joined || n->joined_us < s->first_join_us)) {
            s->first_join_us = n->joined_us;
            joined = true;
        }
    }
}

/* Counts are kept as changes come: walking 10,000 nodes for each batch of them took seconds of a
 * re-formation. The times are looked for only where they matter. */
void rdzv_survey(const struct er_view *v, struct rdzv_survey *ret)
{
    const uint32_t *counts = v->counts;

    assert(!er_simulated || er_view_counts_right(v));
    *ret = (struct rdzv_survey){
        .members = counts[ER_TRAIT_MEMBER],
        .ok = counts[ER_TRAIT_OK],
        .newcomers = counts[ER_TRAIT_NEWCOMER],
        .ready = counts[ER_TRAIT_READY],
        .unready = counts[ER_TRAIT_UNREADY],
        .present = counts[ER_TRAIT_PRESENT],
        .absent = counts[ER_TRAIT_ABSENT],
        .reborn = counts[ER_TRAIT_REBORN],
        .departed = counts[ER_TRAIT_DEPARTED],
        .draining = counts[ER_TRAIT_DRAINING],
        .quit = counts[ER_TRAIT_QUIT],
        .others = counts[ER_TRAIT_OTHER],
        .aside_ready = counts[ER_TRAIT_ASIDE_READY],
        .aside_members = counts[ER_TRAIT_ASIDE_MEMBER],
    };
    if (ret->absent || (ret->newcomers && v->world.phase == ER_WORLD_SEALED))
        survey_times(v, ret);
}

uint64_t rdzv_counted_from(const struct er_rdzv *c, uint64_t at_us)
{
    return at_us && at_us < c->resumed_us ? c->resumed_us : at_us;
}

/* When absent members are lost: 1 s and more for many at once, 2 TTL when a large part vanished,
 * counted from the last of the burst; also 2 TTL after this leader's own session was interrupted:
 * what happened to it may have happened to them. */
uint64_t rdzv_lost_at(const struct er_rdzv *c, const struct rdzv_survey *s)
{
    uint64_t grace = c->opts.death_grace_us + s->absent / 2000 * ER_US_PER_S;
    uint64_t at, back = c->resumed_us ? er_deadline_in(c->resumed_us, 2 * c->opts.lease_ttl_us) : 0;

    if (s->absent >= 3 && s->absent > s->members / 4)
        grace = 2 * c->opts.lease_ttl_us;
    else if (grace > c->opts.lease_ttl_us)
        grace = c->opts.lease_ttl_us;
    at = er_deadline_in(s->last_gone_us, grace);
    return at > back ? at : back;
}

/* A full view begins every grace anew: nobody is lost on hearsay. */
void rdzv_lead_ready(struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        if (!c->view.nodes[i].present)
            c->view.nodes[i].gone_us = c->now_us;
    }
    c->forming_us = c->min_met_us = c->settled_us = c->first_ok_us = c->more_us = 0;
    c->sealed_us = c->now_us;
    c->sealed_noted = c->view.world.phase == ER_WORLD_SEALED ? c->view.world.generation : 0;
    c->restarts_noted = c->view.world.restarts;
    c->forming_noted = c->view.world.phase == ER_WORLD_FORMING && c->view.world.last_sealed;
    c->resize_noted = rdzv_changes(&c->view.world) ? c->view.world.last_sealed : 0;
    c->clean = false;
    c->cleaned = 0;
    rdzv_set_lead(c, ER_LEAD_REST);
}

/* What changed in `world` since this leader looked last. */
static void follow_world(struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;

    if (rdzv_changes(w) && c->resize_noted != w->last_sealed)
        rdzv_note_resize(c);
    if (w->phase == ER_WORLD_FORMING) {
        if (!c->forming_us)
            c->forming_us = c->now_us;
        if (!c->forming_noted)
            rdzv_note_forming(c);
        return;
    }
    if (w->phase == ER_WORLD_SEALED && c->sealed_noted != w->generation) {
        rdzv_note_sealed(c);
        c->sealed_us = c->now_us;
        c->clean = c->scaled = c->no_switch = c->respec_asked = false;
    }
    c->forming_us = c->min_met_us = c->settled_us = 0;
    c->forming_noted = false;
    if (w->phase == ER_WORLD_SEALED && c->sealed_us == c->now_us)
        c->first_ok_us = 0;
}

/* ---- a sealed generation ---- */

uint64_t rdzv_next_number(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;
    uint64_t top = w->taken > w->generation ? w->taken : w->generation;

    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->present && n->member.left > top)
            top = n->member.left;
        if (n->present && n->member.running > top)
            top = n->member.running;
    }
    top = c->seen > top ? c->seen : top;
    return (top > c->opts.first_generation ? top : c->opts.first_generation) + 1;
}

/* One of the members that leave, or have left, was preempted. */
static enum er_reason leave_reason(const struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->traits & (1u << ER_TRAIT_DRAINING | 1u << ER_TRAIT_DEPARTED) && n->member.preempted)
            return ER_REASON_PREEMPTED;
    }
    return ER_REASON_DRAINED;
}

/* A successor of this leader must not take who leaves now for lost. */
static void name_leaver(struct er_rdzv *c, struct er_job_record *w)
{
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (er_view_member_rank(&c->view, n, NULL) < 0 || !er_view_leaving(n))
            continue;
        w->has_cause = true;
        w->cause.kind = ER_EXIT_STOPPED;
        w->cause.rank = w->cause.local_rank = -1;
        memcpy(w->cause.node_id, n->id, sizeof(w->cause.node_id));
        memcpy(w->cause.host, n->member.host, sizeof(w->cause.host));
        rdzv_note_leaver(c, n);
        return;
    }
}

void rdzv_clear_next(struct er_job_record *w)
{
    w->next = w->next_nonce = 0;
    w->next_nnodes = w->next_size = 0;
    w->next_reason = ER_REASON_FORMED;
    w->next_go = w->next_warm = false;
}

/* Long enough to stop workers, and for a dead node to be missed: its lease may be extended once, by
 * a change of the store's leader. */
static uint64_t ready_time(const struct er_rdzv *c, bool saves)
{
    uint64_t missed = er_deadline_in(2 * c->opts.lease_ttl_us, c->opts.death_grace_us);

    missed = missed > READY_EXTRA_US ? missed : READY_EXTRA_US;
    if (saves) /* nothing is wrong: workers may bring their state to safety first */
        missed = er_deadline_in(missed, c->opts.resize_grace_us);
    return er_deadline_in(c->opts.stop_grace_us, missed);
}

void rdzv_end_generation(struct er_rdzv *c, enum er_reason reason, bool lost)
{
    struct er_job_record w = c->view.world;
    const struct er_cause *failed = er_view_failed(&c->view);

    w.phase = ER_WORLD_FORMING;
    rdzv_clear_next(&w);
    c->plan.ahead = false;
    w.generation = rdzv_next_number(c);
    w.reason = reason;
    w.has_cause = failed != NULL;
    memset(&w.cause, 0, sizeof(w.cause));
    if (failed)
        w.cause = *failed;
    else if (er_reason_leaves(reason))
        name_leaver(c, &w);
    w.ready_us = ready_time(c, rdzv_changes(&w));
    rdzv_budget_advance(c, &w);
    if (lost)
        rdzv_note_losses(c);
    rdzv_send_world(c, ER_TXN_END, &w, lost, NULL);
}

static void write_end(struct er_rdzv *c, struct er_job_record w, int exit_code, bool stopped,
                      const struct er_cause *cause, const char *why)
{
    struct er_text t = {w.verdict, sizeof(w.verdict), 0};

    rdzv_clear_next(&w);
    w.exit_code = exit_code;
    w.stopped = stopped;
    w.has_cause = cause != NULL;
    memset(&w.cause, 0, sizeof(w.cause));
    if (cause)
        w.cause = *cause;
    w.verdict[0] = 0;
    er_text_add(&t, why);
    rdzv_budget_advance(c, &w);
    rdzv_send_verdict(c, &w);
}

void rdzv_write_verdict(struct er_rdzv *c, enum er_job_record_phase phase, int exit_code,
                        bool stopped, const struct er_cause *cause, const char *why)
{
    struct er_job_record w = c->view.world;

    w.phase = phase;
    w.stop_us = 0;
    write_end(c, w, exit_code, stopped, cause, why);
}

void rdzv_write_stop(struct er_rdzv *c, int exit_code, uint64_t time_us, const char *why)
{
    struct er_job_record w = c->view.world;

    w.phase = ER_WORLD_FAILED;
    w.stop_us = time_us;
    write_end(c, w, exit_code, true, NULL, why);
}

static void blame_first_silent(const struct er_rdzv *c, struct er_cause *cause)
{
    struct er_text t = {cause->message, sizeof(cause->message), 0};

    memset(cause, 0, sizeof(*cause));
    cause->kind = ER_EXIT_HUNG;
    cause->generation = c->view.world.last_sealed;
    cause->rank = cause->local_rank = -1;
    er_text_add(&t, "no result within exit_timeout of the first node's success");
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (er_view_member_rank(&c->view, n, NULL) < 0 || er_view_succeeded(&c->view, n))
            continue;
        memcpy(cause->node_id, n->id, sizeof(cause->node_id));
        memcpy(cause->host, n->member.host, sizeof(cause->host));
        return;
    }
}

/* Once somebody is done, nothing grows, and the others have exit_timeout. */
static void wait_for_rest(struct er_rdzv *c)
{
    struct er_cause cause;

    if (!c->first_ok_us)
        c->first_ok_us = c->now_us;
    if (!rdzv_due(c, er_deadline_in(rdzv_counted_from(c, c->first_ok_us), c->opts.exit_timeout_us)))
        return;
    blame_first_silent(c, &cause);
    rdzv_write_verdict(c, ER_WORLD_FAILED, EXIT_HANG, false, &cause,
                       "not every node reported within exit_timeout");
}

static void consider_growing(struct er_rdzv *c, const struct rdzv_survey *s)
{
    uint64_t settled = er_deadline_in(s->first_join_us, c->settle_us);
    uint64_t allowed = er_deadline_in(c->sealed_us, c->min_interval_us);

    if (c->scaled)
        rdzv_change(c, s, ER_REASON_SCALED);
    else if (rdzv_due(c, settled > allowed ? settled : allowed) && rdzv_newcomer_due(c))
        rdzv_change(c, s, ER_REASON_NODE_JOINED);
}

/* All members are there, and together they have more workers than the generation. */
static bool has_more(struct er_rdzv *c)
{
    const struct er_view *v = &c->view;
    bool more = v->staying == v->world.nnodes && v->offered > v->world.world_size;

    if (!more)
        c->more_us = 0;
    else if (!c->more_us)
        c->more_us = c->now_us;
    return more;
}

/* What comes back to a node that had it is no growth to be put off: a moment for others that may
 * come back as well is all. */
static void consider_larger(struct er_rdzv *c, const struct rdzv_survey *s)
{
    if (has_more(c) && rdzv_due(c, er_deadline_in(rdzv_counted_from(c, c->more_us), c->settle_us)))
        rdzv_change(c, s, ER_REASON_NODE_JOINED);
    else if (s->newcomers && s->members < c->view.world.max_nodes && rdzv_room_for_newcomer(c))
        consider_growing(c, s);
}

/* Members that a leader ends the generation for, though nothing went wrong. */
static bool too_many(const struct er_rdzv *c, const struct rdzv_survey *s)
{
    return s->members > c->view.world.max_nodes ||
           (s->aside_members && s->present >= c->view.world.min_nodes);
}

static void watch_generation(struct er_rdzv *c)
{
    const struct er_cause *failed = er_view_failed(&c->view);
    struct rdzv_survey s;

    rdzv_survey(&c->view, &s);
    if (s.ok == c->view.world.last_nnodes)
        rdzv_write_verdict(c, ER_WORLD_DONE, 0, false, NULL, "every node succeeded");
    else if (failed)
        rdzv_end_generation(
            c, failed->kind == ER_EXIT_HUNG ? ER_REASON_WORKER_HUNG : ER_REASON_WORKER_FAILED,
            false);
    else if (s.reborn || (s.absent && rdzv_due(c, rdzv_lost_at(c, &s))))
        rdzv_end_generation(c, ER_REASON_NODE_LOST, true);
    else if (s.departed && !rdzv_left_as_planned(c))
        rdzv_end_generation(c, leave_reason(c), !s.absent);
    else if (s.quit) /* its workers lost their peers, and nobody has been lost, so far */
        rdzv_end_generation(c, ER_REASON_CONNECTIONS_LOST, false);
    else if (c->view.world.next)
        rdzv_follow_ahead(c, &s);
    else if (s.draining)
        rdzv_change(c, &s, leave_reason(c));
    else if (s.ok)
        wait_for_rest(c);
    else if (too_many(c, &s))
        rdzv_change(c, &s, s.aside_members ? ER_REASON_DRAINED : ER_REASON_SCALED);
    else if (!s.absent)
        consider_larger(c, &s);
}

/* ---- deciding ---- */

void rdzv_read_again(struct er_rdzv *c)
{
    er_view_reset(&c->view);
    rdzv_set_lead(c, ER_LEAD_READING);
    rdzv_act(c, ER_ACT_WATCH_JOB);
}

/* More nodes than the view holds: read again with more memory, once for each size. */
static bool needs_room(const struct er_rdzv *c)
{
    return (c->view.full || c->view.cap < er_rdzv_capacity(c->view.world.max_nodes)) &&
           c->view.cap != c->grown_from;
}

static bool idle(const struct er_rdzv *c)
{
    return c->lanes[ER_LANE_LEAD].kind == ER_TXN_NONE;
}

/* Who doesn't hear from the store decides nothing: its view is old. It looks again now and then, as
 * the store's return need not be an event. */
static bool out_of_touch(struct er_rdzv *c)
{
    if (c->now_us <= er_deadline_in(c->heard_us, c->opts.lease_ttl_us))
        return false;
    rdzv_wake(c, er_deadline_in(c->now_us, c->opts.lease_ttl_us / 3));
    return true;
}

void rdzv_lead_decide(struct er_rdzv *c)
{
    if (c->state == ER_RDZV_REVOKING)
        return;
    if (c->lead != ER_LEAD_NO && rdzv_deposed(c))
        rdzv_depose(c);
    if (c->lead == ER_LEAD_NO) {
        rdzv_compete(c);
        return;
    }
    if (c->lead == ER_LEAD_READING || !c->view.has_world || c->view.world_rev < c->k_world.mod_rev)
        return;
    if (needs_room(c)) {
        c->grown_from = c->view.cap;
        rdzv_read_again(c);
        return;
    }
    follow_world(c);
    if (rdzv_terminal(&c->view.world) || out_of_touch(c) || !rdzv_lane_free(c, ER_LANE_LEAD))
        return;
    if (c->lead == ER_LEAD_ASSIGNING || c->lead == ER_LEAD_SEALING)
        rdzv_follow_plan(c);
    if (c->lead == ER_LEAD_REST && idle(c))
        rdzv_requests(c);
    if (c->lead != ER_LEAD_REST || !idle(c))
        return;
    if (c->view.world.phase == ER_WORLD_SEALED)
        watch_generation(c);
    else
        rdzv_form(c);
    if (c->lead == ER_LEAD_REST && idle(c) && c->view.world.phase == ER_WORLD_SEALED)
        rdzv_clean(c);
}

/* It may be another spec's turn: unless a node that has it takes over, this formation keeps the old
 * one. */
static void not_my_turn(struct er_rdzv *c, const struct er_store_reply *reply)
{
    char text[ER_SPEC_BYTES_MAX + 1];
    struct er_key key;

    c->no_switch = true;
    c->next_spec = 0;
    for (size_t i = 0; i < reply->kv_n; i++) {
        const struct er_bytes *value = &reply->kvs[i].value;

        er_key_parse(c->root, reply->kvs[i].key, &key);
        if (key.kind != ER_KEY_SPEC_NEXT || value->len > ER_SPEC_BYTES_MAX)
            continue;
        memcpy(text, value->data, value->len);
        text[value->len] = 0;
        c->next_spec = er_spec_hash(text);
    }
}

/* Everything else is learned from the view. A batch that was refused voids the plan. */
void rdzv_lead_reply(struct er_rdzv *c, enum er_rdzv_txn kind, const struct er_store_reply *reply)
{
    bool succeeded = reply && reply->succeeded;

    if (kind == ER_TXN_ASSIGN)
        c->batches--;
    if (!succeeded && kind == ER_TXN_ASSIGN)
        c->plan.ahead = false;
    if (!succeeded && kind == ER_TXN_ASSIGN && c->lead == ER_LEAD_ASSIGNING)
        rdzv_set_lead(c, ER_LEAD_REST);
    if (succeeded && kind == ER_TXN_VERDICT)
        rdzv_note_denied(c);
    if (kind == ER_TXN_SEAL && reply && !succeeded && c->plan.spec != c->view.world.spec)
        not_my_turn(c, reply);
    if (kind == ER_TXN_CTL && reply && !succeeded)
        c->drain.ctl[0] = 0;
    if (kind == ER_TXN_ASIDE)
        rdzv_aside_done(c, succeeded);
    if (kind == ER_TXN_LOOK && succeeded)
        rdzv_looked(c, reply);
}
