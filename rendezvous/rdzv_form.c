#include "rendezvous/rdzv_internal.h"

#include <string.h>

/* The leader's part while the job forms: who is in, with which ranks, and the seal. */

#define EXIT_TEMPFAIL 75

/* Every registered node has left what it ran, and every absent member is really lost. */
static bool settled(struct er_rdzv *c, const struct rdzv_survey *s)
{
    uint64_t ready_by = er_deadline_in(rdzv_counted_from(c, c->forming_us), c->view.world.ready_us);

    if (s->absent && !rdzv_due(c, rdzv_lost_at(c, s)))
        return false;
    if (s->unready && !er_bug(SEAL_UNREADY) && c->view.world.last_sealed && !rdzv_due(c, ready_by))
        return false;
    if (!c->settled_us)
        c->settled_us = c->now_us;
    return true;
}

/* Nodes that were set aside count while the others are too few. */
static uint32_t usable(const struct er_rdzv *c, const struct rdzv_survey *s)
{
    uint32_t n;

    if (c->opts.roles_n) {
        if (!rdzv_count_roles(c, false, &n))
            (void)rdzv_count_roles(c, true, &n);
        return n;
    }
    return s->ready >= c->view.world.min_nodes ? s->ready : s->ready + s->aside_ready;
}

static bool enough(struct er_rdzv *c, const struct rdzv_survey *s)
{
    uint32_t n;

    if (usable(c, s) >= c->view.world.min_nodes &&
        (!c->opts.roles_n || rdzv_count_roles(c, true, &n))) {
        if (!c->min_met_us)
            c->min_met_us = c->now_us;
        return true;
    }
    c->min_met_us = 0;
    if (c->opts.below_min_stop && er_reason_leaves(c->view.world.reason)) {
        rdzv_write_verdict(c, ER_WORLD_FAILED, EXIT_TEMPFAIL, true, NULL,
                           "a planned leave left fewer nodes than the minimum");
        return false;
    }
    if (rdzv_due(c, er_deadline_in(rdzv_counted_from(c, c->forming_us), c->opts.join_timeout_us)))
        rdzv_write_verdict(c, ER_WORLD_FAILED, EXIT_TEMPFAIL, true, NULL,
                           "fewer nodes than the minimum within join_timeout");
    return false;
}

/* The first formation waits for last call, a later one for a replacement and for the backoff. */
static bool time_to_seal(struct er_rdzv *c, const struct rdzv_survey *s,
                         const struct rdzv_judgement *j)
{
    const struct er_job_record *w = &c->view.world;
    uint64_t wait = 0;

    if (usable(c, s) >= w->max_nodes && !j->has_cause)
        return true;
    if (w->last_sealed == 0)
        return rdzv_due(c, er_deadline_in(c->min_met_us, c->opts.last_call_us));
    if (j->reason == ER_REASON_NODE_LOST && usable(c, s) < w->last_nnodes &&
        usable(c, s) < w->max_nodes)
        wait = c->opts.replacement_auto && c->warm ? 0 : c->opts.replacement_wait_us;
    else if (j->has_cause && j->charge)
        wait = rdzv_backoff(c, j->early ? w->early_row + 1 : 0);
    return rdzv_due(c, er_deadline_in(c->settled_us, wait));
}

/* The node whose worker is the cause has one more strike; old ones are forgotten. */
static void count_strike(const struct er_rdzv *c, struct er_view_node *n,
                         const struct rdzv_judgement *j)
{
    struct er_assign *a = &n->assign;
    uint64_t since = c->now_us > c->view.world_us ? c->now_us - c->view.world_us : 0;

    if (a->strike_generation >= c->view.world.last_sealed)
        return;
    a->strike_age_us = er_deadline_in(a->strike_age_us, since);
    if (a->strikes && a->strike_age_us > c->opts.strike_window_us)
        a->strikes = 0;
    if (!rdzv_struck(c, n, j))
        return;
    a->strikes++;
    a->strike_age_us = 0;
    a->strike_generation = c->view.world.last_sealed;
}

void rdzv_candidate(struct er_rdzv *c, size_t node, size_t *n)
{
    const struct er_view_node *v = &c->view.nodes[node];

    c->scratch[(*n)++] = (struct er_plan_node){
        .id = v->id,
        .old_rank = er_view_alive_member(&c->view, v) ? er_view_member_rank(&c->view, v, NULL) : -1,
        .preferred = v->member.preferred_rank,
        .slots = v->member.slots,
        .role = v->member.role,
        .tag = node,
    };
}

