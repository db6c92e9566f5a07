/* Ranks that have lost each other though nobody died: something in between has reset what connects
 * them. They go on in the next generation with what they hold, and nobody is charged for it. */
#include <string.h>

#include "agent/agent_internal.h"
#include "base/clock.h"

/* So often within that time; whoever leaves then is taken for failed. */
#define WINDOW_US (600 * ER_US_PER_S)

bool er_agent_peers_lost(const char *reason)
{
    return strcmp(reason, "connections_lost") == 0;
}

/* Every agent sees every generation, and so counts for the job. */
void er_agent_note_faults(struct er_agent *agent, const char *reason, uint64_t now_us)
{
    if (er_agent_peers_lost(reason))
        agent->faults_us[agent->faults_n++ % ER_AGENT_FAULTS_MAX] = now_us;
}

static bool spent(const struct er_agent *agent, uint64_t now_us)
{
    return agent->faults_n >= ER_AGENT_FAULTS_MAX &&
           now_us < agent->faults_us[agent->faults_n % ER_AGENT_FAULTS_MAX] + WINDOW_US;
}

/* It ends already, for another reason. */
static bool ends(const struct er_agent *agent)
{
    return agent->stop_wanted || agent->stop_signals > 0 || agent->own_exit_code || agent->draining;
}

static void leave(struct er_agent *agent, uint64_t since_us, uint64_t now_us)
{
    agent->stop_wanted = true;
    agent->peers_lost = !agent->result_said; /* else somebody here has failed */
    er_recovery_failed(&agent->recovery, since_us, now_us);
    er_agent_stop_workers(agent, now_us);
}

void er_agent_cut_off(struct er_agent *agent, uint64_t now_us)
{
    if (ends(agent) || agent->warming || er_group_gone(agent->group) || spent(agent, now_us))
        return;
    er_agent_say(agent, "all ranks here leave generation %llu for the next one",
                 (unsigned long long)er_group_assignment(agent->group)->generation);
    leave(agent, now_us, now_us);
}

void er_agent_lead_out(struct er_agent *agent, const struct er_worker *first, uint64_t now_us)
{
    if (ends(agent) || !first)
        return;
    if (!agent->result_said)
        er_agent_say(
            agent, "rank %d has left generation %llu (%s), and nobody is known to be lost%s",
            first->rank, (unsigned long long)first->generation,
            first->message ? first->message : "it did not say why",
            spent(agent, now_us) ? "; that was so too often in ten minutes to be overlooked"
                                 : ": all ranks here leave it for the next one");
    if (!spent(agent, now_us))
        leave(agent, first->left_us, now_us);
}
