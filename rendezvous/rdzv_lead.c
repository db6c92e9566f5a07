#include "rendezvous/rdzv_internal.h"

#include <string.h>

#include "base/rand.h"

/* The leader's part: end a generation, plan the next, seal it, say how the job ended. It decides
 * from its view only, and not before the view shows the newest world it has heard of. */

#define ELECT_BASE_US  150000ull
#define ELECT_STEP_US  20000ull
#define ELECT_MAX_US   5000000ull
#define ELECT_FIRST_US 1000000ull
#define READY_EXTRA_US 15000000ull /* beyond the stop grace: kill, and clean up */
#define EXIT_HANG      124
#define EXIT_TEMPFAIL  75

/* ---- who leads ---- */

static void begin(struct er_rdzv *c)
{
    c->lead_rev = c->k_leader.mod_rev;
    c->elect_us = 0;
    c->led_before = false;
    er_view_reset(&c->view);
    rdzv_set_lead(c, ER_LEAD_READING);
    rdzv_act(c, ER_ACT_WATCH_JOB);
}

void rdzv_depose(struct er_rdzv *c)
{
    rdzv_set_lead(c, ER_LEAD_NO);
    c->fresh_seq = 0;
    c->led_before = true;
    rdzv_act(c, ER_ACT_UNWATCH_JOB);
}

/* By incarnation and lease, not by nonce: of two elections with unknown outcomes the older one may
 * be the one that landed. */
static bool leader_key_mine(const struct er_rdzv *c)
{
    return c->k_leader.present && c->leader.incarnation == c->opts.incarnation &&
           c->k_leader.lease == c->lease;
}

static uint64_t election_delay(const struct er_rdzv *c)
{
    uint64_t id = 0, wait;

    if (c->led_before)
        return 0;
    if (c->world.last_sealed && c->k_assign.present) {
        wait = ELECT_BASE_US + ELECT_STEP_US * (unsigned)c->assign.group_rank;
        return wait < ELECT_MAX_US ? wait : ELECT_MAX_US;
    }
    for (const char *p = c->opts.node_id; *p; p++)
        id = er_rand_mix(id ^ (unsigned char)*p);
    return id % ELECT_FIRST_US;
}

static void compete(struct er_rdzv *c)
{
    if (c->state != ER_RDZV_IN || c->leaving || !c->k_world.present || rdzv_terminal(&c->world))
        return;
    if (leader_key_mine(c)) {
        begin(c);
        return;
    }
    if (c->k_leader.present) {
        c->elect_us = 0;
        c->led_before = false;
        return;
    }
    if (!c->elect_us)
        c->elect_us = er_deadline_in(c->now_us, election_delay(c));
    if (rdzv_due(c, c->elect_us) && rdzv_lane_free(c, ER_LANE_LEAD))
        rdzv_send_elect(c);
}

static bool deposed(const struct er_rdzv *c)
{
    return c->k_leader.rev >= c->lead_rev &&
           (!c->k_leader.present || c->k_leader.mod_rev != c->lead_rev);
}

/* A full view begins every grace anew: nobody is lost on hearsay. */
void rdzv_lead_ready(struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        if (!c->view.nodes[i].present)
            c->view.nodes[i].gone_us = c->now_us;
    }
    c->forming_us = c->min_met_us = c->settled_us = c->first_ok_us = 0;
    c->sealed_us = c->now_us;
    c->sealed_noted = c->view.world.phase == ER_WORLD_SEALED ? c->view.world.generation : 0;
    c->restarts_noted = c->view.world.restarts;
    c->forming_noted = c->view.world.phase == ER_WORLD_FORMING && c->view.world.last_sealed;
    rdzv_set_lead(c, ER_LEAD_REST);
}

/* What changed in `world` since this leader looked last. */
static void follow_world(struct er_rdzv *c)
{
    const struct er_world *w = &c->view.world;

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
    }
    c->forming_us = c->min_met_us = c->settled_us = 0;
    c->forming_noted = false;
    if (w->phase == ER_WORLD_SEALED && c->sealed_us == c->now_us)
        c->first_ok_us = 0;
}

/* ---- what the view says ---- */

struct survey {
    uint32_t members, ok, newcomers, ready, unready;
    uint32_t absent; /* lost members without a record, no goodbye */
    uint32_t reborn; /* lost members that came back as another incarnation */
    uint32_t departed, draining;
    uint64_t last_gone_us;  /* newest absence */
    uint64_t first_join_us; /* oldest newcomer */
};

