/* Stops: how they begin, what is said about them, when patience ends. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/parse.h"
#include "rendezvous/codec.h"

#define HURRY_US   (5 * ER_US_PER_S)
#define WAITING_US (2 * ER_US_PER_S)
#define SAVE_US    (10 * ER_US_PER_S) /* at most this to save, when the membership changes */
#define RANKS_TOLD 8

/* What is left of stop.grace after a second or third signal. */
uint64_t er_agent_grace(const struct er_agent *agent)
{
    uint64_t grace_us = agent->config->stop.grace_us;

    if (agent->stop_signals > 2)
        return 0;
    return agent->stop_signals == 2 && grace_us > HURRY_US ? HURRY_US : grace_us;
}

static int alive(const struct er_agent *agent)
{
    return agent->group ? er_group_alive(agent->group) : 0;
}

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

/* "; Ctrl-C again shortens that to 5s" */
static void say_more_signals(const struct er_agent *agent, char *ret, size_t cap)
{
    const char *again = agent->stop_signal == SIGINT ? "Ctrl-C again" : "another signal";

    if (agent->config->stop.grace_us > HURRY_US)
        snprintf(ret, cap, "; %s shortens that to 5s", again);
    else
        snprintf(ret, cap, "; two more signals kill at once");
}

/* The end of preempt.deadline belongs to the ladder: the grace, at most half of the time. */
static uint64_t time_to_drain(const struct er_config *c)
{
    uint64_t half_us = c->preempt.deadline_us / 2;

    return c->preempt.deadline_us - (c->stop.grace_us < half_us ? c->stop.grace_us : half_us);
}

/* One node of several: the workers go on until the others are ready for the change. */
uint64_t er_agent_drain_node(struct er_agent *agent, const char *why, uint64_t now_us)
{
    uint64_t until_us = er_deadline_in(now_us, time_to_drain(agent->config));
    char time[ER_UNIT_TEXT_MAX];

    er_format_duration(time_to_drain(agent->config), time);
    if (alive(agent) > 0)
        er_agent_say(agent,
                     "%s: this node leaves the job as soon as the others can go on without it, "
                     "within %s; another signal: at once",
                     why, time);
    return until_us;
}

void er_agent_begin_stop(struct er_agent *agent, const char *why, bool drain, uint64_t now_us)
{
    const struct er_config *c = agent->config;
    char time[ER_UNIT_TEXT_MAX], kill[ER_UNIT_TEXT_MAX + 16] = "no KILL", more[64];
    int n = alive(agent);

    if (n == 0)
        return;
    say_more_signals(agent, more, sizeof(more));
    if (drain && er_group_drain(agent->group)) {
        agent->draining = true;
        agent->ladder_us = er_deadline_in(now_us, time_to_drain(c));
        er_format_duration(time_to_drain(c), time);
        er_agent_say(agent, "%s: asked %d worker%s to save and leave within %s%s", why, n,
                     plural(n), time, more);
        return;
    }
    if (c->stop.grace_us != ER_FOREVER) {
        er_format_duration(c->stop.grace_us, time);
        snprintf(kill, sizeof(kill), "KILL after %s", time);
    }
    er_agent_say(agent, "%s: stopping %d worker%s with %s; %s%s", why, n, plural(n),
                 er_signal_name(c->stop.signal), kill, more);
}

static void begin_ladder(struct er_agent *agent, uint64_t now_us)
{
    agent->ladder_us = ER_FOREVER;
    er_group_stop(agent->group, now_us, er_agent_grace(agent));
}

void er_agent_hurry(struct er_agent *agent, uint64_t now_us)
{
    uint64_t grace_us = er_agent_grace(agent);
    char time[ER_UNIT_TEXT_MAX];
    int n = alive(agent);

    if (!agent->group || er_group_gone(agent->group))
        return;
    er_format_duration(grace_us, time);
    if (grace_us == 0)
        er_agent_say(agent, "killing %d worker%s now", n, plural(n));
    else
        er_agent_say(agent, "grace shortened to %s; once more kills at once", time);
    begin_ladder(agent, now_us);
}

void er_agent_preempted(struct er_agent *agent, const char *why)
{
    uint64_t now_us = er_now_us();

    if (agent->stop_signals > 0 || agent->done)
        return; /* it is stopping */
    agent->stop_signals = 1;
    agent->preempted = true;
    if (agent->config->nnodes_max > 1) {
        er_driver_drain(agent->driver, ER_CODE_TEMPFAIL, why,
                        er_agent_drain_node(agent, why, now_us));
        return;
    }
    er_agent_begin_stop(agent, why, true, now_us);
    er_driver_leave(agent->driver, ER_CODE_TEMPFAIL, why);
}

