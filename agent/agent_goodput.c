/* Where this node's time goes: the agent's callbacks as entries of the goodput ledger. Workers say
 * nothing of their first steps beyond the page, and nobody polls that: what happened since a start
 * is entered when it is asked for. */
#include <stdatomic.h>

#include "agent/agent_internal.h"
#include "base/clock.h"

/* Who reports no step for that long reports none. */
#define PATIENCE_US (60 * ER_US_PER_S)

/* What the workers of the running generation have done so far. */
struct begun {
    uint64_t spoke_us, connected_us; /* the last one of them; 0: nobody has */
    uint64_t useful_us;              /* from when on their steps count; 0: they have not begun */
    uint64_t step_us;                /* a step, on average; 0: nobody reports */
    uint64_t first_step;             /* the oldest step that was made */
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Of one worker that reports steps: its first one began a step's time before it ended. False: how
 * long that is shows with the second. */
static bool look_at_steps(const struct er_page_progress *p, struct begun *ret)
{
    uint64_t first_us = atomic_load(&p->first_step_us), last_us = atomic_load(&p->step_us);
    uint64_t first = atomic_load(&p->first_step), last = atomic_load(&p->step);
    uint64_t mean_us =
        last > first && last_us > first_us ? (last_us - first_us) / (last - first) : 0;

    if (!mean_us)
        return false;
    ret->useful_us = later(ret->useful_us, first_us - mean_us);
    ret->step_us = later(ret->step_us, mean_us);
    if (!ret->first_step || first < ret->first_step)
        ret->first_step = first;
    return true;
}

/* Since when a worker without a step does useful work; 0: not known. One that never speaks counts
 * from its start, one that speaks but reports no steps from its word that it is ready; which of
 * them it is shows after a while, or when the generation ends. */
static uint64_t useful_without_steps(const struct er_worker *w, uint64_t started_us,
                                     uint64_t until_us)
{
    uint64_t from_us = w->spoke ? w->ready_us : started_us;

    return from_us && until_us >= from_us + PATIENCE_US ? from_us : 0;
}

/* False: not all of them have begun. */
static bool look(struct er_group *group, uint64_t started_us, uint64_t until_us, struct begun *ret)
{
    int n = er_group_size(group);

    *ret = (struct begun){0};
    for (int i = 0; i < n; i++) {
        const struct er_worker *w = er_group_worker(group, i);
        const struct er_page_progress *p = w->page ? &w->page->from_worker : NULL;
        bool steps = p && atomic_load(&p->first_step_us) > 0;
        uint64_t from_us = steps ? 0 : useful_without_steps(w, started_us, until_us);

        ret->spoke_us = later(ret->spoke_us, w->spoke_us);
        if (p)
            ret->connected_us = later(ret->connected_us, atomic_load(&p->connected_us));
        if (steps ? !look_at_steps(p, ret) : !from_us)
            return false;
        ret->useful_us = later(ret->useful_us, from_us);
    }
    return n > 0;
}

/* Steps that are done again take as long as others. */
static void count_replay(struct er_agent *agent, const struct begun *b, uint64_t now_us)
{
    const struct er_recovery *r = &agent->recovery;
    uint64_t again =
        b->first_step && r->old_step >= b->first_step ? r->old_step - b->first_step + 1 : 0;
    uint64_t end_us = b->useful_us + again * b->step_us;

    if (!again || !b->step_us)
        return;
    er_goodput_enter(&agent->goodput, ER_TIME_REPLAY, b->useful_us);
    er_goodput_enter(&agent->goodput, ER_TIME_USEFUL, end_us < now_us ? end_us : now_us);
}

/* `until_us`: up to when first steps were waited for. */
static void settle(struct er_agent *agent, uint64_t now_us, uint64_t until_us)
{
    struct er_goodput *g = &agent->goodput;
    struct begun b;

    if (g->now != ER_TIME_START || !agent->group || !look(agent->group, g->since_us, until_us, &b))
        return;
    if (b.spoke_us)
        er_goodput_enter(g, ER_TIME_COMM_INIT, b.spoke_us);
    if (b.spoke_us) /* without a communicator all of it is the program's own setting up */
        er_goodput_enter(g, ER_TIME_RESTORE, later(b.spoke_us, b.connected_us));
    count_replay(agent, &b, now_us);
    if (g->now != ER_TIME_USEFUL)
        er_goodput_enter(g, ER_TIME_USEFUL, b.useful_us < now_us ? b.useful_us : now_us);
}

void er_agent_goodput_settle(struct er_agent *agent, uint64_t now_us)
{
    settle(agent, now_us, now_us);
}

void er_agent_goodput_enter(struct er_agent *agent, enum er_time state, uint64_t at_us)
{
    settle(agent, er_now_us(), ER_FOREVER);
    er_goodput_enter(&agent->goodput, state, at_us);
}
