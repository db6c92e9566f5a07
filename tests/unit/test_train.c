/* The training loop in a world of one: steps, checkpoints, resume, what it refuses. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/toy_model.h"

#define SAMPLES 100
#define BATCH   16
#define EPOCHS  3
#define STEPS   21 /* 7 an epoch, the last of 4 samples */

static const struct er_plan plan = {.samples = SAMPLES, .global_batch = BATCH, .seed = 5};

struct run {
    struct er_toy *toy;
    struct er_train_opts opts;
    struct er_train_result result;
    struct er_error err;
    int rc;
};

/* A fresh process in the eyes of the loop: new model, new context. */
static void set_up(struct run *run, const char *dir)
{
    memset(run, 0, sizeof(*run));
    run->toy = er_toy_new(8, &plan, 1);
    run->opts = (struct er_train_opts){
        .plan = plan,
        .epochs = EPOCHS,
        .checkpoint_dir = dir ? dir : "",
        .checkpoint_steps = 5,
        .checkpoint_wait = true,
        .log_steps = 4,
        .log = er_toy_log,
    };
}

static void go(struct run *run)
{
    struct er_ctx *ctx = NULL;

    cr_assert_eq(er_open(&ctx, &run->err), 0, "%s", run->err.text);
    run->rc = er_train_run(ctx, &er_toy_ops, run->toy, &run->opts, &run->result, &run->err);
    er_close(ctx);
}

static void tear_down(struct run *run)
{
    er_toy_free(run->toy);
}

Test(train, runs_every_step_and_learns)
{
    struct run run;

    set_up(&run, NULL);
    run.opts.epochs = 20;
    go(&run);
    cr_expect_eq(run.rc, 0, "%s", run.err.text);
    cr_expect_eq(run.result.steps, 140);
    cr_expect_eq(run.result.resumed_from, 0);
    cr_expect_not(run.result.stopped);
    cr_expect_lt(run.toy->losses[140] / 4, 0.1 * run.toy->losses[1] / 16);
    cr_expect_eq(run.result.loss, run.toy->losses[140] / 4);
    cr_expect_eq(run.toy->epochs_ended, 20);
    cr_expect_eq(run.toy->lines, 35);
    cr_expect_eq(run.toy->last_line.event, ER_TRAIN_STEP);
    cr_expect_eq(run.toy->last_line.epoch, 19);
    cr_expect_eq(run.toy->last_line.total_steps, 140);
    tear_down(&run);
}

static void pass_ms(uint64_t ms)
{
    uint64_t until_us = er_now_us() + ms * 1000;

    while (er_now_us() < until_us)
        ;
}

static int take_time(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    er_step_phase(step, ER_PHASE_DATA);
    pass_ms(1);
    er_step_phase(step, ER_PHASE_CHECKPOINT); /* not grads()' to say: nothing changes */
    pass_ms(1);
    er_step_phase(step, ER_PHASE_FORWARD);
    er_step_phase(step, ER_PHASE_BACKWARD);
    pass_ms(3);
    return 0;
}

static void take_time_to_apply(struct er_toy *toy, uint64_t step, const struct er_vote *vote)
{
    pass_ms(1);
}

Test(train, phases_have_the_time_that_was_spent_in_them)
{
    struct er_train_phases phases;
    struct run run;

    set_up(&run, NULL);
    run.toy->after_backward = take_time;
    run.toy->before_apply = take_time_to_apply;
    go(&run);
    cr_expect_eq(run.rc, 0, "%s", run.err.text);
    phases = run.toy->last_line.phases; /* of one step */
    cr_expect_geq(phases.data_us, 2000);
    cr_expect_geq(phases.backward_us, 3000);
    cr_expect_geq(phases.optimizer_us, 1000);
    phases = run.result.phases;
    cr_expect_geq(phases.data_us, STEPS * 2000);
    cr_expect_geq(phases.backward_us, STEPS * 3000);
    cr_expect_geq(phases.optimizer_us, STEPS * 1000);
    tear_down(&run);
}

Test(train, losses_are_the_same_bits_in_two_runs)
{
    struct run a, b;

    set_up(&a, NULL);
    set_up(&b, NULL);
    go(&a);
    go(&b);
    cr_expect_arr_eq(a.toy->losses, b.toy->losses, sizeof(a.toy->losses));
    cr_expect_arr_eq(a.toy->params, b.toy->params, a.toy->params_n * sizeof(float));
    tear_down(&a);
    tear_down(&b);
}