static void survey_node(const struct er_view *v, const struct er_view_node *n, struct survey *s)
{
    bool member = er_view_member_rank(v, n, NULL) >= 0;

    s->members += member;
    s->ok += member && er_view_succeeded(v, n);
    if (er_view_lost_member(v, n)) {
        bool departed = er_view_departed(v, n);

        s->reborn += n->present;
        s->departed += departed;
        s->absent += !n->present && !departed;
        if (!n->present && !departed && n->gone_us > s->last_gone_us)
            s->last_gone_us = n->gone_us;
    }
    if (!n->present)
        return;
    if (!er_view_ready(v, n))
        s->unready++;
    if (n->member.draining) {
        s->draining += er_view_alive_member(v, n) && !er_view_succeeded(v, n);
        return;
    }
    s->ready += er_view_ready(v, n);
    if (!er_view_alive_member(v, n)) {
        if (!s->newcomers || n->joined_us < s->first_join_us)
            s->first_join_us = n->joined_us;
        s->newcomers++;
    }
}

static void survey(const struct er_view *v, struct survey *ret)
{
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < v->n; i++)
        survey_node(v, &v->nodes[i], ret);
}

/* When absent members are lost: 1 s and more for many at once, 2 TTL when a large part vanished,
 * counted from the last of the burst. */
static uint64_t lost_at(const struct er_rdzv *c, const struct survey *s)
{
    uint64_t grace = c->opts.death_grace_us + s->absent / 2000 * ER_US_PER_S;

    if (s->absent >= 3 && s->absent > s->members / 4)
        grace = 2 * c->opts.lease_ttl_us;
    else if (grace > c->opts.lease_ttl_us)
        grace = c->opts.lease_ttl_us;
    return er_deadline_in(s->last_gone_us, grace);
}

/* ---- a sealed generation ---- */

static uint64_t next_number(const struct er_rdzv *c)
{
    uint64_t top = c->view.world.generation;

    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->present && n->member.left > top)
            top = n->member.left;
        if (n->present && n->member.running > top)
            top = n->member.running;
    }
    return (top > c->opts.first_generation ? top : c->opts.first_generation) + 1;
}

