#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "trainer/train_internal.h"

void er_train_tell(struct er_train *train, enum er_train_event event, uint64_t step,
                   const char *text)
{
    struct er_train_line line = {
        .event = event,
        .step = step,
        .total_steps = train->total_steps,
        .epoch = step > 0 ? (step - 1) / train->epoch_steps : 0,
        .text = text ? text : "",
    };

    if (train->rank == 0 && train->opts->log)
        train->opts->log(train->user, &line);
}

void er_train_tell_step(struct er_train *train, const struct er_range *range)
{
    uint64_t every = train->opts->log_steps, now_us = er_now_us();
    struct er_train_line line = {
        .event = ER_TRAIN_STEP,
        .step = train->applied,
        .total_steps = train->total_steps,
        .epoch = range->epoch,
        .loss = train->result.loss,
        .times = train->times,
        .text = "",
    };

    if (train->rank != 0 || !train->opts->log || every == 0)
        return;
    if (train->applied % every != 0 && train->applied != train->total_steps)
        return;
    if (now_us > train->line_us)
        line.samples_per_s = (double)(train->samples - train->line_samples) * (double)ER_US_PER_S /
                             (double)(now_us - train->line_us);
    train->line_us = now_us;
    train->line_samples = train->samples;
    train->opts->log(train->user, &line);
}

static const char *const event_words[] = {
    [ER_TRAIN_SKIPPED] = "passed over",   [ER_TRAIN_RESUMED] = "resumed from",
    [ER_TRAIN_STOOD_IN] = "stood in",     [ER_TRAIN_SAVED] = "saved",
    [ER_TRAIN_SAVE_FAILED] = "not saved", [ER_TRAIN_NOT_FINITE] = "not finite:",
    [ER_TRAIN_STOPPED] = "stopped by",
};

_Static_assert(ER_ARRAY_N(event_words) == ER_TRAIN_STOPPED + 1, "a word for each event");

void er_train_log_stdout(void *user, const struct er_train_line *line)
{
    unsigned long step = (unsigned long)line->step, total = (unsigned long)line->total_steps;

    if (line->event == ER_TRAIN_STEP)
        printf("step %lu/%lu epoch %lu loss %.6f %.0f samples/s\n", step, total,
               (unsigned long)line->epoch + 1, line->loss, line->samples_per_s);
    else
        printf("step %lu/%lu %s %s\n", step, total, event_words[line->event], line->text);
    fflush(stdout);
}