static int fail_at_13(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return step->step == 13 ? -1 : 0;
}

Test(train, a_resumed_run_has_the_same_bits_as_an_uninterrupted_one)
{
    char dir[ER_TEST_PATH_MAX];
    struct run whole, first, second;

    er_test_tempdir(dir);
    set_up(&whole, NULL);
    go(&whole);
    set_up(&first, dir);
    first.toy->after_backward = fail_at_13;
    go(&first);
    cr_expect_eq(first.rc, ER_E_USAGE);
    cr_expect(strstr(first.err.text, "rank 0, gradients of step 13"), "%s", first.err.text);
    set_up(&second, dir);
    second.toy->params[0] = 123; /* whatever it began with */
    go(&second);
    cr_expect_eq(second.rc, 0, "%s", second.err.text);
    cr_expect_eq(second.result.resumed_from, 10);
    cr_expect_eq(second.result.steps, STEPS);
    cr_expect_arr_eq(second.toy->losses + 11, whole.toy->losses + 11, 11 * sizeof(double));
    cr_expect_arr_eq(second.toy->params, whole.toy->params, whole.toy->params_n * sizeof(float));
    tear_down(&whole);
    tear_down(&first);
    tear_down(&second);
    er_test_rmtree(dir);
}

Test(train, a_finished_run_started_again_only_evaluates)
{
    char dir[ER_TEST_PATH_MAX];
    struct run first, again;

    er_test_tempdir(dir);
    set_up(&first, dir);
    go(&first);
    cr_expect_eq(first.rc, 0, "%s", first.err.text);
    set_up(&again, dir);
    go(&again);
    cr_expect_eq(again.rc, 0, "%s", again.err.text);
    cr_expect_eq(again.result.resumed_from, STEPS);
    cr_expect_eq(again.result.steps, STEPS);
    cr_expect_eq(again.toy->epochs_ended, 1);
    cr_expect_arr_eq(again.toy->params, first.toy->params, first.toy->params_n * sizeof(float));
    tear_down(&first);
    tear_down(&again);
    er_test_rmtree(dir);
}

/* Turns one byte of the newest checkpoint's shard over. */
static void spoil(const char *dir, uint64_t step)
{
    char path[2 * ER_TEST_PATH_MAX];
    unsigned char byte;
    int fd;

    snprintf(path, sizeof(path), "%s/step-%012" PRIu64 "/shard-0-of-1.safetensors", dir, step);
    fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0, "%s", path);
    cr_assert_eq(pread(fd, &byte, 1, lseek(fd, 0, SEEK_END) - 8), 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, lseek(fd, 0, SEEK_END) - 8), 1);
    close(fd);
}

Test(train, a_corrupt_checkpoint_is_passed_over_with_its_reason)
{
    char dir[ER_TEST_PATH_MAX];
    struct run first, second;

    er_test_tempdir(dir);
    set_up(&first, dir);
    go(&first);
    spoil(dir, STEPS);
    set_up(&second, dir);
    second.opts.log_steps = 0;
    go(&second);
    cr_expect_eq(second.rc, 0, "%s", second.err.text);
    cr_expect_eq(second.result.resumed_from, 20);
    cr_expect_eq(second.toy->losses[STEPS], first.toy->losses[STEPS]);
    cr_expect_eq(second.toy->lines, 3); /* passed over, resumed, saved */
    tear_down(&first);
    tear_down(&second);
    er_test_rmtree(dir);
}

Test(train, a_checkpoint_of_another_plan_is_refused)
{
    char dir[ER_TEST_PATH_MAX];
    struct run first, second;

    er_test_tempdir(dir);
    set_up(&first, dir);
    go(&first);
    set_up(&second, dir);
    second.opts.plan.global_batch = 8;
    go(&second);
    cr_expect_eq(second.rc, ER_E_CONFIG);
    cr_expect(strstr(second.err.text, "global batch 16, this run 8"), "%s", second.err.text);
    tear_down(&first);
    tear_down(&second);
    er_test_rmtree(dir);
}

static int nan_at_6(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == 6)
        loss->sum = NAN;
    return 0;
}

