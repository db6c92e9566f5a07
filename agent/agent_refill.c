/*
 * Places of this node whose worker has died. Its others have left the generation, and wait for the
 * next one:
 *
 *   respawn   successors are started at once, and waited for up to restart.respawn_wait: then they
 *             are in the next generation; it goes on without those that are not up by then
 *   shrink    the next generation goes on without them; successors are started when it is set up
 *
 * Whoever comes up beside a generation is told of the next one: the node asks for a planned change.
 */
#include <stdio.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"

#define TRIES_MAX 3                  /* in a row, of workers that end before they are up */
#define AGAIN_US  (1 * ER_US_PER_S)  /* doubled for each */
#define GATHER_US (10 * ER_US_PER_S) /* one that is up waits so long for those that come up */

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

static bool shrinks(const struct er_agent *agent)
{
    return agent->config->restart.on_loss == ER_ON_LOSS_SHRINK;
}

/* Generations may have fewer workers than places. */
static bool varies(const struct er_agent *agent)
{
    return shrinks(agent) || agent->config->restart.respawn_wait_us != ER_FOREVER;
}

static bool is_leaving(const struct er_agent *agent)
{
    return agent->draining || agent->done || agent->stop_signals > 0 || agent->own_exit_code;
}

/* All of its workers are set up, can live on, and nobody wants them to stop. */
static bool runs_well(const struct er_agent *agent)
{
    struct er_group *group = agent->group;

    if (!group || er_group_gone(group) || agent->warming || agent->stop_wanted ||
        agent->result_said || is_leaving(agent))
        return false;
    for (int i = 0; i < er_group_size(group); i++) {
        const struct er_worker *w = er_group_worker(group, i);

        if (w->fsm.state != ER_WORKER_READY || !er_worker_rejoins(w))
            return false;
    }
    return true;
}

static void trouble(struct er_agent *agent, const char *what, uint64_t now_us)
{
    struct er_refill *r = &agent->refill;
    char time[ER_UNIT_TEXT_MAX];

    if (r->again_us) /* of the same try: its workers may all end for one reason */
        return;
    r->failures++;
    r->again_us = ER_FOREVER;
    if (r->failures >= TRIES_MAX) {
        er_log(
            ER_LOG_WARNING,
            "workers that were to join again have failed too often: this node goes on with fewer "
            "until all its workers start anew",
            ER_STR("reason", what), ER_UINT("failures", r->failures),
            ER_INT("workers", er_group_size(agent->group)));
        return;
    }
    r->again_us = er_deadline_in(now_us, AGAIN_US << (r->failures - 1));
    er_format_duration(AGAIN_US << (r->failures - 1), time);
    er_log(ER_LOG_WARNING, "a worker that was to join has ended before it could",
           ER_STR("reason", what), ER_STR("again_in", time));
}

void er_agent_on_unjoined(void *user, struct er_worker *w)
{
    struct er_agent *agent = user;
    char what[ER_EXIT_TEXT_MAX];

    if (er_group_parted(agent->group)) {
        agent->refill.failed = true;
        return;
    }
    er_exit_text(w->exit.kind, w->exit.code, w->exit.signal, what);
    trouble(agent, what, er_now_us());
}

/* One for each free place. How many, or an error. */
static int start_each(struct er_agent *agent, struct er_error *err)
{
    int n = 0, rc;

    while ((rc = er_group_add(agent->group, err)) == 0)
        n++;
    return rc < 0 ? rc : n;
}

static void start_missing(struct er_agent *agent, uint64_t now_us)
{
    struct er_error err = ER_ERROR_INIT;
    int n = start_each(agent, &err);

    if (n > 0)
        er_agent_say(agent,
                     "starting %d worker%s beside generation %llu, in place of those that died: "
                     "to join when up",
                     n, plural(n),
                     (unsigned long long)er_group_assignment(agent->group)->generation);
    if (n < 0)
        trouble(agent, err.text, now_us);
}

/* ---- between two generations ---- */

static void start_successors(struct er_agent *agent)
{
    struct er_error err = ER_ERROR_INIT;

    if (agent->errands.gpu.waiting || agent->refill.failed)
        return;
    if (start_each(agent, &err) < 0) {
        er_log(ER_LOG_WARNING, "a successor cannot be started", ER_STR("reason", err.text));
        agent->refill.failed = true;
    }
}

