/* A group in time: deadlines, the ladder's last rung, and the sweep after its last worker. */
#include <signal.h>

#include "agent/group_internal.h"
#include "agent/helper.h"
#include "agent/orphan.h"

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The first worker that is out of time: on the ladder, or because it left unasked. */
static uint64_t workers_deadline(const struct er_group *g)
{
    uint64_t deadline_us = ER_FOREVER;

    for (int i = 0; i < g->n; i++) {
        const struct er_worker *w = g->workers[i];

        deadline_us = earlier(deadline_us, w->fsm.deadline_us);
        if (w->has_left && !g->leaving && !g->stopping)
            deadline_us = earlier(
                deadline_us, w->left_us + (g->deserted ? g->unasked_us : ER_GROUP_DESERTED_US));
    }
    return deadline_us;
}

uint64_t er_group_deadline(const struct er_group *g)
{
    uint64_t deadline_us = ER_FOREVER;

    if (g->gone)
        return ER_FOREVER;
    if (g->alive_n == 0)
        return g->sweep_us;
    if (g->kill_us)
        deadline_us = g->kill_us + er_orphan_patience_us();
    else if (g->stopping)
        deadline_us = g->grace_end_us;
    if (g->leaving && !g->parted && er_group_acting(g) == 0)
        deadline_us = earlier(deadline_us, g->sweep_us);
    deadline_us = earlier(deadline_us, er_group_join_deadline(g));
    return earlier(deadline_us, workers_deadline(g));
}

/* Somebody who got the stop signal along with a worker is still at it. */
static bool grace_in_use(const struct er_group *g, uint64_t now_us)
{
    if (!g->stopping || now_us >= g->grace_end_us)
        return false;
    for (int i = 0; i < g->n; i++) {
        if (kill(-g->workers[i]->pid, 0) == 0)
            return true;
    }
    return false;
}

/* The pipes go last: what orphans wrote is in the logs. */
static void finish(struct er_group *g)
{
    g->gone = true;
    g->ctx->cgroup->ops->end(g->ctx->cgroup);
    for (int i = 0; i < g->pool_n; i++) {
        for (int s = 0; s < 2; s++)
            er_logfwd_end(g->pool[i].logs[s]);
    }
    g->callbacks.gone(g->user);
}

static void sweep(struct er_group *g, uint64_t now_us)
{
    pid_t helpers[ER_HELPERS_MAX];
    size_t helpers_n;

    if (!g->childless)
        er_group_child(g);
    helpers_n = er_helpers_pids(g->ctx->helpers, helpers);
    if (g->childless) {
        finish(g);
        return;
    }
    /* With helpers there are always children: then nobody may be left but them. */
    if (helpers_n > 0 && er_orphan_pass(0, helpers, helpers_n) == 0) {
        finish(g);
        return;
    }
    if (!grace_in_use(g, now_us)) {
        g->ctx->cgroup->ops->kill(g->ctx->cgroup);
        er_orphan_pass(SIGKILL, helpers, helpers_n);
        g->kill_us = g->kill_us ? g->kill_us : now_us;
    }
    g->sweep_us = now_us + ER_GROUP_SWEEP_US;
}

/* What was killed long ago and is still there runs no code of its own any more: the job goes on
 * without waiting for it. */
static void abandon(struct er_group *g)
{
    pid_t helpers[ER_HELPERS_MAX];
    size_t helpers_n = er_helpers_pids(g->ctx->helpers, helpers);
    pid_t pid = er_orphan_find(helpers, helpers_n);
    char who[256];

    for (int i = 0; i < g->pool_n; i++) {
        struct er_worker *w = &g->pool[i];

        if (!er_worker_fsm_alive(&w->fsm))
            continue;
        pid = w->pid;
        er_group_step_worker(g, w, ER_WORKER_EV_EXITED, 0, 0);
        g->alive_n -= !w->joins;
    }
    er_orphan_describe(pid, who, sizeof(who));
    if (g->callbacks.stuck)
        g->callbacks.stuck(g->user, who);
    finish(g);
}

void er_group_step(struct er_group *g, uint64_t now_us)
{
    if (g->gone)
        return;
    if (g->stopping && now_us >= g->grace_end_us) {
        g->ctx->cgroup->ops->kill(g->ctx->cgroup);
        g->kill_us = g->kill_us ? g->kill_us : now_us;
    }
    if (g->stopping)
        er_group_step_all(g, ER_WORKER_EV_TIME, now_us, 0);
    else if (g->leaving)
        er_group_step_leaving(g, now_us);
    else
        er_group_step_deserted(g, now_us);
    er_group_step_joining(g, now_us);
    if (g->alive_n == 0)
        sweep(g, now_us);
    if (!g->gone && g->kill_us && now_us >= g->kill_us + er_orphan_patience_us())
        abandon(g);
}