/* A successor of this leader must not take who leaves now for lost. */
static void name_leaver(struct er_rdzv *c, struct er_world *w)
{
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (er_view_member_rank(&c->view, n, NULL) < 0 || !n->member.draining)
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

static void end_generation(struct er_rdzv *c, enum er_reason reason, bool lost)
{
    struct er_world w = c->view.world;
    const struct er_cause *failed = er_view_failed(&c->view);

    w.phase = ER_WORLD_FORMING;
    w.generation = next_number(c);
    w.reason = reason;
    w.has_cause = failed != NULL;
    memset(&w.cause, 0, sizeof(w.cause));
    if (failed)
        w.cause = *failed;
    else if (reason == ER_REASON_DRAINED)
        name_leaver(c, &w);
    w.ready_us = er_deadline_in(c->opts.stop_grace_us, READY_EXTRA_US);
    rdzv_budget_advance(c, &w);
    if (lost)
        rdzv_note_losses(c);
    rdzv_send_world(c, ER_TXN_END, &w, lost);
}

static void write_verdict(struct er_rdzv *c, enum er_world_phase phase, int exit_code, bool stopped,
                          const struct er_cause *cause, const char *why)
{
    struct er_world w = c->view.world;
    struct er_text t = {w.verdict, sizeof(w.verdict), 0};

    w.phase = phase;
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
    if (!rdzv_due(c, er_deadline_in(c->first_ok_us, c->opts.exit_timeout_us)))
        return;
    blame_first_silent(c, &cause);
    write_verdict(c, ER_WORLD_FAILED, EXIT_HANG, false, &cause,
                  "not every node reported within exit_timeout");
}

static void consider_growing(struct er_rdzv *c, const struct survey *s)
{
    uint64_t settled = er_deadline_in(s->first_join_us, c->settle_us);
    uint64_t allowed = er_deadline_in(c->sealed_us, c->min_interval_us);

    if (rdzv_due(c, settled > allowed ? settled : allowed))
        end_generation(c, ER_REASON_NODE_JOINED, false);
}

static void watch_generation(struct er_rdzv *c)
{
    const struct er_cause *failed = er_view_failed(&c->view);
    struct survey s;

    survey(&c->view, &s);
    if (s.ok == c->view.world.last_nnodes)
        write_verdict(c, ER_WORLD_DONE, 0, false, NULL, "every node succeeded");
    else if (failed)
        end_generation(
            c, failed->kind == ER_EXIT_HUNG ? ER_REASON_WORKER_HUNG : ER_REASON_WORKER_FAILED,
            false);
    else if (s.reborn || (s.absent && rdzv_due(c, lost_at(c, &s))))
        end_generation(c, ER_REASON_NODE_LOST, true);
    else if (s.departed || s.draining)
        end_generation(c, ER_REASON_DRAINED, s.departed && !s.absent);
    else if (s.ok)
        wait_for_rest(c);
    else if (s.newcomers && !s.absent && s.members < c->view.world.max_nodes)
        consider_growing(c, &s);
}

/* ---- forming ---- */

/* Every registered node has left what it ran, and every absent member is really lost. */
static bool settled(struct er_rdzv *c, const struct survey *s)
{
    uint64_t ready_by = er_deadline_in(c->forming_us, c->view.world.ready_us);

    if (s->absent && !rdzv_due(c, lost_at(c, s)))
        return false;
    if (s->unready && c->view.world.last_sealed && !rdzv_due(c, ready_by))
        return false;
    if (!c->settled_us)
        c->settled_us = c->now_us;
    return true;
}

static bool enough(struct er_rdzv *c, const struct survey *s)
{
    if (s->ready >= c->view.world.min_nodes) {
        if (!c->min_met_us)
            c->min_met_us = c->now_us;
        return true;
    }
    c->min_met_us = 0;
    if (rdzv_due(c, er_deadline_in(c->forming_us, c->opts.join_timeout_us)))
        write_verdict(c, ER_WORLD_FAILED, EXIT_TEMPFAIL, true, NULL,
                      "fewer nodes than the minimum within join_timeout");
    return false;
}

/* The first formation waits for last call, a later one for a replacement and for the backoff. */
static bool time_to_seal(struct er_rdzv *c, const struct survey *s, const struct rdzv_judgement *j)
{
    const struct er_world *w = &c->view.world;
    uint64_t wait = 0;

    if (s->ready >= w->max_nodes && !j->has_cause)
        return true;
    if (w->last_sealed == 0)
        return rdzv_due(c, er_deadline_in(c->min_met_us, c->opts.last_call_us));
    if (j->reason == ER_REASON_NODE_LOST && s->ready < w->last_nnodes)
        wait = c->opts.replacement_wait_us;
    else if (j->has_cause && j->charge)
        wait = rdzv_backoff(c, j->early ? w->early_row + 1 : 0);
    return rdzv_due(c, er_deadline_in(c->settled_us, wait));
}

static void make_plan(struct er_rdzv *c)
{
    struct er_view *v = &c->view;
    const struct er_view_node *first;
    size_t n = 0, members;

    c->plan.generation = v->world.generation;
    c->plan.world_rev = v->world_rev;
    c->plan.nonce = rdzv_random(c);
    for (size_t i = 0; i < v->n; i++) {
        struct er_view_node *node = &v->nodes[i];

        node->plan_generation = 0;
        if (!node->present || node->member.draining || !er_view_ready(v, node))
            continue;
        c->scratch[n++] = (struct er_plan_node){
            .id = node->id,
            .old_rank = er_view_alive_member(v, node) ? er_view_member_rank(v, node, NULL) : -1,
            .preferred = node->member.preferred_rank,
            .slots = node->member.slots,
            .tag = i,
        };
    }
    members = er_plan_make(c->scratch, n, v->world.max_nodes, &c->plan.world_size);
    c->plan.nnodes = (uint32_t)members;
    for (size_t i = 0; i < members; i++) {
        struct er_view_node *node = &v->nodes[c->scratch[i].tag];

        node->plan_generation = c->plan.generation;
        node->plan_incarnation = node->member.incarnation;
        node->plan_rank = c->scratch[i].rank;
        node->plan_first = c->scratch[i].first_rank;
        node->plan_sent = false;
    }
    first = &v->nodes[c->scratch[0].tag];
    memcpy(c->plan.master_addr, first->member.address, sizeof(c->plan.master_addr));
    c->plan.master_port = first->member.port;
}

/* My write of world, and nothing was sent under it: its number can be used as it is. */
static bool number_is_fresh(const struct er_rdzv *c)
{
    return c->fresh_seq && c->view.world.writer == c->opts.incarnation &&
           c->view.world.seq == c->fresh_seq;
}

static void form(struct er_rdzv *c)
{
    struct rdzv_judgement j;
    struct survey s;

    survey(&c->view, &s);
    if (!settled(c, &s))
        return;
    rdzv_judge(c, &j);
    if (j.fail) {
        write_verdict(c, ER_WORLD_FAILED, j.exit_code, false, &j.cause, j.verdict);
        return;
    }
    if (!enough(c, &s) || !time_to_seal(c, &s, &j))
        return;
    if (!number_is_fresh(c)) {
        struct er_world w = c->view.world;

        w.generation = next_number(c);
        rdzv_budget_advance(c, &w);
        rdzv_send_world(c, ER_TXN_CLAIM, &w, false);
        return;
    }
    make_plan(c);
    rdzv_set_lead(c, ER_LEAD_ASSIGNING);
    rdzv_send_assign(c);
}

/* ---- a plan under way ---- */

static bool plan_holds(const struct er_rdzv *c)
{
    uint32_t n = 0;

    if (c->view.world_rev != c->plan.world_rev || c->view.world.phase != ER_WORLD_FORMING)
        return false;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *node = &c->view.nodes[i];

        if (node->plan_generation != c->plan.generation)
            continue;
        if (!node->present || node->member.incarnation != node->plan_incarnation ||
            node->member.draining || !er_view_ready(&c->view, node))
            return false;
        n++;
    }
    return n == c->plan.nnodes;
}

