/* What elastic-ctl wants of the whole job: written to the store, carried out by its leader. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/codec.h"

static void on_asked(void *user, int rc, const void *value, size_t n)
{
    if (rc && rc != ER_E_STALE) /* stale: the job was over first */
        er_log(ER_LOG_WARNING, "a request of elastic-ctl did not reach the job",
               ER_STR("reason", er_error_name(rc)));
}

static void ask(struct er_agent *agent, const char *verb, struct er_ask *what)
{
    char id[ER_NAME_TEXT_MAX];

    snprintf(what->reason, sizeof(what->reason), "elastic-ctl %s", verb);
    snprintf(id, sizeof(id), "%s-%llu-%d", verb, (unsigned long long)er_wall_us(), (int)getpid());
    er_driver_request(agent->driver, id, what, on_asked, agent);
}

bool er_agent_ask_stop(struct er_agent *agent)
{
    struct er_ask what = {.kind = ER_ASK_STOP};

    if (!er_config_keeps_record(agent->config) || !agent->was_registered)
        return false;
    er_agent_say(agent, "elastic-ctl stop: asking the job to stop");
    ask(agent, "stop", &what);
    return true;
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