Test(train, a_loss_that_is_not_finite_names_rank_and_step)
{
    struct run run;

    set_up(&run, NULL);
    run.toy->after_backward = nan_at_6;
    go(&run);
    cr_expect_eq(run.rc, -EDOM);
    cr_expect_str_eq(run.err.text, "step 6: the loss of rank 0 is not finite");
    cr_expect_eq(run.toy->losses[6], 0); /* not applied */
    tear_down(&run);
}

/* At step 9 a sample spoils loss and gradients; `test`: how many times, NULL: always. */
static int spoil_9(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    int *left = toy->test;

    if (step->step != 9 || (left && (*left)-- <= 0))
        return 0;
    loss->sum = NAN;
    for (size_t i = 0; i < toy->params_n; i++)
        toy->grads[i] = NAN;
    return 0;
}

static int spoil_from_9(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step >= 9)
        loss->sum = NAN;
    return 0;
}

/* A gradient alone: the loss is fine. */
static void overflow_9(struct er_toy *toy, const struct er_step *step, size_t span)
{
    if (step->step == 9)
        toy->grads[0] = INFINITY;
}

static bool same_params(const struct er_toy *a, const struct er_toy *b)
{
    return memcmp(a->params, b->params, a->params_n * sizeof(float)) == 0;
}

static void log_not_finite(void *user, const struct er_train_line *line)
{
    struct er_toy *toy = user;

    if (line->event == ER_TRAIN_NOT_FINITE)
        er_toy_log(toy, line);
}

Test(train, a_skipped_step_changes_nothing_but_the_count)
{
    for (size_t i = 0; i < 2; i++) {
        struct run run;

        set_up(&run, NULL);
        run.opts.nonfinite = ER_NONFINITE_SKIP;
        run.opts.log = log_not_finite;
        if (i == 0)
            run.toy->after_backward = spoil_9;
        else
            run.toy->before_ready = overflow_9;
        go(&run);
        cr_expect_eq(run.rc, 0, "%s", run.err.text);
        cr_expect_eq(run.result.steps, STEPS);
        cr_expect_eq(run.result.skipped, 1);
        cr_expect_eq(run.toy->losses[9], 0); /* not applied */
        cr_expect_gt(run.toy->losses[10], 0);
        cr_expect(isfinite(run.toy->params[0]) && isfinite(run.result.loss));
        cr_expect_eq(run.toy->lines, 1);
        cr_expect_eq(run.toy->last_line.step, 9);
        cr_expect(strstr(run.toy->last_text, "skipped; step 9: "), "%s", run.toy->last_text);
        tear_down(&run);
    }
}

/* What went wrong once does not come again: the run is as if nothing had been. */
Test(train, going_back_heals_what_does_not_come_again)
{
    char dir[ER_TEST_PATH_MAX];
    struct run whole, run;
    int once = 1;

    er_test_tempdir(dir);
    set_up(&whole, NULL);
    go(&whole);
    set_up(&run, dir);
    run.opts.nonfinite = ER_NONFINITE_ROLL_BACK;
    run.toy->after_backward = spoil_9;
    run.toy->test = &once;
    go(&run);
    cr_expect_eq(run.rc, 0, "%s", run.err.text);
    cr_expect_eq(run.result.rolled_back, 1);
    cr_expect_eq(run.result.skipped, 0);
    cr_expect_eq(run.result.resumed_from, 5);
    cr_expect(same_params(run.toy, whole.toy));
    tear_down(&run);
    tear_down(&whole);
    er_test_rmtree(dir);
}

/* Also with a checkpoint in flight. */
Test(train, a_step_that_is_not_finite_again_is_skipped)
{
    char dir[ER_TEST_PATH_MAX];
    struct run skipped, run;

    er_test_tempdir(dir);
    set_up(&skipped, NULL);
    skipped.opts.nonfinite = ER_NONFINITE_SKIP;
    skipped.toy->after_backward = spoil_9;
    go(&skipped);
    set_up(&run, dir);
    run.opts.nonfinite = ER_NONFINITE_ROLL_BACK;
    run.opts.checkpoint_wait = false;
    run.opts.checkpoint_steps = 2;
    run.toy->after_backward = spoil_9;
    go(&run);
    cr_expect_eq(run.rc, 0, "%s", run.err.text);
    cr_expect_eq(run.result.rolled_back, 1);
    cr_expect_eq(run.result.skipped, 1);
    cr_expect(same_params(run.toy, skipped.toy));
    tear_down(&run);
    tear_down(&skipped);
    er_test_rmtree(dir);
}

