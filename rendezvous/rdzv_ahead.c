#include "rendezvous/rdzv_internal.h"

#include <string.h>

/* Planned changes. While generation g runs, the next one is claimed in `world` and assigned;
 * newcomers start their workers for it, without a communicator; then the members of g are told to
 * go (next_go), agree on a step and leave, and the next one is sealed. Whatever happens meanwhile
 * voids it: its workers are stopped, and another number is taken.
 *
 *   REST --change--> claimed --batches--> assigned --all prepared--> go --all left--> sealed
 *                      |                     |                        |
 *                      +------ never mind ---+                        +--> forming (g is over)
 */

#define UNFIT_US  10000000ull /* before another attempt with a newcomer that failed; doubled */
#define UNFIT_MAX 3

/* What came to nothing before is just being stopped there. */
static bool clears_up(const struct er_rdzv *c, const struct er_view_node *n)
{
    return !er_view_alive_member(&c->view, n) && n->member.running > c->view.world.last_sealed &&
           n->member.left < n->member.running;
}

/* Its workers have failed before they could join: not at once again. */
static bool rests(struct er_rdzv *c, const struct er_view_node *n)
{
    uint32_t times = n->unfit < UNFIT_MAX ? n->unfit : UNFIT_MAX;

    return times && !rdzv_due(c, er_deadline_in(n->unfit_us, UNFIT_US << (times - 1)));
}

bool rdzv_newcomer_due(struct er_rdzv *c)
{
    bool any = false;

    for (size_t i = 0; i < c->view.n && !any; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        any = n->traits >> ER_TRAIT_NEWCOMER & 1 && !rests(c, n) && !clears_up(c, n);
    }
    return any;
}

static bool can_take_part(const struct er_rdzv *c, const struct er_view_node *n)
{
    return n->member.planned &&
           (er_view_alive_member(&c->view, n) ? n->member.left < c->view.world.last_sealed
                                              : er_view_ready(&c->view, n));
}

/* Everybody that a change would concern can take part in a planned one. Gathers who stays. */
static bool gather(struct er_rdzv *c, size_t *ret_n)
{
    bool all = true;

    *ret_n = 0;
    for (size_t i = 0; i < c->view.n && all; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (!n->present || n->member.spec != c->view.world.spec || clears_up(c, n))
            continue;
        all = can_take_part(c, n);
        if (!er_view_leaving(n) && !n->aside && !rests(c, n))
            rdzv_candidate(c, i, ret_n);
    }
    return all && *ret_n >= c->view.world.min_nodes && rdzv_roles_met(c, *ret_n);
}

static void write_next(struct er_rdzv *c, struct er_job_record *w)
{
    rdzv_budget_advance(c, w);
    rdzv_send_world(c, ER_TXN_NEXT, w, false, NULL);
    c->plan.seq = c->fresh_seq;
    c->plan.since_us = c->now_us;
}

void rdzv_change(struct er_rdzv *c, const struct rdzv_survey *s, enum er_reason reason)
{
    struct er_job_record w = c->view.world;
    size_t n;

    if (!c->opts.resize_grace_us || s->absent || s->ok || !gather(c, &n)) {
        rdzv_end_generation(c, reason, false);
        return;
    }
    if (c->batches)
        return;
    rdzv_plan(c, n, rdzv_next_number(c), w.max_nodes);
    c->plan.ahead = true;
    c->plan.spec = w.spec;
    c->plan.world_rev = 0;
    w.next = w.taken = c->plan.generation;
    w.next_nonce = c->plan.nonce;
    w.next_nnodes = c->plan.nnodes;
    w.next_size = c->plan.world_size;
    w.next_reason = reason;
    w.next_warm = c->warm;
    w.next_go = false;
    write_next(c, &w);
}

/* With how many workers a node goes on is fixed by its leaving; a newcomer has left before. */
static bool has_other_slots(const struct er_rdzv *c, const struct er_view_node *n)
{
    return n->member.slots != n->plan_slots && !er_bug(SLOTS_MOVE) &&
           (!er_view_alive_member(&c->view, n) || n->member.left >= c->view.world.last_sealed);
}

/* The plan is mine, rests on `world` as it is, and nobody in it is gone or leaving. */
static bool holds(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;
    uint32_t found = 0;

    if (!c->plan.ahead || c->plan.generation != w->next || w->writer != c->opts.incarnation ||
        w->seq != c->plan.seq)
        return false;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->plan_generation != w->next)
            continue;
        if (!n->present || n->member.incarnation != n->plan_incarnation || er_view_leaving(n) ||
            (n->aside && !w->next_go) || n->member.left >= w->next || has_other_slots(c, n))
            return false;
        found++;
    }
    return found == c->plan.nnodes; /* else the view was read again */
}

/* Newcomers whose workers are not up yet, and members that have not left. */
static void count_open(const struct er_rdzv *c, uint32_t *ret_preparing, uint32_t *ret_running)
{
    const struct er_job_record *w = &c->view.world;

    *ret_preparing = *ret_running = 0;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];
        bool member = er_view_alive_member(&c->view, n);

        *ret_running += member && n->member.left < w->last_sealed;
        *ret_preparing += !member && n->plan_generation == w->next && n->member.prepared != w->next;
    }
}

