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
#define RANKS_TOLD 8

/* Of what `--deadline` gave; ER_FOREVER: it gave nothing. */
static uint64_t time_left(const struct er_agent *agent, uint64_t now_us)
{
    if (agent->deadline_us == ER_FOREVER)
        return ER_FOREVER;
    return agent->deadline_us > now_us ? agent->deadline_us - now_us : 0;
}

/* What is left of stop.grace after a second or third signal, and before the deadline. */
uint64_t er_agent_grace(const struct er_agent *agent)
{
    uint64_t grace_us = agent->config->stop.grace_us, left_us = time_left(agent, er_now_us());

    if (agent->stop_signals > 2)
        return 0;
    if (agent->stop_signals == 2 && grace_us > HURRY_US)
        grace_us = HURRY_US;
    return grace_us < left_us ? grace_us : left_us;
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

/* The end of the deadline (who asked has given one, or preempt.deadline) belongs to the ladder: the
 * grace, at most half of the time. */
static uint64_t time_to_drain(const struct er_agent *agent, uint64_t now_us)
{
    const struct er_config *c = agent->config;
    uint64_t left_us = time_left(agent, now_us), half_us;

    if (left_us == ER_FOREVER)
        left_us = er_config_preempt_deadline(c, er_wall_us());
    half_us = left_us / 2;
    return left_us - (c->stop.grace_us < half_us ? c->stop.grace_us : half_us);
}

/* One node of several: the workers go on until the others are ready for the change. */
uint64_t er_agent_drain_node(struct er_agent *agent, const char *why, uint64_t now_us)
{
    char time[ER_UNIT_TEXT_MAX];

    agent->drained_us = er_deadline_in(now_us, time_to_drain(agent, now_us));
    er_format_duration(time_to_drain(agent, now_us), time);
    if (alive(agent) > 0)
        er_agent_say(agent,
                     "%s: this node leaves the job as soon as the others can go on without it, "
                     "within %s; another signal: at once",
                     why, time);
    return agent->drained_us;
}

/* They save and end by themselves, if they can be told to. */
static bool begin_drain(struct er_agent *agent, const char *why, const char *more, uint64_t now_us)
{
    const struct er_config *c = agent->config;
    uint64_t time_us = time_to_drain(agent, now_us);
    char time[ER_UNIT_TEXT_MAX], when[ER_UNIT_TEXT_MAX + 80];

    if (!er_group_all_spoke(agent->group) && c->resize.grace_us < time_us &&
        agent->deadline_us == ER_FOREVER)
        time_us = c->resize.grace_us;
    er_format_duration(time_us, time);
    snprintf(when, sizeof(when), "within %s%s", time, more);
    if (!er_agent_drain_workers(agent, why, when, time_us))
        return false;
    agent->ladder_us = er_deadline_in(now_us, time_us);
    return true;
}

void er_agent_begin_stop(struct er_agent *agent, const char *why, bool drain, uint64_t now_us)
{
    const struct er_config *c = agent->config;
    char time[ER_UNIT_TEXT_MAX], kill[ER_UNIT_TEXT_MAX + 16] = "no KILL", more[64];
    int n = alive(agent);

    if (n == 0)
        return;
    say_more_signals(agent, more, sizeof(more));
    if (drain && begin_drain(agent, why, more, now_us))
        return;
    if (er_agent_grace(agent) != ER_FOREVER) {
        er_format_duration(er_agent_grace(agent), time);
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

int er_agent_cancel(struct er_agent *agent, const struct er_agent_stop *stop, struct er_error *err)
{
    const char *why = stop->preempt ? "elastic-ctl stop --preempt" : "elastic-ctl stop";
    uint64_t now_us = er_now_us();
    int rc;

    if (agent->stop_signals > 0 || agent->done)
        return 0; /* it is stopping */
    rc = er_agent_ask_stop(agent, stop, err);
    if (rc <= 0)
        return rc;
    agent->stop_signals = 1;
    agent->preempted = stop->preempt;
    if (stop->time_us)
        agent->deadline_us = er_deadline_in(now_us, stop->time_us);
    er_agent_begin_stop(agent, why, stop->preempt || stop->time_us, now_us);
    er_driver_leave(agent->driver, stop->preempt ? ER_CODE_TEMPFAIL : ER_CODE_CANCELED, why);
    return 0;
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

/* Those that can live on are told to leave, wherever they wait; false: nobody can. */
static bool leave(struct er_agent *agent, uint64_t now_us)
{
    if (!can_go_on(agent) || !er_group_leave(agent->group, now_us, er_agent_grace(agent)))
        return false;
    er_barriers_end(agent->barriers);
    return true;
}

void er_agent_stop_step(struct er_agent *agent, uint64_t now_us)
{
    if (!agent->group)
        return;
    er_agent_change_step(agent, now_us);
    if (now_us >= agent->ladder_us && leave(agent, now_us)) {
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
    if (!leave(agent, now_us))
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

/* When the ladder begins: the leader waits as long. A node that goes away has its own time. */
static uint64_t save_until(const struct er_agent *agent, uint64_t now_us)
{
    uint64_t time_us = agent->deadline_us == ER_FOREVER ? agent->config->resize.grace_us
                                                        : time_to_drain(agent, now_us);
    uint64_t until_us = er_deadline_in(now_us, time_us);

    return agent->drained_us < until_us ? agent->drained_us : until_us;
}

/* By then nobody lives, as who asked for the stop or the drain has said. */
static void take_deadline(struct er_agent *agent)
{
    struct er_look look;

    er_driver_look(agent->driver, &look);
    if (look.deadline_us && look.deadline_us < agent->deadline_us)
        agent->deadline_us = look.deadline_us;
}

/* Workers are told to save, and have till agent->ladder_us; false: they can't be, or nobody gives
 * them the time. */
static bool save_first(struct er_agent *agent, const char *reason, uint64_t now_us)
{
    bool stays = agent->deadline_us == ER_FOREVER && can_go_on(agent);
    uint64_t until_us = save_until(agent, now_us);

    if (agent->draining || (!is_change(reason) && agent->deadline_us == ER_FOREVER))
        return false;
    if (!is_change(reason))
        reason = "the job is being stopped";
    if (!er_agent_ask_workers(agent, reason, stays, until_us - now_us, true))
        return false;
    agent->ladder_us = until_us;
    return true;
}

void er_agent_on_stop(void *user, uint64_t generation, const char *reason)
{
    struct er_agent *agent = user;
    uint64_t now_us = er_now_us();
    bool fresh;

    er_gpu_wait_drop(agent, generation);
    if (!agent->group || er_group_assignment(agent->group)->generation != generation) {
        er_driver_left(agent->driver, generation);
        return;
    }
    agent->peers_lost = er_agent_peers_lost(reason);
    if (agent->peers_lost)
        er_group_child(agent->group); /* who has died is the cause */
    /* Who has not begun has nothing to save. */
    fresh = agent->warming || er_group_starts(agent->group);
    take_deadline(agent);
    agent->stop_wanted = true;
    agent->change.waits = agent->warming = false;
    if (er_group_gone(agent->group))
        er_agent_say_left(agent);
    else if ((fresh || !save_first(agent, reason, now_us)) && agent->ladder_us == ER_FOREVER)
        er_agent_stop_workers(agent, now_us);
}