/* Not where the job ends with the failure, as far as that is known here. */
void er_agent_refill_left(struct er_agent *agent, uint64_t now_us)
{
    struct er_refill *r = &agent->refill;
    struct er_group_next next = er_group_next(agent->group);

    if (r->until_us || r->failed || shrinks(agent) || !varies(agent) || is_leaving(agent) ||
        agent->config->restart.max == 0 || !er_group_parted(agent->group) ||
        next.left + next.up + next.coming == er_group_places(agent->group))
        return;
    r->until_us = er_deadline_in(now_us, agent->config->restart.respawn_wait_us);
    r->waits = true;
    start_successors(agent);
}

bool er_agent_refill_waits(struct er_agent *agent, uint64_t now_us)
{
    struct er_refill *r = &agent->refill;
    struct er_group_next next;

    if (!r->waits)
        return false;
    next = er_group_next(agent->group);
    r->waits = now_us < r->until_us && !r->failed && !is_leaving(agent) &&
               er_group_parted(agent->group) && (next.coming > 0 || agent->errands.gpu.waiting) &&
               next.left + next.up < er_group_places(agent->group);
    return r->waits;
}

/* Where one of them has ended the place is filled in the generation, and its failures count there.
 */
int er_agent_next_slots(const struct er_agent *agent)
{
    struct er_group_next next;

    if (!varies(agent) || !agent->group || !er_group_parted(agent->group) ||
        (!shrinks(agent) && agent->refill.failed))
        return (int)agent->config->nproc;
    next = er_group_next(agent->group);
    return next.left + next.up;
}

/* ---- beside a generation ---- */

/* The more it has been told, the driver asks the others for. */
static void tell(struct er_agent *agent, const struct er_group_next *next)
{
    int n = er_group_size(agent->group) + next->up;

    if (n == agent->refill.told)
        return;
    if (n > agent->refill.told)
        er_agent_say(agent, "%d worker%s up: asking for a generation with %d of this node",
                     next->up, next->up == 1 ? " is" : "s are", n);
    agent->refill.told = n;
    er_driver_slots(agent->driver, n);
}

static void step_waiting(struct er_agent *agent, uint64_t now_us)
{
    if (er_group_parted(agent->group))
        start_successors(agent);
    if (!er_agent_refill_waits(agent, now_us))
        er_agent_say_left(agent);
}

void er_agent_refill_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_refill *r = &agent->refill;
    struct er_group_next next;

    if (r->waits)
        step_waiting(agent, now_us);
    if (!varies(agent) || !runs_well(agent) ||
        er_group_size(agent->group) == er_group_places(agent->group))
        return;
    if (now_us >= r->again_us) {
        r->again_us = 0;
        if (!agent->errands.gpu.waiting)
            start_missing(agent, now_us);
    }
    next = er_group_next(agent->group);
    if (next.up == 0)
        r->up_us = 0;
    else if (!r->up_us)
        r->up_us = now_us;
    /* So that the node grows once, not for each of them. */
    if (next.coming == 0 || (r->up_us && now_us >= r->up_us + GATHER_US))
        tell(agent, &next);
}

/* Only the next try, and patience, have a time of their own: whatever else matters is an event. */
uint64_t er_agent_refill_deadline(const struct er_agent *agent)
{
    const struct er_refill *r = &agent->refill;
    uint64_t at = ER_FOREVER;

    if (r->waits)
        return r->until_us;
    if (!varies(agent) || !runs_well(agent))
        return ER_FOREVER;
    if (r->again_us)
        at = r->again_us;
    /* When that has passed, the driver has been told. */
    if (r->up_us && er_group_next(agent->group).coming > 0 && r->up_us + GATHER_US < at &&
        r->told == er_group_size(agent->group))
        at = r->up_us + GATHER_US;
    return at;
}

void er_agent_refill_begin(struct er_agent *agent, const struct er_assignment *a, bool anew)
{
    struct er_refill *r = &agent->refill;

    r->told = a->local_size;
    r->waits = r->failed = false;
    r->until_us = r->up_us = 0;
    if (anew || a->local_size == er_group_places(agent->group))
        r->failures = 0;
    if (r->failures == 0)
        r->again_us = 0;
}