Test(train, spoilt_parameters_end_the_run_under_any_policy)
{
    struct run run;

    set_up(&run, NULL);
    run.opts.nonfinite = ER_NONFINITE_SKIP;
    run.opts.nonfinite_max = 3;
    run.toy->after_backward = spoil_from_9;
    go(&run);
    cr_expect_eq(run.rc, -EDOM);
    cr_expect_str_eq(run.err.text,
                     "step 12: the loss of rank 0 is not finite; 4 steps in a row were not");
    tear_down(&run);
}

Test(train, going_back_needs_a_checkpoint)
{
    struct run run;

    set_up(&run, NULL);
    run.opts.nonfinite = ER_NONFINITE_ROLL_BACK;
    run.toy->after_backward = spoil_9;
    go(&run);
    cr_expect_eq(run.rc, -EDOM);
    cr_expect(strstr(run.err.text, "no checkpoint to go back to"), "%s", run.err.text);
    tear_down(&run);
}

static int no_weight(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    loss->weight = 0;
    return 0;
}

Test(train, a_step_in_which_no_sample_counts_is_refused)
{
    struct run run;

    set_up(&run, NULL);
    run.toy->after_backward = no_weight;
    go(&run);
    cr_expect_eq(run.rc, -EDOM);
    cr_expect(strstr(run.err.text, "step 1: no sample counts"), "%s", run.err.text);
    tear_down(&run);
}

/* Takes the folder away, so that nothing can be written; works for root too. */
static void lose_folder(struct er_toy *toy, uint64_t step, const struct er_vote *vote)
{
    const char *dir = toy->test;

    if (step == 2) {
        er_test_rmtree(dir);
        er_test_write_file(dir, "not a folder");
    }
}

Test(train, failed_checkpoints_do_not_end_training)
{
    char dir[ER_TEST_PATH_MAX];
    struct run run;

    er_test_tempdir(dir);
    set_up(&run, dir);
    run.toy->before_apply = lose_folder;
    run.toy->test = dir;
    run.opts.log_steps = 0;
    go(&run);
    cr_expect_eq(run.rc, 0, "%s", run.err.text);
    cr_expect_eq(run.result.steps, STEPS);
    cr_expect_eq(run.toy->last_line.event, ER_TRAIN_SAVE_FAILED);
    cr_expect_eq(run.toy->lines, 6); /* steps 5, 10, 15, 20, 21; the ledger's end */
    tear_down(&run);
    unlink(dir);
}

Test(train, too_many_failed_checkpoints_do)
{
    char dir[ER_TEST_PATH_MAX];
    struct run run;

    er_test_tempdir(dir);
    set_up(&run, dir);
    run.toy->before_apply = lose_folder;
    run.toy->test = dir;
    run.opts.checkpoint_failures_max = 2;
    go(&run);
    cr_expect_eq(run.rc, -EIO);
    cr_expect(strstr(run.err.text, "2 checkpoints in a row failed"), "%s", run.err.text);
    cr_expect_neq(run.toy->losses[10], 0);
    cr_expect_eq(run.toy->losses[11], 0);
    tear_down(&run);
    unlink(dir);
}

Test(train, checkpoints_can_follow_the_clock)
{
    char dir[ER_TEST_PATH_MAX];
    struct run run;

    er_test_tempdir(dir);
    set_up(&run, dir);
    run.opts.checkpoint_steps = 0;
    run.opts.checkpoint_every_us = 1; /* always due */
    run.opts.log_steps = 0;
    go(&run);
    cr_expect_eq(run.rc, 0, "%s", run.err.text);
    cr_expect_eq(run.toy->lines, STEPS);
    cr_expect_eq(run.toy->last_line.event, ER_TRAIN_SAVED);
    tear_down(&run);
    er_test_rmtree(dir);
}

Test(train, wrong_options_are_refused)
{
    static const struct {
        struct er_plan plan;
        uint64_t epochs;
    } cases[] = {
        {{0, 1, 0}, 1},
        {{1, 0, 0}, 1},
        {{1, 1, 0}, 0},
        {{UINT64_MAX, 1, 0}, 2},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct run run;

        set_up(&run, NULL);
        run.opts.plan = cases[i].plan;
        run.opts.epochs = cases[i].epochs;
        go(&run);
        cr_expect_eq(run.rc, ER_E_USAGE, "case %zu", i);
        tear_down(&run);
    }
}