void rdzv_plan(struct er_rdzv *c, size_t n, uint64_t generation, uint32_t max)
{
    struct er_view *v = &c->view;
    const struct er_view_node *first;
    size_t members = er_plan_make(c->scratch, rdzv_cap_roles(c, n), max, &c->plan.world_size);

    er_plan_roles(c->scratch, members);

    c->plan.generation = generation;
    c->plan.nonce = rdzv_random(c);
    c->plan.nnodes = (uint32_t)members;
    c->plan.sent = 0;
    c->plan.at = 0;
    c->plan.held_at = 0;
    for (size_t i = 0; i < v->n; i++)
        v->nodes[i].plan_generation = 0;
    for (size_t i = 0; i < members; i++) {
        struct er_view_node *node = &v->nodes[c->scratch[i].tag];

        node->plan_generation = c->plan.generation;
        node->plan_incarnation = node->member.incarnation;
        node->plan_rank = c->scratch[i].rank;
        node->plan_first = c->scratch[i].first_rank;
        node->plan_role_first = c->scratch[i].role_first;
        node->plan_role_size = c->scratch[i].role_size;
        node->plan_slots = c->scratch[i].slots;
        node->plan_sent = false;
    }
    first = &v->nodes[c->scratch[0].tag];
    memcpy(c->plan.master_addr, first->member.address, sizeof(c->plan.master_addr));
    c->plan.master_port = first->member.port;
}

static void make_plan(struct er_rdzv *c, const struct rdzv_judgement *j, bool with_aside)
{
    struct er_view *v = &c->view;
    size_t n = 0;

    for (size_t i = 0; i < v->n; i++) {
        struct er_view_node *node = &v->nodes[i];

        if (!node->present || node->member.spec != c->plan.spec || er_view_leaving(node) ||
            (!er_view_ready(v, node) && !er_bug(SEAL_UNREADY)) || (node->aside && !with_aside))
            continue;
        count_strike(c, node, j);
        rdzv_candidate(c, i, &n);
    }
    c->plan.ahead = false;
    c->plan.world_rev = v->world_rev;
    rdzv_plan(c, n, v->world.generation, v->world.max_nodes);
}

/* My write of world, and nothing was sent under it: its number can be used as it is. Not if a node
 * has seen a newer one, in a store that has lost it since: it would never start. */
static bool number_is_fresh(const struct er_rdzv *c)
{
    if (er_bug(NUMBER_REUSED))
        return true;
    return c->fresh_seq && c->view.world.writer == c->opts.incarnation &&
           c->view.world.seq == c->fresh_seq && rdzv_next_number(c) == c->view.world.generation + 1;
}

static bool fit(const struct er_rdzv *c, const struct er_view_node *n)
{
    return n->present && !er_view_leaving(n) && !n->aside && er_view_ready(&c->view, n);
}

/* Nodes that could be members and have that spec. */
static uint32_t fit_with(const struct er_rdzv *c, uint64_t spec)
{
    uint32_t count = 0;

    for (size_t i = 0; i < c->view.n; i++)
        count += c->view.nodes[i].member.spec == spec && fit(c, &c->view.nodes[i]);
    return count;
}

/* One that has a spec neither in force nor this leader's, as enough others do: the next one, once
 * that is known. Else two leaders whose turn has passed would send each other the job. */
static const struct er_view_node *carrier(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;
    uint64_t looked_at = 0;

    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];
        uint64_t spec = n->member.spec;

        if (spec == w->spec || spec == c->spec_hash || spec == looked_at || !fit(c, n) ||
            (c->no_switch && spec != c->next_spec))
            continue;
        looked_at = spec;
        if (fit_with(c, spec) >= w->min_nodes)
            return n;
    }
    return NULL;
}

/* Plans with this leader's own spec, if enough nodes, and of each role, have it. */
static bool can_switch(struct er_rdzv *c)
{
    uint32_t n;

    if (c->spec_hash == c->view.world.spec || c->no_switch ||
        fit_with(c, c->spec_hash) < c->view.world.min_nodes)
        return false;
    c->plan.spec = c->spec_hash;
    if (!c->opts.roles_n || rdzv_count_roles(c, false, &n))
        return true;
    c->plan.spec = c->view.world.spec;
    return false;
}

/* Another spec comes into force when the job forms and enough nodes have it. Only a leader that has
 * it itself knows its text; another one offers its place, once. True: it just did. */
static bool settle_spec(struct er_rdzv *c, struct rdzv_survey *s)
{
    const struct er_job_record *w = &c->view.world;
    const struct er_view_node *to;

    c->plan.spec = w->spec;
    if (s->others < w->min_nodes)
        return false;
    if (can_switch(c)) {
        s->ready = fit_with(c, c->spec_hash);
        s->aside_ready = 0;
        return false;
    }
    to = c->respec_asked || c->batches ? NULL : carrier(c);
    if (!to)
        return false;
    c->respec_asked = true;
    rdzv_send_handover(c, to);
    return true;
}

