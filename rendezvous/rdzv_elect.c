#include "rendezvous/rdzv_internal.h"

#include <string.h>

#include "base/rand.h"

/* Who leads: elections, and handing leadership over. */

#define ELECT_BASE_US  150000ull
#define ELECT_STEP_US  20000ull
#define ELECT_MAX_US   5000000ull
#define ELECT_FIRST_US 1000000ull

static void begin(struct er_rdzv *c)
{
    c->lead_rev = c->k_leader.mod_rev;
    c->elect_us = 0;
    c->led_before = c->scaled = c->no_switch = c->respec_asked = false;
    c->grown_from = 0;
    c->acted_rev = 0;
    er_view_reset(&c->view);
    rdzv_set_lead(c, ER_LEAD_READING);
    rdzv_act(c, ER_ACT_WATCH_JOB);
}

void rdzv_depose(struct er_rdzv *c)
{
    rdzv_set_lead(c, ER_LEAD_NO);
    c->fresh_seq = 0;
    c->led_before = !c->handed;
    c->aside.lease = 0;
    c->drain.ctl[0] = 0;
    rdzv_act(c, ER_ACT_UNWATCH_JOB);
}

/* By incarnation and lease, not by nonce: of two elections with unknown outcomes the older one may
 * be the one that landed. */
bool rdzv_leader_key_mine(const struct er_rdzv *c)
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

void rdzv_compete(struct er_rdzv *c)
{
    if (c->state != ER_RDZV_IN || c->leaving || !c->k_world.present || rdzv_terminal(&c->world))
        return;
    if (rdzv_leader_key_mine(c)) {
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

bool rdzv_deposed(const struct er_rdzv *c)
{
    return c->k_leader.rev >= c->lead_rev &&
           (!c->k_leader.present || c->k_leader.mod_rev != c->lead_rev);
}

/* A member goes on leading with less delay than a spare would. */
static const struct er_view_node *successor(const struct er_rdzv *c)
{
    const struct er_view_node *best = NULL;
    int best_rank = -1;

    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];
        int rank = er_view_alive_member(&c->view, n) ? er_view_member_rank(&c->view, n, NULL) : -1;

        if (!n->present || er_view_leaving(n) || strcmp(n->id, c->opts.node_id) == 0)
            continue;
        if (!best || (rank >= 0 && (best_rank < 0 || rank < best_rank))) {
            best = n;
            best_rank = rank;
        }
    }
    return best;
}

bool rdzv_hand_over(struct er_rdzv *c)
{
    const struct er_view_node *to;

    if (c->handed || c->lead == ER_LEAD_NO || rdzv_terminal(&c->view.world))
        return true;
    if (c->batches || !rdzv_lane_free(c, ER_LANE_LEAD))
        return false;
    to = successor(c);
    c->handed = true;
    if (!to)
        return true;
    rdzv_send_handover(c, to);
    return false;
}
