/* What the line at the bottom of the terminal says. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/statusline.h"
#include "base/clock.h"
#include "base/log.h"

#define EVERY_US (500 * ER_US_PER_MS)
#define RATE_US  (2 * ER_US_PER_S) /* steps are counted over that long, at least */

void er_agent_statusline_open(struct er_agent *agent)
{
    const struct er_config *c = agent->config;

    /* Without logs the workers write to the terminal themselves: nobody could keep out of their
     * way. */
    agent->statusline.next_us = ER_FOREVER;
    if ((c->log.dir || c->log.tee.all || c->log.tee.n) && !er_config_json_log(c) &&
        er_statusline_open(STDERR_FILENO, getppid())) {
        agent->statusline.next_us = er_now_us();
        er_log_around(er_statusline_around_log, er_statusline_end);
    }
}

/* The step that all ranks here have finished; false: not all of them report. */
static bool steps_of(const struct er_agent *agent, uint64_t *ret_step, uint64_t *ret_total,
                     double *ret_loss)
{
    int n = agent->group ? er_group_size(agent->group) : 0;

    *ret_step = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);
        const struct er_page_progress *p = w->page ? &w->page->from_worker : NULL;
        uint64_t step = p ? atomic_load(&p->step) : 0, bits;

        if (!p || atomic_load(&p->step_us) == 0)
            return false;
        *ret_step = step < *ret_step ? step : *ret_step;
        if (i == 0) {
            *ret_total = atomic_load(&p->total_steps);
            bits = atomic_load(&p->loss_bits);
            memcpy(ret_loss, &bits, sizeof(*ret_loss));
        }
    }
    return n > 0;
}

static double rate_of(struct er_statusline_pace *pace, uint64_t step, uint64_t now_us)
{
    if (step < pace->step || pace->since_us == 0) { /* anew, or back to a checkpoint */
        *pace =
            (struct er_statusline_pace){.next_us = pace->next_us, .since_us = now_us, .step = step};
    } else if (now_us >= pace->since_us + RATE_US && step > pace->step) {
        pace->rate = (double)(step - pace->step) * 1e6 / (double)(now_us - pace->since_us);
        pace->since_us = now_us;
        pace->step = step;
    }
    return pace->rate;
}

struct text {
    char at[ER_STATUSLINE_MAX];
    size_t n;
};

static void add(struct text *t, const char *fmt, ...) ER_PRINTF(2, 3);
static void add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(t->at + t->n, sizeof(t->at) - t->n, fmt, ap);
    va_end(ap);
    t->n = n > 0 && t->n + (size_t)n < sizeof(t->at) ? t->n + (size_t)n : sizeof(t->at) - 1;
}

static void add_steps(struct er_agent *agent, struct text *t, uint64_t now_us)
{
    uint64_t step, total = 0;
    double loss = 0, rate;

    if (!steps_of(agent, &step, &total, &loss))
        return;
    rate = rate_of(&agent->statusline, step, now_us);
    add(t, ", step %llu", (unsigned long long)step);
    if (total)
        add(t, "/%llu", (unsigned long long)total);
    if (rate > 0)
        add(t, " (%.*f/s)", rate < 10 ? 2 : 0, rate);
    if (loss != 0)
        add(t, ", loss %.4g", loss);
}

static void add_budget(struct er_agent *agent, struct text *t)
{
    uint32_t max = agent->config->restart.max, used = er_driver_restarts(agent->driver);

    if (max != ER_NONE_U32 && max > 0)
        add(t, ", %u of %u restarts left", used < max ? max - used : 0, max);
}

void er_agent_statusline_step(struct er_agent *agent, uint64_t now_us)
{
    const struct er_assignment *a = agent->group ? er_group_assignment(agent->group) : NULL;
    struct text t = {.n = 0};

    if (now_us < agent->statusline.next_us)
        return;
    agent->statusline.next_us = er_deadline_in(now_us, EVERY_US);
    add(&t, "%s: %s", agent->config->name, er_driver_phase(agent->driver));
    if (a) {
        add(&t, ", generation %llu, %d node%s, %d rank%s", (unsigned long long)a->generation,
            a->nnodes, a->nnodes == 1 ? "" : "s", a->world_size, a->world_size == 1 ? "" : "s");
        add_steps(agent, &t, now_us);
        add_budget(agent, &t);
    }
    er_statusline_set(t.at);
}
