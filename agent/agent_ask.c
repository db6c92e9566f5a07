/* What elastic-ctl, or this node itself, wants of the whole job: written to the store, carried out
 * by its leader. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/status.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "rendezvous/codec.h"

static void on_asked(void *user, int rc, const void *value, size_t n)
{
    if (rc && rc != ER_E_STALE) /* stale: the job was over first */
        er_log(ER_LOG_WARNING, "a request did not reach the job",
               ER_STR("reason", er_error_name(rc)));
}

static void ask(struct er_agent *agent, const char *verb, struct er_ask *what)
{
    char id[ER_NAME_TEXT_MAX];

    if (!what->reason[0])
        snprintf(what->reason, sizeof(what->reason), "elastic-ctl %s", verb);
    snprintf(id, sizeof(id), "%s-%llu-%d", verb, (unsigned long long)er_wall_us(), (int)getpid());
    er_driver_request(agent->driver, id, what, on_asked, agent);
}

int er_agent_ask_stop(struct er_agent *agent, const struct er_agent_stop *stop,
                      struct er_error *err)
{
    struct er_ask what = {.kind = ER_ASK_STOP, .deadline_us = stop->time_us};
    struct er_look look;

    if (!er_config_keeps_record(agent->config) || !agent->was_registered)
        return 1;
    er_driver_look(agent->driver, &look);
    if ((stop->preempt || stop->time_us) && look.protocol < ER_PROTOCOL_DEADLINE)
        return er_error_set(err, ER_E_PROTOCOL, ER_CTL_TOO_OLD, agent->config->name);
    if (stop->preempt) {
        what.kind = ER_ASK_DRAIN;
        what.code = ER_CODE_TEMPFAIL;
        strcpy(what.node, ER_ASK_ALL_NODES);
        strcpy(what.reason, "elastic-ctl stop --preempt");
    }
    er_agent_say(agent, "elastic-ctl stop: asking the job to stop");
    ask(agent, "stop", &what);
    return 0;
}

void er_agent_ask_each(struct er_agent *agent, const struct er_note *note)
{
    ER_CLEANUP(er_cleanup_free) struct er_node_look *list = NULL;
    size_t n = er_driver_look_nodes(agent->driver, NULL, 0);
    uint64_t wall_us = er_wall_us();
    char id[ER_NAME_TEXT_MAX];

    list = calloc(n ? n : 1, sizeof(*list));
    n = list ? er_driver_look_nodes(agent->driver, list, n) : 0;
    for (size_t i = 0; i < n; i++) {
        struct er_ask what = {.kind = ER_ASK_DRAIN,
                              .code = note->exit_code,
                              .deadline_us = note->duration_us,
                              .reason = "elastic-ctl stop --preempt"};

        if (strcmp(list[i].state, "gone") == 0)
            continue;
        snprintf(what.node, sizeof(what.node), "%s", list[i].id);
        snprintf(id, sizeof(id), "each-%llu-%d-%zu", (unsigned long long)wall_us, (int)getpid(), i);
        er_driver_request(agent->driver, id, &what, on_asked, agent);
    }
}

/* Whether there is a job of several nodes to ask. */
static int check_job(const struct er_agent *agent, const char *verb, struct er_error *err)
{
    if (agent->config->nnodes_max == 1 && !er_config_keeps_record(agent->config))
        return er_error_set(err, -ENOTSUP, "%s: the job runs on this node alone; see 'stop'", verb);
    if (!agent->was_registered)
        return er_error_set(err, -EAGAIN, "%s: this agent has not reached the job yet", verb);
    return 0;
}

int er_agent_ask_drain(struct er_agent *agent, const char *node, struct er_error *err)
{
    struct er_ask what = {.kind = ER_ASK_DRAIN};
    int rc = check_job(agent, "drain", err);

    if (rc)
        return rc;
    snprintf(what.node, sizeof(what.node), "%s", node[0] ? node : agent->config->node.id);
    if (!er_name_valid(what.node))
        return er_error_set(err, -EINVAL, "drain: '%s' is no node id", node);
    er_agent_say(agent, "elastic-ctl drain: asking node '%s' to leave", what.node);
    ask(agent, "drain", &what);
    return 0;
}

int er_agent_ask_scale(struct er_agent *agent, uint64_t min, uint64_t max, struct er_error *err)
{
    struct er_ask what = {.kind = ER_ASK_SCALE};
    int rc = check_job(agent, "scale", err);

    if (rc)
        return rc;
    if (agent->config->roles.n > 0)
        return er_error_set(err, -ENOTSUP, "scale: the job's roles have node counts of their own");
    if (min == 0 || min > max || max > ER_NODES_MAX)
        return er_error_set(err, -EINVAL, "scale: from 1 to %u nodes, the smaller number first",
                            ER_NODES_MAX);
    what.min_nodes = (uint32_t)min;
    what.max_nodes = (uint32_t)max;
    er_agent_say(agent, "elastic-ctl scale: asking for %u to %u nodes", what.min_nodes,
                 what.max_nodes);
    ask(agent, "scale", &what);
    return 0;
}

void er_agent_ask_aside(struct er_agent *agent, const char *reason, uint64_t cooldown_us)
{
    struct er_ask what = {.kind = ER_ASK_ASIDE, .cooldown_us = cooldown_us};

    snprintf(what.node, sizeof(what.node), "%s", agent->config->node.id);
    snprintf(what.reason, sizeof(what.reason), "%.*s", (int)sizeof(what.reason) - 1, reason);
    ask(agent, "aside", &what);
}
