/* Notice that this node goes away, from a file or a command; signals: agent_signal.c. */
#include <stdio.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/log.h"

#define LIMIT_US (30 * ER_US_PER_S) /* of the command */

static void warn_once(struct er_agent *agent, const char *reason)
{
    if (!agent->errands.preempt.told)
        er_log(ER_LOG_WARNING, "preempt.command does not work: no notice will come from it",
               ER_STR("reason", reason));
    agent->errands.preempt.told = true;
}

static void on_done(void *user, const struct er_helper_end *end)
{
    struct er_agent *agent = user;

    agent->errands.preempt.running = false;
    if (!end->trouble)
        er_agent_preempted(agent, "preempt.command gave notice");
    else if (end->timed_out || end->could_not_run)
        warn_once(agent, end->trouble);
}

static void run_command(struct er_agent *agent, uint64_t now_us)
{
    const struct er_helper_opts opts = {
        .argv = agent->config->preempt.command.items,
        .timeout_us = LIMIT_US,
        .done = on_done,
        .user = agent,
    };
    struct er_error err = ER_ERROR_INIT;

    if (er_helper_start(agent->errands.helpers, &opts, now_us, &err))
        warn_once(agent, err.text);
    else
        agent->errands.preempt.running = true;
}

void er_preempt_step(struct er_agent *agent, uint64_t now_us)
{
    const struct er_config *c = agent->config;
    struct er_preempt *p = &agent->errands.preempt;
    char why[256];

    if (now_us < p->next_us)
        return;
    p->next_us = er_deadline_in(now_us, c->preempt.interval_us);
    if (c->preempt.file && access(c->preempt.file, F_OK) == 0) {
        snprintf(why, sizeof(why), "preempt.file '%.200s' is there", c->preempt.file);
        er_agent_preempted(agent, why);
    } else if (c->preempt.command.n > 0 && !p->running) {
        run_command(agent, now_us);
    }
    if (agent->stop_signals > 0 || agent->done)
        p->next_us = ER_FOREVER; /* it is stopping already */
}
