/* Who this agent is: a node id that no other agent on this host has in this job, its state folder,
 * and what it does about the checkpoints of a run that begins. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/journal.h"
#include "agent/startkind.h"
#include "base/cleanup.h"
#include "base/exit_codes.h"

#define AGENTS_MAX 64 /* of one job on one host that are numbered by themselves */

/* The first agent of a job on a host has the plain folder, where elastic-ctl looks first; those
 * with another node id than the host's have one each. */
static int lock_folder(struct er_agent *agent, const char *id, struct er_error *err)
{
    const struct er_config *c = agent->config;
    char name[ER_STATE_PATH_MAX];

    if (!er_config_keeps_record(c) || strcmp(id, agent->hostname) == 0)
        snprintf(name, sizeof(name), "%s", c->name);
    else
        snprintf(name, sizeof(name), "%s%c%s", c->name, ER_STATE_NODE_MARK, id);
    return er_statedir_lock(&agent->state, name, err);
}

/* <host>, <host>.2, <host>.3: the lowest that is free, so that the ids are the same after the
 * agents were restarted. */
static int claim_number(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;
    char id[ER_HOST_TEXT_MAX + 8];
    int rc = -EBUSY;

    for (int n = 1; n <= AGENTS_MAX && rc == -EBUSY; n++) {
        if (n == 1)
            snprintf(id, sizeof(id), "%s", agent->hostname);
        else
            snprintf(id, sizeof(id), "%s.%d", agent->hostname, n);
        rc = lock_folder(agent, id, err);
        if (rc == 0 && n > 1)
            rc = er_config_set_node_id(agent->config, id, err);
        if (rc == -EBUSY && !er_config_keeps_record(c))
            return rc;
    }
    return rc;
}

int er_agent_claim_node(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;
    int rc = c->node.id_is_host ? claim_number(agent, err) : lock_folder(agent, c->node.id, err);

    if (er_journal_wanted()) /* settled */
        er_journal_open(c->name, c->node.id);
    if (rc == -EBUSY && er_config_keeps_record(c) && !c->node.id_is_host)
        return er_error_set(err, rc,
                            "node '%s' of job '%s' runs on this host already: give this agent "
                            "another --node-id",
                            c->node.id, c->name);
    return rc;
}

/* --fresh of a job with a record: who sees a run that is newer than its own start makes room for
 * it, before anything of the run can have been sealed by this node. */
void er_agent_follow_run(struct er_agent *agent)
{
    struct er_error err = ER_ERROR_INIT;
    char moved[PATH_MAX];
    struct er_look look;

    if (agent->run_followed || !er_config_keeps_record(agent->config) ||
        agent->config->start_kind != ER_START_FRESH)
        return;
    er_driver_look(agent->driver, &look);
    if (!look.registered)
        return;
    agent->run_followed = true;
    if (!look.run_is_new)
        return;
    if (er_startkind_begin_run(agent->config, er_driver_run(agent->driver), moved, &err))
        er_agent_fail(agent, ER_CODE_CANTCREAT, &err);
    else if (er_agent_hold_checkpoints(agent, &err)) /* whoever moved the folder */
        er_agent_fail(agent, ER_CODE_CANTCREAT, &err);
    else if (moved[0])
        er_agent_say(agent, "--fresh: the checkpoints that were there are now in %s", moved);
}
