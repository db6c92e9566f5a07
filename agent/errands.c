#include "agent/errands.h"

#include "agent/agent_internal.h"
#include "base/clock.h"

#define LAST_WORD_US (30 * ER_US_PER_S) /* notify.command's own limit */

int er_errands_open(struct er_agent *agent, char *const *environ_, struct er_error *err)
{
    struct er_errands *e = &agent->errands;
    int rc = er_helpers_new(&e->helpers, agent->loop, environ_, err);

    e->gpu.again_us = e->health.retry_us = ER_FOREVER;
    e->preempt.next_us =
        agent->config->preempt.file || agent->config->preempt.command.n ? er_now_us() : ER_FOREVER;
    er_notify_open(agent);
    return rc;
}

void er_errands_close(struct er_agent *agent)
{
    er_notify_close(agent);
    er_helpers_free(agent->errands.helpers);
    agent->errands.helpers = NULL;
}

void er_errands_step(struct er_agent *agent, uint64_t now_us)
{
    er_helpers_step(agent->errands.helpers, now_us);
    er_gpu_wait_step(agent, now_us);
    er_health_step(agent, now_us);
    er_preempt_step(agent, now_us);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t er_errands_deadline(const struct er_agent *agent)
{
    const struct er_errands *e = &agent->errands;
    uint64_t at = er_helpers_deadline(e->helpers);

    at = earlier(at, e->gpu.again_us);
    at = earlier(at, e->health.retry_us);
    return earlier(at, e->preempt.next_us);
}

void er_errands_finish(struct er_agent *agent)
{
    uint64_t now_us = er_now_us(), end_us = er_deadline_in(now_us, LAST_WORD_US);

    while (!er_notify_idle(agent) && now_us < end_us && agent->stop_signals < 3) {
        uint64_t at = earlier(er_helpers_deadline(agent->errands.helpers), end_us);

        if (er_loop_run(agent->loop, now_us, at, NULL))
            return;
        now_us = er_now_us();
        er_helpers_step(agent->errands.helpers, now_us);
    }
}
