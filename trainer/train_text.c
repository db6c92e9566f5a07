#include "trainer/train_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/field.h"

#define BAR_CELLS_MIN 10
#define BAR_CELLS_MAX 40

static const struct {
    const char *words; /* for people, before the line's text */
    const char *name;  /* for programs */
} events[] = {
    [ER_TRAIN_STEP] = {"", "step"},
    [ER_TRAIN_SKIPPED] = {"passed over", "checkpoint_skipped"},
    [ER_TRAIN_RESUMED] = {"resumed from", "resumed"},
    [ER_TRAIN_SAVED] = {"saved", "saved"},
    [ER_TRAIN_STOOD_IN] = {"stood in", "stood_in"},
    [ER_TRAIN_SAVE_FAILED] = {"not saved", "save_failed"},
    [ER_TRAIN_NOT_FINITE] = {"not finite:", "not_finite"},
    [ER_TRAIN_LEFT_OUT] = {"left out:", "left_out"},
    [ER_TRAIN_STOPPED] = {"stopped by", "stopped"},
    [ER_TRAIN_RECOVERED] = {"goes on with", "recovered"},
};

_Static_assert(ER_ARRAY_N(events) == ER_TRAIN_EVENT_COUNT, "words for each event");

static void put_rates(const struct er_train_line *line, struct er_buf *text)
{
    er_buf_printf(text, "loss %.6f %.0f samples/s", line->loss, line->samples_per_s);
    if (line->tokens_per_s > 0)
        er_buf_printf(text, " %.0f tokens/s", line->tokens_per_s);
}

void er_train_text(const struct er_train_line *line, struct er_buf *text)
{
    er_buf_printf(text, "step %" PRIu64 "/%" PRIu64 " ", line->step, line->total_steps);
    if (line->event == ER_TRAIN_STEP) {
        er_buf_printf(text, "epoch %" PRIu64 " ", line->epoch + 1);
        put_rates(line, text);
    } else {
        er_buf_printf(text, "%s %s", events[line->event].words, line->text);
    }
}

static void put_time_left(const struct er_train_line *line, struct er_buf *text)
{
    uint64_t s = line->eta_us / ER_US_PER_S;

    if (line->eta_us > 0)
        er_buf_printf(text, " ETA %" PRIu64 ":%02" PRIu64 ":%02" PRIu64, s / 3600, s / 60 % 60,
                      s % 60);
}

void er_train_text_bar(const struct er_train_line *line, size_t columns, struct er_buf *text)
{
    char bar[BAR_CELLS_MAX + 1] = "", rest[256];
    double share = line->total_steps > 0 ? (double)line->step / (double)line->total_steps : 1;
    struct er_buf figures;
    size_t cells = 0, used;

    er_buf_init(&figures, sizeof(rest));
    er_buf_printf(&figures, "%3d %% step %" PRIu64 "/%" PRIu64 " ", (int)(share * 100), line->step,
                  line->total_steps);
    put_rates(line, &figures);
    put_time_left(line, &figures);
    snprintf(rest, sizeof(rest), "%s", er_buf_str(&figures));
    er_buf_done(&figures);
    used = strlen(rest) + 4; /* brackets, a blank, and the last column, where some would wrap */
    if (columns >= used + BAR_CELLS_MIN)
        cells = columns - used < BAR_CELLS_MAX ? columns - used : BAR_CELLS_MAX;
    for (size_t i = 0; i < cells; i++) {
        size_t full = (size_t)(share * (double)cells);

        bar[i] = (char)(i < full ? '=' : i == full ? '>' : ' ');
    }
    if (cells > 0)
        er_buf_printf(text, "[%s] %s", bar, rest);
    else
        er_buf_printf(text, "%.*s", columns > 1 ? (int)columns - 1 : 0, rest);
}

/* JSON has no other numbers. */
static void put_number(struct er_buf *text, const char *name, double value)
{
    if (isfinite(value))
        er_buf_printf(text, ", \"%s\": %.9g", name, value);
    else
        er_buf_printf(text, ", \"%s\": null", name);
}

static void put_step(const struct er_train_line *line, struct er_buf *text)
{
    put_number(text, "loss", line->loss);
    put_number(text, "samples_per_s", line->samples_per_s);
    if (line->tokens_per_s > 0)
        put_number(text, "tokens_per_s", line->tokens_per_s);
    if (line->eta_us > 0)
        put_number(text, "eta_s", (double)line->eta_us / (double)ER_US_PER_S);
    er_buf_printf(text,
                  ", \"comm_us\": %" PRIu64 ", \"exposed_us\": %" PRIu64 ", \"vote_us\": %" PRIu64
                  ", \"buckets\": %" PRIu64,
                  line->times.comm_us, line->times.exposed_us, line->times.vote_us,
                  line->times.buckets);
    er_buf_printf(text,
                  ", \"data_us\": %" PRIu64 ", \"forward_us\": %" PRIu64
                  ", \"backward_us\": %" PRIu64 ", \"communicate_us\": %" PRIu64
                  ", \"optimizer_us\": %" PRIu64,
                  line->phases.data_us, line->phases.forward_us, line->phases.backward_us,
                  line->phases.communicate_us, line->phases.optimizer_us);
}

void er_train_text_json(const struct er_train_line *line, struct er_buf *text)
{
    er_buf_printf(text,
                  "{\"event\": \"%s\", \"step\": %" PRIu64 ", \"total_steps\": %" PRIu64
                  ", \"epoch\": %" PRIu64,
                  events[line->event].name, line->step, line->total_steps, line->epoch + 1);
    if (line->event == ER_TRAIN_STEP) {
        put_step(line, text);
    } else {
        er_buf_add_str(text, ", \"text\": ");
        er_json_quote(text, line->text, strlen(line->text));
    }
    er_buf_add_str(text, "}");
}
