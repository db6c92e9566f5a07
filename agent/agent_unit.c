/* As a unit of systemd: readiness, the sentence of `systemctl status`, signs of life, and more time
 * to stop while it is ours to take. sd_notify(3) has the assignments. */
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/sentence.h"
#include "base/clock.h"

#define SETTLE_US  (250 * ER_US_PER_MS) /* at most four sentences a second */
#define EXTEND_US  (20 * ER_US_PER_S)   /* more time is asked for in pieces of this size */
#define ENDING_US  (120 * ER_US_PER_S)  /* last words, hooks, the store's good-bye */
#define UNWIND_US  (60 * ER_US_PER_S)   /* what is behind the grace: KILL, sweeps, files */
#define LINE_BYTES (ER_SENTENCE_MAX + 128)

/* A control character would be another assignment. */
static void send_status(const struct er_unit *unit, const char *before, const char *sentence)
{
    char line[LINE_BYTES];
    size_t n = (size_t)snprintf(line, sizeof(line), "%sSTATUS=", before);

    snprintf(line + n, sizeof(line) - n, "%s", sentence);
    for (; line[n]; n++) {
        if ((unsigned char)line[n] < 0x20)
            line[n] = ' ';
    }
    er_sdnotify_send(&unit->to, line);
}

void er_agent_unit_open(struct er_agent *agent)
{
    er_sdnotify_open(&agent->unit.to, agent->guard->pid);
    agent->unit.ping_us = agent->unit.look_us = ER_FOREVER;
}

void er_agent_unit_close(struct er_agent *agent)
{
    er_sdnotify_close(&agent->unit.to);
}

static void ping(struct er_unit *unit, uint64_t now_us)
{
    if (unit->to.watchdog_us == 0 || now_us < unit->ping_us)
        return;
    er_sdnotify_send(&unit->to, "WATCHDOG=1");
    unit->ping_us = now_us + unit->to.watchdog_us / 3;
    unit->look_us = now_us; /* steps are done without an event: told with the sign of life */
}

/* The store is open, and the node has its place in the job or waits for it there. */
static bool is_ready(const struct er_agent *agent)
{
    struct er_look look;

    er_driver_look(agent->driver, &look);
    return look.registered || agent->was_registered;
}

static void tell(struct er_agent *agent)
{
    struct er_unit *unit = &agent->unit;
    char sentence[ER_SENTENCE_MAX];
    bool ready = !unit->ready && is_ready(agent);

    er_agent_sentence(agent, sentence);
    if (!ready && strcmp(sentence, unit->told) == 0)
        return;
    memcpy(unit->told, sentence, sizeof(unit->told));
    unit->ready |= ready;
    send_status(unit, ready ? "READY=1\n" : "", sentence);
}

/* As long as the job's own limits say, whatever TimeoutStopSec= is; not longer. */
static uint64_t stop_limit_us(const struct er_agent *agent, uint64_t now_us)
{
    const struct er_config *c = agent->config;

    return er_deadline_in(
        er_deadline_in(er_deadline_in(now_us, c->preempt.deadline_us), c->stop.grace_us),
        UNWIND_US);
}

static void extend(struct er_agent *agent, uint64_t now_us)
{
    struct er_unit *unit = &agent->unit;
    bool stopping = agent->stop_signals > 0 || agent->own_exit_code || agent->done;
    char line[96];

    if (!stopping)
        return;
    if (unit->stop_until_us == 0) {
        unit->stop_until_us = stop_limit_us(agent, now_us);
        er_sdnotify_send(&unit->to, "STOPPING=1");
    }
    if (now_us < unit->extend_us || now_us >= unit->stop_until_us)
        return;
    unit->extend_us = now_us + EXTEND_US / 3;
    snprintf(line, sizeof(line), "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)EXTEND_US);
    er_sdnotify_send(&unit->to, line);
}

void er_agent_unit_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_unit *unit = &agent->unit;

    if (!er_sdnotify_wanted(&unit->to))
        return;
    if (unit->ping_us == ER_FOREVER && unit->to.watchdog_us)
        unit->ping_us = now_us;
    ping(unit, now_us);
    extend(agent, now_us);
    if (unit->ready && now_us < unit->told_us + SETTLE_US) {
        unit->look_us = unit->told_us + SETTLE_US;
        return;
    }
    unit->told_us = now_us;
    unit->look_us = ER_FOREVER;
    tell(agent);
}

uint64_t er_agent_unit_deadline(const struct er_agent *agent)
{
    const struct er_unit *unit = &agent->unit;
    uint64_t at = unit->ping_us < unit->look_us ? unit->ping_us : unit->look_us;
    bool extends = unit->extend_us && unit->extend_us < unit->stop_until_us;

    return extends && unit->extend_us < at ? unit->extend_us : at;
}

void er_agent_unit_reloading(struct er_agent *agent, bool begins)
{
    char line[96];

    snprintf(line, sizeof(line), "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)er_now_us());
    if (agent->unit.ready)
        er_sdnotify_send(&agent->unit.to, begins ? line : "READY=1");
}

void er_agent_unit_ending(struct er_agent *agent)
{
    const struct er_sdnotify *to = &agent->unit.to;
    char line[96];

    if (!er_sdnotify_wanted(to))
        return;
    tell(agent);
    if (to->watchdog_us) {
        snprintf(line, sizeof(line), "WATCHDOG_USEC=%llu", (unsigned long long)ENDING_US);
        er_sdnotify_send(to, line);
    }
    snprintf(line, sizeof(line), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu",
             (unsigned long long)ENDING_US);
    er_sdnotify_send(to, line);
}