void er_agent_cancel(struct er_agent *agent)
{
    if (agent->stop_signals > 0 || agent->done)
        return; /* it is stopping */
    if (er_agent_ask_stop(agent))
        return;
    agent->stop_signals = 1;
    er_agent_begin_stop(agent, "elastic-ctl stop", false, er_now_us());
    er_driver_leave(agent->driver, ER_CODE_CANCELED, "elastic-ctl stop");
}

/* "0, 3, 4 and 2 more" */
static void list_ranks(struct er_group *group, char *ret, size_t cap)
{
    size_t used = 0;
    int told = 0, left = er_group_acting(group);

    ret[0] = '\0';
    for (int i = 0; i < er_group_size(group) && told < RANKS_TOLD; i++) {
        const struct er_worker *w = er_group_worker(group, i);

        if (!er_worker_fsm_alive(&w->fsm) || w->has_left)
            continue;
        used += (size_t)snprintf(ret + used, cap - used, "%s%d", told ? ", " : "", w->rank);
        told++;
        left--;
    }
    if (left > 0)
        snprintf(ret + used, cap - used, " and %d more", left);
}

static void say_waiting(struct er_agent *agent, uint64_t now_us)
{
    uint64_t kill_us = er_group_kill_at(agent->group);
    char ranks[128], kill[64] = "stop.grace is none";
    int n = er_group_acting(agent->group);

    if (n == 0 || agent->stop_signals > 0)
        return;
    list_ranks(agent->group, ranks, sizeof(ranks));
    if (kill_us != ER_FOREVER)
        snprintf(kill, sizeof(kill), "KILL in %.0f s",
                 kill_us > now_us ? (double)(kill_us - now_us) / 1e6 : 0.0);
    er_agent_say(agent, "waiting for rank%s %s to stop (%s)", plural(n), ranks, kill);
}

/* There may be a next generation for this node, and what its workers hold is worth keeping. */
static bool can_go_on(const struct er_agent *agent)
{
    return agent->stop_signals == 0 && !agent->own_exit_code && !agent->draining;
}

void er_agent_stop_step(struct er_agent *agent, uint64_t now_us)
{
    if (!agent->group)
        return;
    er_agent_change_step(agent, now_us);
    if (now_us >= agent->ladder_us && can_go_on(agent) &&
        er_group_leave(agent->group, now_us, er_agent_grace(agent))) {
        agent->ladder_us = ER_FOREVER;
    } else if (now_us >= agent->ladder_us) {
        er_agent_say(agent, "the time to save is over: stopping %d worker%s with %s", alive(agent),
                     plural(alive(agent)), er_signal_name(agent->config->stop.signal));
        begin_ladder(agent, now_us);
    }
    if (now_us >= agent->waiting_us) {
        agent->waiting_us = ER_FOREVER;
        say_waiting(agent, now_us);
    }
}

uint64_t er_agent_stop_deadline(const struct er_agent *agent)
{
    uint64_t at = agent->ladder_us < agent->waiting_us ? agent->ladder_us : agent->waiting_us;
    uint64_t change = er_agent_change_deadline(agent);

    return change < at ? change : at;
}

void er_agent_stop_workers(struct er_agent *agent, uint64_t now_us)
{
    er_agent_goodput_enter(agent, ER_TIME_STOP, now_us);
    agent->waiting_us = now_us + WAITING_US;
    if (!can_go_on(agent) || !er_group_leave(agent->group, now_us, er_agent_grace(agent)))
        er_group_stop(agent->group, now_us, er_agent_grace(agent));
}

/* Nothing went wrong: a change that nobody could plan ahead. */
static bool is_change(const char *reason)
{
    static const char *const CHANGES[] = {"node_joined", "drained", "preempted", "scaled"};

    for (size_t i = 0; i < ER_ARRAY_N(CHANGES); i++) {
        if (strcmp(CHANGES[i], reason) == 0)
            return true;
    }
    return false;
}

/* The time to save is part of what the leader waits for anyway. */
static uint64_t time_to_save(const struct er_agent *agent)
{
    uint64_t half_us = er_agent_grace(agent) / 2;

    return half_us < SAVE_US ? half_us : SAVE_US;
}

void er_agent_on_stop(void *user, uint64_t generation, const char *reason)
{
    struct er_agent *agent = user;
    uint64_t now_us = er_now_us();

    er_gpu_wait_drop(agent, generation);
    if (!agent->group || er_group_assignment(agent->group)->generation != generation) {
        er_driver_left(agent->driver, generation);
        return;
    }
    agent->stop_wanted = true;
    agent->change.waits = agent->warming = false;
    if (er_group_gone(agent->group))
        er_agent_say_left(agent);
    else if (is_change(reason) && !agent->draining &&
             er_agent_ask_workers(agent, reason, can_go_on(agent), er_agent_grace(agent), true))
        agent->ladder_us = er_deadline_in(now_us, time_to_save(agent));
    else if (agent->ladder_us == ER_FOREVER)
        er_agent_stop_workers(agent, now_us);
}
