#include "base/clock.h"
#include "trainer/train_internal.h"

#define RATE_EVERY_US ER_US_PER_S

/* Where the time of a phase is counted; NULL: nowhere. */
static uint64_t *place_of(struct er_train_phases *phases, enum er_phase phase)
{
    switch (phase) {
    case ER_PHASE_DATA:
        return &phases->data_us;
    case ER_PHASE_FORWARD:
        return &phases->forward_us;
    case ER_PHASE_BACKWARD:
        return &phases->backward_us;
    case ER_PHASE_COMMUNICATE:
        return &phases->communicate_us;
    case ER_PHASE_OPTIMIZER:
        return &phases->optimizer_us;
    case ER_PHASE_STARTUP:
    case ER_PHASE_CHECKPOINT:
    case ER_PHASE_EVALUATION:
    case ER_PHASE_IDLE:
        return NULL;
    }
    return NULL;
}

void er_train_phase(struct er_train *train, enum er_phase phase)
{
    struct er_train_clock *clock = &train->clock;
    uint64_t now_us = er_now_us(), *place = place_of(&clock->step, clock->phase);

    if (place)
        *place += now_us - clock->since_us;
    clock->phase = phase;
    clock->since_us = now_us;
    er_progress(train->ctx, phase, train->applied);
}

void er_step_phase(const struct er_step *step, enum er_phase phase)
{
    bool in_step =
        phase == ER_PHASE_DATA || phase == ER_PHASE_FORWARD || phase == ER_PHASE_BACKWARD;

    if (step->clock && in_step)
        er_train_phase(step->clock->train, phase);
}

void er_train_clock_begin(struct er_train *train)
{
    train->clock.train = train;
    train->clock.phase = ER_PHASE_IDLE;
    train->clock.step = (struct er_train_phases){0};
    er_train_phase(train, ER_PHASE_FORWARD);
}

static void add(struct er_train_phases *sum, const struct er_train_phases *step)
{
    sum->data_us += step->data_us;
    sum->forward_us += step->forward_us;
    sum->backward_us += step->backward_us;
    sum->communicate_us += step->communicate_us;
    sum->optimizer_us += step->optimizer_us;
}

static void update_rates(struct er_train_clock *clock, uint64_t now_us)
{
    const struct er_train *train = clock->train;
    uint64_t samples = train->samples - clock->rate_samples, us = now_us - clock->rate_us;

    if (clock->rate_us == 0 || train->samples < clock->rate_samples) {
        clock->rate_us = now_us; /* nothing to compare with */
        clock->rate_samples = train->samples;
    } else if (us >= RATE_EVERY_US) {
        clock->pace.samples_per_s = samples * ER_US_PER_S / us;
        clock->pace.tokens_per_s = clock->pace.samples_per_s * train->opts->tokens_per_sample;
        clock->rate_us = now_us;
        clock->rate_samples = train->samples;
    }
}

void er_train_clock_end(struct er_train *train)
{
    struct er_train_clock *clock = &train->clock;
    const struct er_train_phases *sum = &train->result.phases;

    add(&train->result.phases, &clock->step);
    clock->busy_us = clock->step.data_us + clock->step.forward_us + clock->step.backward_us +
                     clock->step.optimizer_us;
    update_rates(clock, clock->since_us);
    clock->pace.tokens = train->samples * train->opts->tokens_per_sample;
    clock->pace.data_us = sum->data_us;
    clock->pace.forward_us = sum->forward_us;
    clock->pace.backward_us = sum->backward_us;
    clock->pace.communicate_us = sum->communicate_us;
    clock->pace.optimizer_us = sum->optimizer_us;
    er_progress_figures(train->ctx, train->samples, train->result.loss, train->total_steps);
    er_progress_pace(train->ctx, &clock->pace);
}
