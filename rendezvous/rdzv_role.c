#include "rendezvous/rdzv_internal.h"

/* Roles: how many nodes of each a generation has (er_driver_opts.roles). Without bounds of their
 * own roles only number the ranks. */

static uint32_t count_ready(const struct er_rdzv *c, uint32_t role, bool with_aside)
{
    uint32_t n = 0;

    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *node = &c->view.nodes[i];

        n += node->present && node->member.role == role && node->member.spec == c->plan.spec &&
             !er_view_leaving(node) && er_view_ready(&c->view, node) &&
             (with_aside || !node->aside);
    }
    return n;
}

bool rdzv_count_roles(const struct er_rdzv *c, bool with_aside, uint32_t *ret_usable)
{
    bool met = true;

    *ret_usable = 0;
    for (uint32_t r = 0; r < c->opts.roles_n; r++) {
        const struct er_role_bounds *role = &c->opts.roles[r];
        uint32_t n = count_ready(c, role->id, with_aside);

        met = met && n >= role->min;
        *ret_usable += n < role->max ? n : role->max;
    }
    return met;
}

size_t rdzv_cap_roles(struct er_rdzv *c, size_t n)
{
    struct er_plan_role roles[ER_ROLES_MAX];

    if (!c->opts.roles_n)
        return n;
    for (uint32_t r = 0; r < c->opts.roles_n; r++)
        roles[r] = (struct er_plan_role){c->opts.roles[r].id, c->opts.roles[r].max};
    return er_plan_cap(c->scratch, n, roles, c->opts.roles_n);
}

bool rdzv_roles_met(const struct er_rdzv *c, size_t n)
{
    for (uint32_t r = 0; r < c->opts.roles_n; r++) {
        uint32_t have = 0;

        for (size_t i = 0; i < n; i++)
            have += c->scratch[i].role == c->opts.roles[r].id;
        if (have < c->opts.roles[r].min)
            return false;
    }
    return true;
}

static uint32_t count_members(const struct er_rdzv *c, uint32_t role)
{
    uint32_t n = 0;

    for (size_t i = 0; i < c->view.n; i++)
        n += c->view.nodes[i].member.role == role &&
             er_view_alive_member(&c->view, &c->view.nodes[i]);
    return n;
}

bool rdzv_room_for_newcomer(const struct er_rdzv *c)
{
    for (size_t i = 0; c->opts.roles_n && i < c->view.n; i++) {
        const struct er_view_node *node = &c->view.nodes[i];

        if (!node->present || node->aside || er_view_leaving(node) ||
            node->member.spec != c->view.world.spec || er_view_alive_member(&c->view, node))
            continue;
        for (uint32_t r = 0; r < c->opts.roles_n; r++) {
            if (c->opts.roles[r].id == node->member.role &&
                count_members(c, node->member.role) < c->opts.roles[r].max)
                return true;
        }
    }
    return !c->opts.roles_n;
}