void rdzv_form(struct er_rdzv *c)
{
    struct rdzv_judgement j;
    struct rdzv_survey s;
    uint32_t n;

    rdzv_survey(&c->view, &s);
    if (!settled(c, &s) || settle_spec(c, &s))
        return;
    rdzv_judge(c, &j);
    if (j.fail) {
        rdzv_write_verdict(c, ER_WORLD_FAILED, j.exit_code, false, &j.cause, j.verdict);
        return;
    }
    if (!enough(c, &s) || !time_to_seal(c, &s, &j))
        return;
    if (rdzv_aside_due(c, &s, &j) || c->batches)
        return;
    if (!number_is_fresh(c)) {
        struct er_job_record w = c->view.world;

        w.generation = rdzv_next_number(c);
        rdzv_budget_advance(c, &w);
        rdzv_send_world(c, ER_TXN_CLAIM, &w, false, NULL);
        return;
    }
    make_plan(c, &j,
              s.ready < c->view.world.min_nodes ||
                  (c->opts.roles_n && !rdzv_count_roles(c, false, &n)));
    rdzv_set_lead(c, ER_LEAD_ASSIGNING);
    rdzv_send_assign(c);
}

/* ---- a plan under way ---- */

static bool plan_holds(struct er_rdzv *c)
{
    uint32_t n = 0;

    if (c->view.world_rev != c->plan.world_rev || c->view.world.phase != ER_WORLD_FORMING)
        return false;
    if (c->plan.held_at == c->view.changes)
        return true;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *node = &c->view.nodes[i];

        if (node->plan_generation != c->plan.generation)
            continue;
        if (!node->present || node->member.incarnation != node->plan_incarnation ||
            node->member.slots != node->plan_slots || er_view_leaving(node) ||
            (!er_view_ready(&c->view, node) && !er_bug(SEAL_UNREADY)))
            return false;
        n++;
    }
    if (n != c->plan.nnodes)
        return false;
    c->plan.held_at = c->view.changes;
    return true;
}

bool rdzv_all_sent(const struct er_rdzv *c)
{
    return c->plan.sent == c->plan.nnodes;
}

/* What every member speaks. */
void rdzv_common_protocol(const struct er_rdzv *c, struct er_job_record *w)
{
    w->protocol_low = w->protocol_high = ER_PROTOCOL;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->plan_generation != c->plan.generation)
            continue;
        if (n->member.protocol < w->protocol_low)
            w->protocol_low = n->member.protocol;
        if (n->member.protocol > w->protocol_high)
            w->protocol_high = n->member.protocol;
    }
}

static void seal(struct er_rdzv *c)
{
    struct er_job_record w = c->view.world;
    struct rdzv_judgement j;

    rdzv_judge(c, &j);
    if (j.fail) { /* decided before anything else is sent; the number is spent */
        rdzv_set_lead(c, ER_LEAD_REST);
        rdzv_write_verdict(c, ER_WORLD_FAILED, j.exit_code, false, &j.cause, j.verdict);
        return;
    }
    rdzv_budget_advance(c, &w);
    if (j.charge)
        rdzv_budget_add(&w);
    w.uncounted_row = j.uncounted ? w.uncounted_row + 1 : j.charge ? 0 : w.uncounted_row;
    w.early_row = (j.charge || j.uncounted) && j.early ? w.early_row + 1 : 0;
    w.poison = j.poison;
    if (j.skip) {
        rdzv_skips_add(&w.skips, j.skip);
        rdzv_note_skip(c, j.skip);
    }
    w.phase = ER_WORLD_SEALED;
    w.spec = c->plan.spec;
    w.reason = j.reason;
    w.has_cause = j.has_cause;
    w.cause = j.cause;
    w.nonce = c->plan.nonce;
    w.last_sealed = w.generation;
    w.last_nnodes = w.nnodes = c->plan.nnodes;
    w.world_size = c->plan.world_size;
    memcpy(w.master_addr, c->plan.master_addr, sizeof(w.master_addr));
    w.master_port = c->plan.master_port;
    rdzv_common_protocol(c, &w);
    rdzv_send_seal(c, &w);
}

void rdzv_follow_plan(struct er_rdzv *c)
{
    if (!plan_holds(c)) {
        rdzv_set_lead(c, ER_LEAD_REST);
    } else if (c->lead == ER_LEAD_ASSIGNING && !rdzv_all_sent(c)) {
        if (c->batches < ER_RDZV_BATCHES_MAX)
            rdzv_send_assign(c);
    } else if (c->lead == ER_LEAD_ASSIGNING) {
        if (c->batches)
            return;
        rdzv_set_lead(c, ER_LEAD_SEALING);
        seal(c);
    } else { /* the seal was answered and isn't in the view's world: void */
        rdzv_set_lead(c, ER_LEAD_REST);
    }
}
