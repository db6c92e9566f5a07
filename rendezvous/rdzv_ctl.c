#include "rendezvous/rdzv_internal.h"

#include <string.h>

#include <errno.h>

/* The leader's part beside generations: requests, nodes that are set aside, and what old
 * generations left behind. */

#define EXIT_CANCELED 79

/* ---- nodes set aside ---- */

bool rdzv_struck(const struct er_rdzv *c, const struct er_view_node *n,
                 const struct rdzv_judgement *j)
{
    return c->view.world.last_sealed && j->has_cause && (j->charge || j->uncounted) &&
           strcmp(j->cause.node_id, n->id) == 0;
}

static void begin_aside(struct er_rdzv *c, const char *node, const char *reason, uint64_t cooldown,
                        const char *ctl)
{
    struct er_text name = {c->aside.node, sizeof(c->aside.node), 0};
    struct er_text why = {c->aside.reason, sizeof(c->aside.reason), 0};
    struct er_text id = {c->aside.ctl, sizeof(c->aside.ctl), 0};
    struct er_rdzv_action *a = rdzv_act(c, ER_ACT_GRANT);

    memset(&c->aside, 0, sizeof(c->aside));
    er_text_add(&name, node);
    er_text_add(&why, reason);
    er_text_add(&id, ctl);
    c->aside.cooldown_us = cooldown;
    c->aside.lease = rdzv_random(c) >> 1;
    a->lease.id = c->aside.lease;
    a->lease.ttl_us = cooldown;
    a->lease.once = true;
}

/* The grant was answered; without a lease the node stays where it is, this time. */
void rdzv_aside_lease(struct er_rdzv *c, int rc)
{
    c->aside.granted = rc == 0 || rc == -EEXIST;
    if (!c->aside.granted)
        rdzv_aside_done(c, false);
}

void rdzv_aside_done(struct er_rdzv *c, bool succeeded)
{
    struct er_view_node *n = er_view_find(&c->view, c->aside.node);

    if (n) { /* the view takes it for written at once, or it would be set aside again */
        n->no_aside = !succeeded;
        n->aside |= succeeded;
        er_view_changed(&c->view, n);
    }
    if (succeeded) {
        rdzv_note_aside(c);
        c->acted_rev = c->aside.ctl_rev;
    }
    c->aside.lease = 0;
    c->aside.granted = false;
}

void rdzv_set_aside(struct er_rdzv *c, const struct er_view_node *n, const char *why)
{
    if (!c->aside.lease && c->opts.strike_cooldown_us && !n->aside && !n->no_aside)
        begin_aside(c, n->id, why, c->opts.strike_cooldown_us, "");
}

/* Another node could take its place: nobody is set aside below the minimum. */
static bool can_spare(const struct er_rdzv *c, const struct rdzv_survey *s,
                      const struct er_view_node *n)
{
    return n->present && !n->aside && !n->no_aside && !er_view_leaving(n) &&
           s->ready >= c->view.world.min_nodes + er_view_ready(&c->view, n);
}

static bool third_strike(const struct er_rdzv *c, const struct er_view_node *n,
                         const struct rdzv_judgement *j)
{
    uint32_t before = n->has_assign && n->assign.strike_age_us <= c->opts.strike_window_us &&
                              n->assign.strike_generation < c->view.world.last_sealed
                          ? n->assign.strikes
                          : 0;

    return c->opts.strike_max && rdzv_struck(c, n, j) && before + 1 >= c->opts.strike_max;
}

/* The node of the cause has failed so often that the job tries without it first. */
bool rdzv_blames_node(const struct er_rdzv *c, const struct rdzv_judgement *j)
{
    const struct er_view_node *n = er_view_find(&c->view, j->cause.node_id);
    struct rdzv_survey s;

    rdzv_survey(&c->view, &s);
    if (!n || !c->opts.strike_cooldown_us)
        return false;
    if (n->aside)
        return s.ready >= c->view.world.min_nodes;
    return third_strike(c, n, j) && can_spare(c, &s, n);
}

/* Before a plan is made: is a node to be set aside, or just being? */
bool rdzv_aside_due(struct er_rdzv *c, const struct rdzv_survey *s, const struct rdzv_judgement *j)
{
    if (c->aside.lease)
        return true;
    if (!c->opts.strike_cooldown_us)
        return false;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];
        bool late = n->present && !er_view_ready(&c->view, n);

        if ((!late && !third_strike(c, n, j)) || !can_spare(c, s, n))
            continue;
        begin_aside(c, n->id,
                    late ? "its workers did not stop in time" : "its workers keep failing",
                    c->opts.strike_cooldown_us, "");
        return true;
    }
    return false;
}

/* ---- requests ---- */

