#include "agent/recovery.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"

#define LOOK_EVERY_US (1 * ER_US_PER_MS)
#define SLOW_EVERY_US (50 * ER_US_PER_MS)
#define SLOW_AFTER_US (60 * ER_US_PER_S)
#define GIVE_UP_US    (600 * ER_US_PER_S)

void er_recovery_failed(struct er_recovery *r, uint64_t failed_us, uint64_t detected_us)
{
    /* A failure before the last recovery was over prolongs that one. */
    uint64_t first_us = r->active ? r->failed_us : failed_us;
    uint64_t old_step = r->active ? r->old_step : 0;
    uint64_t step_us = r->active ? r->step_us : 0;
    bool expects = r->active && r->expects_steps;

    *r = (struct er_recovery){.active = true,
                              .failed_us = first_us,
                              .detected_us = detected_us,
                              .old_step = old_step,
                              .step_us = step_us,
                              .expects_steps = expects};
}

/* Of what this process has timed. */
static uint64_t mean_step_us(struct er_page_progress *p)
{
    uint64_t n = 0;

    for (int i = 0; i < ER_PAGE_STEP_TIMES; i++)
        n += atomic_load(&p->steps_by_time[i]);
    return n ? atomic_load(&p->steps_time_us) / n : 0;
}

void er_recovery_gone(struct er_recovery *r, struct er_group *group, uint64_t now_us)
{
    if (!r->active)
        return;
    r->gone_us = now_us;
    for (int i = 0; i < er_group_size(group); i++) {
        struct er_page_progress *p = &er_group_worker(group, i)->page->from_worker;
        uint64_t step = atomic_load(&p->step), step_us = mean_step_us(p);

        if (step_us > r->step_us)
            r->step_us = step_us;
        if (step > r->old_step)
            r->old_step = step;
        if (atomic_load(&p->first_step_us))
            r->expects_steps = true;
    }
}

void er_recovery_started(struct er_recovery *r, const char *reason, uint64_t now_us)
{
    if (!r->active)
        return;
    r->started_us = now_us;
    snprintf(r->reason, sizeof(r->reason), "%s", reason);
}

uint64_t er_recovery_deadline(const struct er_recovery *r, uint64_t now_us)
{
    uint64_t age_us = now_us - r->started_us;

    if (!r->active || !r->started_us || !r->expects_steps || age_us > GIVE_UP_US)
        return ER_FOREVER;
    return now_us + (age_us > SLOW_AFTER_US ? SLOW_EVERY_US : LOOK_EVERY_US);
}

/* Its program runs, or has run: a short one may have ended well already. */
static bool has_run(const struct er_worker *w)
{
    return w->fsm.state != ER_WORKER_SPAWNING;
}

bool er_recovery_step(struct er_recovery *r, struct er_group *group, uint64_t now_us)
{
    uint64_t last_us = 0, resumed = UINT64_MAX;

    if (!r->active || !r->started_us || er_group_size(group) == 0)
        return false;
    for (int i = 0; i < er_group_size(group); i++) {
        struct er_worker *w = er_group_worker(group, i);
        struct er_page_progress *p = &w->page->from_worker;
        uint64_t us = atomic_load(&p->first_step_us), step = atomic_load(&p->first_step);

        if (r->expects_steps ? us == 0 : !has_run(w))
            return false;
        if (us > last_us)
            last_us = us;
        if (step > 0 && step - 1 < resumed)
            resumed = step - 1;
    }
    r->first_step_us = last_us;
    r->resumed_step = r->loaded_step ? r->loaded_step : resumed == UINT64_MAX ? 0 : resumed;
    r->active = false;
    return true;
}
