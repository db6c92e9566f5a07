/* What this agent knows, for agent/diagnose.h; the findings as JSON. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/diagnose.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define RANKS_MAX        256                 /* of a node, that are looked at one by one */
#define STRAGGLER_OLD_US (600 * ER_US_PER_S) /* nobody has been told of it for that long */

static uint64_t left(uint64_t until_us, uint64_t now_us)
{
    if (until_us == 0 || until_us == ER_FOREVER)
        return until_us;
    return until_us > now_us ? until_us - now_us : 1;
}

static void see_store(struct er_agent *agent, struct er_etcd_status *s, struct er_diagnose_facts *f,
                      uint64_t now_us)
{
    *s = (struct er_etcd_status){.connected = true};
    if (agent->store.etcd)
        agent->store.etcd->status(agent->store.store, s);
    f->store_is_far = agent->store.etcd != NULL;
    f->store_answers = s->connected;
    f->store_endpoint = s->endpoint[0] ? s->endpoint : "etcd";
    f->store_error = s->text[0] ? s->text : "no answer";
    f->store_down_us =
        s->down_since_us && now_us > s->down_since_us ? now_us - s->down_since_us : 0;
}

static void see_job(struct er_agent *agent, const struct er_look *look, struct er_diagnose_facts *f,
                    uint64_t now_us)
{
    f->phase = er_driver_phase(agent->driver);
    f->store_denies = look->denied;
    f->registered = look->registered;
    f->spare = look->stand == ER_STAND_SPARE;
    f->aside = look->aside;
    f->leads = look->leads;
    f->leader = look->leader;
    f->have = look->have;
    f->min = look->min;
    f->max = look->max;
    f->absent = look->missing;
    f->unready = look->unready;
    f->give_up_us = left(look->give_up_us, now_us);
    f->last_call_us = left(look->last_call_us, now_us);
    f->unhealthy = er_health_holds(agent);
    f->waits_for_gpus = agent->errands.gpu.held;
}

static void see_ranks(struct er_agent *agent, struct er_diagnose_rank *ranks,
                      struct er_diagnose_facts *f, uint64_t now_us, uint64_t stale_us)
{
    int n = agent->group ? er_group_size(agent->group) : 0;

    f->ranks = ranks;
    for (int i = 0; i < n && f->ranks_n < RANKS_MAX; i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);
        struct er_diagnose_rank *r = &ranks[f->ranks_n];

        if (!er_worker_fsm_alive(&w->fsm) || !w->page)
            continue;
        r->reports = er_agent_hang_fact(agent, i, now_us, stale_us, &r->fact);
        r->begun = atomic_load(&w->page->from_worker.first_step_us) > 0;
        r->pid = w->speaker ? w->speaker : w->pid;
        f->ranks_n++;
    }
    f->living = agent->group ? er_group_alive(agent->group) : 0;
    f->stopping = agent->stop_wanted || agent->stop_signals > 0 || agent->draining;
    f->kill_us = agent->group ? er_group_kill_at(agent->group) : ER_FOREVER;
    f->kill_us = f->kill_us == 0 ? ER_FOREVER : left(f->kill_us, now_us);
}

struct room {
    struct er_diagnose_rank ranks[RANKS_MAX];
    struct er_hang_fact facts[RANKS_MAX];
};

static size_t diagnose(struct er_agent *agent, int exit_code, uint64_t stale_us, struct room *room,
                       struct er_finding ret[ER_FINDINGS_MAX])
{
    const struct er_agent_hang *h = agent->hang;
    uint64_t now_us = er_now_us();
    struct er_diagnose_facts f = {.exit_code = exit_code,
                                  .outcome = exit_code < 0 ? "" : er_agent_outcome(agent),
                                  .kills = agent->config->hang.action == ER_HANG_RESTART,
                                  .room = room->facts,
                                  .straggler = -1};
    struct er_etcd_status store;
    struct er_look look;

    er_driver_look(agent->driver, &look);
    see_store(agent, &store, &f, now_us);
    see_job(agent, &look, &f, now_us);
    see_ranks(agent, room->ranks, &f, now_us, stale_us);
    if (h->n > 0 && h->verdict_us)
        f.verdict = &h->verdict;
    if (h->n > 0 && h->straggler_us && now_us < h->straggler_us + STRAGGLER_OLD_US) {
        f.straggler = h->straggler_rank;
        f.straggler_ratio = h->straggler_ratio;
        f.straggler_cost_ms = h->straggler_cost_ms;
    }
    return er_diagnose(&f, ret);
}

int er_agent_diagnosis_json(struct er_agent *agent, int exit_code, uint64_t stale_us,
                            struct er_buf *buf)
{
    ER_CLEANUP(er_cleanup_free) struct room *room = calloc(1, sizeof(*room));
    struct er_finding found[ER_FINDINGS_MAX];
    size_t n = room && agent->hang ? diagnose(agent, exit_code, stale_us, room, found) : 0;
    int rc = er_buf_add_str(buf, "[");

    for (size_t i = 0; i < n && !rc; i++) {
        const struct er_field fields[] = {
            ER_STR("code", er_finding_code_name(found[i].code)),
            ER_STR("weight", er_finding_weight_name(found[i].weight)),
            ER_STR("finding", found[i].text),
            ER_STR("advice", found[i].advice[0] ? found[i].advice : NULL),
        };

        rc = er_buf_add_str(buf, i ? ",{" : "{");
        if (!rc)
            rc = er_fields_json(buf, fields, ER_ARRAY_N(fields));
        if (!rc)
            rc = er_buf_add_str(buf, "}");
    }
    return rc ? rc : er_buf_add_str(buf, "]");
}