static void act_drain(struct er_rdzv *c, const struct er_view_ctl *r)
{
    struct er_view_node *n = er_view_find(&c->view, r->ctl.node);
    bool meant =
        n && n->present && (r->ctl.incarnation == 0 || r->ctl.incarnation == n->member.incarnation);

    rdzv_send_ctl(c, r, meant ? n : NULL, NULL);
}

static void act_scale(struct er_rdzv *c, const struct er_view_ctl *r)
{
    struct er_job_record w = c->view.world;

    /* Roles have their own numbers. */
    if (c->opts.roles_n || r->ctl.min_nodes == 0 || r->ctl.min_nodes > r->ctl.max_nodes ||
        r->ctl.max_nodes > ER_NODES_MAX) {
        rdzv_send_ctl(c, r, NULL, NULL);
        return;
    }
    w.min_nodes = r->ctl.min_nodes;
    w.max_nodes = r->ctl.max_nodes;
    if (w.phase == ER_WORLD_FORMING)
        w.generation = rdzv_next_number(c);
    rdzv_budget_advance(c, &w);
    c->scaled = w.phase == ER_WORLD_SEALED;
    rdzv_send_world(c, ER_TXN_SCALE, &w, false, r);
}

/* The request is gone, so the node was asked: whatever is written for it next says so too. */
static void note_drain(struct er_rdzv *c)
{
    struct er_view_node *n = er_view_find(&c->view, c->drain.node);

    for (size_t i = 0; i < c->view.ctl_n; i++) {
        if (strcmp(c->view.ctls[i].id, c->drain.ctl) == 0)
            return;
    }
    c->drain.ctl[0] = 0;
    if (!n)
        return;
    if (!n->has_assign)
        n->assign.prev_rank = -1;
    n->has_assign = true;
    n->assign.drain = c->drain.incarnation;
    n->assign.drain_code = c->drain.code;
    n->assign.drain_us = c->drain.time_us;
    er_view_changed(&c->view, n);
}

/* An agent of an earlier release could not read a verdict with a deadline. */
static bool all_know_deadlines(const struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        if (c->view.nodes[i].present && c->view.nodes[i].member.protocol < ER_PROTOCOL_DEADLINE)
            return false;
    }
    return true;
}

/* One request at a time; it is gone from the view once it was acted on. */
void rdzv_requests(struct er_rdzv *c)
{
    const struct er_view_ctl *r = c->view.ctls;

    if (c->drain.ctl[0])
        note_drain(c);
    if (c->aside.lease) {
        if (c->aside.granted)
            rdzv_send_aside(c);
        return;
    }
    if (c->view.ctl_n == 0) {
        if (c->view.ctl_missed)
            rdzv_read_again(c);
        return;
    }
    if (r->mod_rev == c->acted_rev)
        return; /* the view doesn't show yet that it is gone */
    rdzv_note_request(c, &r->ctl);
    switch (r->ctl.kind) {
    case ER_ASK_STOP:
        rdzv_write_stop(c, EXIT_CANCELED, all_know_deadlines(c) ? r->ctl.deadline_us : 0,
                        r->ctl.reason[0] ? r->ctl.reason : "stopped by request");
        break;
    case ER_ASK_DRAIN:
        act_drain(c, r);
        break;
    case ER_ASK_SCALE:
        act_scale(c, r);
        break;
    case ER_ASK_ASIDE:
        if (r->ctl.cooldown_us && er_name_valid(r->ctl.node))
            begin_aside(c, r->ctl.node, r->ctl.reason, r->ctl.cooldown_us, r->id);
        else
            rdzv_send_ctl(c, r, NULL, NULL);
        break;
    case ER_ASK_RELEASE:
        rdzv_send_ctl(c, r, NULL, er_name_valid(r->ctl.node) ? r->ctl.node : NULL);
        break;
    case ER_ASK_KIND_COUNT:
        break;
    }
}

/* ---- what old generations left ---- */

/* Off the way of a new generation, unless so many have followed each other that there never is a
 * quiet time. */
static bool clean_now(struct er_rdzv *c)
{
    uint64_t sealed = c->view.world.last_sealed;

    if (!c->cleaned)
        c->cleaned = sealed;
    return c->opts.max_nodes == 1 || sealed >= c->cleaned + ER_RDZV_CLEAN_LAG ||
           rdzv_due(c, er_deadline_in(c->sealed_us, ER_RDZV_CLEAN_US));
}

void rdzv_clean(struct er_rdzv *c)
{
    if (c->clean || er_bug(NEVER_CLEANED) || !clean_now(c))
        return;
    rdzv_send_look(c);
}

void rdzv_looked(struct er_rdzv *c, const struct er_store_reply *reply)
{
    c->clean = !rdzv_send_clean(c, reply);
    if (c->clean)
        c->cleaned = c->view.world.last_sealed;
}
