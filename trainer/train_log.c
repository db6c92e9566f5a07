#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "trainer/train_internal.h"
#include "trainer/train_text.h"

#define BAR_EVERY_US   (ER_US_PER_S / 10)
#define LINE_MAX_BYTES (64 * 1024)

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

static uint64_t time_left_us(const struct er_train *train, uint64_t now_us)
{
    uint64_t done = train->applied - train->pace_step;

    if (train->pace_us == 0 || done == 0)
        return 0;
    return (uint64_t)((double)(now_us - train->pace_us) / (double)done *
                      (double)(train->total_steps - train->applied));
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
        .phases = train->clock.step,
        .text = "",
    };

    if (train->rank != 0 || !train->opts->log || every == 0)
        return;
    if (train->applied % every != 0 && train->applied != train->total_steps)
        return;
    if (now_us > train->line_us)
        line.samples_per_s = (double)(train->samples - train->line_samples) * (double)ER_US_PER_S /
                             (double)(now_us - train->line_us);
    line.tokens_per_s = line.samples_per_s * (double)train->opts->tokens_per_sample;
    line.eta_us = time_left_us(train, now_us);
    train->line_us = now_us;
    train->line_samples = train->samples;
    train->opts->log(train->user, &line);
}

/* ---- for programs ---- */

static bool bar_shown; /* one program, one terminal */

static size_t terminal_columns(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* The bar stays in its line until the last step; whatever else is told goes above it. */
static void on_terminal(const struct er_train_line *line, struct er_buf *text)
{
    static uint64_t drawn_us;
    bool last = line->step == line->total_steps;

    if (line->event != ER_TRAIN_STEP) {
        er_train_text(line, text);
        printf("%s%s\n", bar_shown ? "\r\033[K" : "", er_buf_str(text));
        bar_shown = false;
    } else if (last || !bar_shown || er_now_us() - drawn_us >= BAR_EVERY_US) {
        er_train_text_bar(line, terminal_columns(), text);
        printf("\r%s\033[K%s", er_buf_str(text), last ? "\n" : "");
        bar_shown = !last;
        drawn_us = er_now_us();
    }
}

void er_train_log_stdout(void *user, const struct er_train_line *line)
{
    struct er_buf text;

    er_buf_init(&text, LINE_MAX_BYTES);
    if (isatty(STDOUT_FILENO)) {
        on_terminal(line, &text);
    } else {
        er_train_text(line, &text);
        puts(er_buf_str(&text));
    }
    fflush(stdout);
    er_buf_done(&text);
}

void er_train_log_json(void *user, const struct er_train_line *line)
{
    struct er_buf text;

    er_buf_init(&text, LINE_MAX_BYTES);
    er_train_text_json(line, &text);
    puts(er_buf_str(&text));
    fflush(stdout);
    er_buf_done(&text);
}