static bool all_sent(const struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->plan_generation == c->plan.generation && !n->plan_sent)
            return false;
    }
    return true;
}

static void seal(struct er_rdzv *c)
{
    struct er_world w = c->view.world;
    struct rdzv_judgement j;

    rdzv_judge(c, &j);
    if (j.fail) { /* decided before anything else is sent; the number is spent */
        rdzv_set_lead(c, ER_LEAD_REST);
        write_verdict(c, ER_WORLD_FAILED, j.exit_code, false, &j.cause, j.verdict);
        return;
    }
    rdzv_budget_advance(c, &w);
    if (j.charge)
        rdzv_budget_add(&w);
    w.uncounted_row = j.uncounted ? w.uncounted_row + 1 : j.charge ? 0 : w.uncounted_row;
    w.early_row = (j.charge || j.uncounted) && j.early ? w.early_row + 1 : 0;
    w.phase = ER_WORLD_SEALED;
    w.reason = j.reason;
    w.has_cause = j.has_cause;
    w.cause = j.cause;
    w.nonce = c->plan.nonce;
    w.last_sealed = w.generation;
    w.last_nnodes = w.nnodes = c->plan.nnodes;
    w.world_size = c->plan.world_size;
    memcpy(w.master_addr, c->plan.master_addr, sizeof(w.master_addr));
    w.master_port = c->plan.master_port;
    rdzv_send_seal(c, &w);
}

static void follow_plan(struct er_rdzv *c)
{
    if (!plan_holds(c)) {
        rdzv_set_lead(c, ER_LEAD_REST);
    } else if (c->lead == ER_LEAD_ASSIGNING && !all_sent(c)) {
        rdzv_send_assign(c);
    } else if (c->lead == ER_LEAD_ASSIGNING) {
        rdzv_set_lead(c, ER_LEAD_SEALING);
        seal(c);
    } else { /* the seal was answered and isn't in the view's world: void */
        rdzv_set_lead(c, ER_LEAD_REST);
    }
}

void rdzv_lead_decide(struct er_rdzv *c)
{
    if (c->state == ER_RDZV_REVOKING)
        return;
    if (c->lead != ER_LEAD_NO && deposed(c))
        rdzv_depose(c);
    if (c->lead == ER_LEAD_NO) {
        compete(c);
        return;
    }
    if (c->lead == ER_LEAD_READING || !c->view.has_world || c->view.world_rev < c->k_world.mod_rev)
        return;
    follow_world(c);
    if (rdzv_terminal(&c->view.world) || !rdzv_lane_free(c, ER_LANE_LEAD))
        return;
    if (c->lead == ER_LEAD_ASSIGNING || c->lead == ER_LEAD_SEALING)
        follow_plan(c);
    if (c->lead != ER_LEAD_REST || c->lanes[ER_LANE_LEAD].kind != ER_TXN_NONE)
        return;
    if (c->view.world.phase == ER_WORLD_SEALED)
        watch_generation(c);
    else
        form(c);
}

/* Everything else is learned from the view. A batch that was refused voids the plan. */
void rdzv_lead_reply(struct er_rdzv *c, enum er_rdzv_txn kind, bool succeeded)
{
    if (!succeeded && kind == ER_TXN_ASSIGN && c->lead == ER_LEAD_ASSIGNING)
        rdzv_set_lead(c, ER_LEAD_REST);
    if (succeeded && kind == ER_TXN_VERDICT)
        rdzv_note_denied(c);
}