bool rdzv_left_as_planned(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;

    if (!w->next_go || !holds(c))
        return false;
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (n->traits >> ER_TRAIT_DEPARTED & 1 && n->plan_generation == w->next)
            return false;
    }
    return true;
}

/* A newcomer that is in the plan, and not up. */
static bool is_awaited(const struct er_rdzv *c, const struct er_view_node *n)
{
    uint64_t next = c->view.world.next;

    return n->present && n->plan_generation == next && !er_view_alive_member(&c->view, n) &&
           n->member.incarnation == n->plan_incarnation && n->member.prepared != next;
}

/* Whose workers have failed ahead of the change rests, and is set aside when it does so again. */
static void blame_unfit(struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        struct er_view_node *n = &c->view.nodes[i];

        if (!is_awaited(c, n) || n->member.left < c->view.world.next)
            continue;
        n->unfit++;
        n->unfit_us = c->now_us;
        if (n->unfit >= UNFIT_MAX)
            rdzv_set_aside(c, n, "its workers keep failing before they can join");
    }
}

static uint64_t full_time(const struct er_rdzv *c)
{
    uint64_t most = c->opts.join_timeout_us;

    return c->opts.prepare_us && c->opts.prepare_us < most ? c->opts.prepare_us : most;
}

/* Newcomers have less time where a member waits to leave. */
static uint64_t prepare_time(const struct er_rdzv *c)
{
    uint64_t time = full_time(c), half = c->opts.resize_grace_us / 2;

    return er_reason_leaves(c->view.world.next_reason) && half < time ? half : time;
}

/* The change goes on without those that take too long; who had all the time there is, is set aside.
 */
static void expel_late(struct er_rdzv *c)
{
    bool whole = prepare_time(c) == full_time(c);

    for (size_t i = 0; i < c->view.n; i++) {
        struct er_view_node *n = &c->view.nodes[i];

        if (!is_awaited(c, n))
            continue;
        n->unfit += whole || !n->unfit;
        n->unfit_us = c->now_us;
        if (whole)
            rdzv_set_aside(c, n, "its workers did not come up in time");
    }
}

static void never_mind(struct er_rdzv *c)
{
    struct er_job_record w = c->view.world;

    if (w.next_go) { /* some may have left: there is no way back */
        rdzv_end_generation(c, w.next_reason, false);
        return;
    }
    rdzv_clear_next(&w);
    write_next(c, &w);
    c->plan.ahead = false;
    c->sealed_us = c->now_us; /* the next attempt waits as after a seal */
}

static void seal_next(struct er_rdzv *c)
{
    struct er_job_record w = c->view.world;
    const struct er_view_node *first = NULL;

    for (size_t i = 0; i < c->view.n && !first; i++) {
        if (c->view.nodes[i].plan_generation == w.next && c->view.nodes[i].plan_rank == 0)
            first = &c->view.nodes[i];
    }
    if (first) { /* its port may be another one by now */
        memcpy(w.master_addr, first->member.address, sizeof(w.master_addr));
        w.master_port = first->member.port;
    }
    rdzv_budget_advance(c, &w);
    w.generation = w.last_sealed = w.next;
    w.nonce = w.next_nonce;
    w.nnodes = w.last_nnodes = w.next_nnodes;
    w.world_size = w.next_size;
    w.reason = w.next_reason;
    w.has_cause = false;
    memset(&w.cause, 0, sizeof(w.cause));
    w.early_row = w.uncounted_row = 0;
    rdzv_common_protocol(c, &w);
    rdzv_clear_next(&w);
    c->plan.world_rev = c->view.world_rev;
    rdzv_note_leavers(c);
    rdzv_send_seal(c, &w);
}

static void go(struct er_rdzv *c)
{
    struct er_job_record w = c->view.world;

    w.next_go = true;
    write_next(c, &w);
}

void rdzv_follow_ahead(struct er_rdzv *c, const struct rdzv_survey *s)
{
    const struct er_job_record *w = &c->view.world;
    uint64_t since = rdzv_counted_from(c, c->plan.since_us);
    uint32_t preparing, running;

    if (!holds(c) || s->ok) {
        blame_unfit(c);
        never_mind(c);
        return;
    }
    if (!rdzv_all_sent(c)) {
        if (!c->plan.world_rev)
            c->plan.world_rev = c->view.world_rev;
        if (c->batches < ER_RDZV_BATCHES_MAX)
            rdzv_send_assign(c);
        return;
    }
    if (c->batches)
        return;
    count_open(c, &preparing, &running);
    if (w->next_go && !running) {
        seal_next(c);
    } else if (w->next_go) {
        if (rdzv_due(c, er_deadline_in(since, c->opts.resize_grace_us)))
            never_mind(c);
    } else if (!preparing) {
        go(c);
    } else if (rdzv_due(c, er_deadline_in(since, prepare_time(c)))) {
        expel_late(c);
        never_mind(c);
    }
}
