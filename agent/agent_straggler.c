/* Ranks that are slower than the others for long: told, and when that is wanted their node makes
 * room for another. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/codec.h"

static struct er_straggler_sample sample(const struct er_worker *w)
{
    const struct er_page_progress *p = w->page ? &w->page->from_worker : NULL;

    if (!p || w->has_left || w->fsm.state > ER_WORKER_READY)
        return (struct er_straggler_sample){0};
    return (struct er_straggler_sample){
        .reports = true,
        .step = atomic_load(&p->step),
        .busy_us = atomic_load(&p->data_us) + atomic_load(&p->forward_us) +
                   atomic_load(&p->backward_us) + atomic_load(&p->optimizer_us),
        .median_us = atomic_load(&p->median_busy_us),
    };
}

/* The leader does it when enough other nodes are there. */
static void set_aside(struct er_agent *agent, const struct er_straggler_rank *r)
{
    char reason[64];

    snprintf(reason, sizeof(reason), "a worker has %.2f of the others' rate", r->ratio);
    er_agent_ask_aside(agent, reason, agent->config->restart.node_strikes.cooldown_us);
}

static void tell(struct er_agent *agent, const struct er_worker *w,
                 const struct er_straggler_rank *r)
{
    struct er_agent_hang *h = agent->hang;
    bool acts = agent->config->straggler.action == ER_STRAGGLER_SET_ASIDE &&
                agent->config->nnodes_max > 1 && agent->config->restart.node_strikes.cooldown_us;

    h->straggler_rank = w->rank;
    h->straggler_ratio = r->ratio;
    h->straggler_cost_ms = r->cost_ms;
    h->straggler_us = er_now_us();
    er_event(&agent->events, "straggler_detected", ER_SEVERITY_WARNING, w->generation,
             "A worker is slower than the others.", ER_INT("rank", w->rank),
             ER_NUM("ratio", r->ratio), ER_NUM("cost_ms", r->cost_ms));
    er_agent_say(
        agent, "rank %d works at %.2f of the others' rate, which costs each step %.1f ms%s",
        w->rank, r->ratio, r->cost_ms, acts ? "; the job is asked to go on without this node" : "");
    if (acts)
        set_aside(agent, r);
}

void er_agent_straggler_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_agent_hang *h = agent->hang;
    int told;

    h->straggler.threshold = agent->config->straggler.threshold;
    h->straggler.for_us = agent->config->straggler.for_us;
    if (!h->slow || now_us < er_straggler_due(&h->straggler, now_us))
        return;
    for (int i = 0; i < h->n; i++)
        h->paces[i] = sample(er_group_worker(agent->group, i));
    told = er_straggler_look(&h->straggler, h->slow, h->paces, h->n, now_us, h->told);
    for (int i = 0; i < told; i++)
        tell(agent, er_group_worker(agent->group, h->told[i]), &h->slow[h->told[i]]);
}

bool er_agent_straggler_begin(struct er_agent *agent)
{
    struct er_agent_hang *h = agent->hang;
    size_t n = (size_t)h->n;

    er_agent_straggler_end(agent);
    h->straggler = (struct er_straggler){0};
    h->straggler_us = 0;
    h->slow = calloc(n, sizeof(*h->slow));
    h->paces = calloc(n, sizeof(*h->paces));
    h->told = calloc(n, sizeof(*h->told));
    if (h->slow && h->paces && h->told)
        return true;
    er_agent_straggler_end(agent);
    return false;
}

void er_agent_straggler_end(struct er_agent *agent)
{
    er_cleanup_free(&agent->hang->slow);
    er_cleanup_free(&agent->hang->paces);
    er_cleanup_free(&agent->hang->told);
}
