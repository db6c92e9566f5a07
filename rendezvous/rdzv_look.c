#include "rendezvous/rdzv_internal.h"

#include <string.h>

/* Where this node stands, as its owner may tell it. Looks only. */

const char *er_stand_name(enum er_stand stand)
{
    static const char *const names[] = {
        [ER_STAND_OUTSIDE] = "outside", [ER_STAND_FORMING] = "forming",
        [ER_STAND_MEMBER] = "member",   [ER_STAND_SPARE] = "spare",
        [ER_STAND_OVER] = "over",
    };

    return names[stand];
}

static enum er_stand stand_of(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->world;

    if (c->state == ER_RDZV_OVER || (c->k_world.present && rdzv_terminal(w)))
        return ER_STAND_OVER;
    if (!c->registered_once)
        return ER_STAND_OUTSIDE;
    if (c->run != ER_RUN_IDLE)
        return ER_STAND_MEMBER;
    if (c->k_world.present && w->phase == ER_WORLD_SEALED && c->state == ER_RDZV_IN)
        return w->generation > c->left ? ER_STAND_SPARE : ER_STAND_MEMBER;
    return ER_STAND_FORMING;
}

/* The leader knows who is there, and what the formation waits for. */
static void look_at_forming(const struct er_rdzv *c, struct er_look *look)
{
    struct rdzv_survey s;

    rdzv_survey(&c->view, &s);
    look->have = s.present;
    look->missing = s.absent;
    look->unready = s.unready;
    if (c->min_met_us && c->view.world.last_sealed == 0)
        look->last_call_us = er_deadline_in(c->min_met_us, c->opts.last_call_us);
    else if (c->forming_us)
        look->give_up_us = er_deadline_in(c->forming_us, c->opts.join_timeout_us);
}

void er_rdzv_look(const struct er_rdzv *core, struct er_look *ret)
{
    const struct er_job_record *w = &core->world;

    *ret = (struct er_look){
        .stand = stand_of(core),
        .registered = core->registered_once,
        .leads = core->lead == ER_LEAD_REST || core->lead == ER_LEAD_ASSIGNING ||
                 core->lead == ER_LEAD_SEALING,
        .leader = core->k_leader.present ? core->leader.node_id : "",
        .aside = "", /* the driver's */
        .generation = w->last_sealed,
        .members_leave =
            w->next && (er_reason_leaves(w->next_reason) || w->next_nnodes < w->nnodes),
        .min = core->k_world.present ? w->min_nodes : core->opts.min_nodes,
        .max = core->k_world.present ? w->max_nodes : core->opts.max_nodes,
        .nnodes = w->nnodes,
        .world_size = w->world_size,
        .lease = core->lease_held ? core->lease : 0,
        .spec_is_next =
            core->k_world.present && core->registered_once && w->spec != core->spec_hash,
        .protocol = core->k_world.present ? w->protocol_low : 0,
        .deadline_us = core->deadline_us,
        .run_is_new = core->k_world.present && strcmp(core->first_run, w->run) != 0,
    };
    if (!core->registered_once)
        ret->give_up_us = er_deadline_in(core->begun_us, core->opts.join_timeout_us);
    if (ret->leads && core->view.has_world && core->view.world.phase == ER_WORLD_FORMING)
        look_at_forming(core, ret);
}

size_t er_rdzv_look_nodes(const struct er_rdzv *core, struct er_node_look *list, size_t max)
{
    size_t n = 0;

    if (core->lead == ER_LEAD_NO || core->lead == ER_LEAD_READING)
        return 0;
    for (size_t i = 0; i < core->view.n; i++) {
        const struct er_view_node *v = &core->view.nodes[i];

        if (!v->present && er_view_member_rank(&core->view, v, NULL) < 0)
            continue; /* it has gone, and nothing hangs on it */
        if (n < max)
            list[n] = (struct er_node_look){
                .id = v->id,
                .host = v->member.host,
                .address = v->member.address,
                .state = er_view_state_name(&core->view, v),
                .slots = v->member.slots,
                .node_rank = er_view_member_rank(&core->view, v, NULL),
            };
        n++;
    }
    return n;
}
