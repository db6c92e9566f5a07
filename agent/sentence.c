#include "agent/sentence.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/parse.h"

void er_seconds_text(uint64_t us, char *ret, size_t cap)
{
    char text[ER_UNIT_TEXT_MAX];

    er_format_duration(us / ER_US_PER_S * ER_US_PER_S, text);
    snprintf(ret, cap, "%s", text);
}

void er_limit_text(uint64_t until_us, uint64_t now_us, const char *what, char ret[96])
{
    char time[ER_UNIT_TEXT_MAX];

    ret[0] = '\0';
    if (until_us == 0 || until_us == ER_FOREVER)
        return;
    er_seconds_text(until_us > now_us ? until_us - now_us : 0, time, sizeof(time));
    snprintf(ret, 96, "; %s %.60s", what, time);
}

static void few_sentence(const struct er_look *look, uint64_t now_us, char ret[ER_SENTENCE_MAX])
{
    char limit[96] = "";

    if (now_us)
        er_limit_text(look->give_up_us, now_us, "giving up in", limit);
    snprintf(ret, ER_SENTENCE_MAX, "have %u of %u nodes, waiting for %u more%s", look->have,
             look->min, look->min - look->have, limit);
}

static void last_call_sentence(const struct er_look *look, uint64_t now_us,
                               char ret[ER_SENTENCE_MAX])
{
    char time[ER_UNIT_TEXT_MAX], start[96] = "starting soon";

    if (now_us) {
        er_seconds_text(look->last_call_us > now_us ? look->last_call_us - now_us : 0, time,
                        sizeof(time));
        snprintf(start, sizeof(start), "starting in %s", time);
    }
    snprintf(ret, ER_SENTENCE_MAX, "have %u %s of %u to %u: %s, or when there are %u", look->have,
             look->have == 1 ? "node" : "nodes", look->min, look->max, start, look->max);
}

static void forming_sentence(const struct er_look *look, uint64_t now_us, char ret[ER_SENTENCE_MAX])
{
    if (!look->leads && look->leader[0])
        snprintf(ret, ER_SENTENCE_MAX, "waiting for the other nodes; node '%s' leads",
                 look->leader);
    else if (!look->leads)
        snprintf(ret, ER_SENTENCE_MAX, "waiting for a node that leads");
    else if (look->have < look->min)
        few_sentence(look, now_us, ret);
    else if (look->last_call_us)
        last_call_sentence(look, now_us, ret);
    else if (look->unready)
        snprintf(ret, ER_SENTENCE_MAX,
                 "waiting for %u node%s to stop the last generation's workers", look->unready,
                 look->unready == 1 ? "" : "s");
}

static void spare_sentence(const struct er_look *look, char ret[ER_SENTENCE_MAX])
{
    if (look->spec_is_next)
        snprintf(ret, ER_SENTENCE_MAX,
                 "parked as a spare: generation %llu runs with the job's present settings; this "
                 "node's are the next ones, which hold when the job forms anew and at least %u "
                 "nodes have them",
                 (unsigned long long)look->generation, look->min);
    else if (look->aside[0])
        snprintf(ret, ER_SENTENCE_MAX,
                 "this node is set aside (%s): generation %llu runs without it, with %u node%s; it "
                 "joins again when its time is over, or when the others are too few",
                 look->aside, (unsigned long long)look->generation, look->nnodes,
                 look->nnodes == 1 ? "" : "s");
    else
        snprintf(ret, ER_SENTENCE_MAX,
                 "parked as a spare: generation %llu runs with %u nodes, at most %u; this node "
                 "joins when there is a place",
                 (unsigned long long)look->generation, look->nnodes, look->max);
}

void er_wait_sentence(const struct er_look *look, uint64_t now_us, char ret[ER_SENTENCE_MAX])
{
    ret[0] = '\0';
    if (look->stand == ER_STAND_FORMING)
        forming_sentence(look, now_us, ret);
    else if (look->stand == ER_STAND_SPARE)
        spare_sentence(look, ret);
}

/* The newest step that a worker here has finished; false: none reports. */
static bool newest_step(const struct er_agent *agent, uint64_t *ret)
{
    bool found = false;

    *ret = 0;
    for (int i = 0; i < er_group_size(agent->group); i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);
        uint64_t step = w->page ? atomic_load(&w->page->from_worker.step) : 0;

        found |= step > 0;
        if (step > *ret)
            *ret = step;
    }
    return found;
}

static void restarts_text(const struct er_agent *agent, char ret[64])
{
    uint32_t used = er_driver_restarts(agent->driver), max = agent->config->restart.max;

    ret[0] = '\0';
    if (used > 0 && max == ER_NONE_U32)
        snprintf(ret, 64, ", %u restart%s", used, used == 1 ? "" : "s");
    else if (used > 0)
        snprintf(ret, 64, ", %u of %u restart%s used", used, max, max == 1 ? "" : "s");
}

static void running_sentence(const struct er_agent *agent, char ret[ER_SENTENCE_MAX])
{
    const struct er_assignment *a = er_group_assignment(agent->group);
    char step[40] = "", restarts[64];
    uint64_t newest;

    if (newest_step(agent, &newest))
        snprintf(step, sizeof(step), ", step %llu", (unsigned long long)newest);
    restarts_text(agent, restarts);
    snprintf(ret, ER_SENTENCE_MAX, "generation %llu: %d rank%s on %d node%s%s%s%s",
             (unsigned long long)a->generation, a->world_size, a->world_size == 1 ? "" : "s",
             a->nnodes, a->nnodes == 1 ? "" : "s", step, restarts,
             agent->wait.lost_us ? "; the store does not answer" : "");
}

static void stopping_sentence(const struct er_agent *agent, char ret[ER_SENTENCE_MAX])
{
    int n = agent->group ? er_group_alive(agent->group) : 0;

    if (agent->done)
        snprintf(ret, ER_SENTENCE_MAX, "over: %s", er_agent_outcome(agent));
    else if (n > 0)
        snprintf(ret, ER_SENTENCE_MAX, "stopping: %d worker%s still run%s", n, n == 1 ? "" : "s",
                 n == 1 ? "s" : "");
    else
        snprintf(ret, ER_SENTENCE_MAX, "stopping");
}

static void store_sentence(const struct er_agent *agent, char ret[ER_SENTENCE_MAX])
{
    struct er_etcd_status s;

    agent->store.etcd->status(agent->store.store, &s);
    snprintf(ret, ER_SENTENCE_MAX, "waiting for the store%s%.300s", s.text[0] ? ": " : "", s.text);
}

void er_agent_sentence(struct er_agent *agent, char ret[ER_SENTENCE_MAX])
{
    bool runs = agent->group && !er_group_gone(agent->group);
    struct er_look look;

    er_driver_look(agent->driver, &look);
    ret[0] = '\0';
    if (agent->done || agent->stop_signals > 0 || agent->own_exit_code)
        stopping_sentence(agent, ret);
    else if (runs && agent->stop_wanted)
        snprintf(ret, ER_SENTENCE_MAX, "generation %llu ends: %d workers still run",
                 (unsigned long long)er_group_assignment(agent->group)->generation,
                 er_group_alive(agent->group));
    else if (runs)
        running_sentence(agent, ret);
    else if (er_health_holds(agent))
        snprintf(ret, ER_SENTENCE_MAX, "this node's health is being checked");
    else if (agent->store.etcd && !agent->wait.was_connected)
        store_sentence(agent, ret);
    else
        er_wait_sentence(&look, 0, ret);
    if (!ret[0])
        snprintf(ret, ER_SENTENCE_MAX, "%s", er_driver_phase(agent->driver));
}
