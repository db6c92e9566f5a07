/* Before a respawn: the GPU memory of the workers that died must have been released, or their
 * successors find none. Asked of the driver by the probe, which runs beside the rendezvous. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/gpu.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"

#define PROBE_US (30 * ER_US_PER_S)
#define AGAIN_US (100 * ER_US_PER_MS)

static int run_probe(int out_fd)
{
    return er_gpu_probe(out_fd, true, "");
}

/* Nothing to wait for any more: the generation that was held back starts. */
static void release(struct er_agent *agent)
{
    struct er_gpu_wait *g = &agent->errands.gpu;
    bool held = g->held;

    g->waiting = g->held = g->told = false;
    g->again_us = ER_FOREVER;
    g->n = 0;
    if (held)
        er_agent_on_start(agent, &g->assignment);
}

static int holders(const struct er_gpu_wait *g, const struct er_gpu_table *table)
{
    int n = 0;

    for (size_t i = 0; i < g->n; i++) {
        for (size_t j = 0; j < table->pids_n; j++) {
            if (table->pids[j] == g->pids[i]) {
                n++;
                break;
            }
        }
    }
    return n;
}

static void look_again(struct er_agent *agent, int n, uint64_t now_us)
{
    struct er_gpu_wait *g = &agent->errands.gpu;
    char time[ER_UNIT_TEXT_MAX];

    if (now_us >= g->give_up_us) {
        er_log(ER_LOG_WARNING, "GPU memory of ended workers is still taken; going on without it",
               ER_INT("workers", n));
        release(agent);
        return;
    }
    er_format_duration(agent->config->restart.gpu_memory_timeout_us, time);
    if (!g->told)
        er_agent_say(agent,
                     "waiting for the GPU memory of %d ended worker%s to be released (at most %s)",
                     n, n == 1 ? "" : "s", time);
    g->told = true;
    g->again_us = now_us + AGAIN_US < g->give_up_us ? now_us + AGAIN_US : g->give_up_us;
}

static void on_probed(void *user, const struct er_helper_end *end)
{
    struct er_agent *agent = user;
    ER_CLEANUP(er_cleanup_free) struct er_gpu_table *table = malloc(sizeof(*table));
    int n = 0;

    if (end->trouble)
        er_log(ER_LOG_WARNING, "cannot ask for the processes that hold GPU memory",
               ER_STR("reason", end->trouble));
    else if (table && er_gpu_table_parse(table, end->text, NULL) == 0)
        n = holders(&agent->errands.gpu, table);
    if (n > 0)
        look_again(agent, n, er_now_us());
    else
        release(agent);
}

static void probe(struct er_agent *agent, uint64_t now_us)
{
    const struct er_helper_opts opts = {
        .run = run_probe, .timeout_us = PROBE_US, .done = on_probed, .user = agent};
    struct er_error err = ER_ERROR_INIT;

    agent->errands.gpu.again_us = ER_FOREVER;
    if (er_helper_start(agent->errands.helpers, &opts, now_us, &err)) {
        er_log(ER_LOG_WARNING, "cannot look at GPU memory", ER_STR("reason", err.text));
        release(agent);
    }
}

void er_gpu_wait_exited(struct er_agent *agent, pid_t pid)
{
    struct er_gpu_wait *g = &agent->errands.gpu;

    if (g->n < ER_ARRAY_N(g->pids))
        g->pids[g->n++] = pid;
}

void er_gpu_wait_gone(struct er_agent *agent, uint64_t now_us)
{
    const struct er_config *c = agent->config;

    if (agent->errands.gpu.n == 0 || c->restart.gpu_memory_timeout_us == 0 ||
        (c->gpus_n == 0 && !er_gpu_driver_is_here())) {
        agent->errands.gpu.n = 0;
        return;
    }
    agent->errands.gpu.waiting = true;
    agent->errands.gpu.give_up_us = er_deadline_in(now_us, c->restart.gpu_memory_timeout_us);
    probe(agent, now_us);
}

bool er_gpu_wait_hold(struct er_agent *agent, const struct er_assignment *a)
{
    if (!agent->errands.gpu.waiting)
        return false;
    agent->errands.gpu.assignment = *a;
    agent->errands.gpu.held = true;
    return true;
}

void er_gpu_wait_drop(struct er_agent *agent, uint64_t generation)
{
    if (agent->errands.gpu.held && agent->errands.gpu.assignment.generation == generation)
        agent->errands.gpu.held = false;
}

void er_gpu_wait_step(struct er_agent *agent, uint64_t now_us)
{
    if (now_us >= agent->errands.gpu.again_us)
        probe(agent, now_us);
}
