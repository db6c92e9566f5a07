/*
 * Planned changes of the membership, as this node's workers see them: when they are told, and how.
 * Workers that can live on leave their generation at the end of a step and wait for the next one;
 * other programs that speak libelastic save and end; the rest gets the stop ladder.
 */
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/parse.h"

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

bool er_agent_ask_workers(struct er_agent *agent, const char *why, bool stays, uint64_t grace_us,
                          bool save_first)
{
    int n = agent->group ? er_group_alive(agent->group) : 0;

    if (agent->draining)
        return true;
    if (n == 0)
        return false;
    if (stays && er_group_ask(agent->group, er_now_us(), grace_us, save_first)) {
        er_agent_say(agent, "%s: %d worker%s will change over at the end of a step", why, n,
                     plural(n));
        return true;
    }
    return er_agent_drain_workers(agent, why, "at the end of a step", grace_us);
}

bool er_agent_drain_workers(struct er_agent *agent, const char *why, const char *when,
                            uint64_t grace_us)
{
    int sig = agent->config->resize.notice_signal, n = er_group_alive(agent->group);
    bool all_spoke = er_group_all_spoke(agent->group);
    char time[ER_UNIT_TEXT_MAX];

    if (!er_group_drain(agent->group, sig))
        return false;
    agent->draining = true;
    er_format_duration(grace_us, time);
    if (all_spoke)
        er_agent_say(agent, "%s: asked %d worker%s to save and leave %s", why, n, plural(n), when);
    else
        er_agent_say(agent, "%s: sent %s to %d worker%s to save and leave within %s", why,
                     er_signal_name(sig), n, plural(n), time);
    return true;
}

static void tell_workers(struct er_agent *agent, uint64_t now_us)
{
    bool stays = agent->change.stays && agent->stop_signals == 0;

    agent->change.waits = false;
    /* Who has not begun yet has nothing to keep, and hears nothing but STOP. */
    if ((stays && agent->config->resize.at == ER_RESIZE_NOW) || er_group_starts(agent->group))
        er_agent_stop_workers(agent, now_us);
    else if (!er_agent_ask_workers(agent, "the membership changes", stays,
                                   agent->config->resize.grace_us, false))
        er_agent_stop_workers(agent, now_us);
}

/* Workers that come up are let do so first: they could neither act on it nor keep anything. Not
 * where others go: they would wait for those in vain. */
static bool may_be_told(const struct er_agent *agent, uint64_t now_us)
{
    uint64_t saved = 0;

    if (now_us >= agent->change.until_us)
        return true;
    if (er_group_starts(agent->group))
        return agent->change.others_leave;
    return agent->config->resize.at != ER_RESIZE_CHECKPOINT || !agent->config->checkpoint.dir ||
           (er_driver_latest(agent->driver, &saved) && saved > agent->change.saved);
}

void er_agent_change_step(struct er_agent *agent, uint64_t now_us)
{
    if (!agent->change.waits)
        return;
    if (er_group_gone(agent->group)) {
        agent->change.waits = false;
        er_agent_say_left(agent);
    } else if (may_be_told(agent, now_us)) {
        tell_workers(agent, now_us);
    }
}

uint64_t er_agent_change_deadline(const struct er_agent *agent)
{
    return agent->change.waits ? agent->change.until_us : ER_FOREVER;
}

void er_agent_on_notice(void *user, enum er_driver_notice kind, uint64_t target)
{
    struct er_agent *agent = user;
    uint64_t now_us = er_now_us();
    struct er_look look;

    if (!agent->group)
        return;
    agent->stop_wanted = true;
    /* The last quarter of the time is for the workers. */
    agent->change.until_us = er_deadline_in(now_us, agent->config->resize.grace_us / 4 * 3);
    agent->change.saved = 0;
    (void)er_driver_latest(agent->driver, &agent->change.saved);
    er_driver_look(agent->driver, &look);
    agent->change.others_leave = look.members_leave;
    agent->change.stays = kind == ER_DRIVER_NOTICE_REJOIN;
    agent->change.waits = true;
    er_agent_change_step(agent, now_us);
}

/* Workers that wait for a generation which has no place for their node end. */
void er_agent_dismiss_spare(struct er_agent *agent, const struct er_look *look)
{
    if (!agent->group || !er_group_parted(agent->group) || !agent->left_said ||
        look->stand != ER_STAND_SPARE)
        return;
    er_agent_say(agent, "this node has no place in generation %llu: its workers end",
                 (unsigned long long)look->generation);
    er_group_dismiss(agent->group, er_now_us(), er_agent_grace(agent));
}
