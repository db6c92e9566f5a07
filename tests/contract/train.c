/* The training loop with real ranks: agreement on checkpoints and notices, loss of a rank, resume
 * with the same bits, another world size. */
#include "trainer/train.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/toy_model.h"

#define RANKS_MAX  4
#define SAMPLES    250
#define BATCH      48
#define EPOCHS     4
#define STEPS      24 /* 6 an epoch, the last of 10 samples */
#define PARAMS_MAX 512

struct report {
    int rc;
    char text[ER_ERROR_TEXT_MAX];
    struct er_train_result result;
    uint64_t epochs_ended, commits, failed_commits, loaded;
    double losses[STEPS + 1];
    float params[PARAMS_MAX];
};

struct test {
    struct er_fake_world *world;
    char dir[ER_TEST_PATH_MAX];
    uint64_t checkpoint_steps, checkpoint_every_us;
    enum er_train_nonfinite nonfinite[RANKS_MAX];
    bool beside; /* checkpoints are written beside the steps, which do not wait */
    /* What happens to `rank` at `step`. */
    int (*deed)(struct er_toy *toy, const struct er_step *step, struct er_loss *loss);
    int rank;
    uint64_t step;
    struct report reports[RANKS_MAX];
};

static struct test *test;     /* shared by the ranks */
static struct report *report; /* this rank's */

/* The part of libelastic that the fake world leaves to its users. */
int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    report->commits += commit->error == 0;
    report->failed_commits += commit->error != 0;
    return 0;
}

int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
              const char *skipped, struct er_error *err)
{
    report->loaded = step;
    return 0;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static const struct er_plan plan = {.samples = SAMPLES, .global_batch = BATCH, .seed = 3};
    int rank = er_world(ctx)->rank;
    struct er_train_opts opts = {
        .plan = plan,
        .epochs = EPOCHS,
        .checkpoint_dir = test->dir,
        .checkpoint_steps = test->checkpoint_steps,
        .checkpoint_every_us = test->checkpoint_every_us,
        .checkpoint_wait = !test->beside,
        .nonfinite = test->nonfinite[rank],
    };
    /* Each rank begins elsewhere: rank 0's state, or the checkpoint's, must win. */
    struct er_toy *toy = er_toy_new(16, &plan, 40 + (uint64_t)rank);
    struct er_error err = ER_ERROR_INIT;

    report = &test->reports[rank];
    if (rank == test->rank)
        toy->after_backward = test->deed;
    report->rc = er_train_run(ctx, &er_toy_ops, toy, &opts, &report->result, &err);
    memcpy(report->text, err.text, sizeof(report->text));
    memcpy(report->losses, toy->losses, sizeof(report->losses));
    memcpy(report->params, toy->params, toy->params_n * sizeof(float));
    report->epochs_ended = toy->epochs_ended;
    er_toy_free(toy);
    return 0;
}

static void set_up(void)
{
    test = er_ranks_shared(sizeof(*test));
    test->world = er_fake_world_new();
    test->rank = -1;
}

static void go(int size)
{
    memset(test->reports, 0, sizeof(test->reports));
    for (int rank = 0; rank < RANKS_MAX; rank++)
        test->reports[rank].rc = -ECANCELED; /* it never came so far */
    er_ranks_run_in(test->world, size, rank_main, NULL, NULL);
    er_fake_world_free(test->world);
    test->world = er_fake_world_new();
}

static void expect_all(int size, int rc)
{
    for (int rank = 0; rank < size; rank++) {
        if (!er_tap_check(test->reports[rank].rc == rc))
            er_tap_note("rank %d of %d: %d %s", rank, size, test->reports[rank].rc,
                        test->reports[rank].text);
    }
}

static bool same_params(const struct report *a, const struct report *b)
{
    return memcmp(a->params, b->params, sizeof(a->params)) == 0;
}

static bool same_losses(const struct report *a, const struct report *b, uint64_t from)
{
    return memcmp(a->losses + from, b->losses + from, (STEPS + 1 - from) * sizeof(double)) == 0;
}

static void ranks_begin_and_end_with_the_same_state(void)
{
    set_up();
    for (int size = 1; size <= RANKS_MAX; size++) {
        go(size);
        expect_all(size, 0);
        for (int rank = 0; rank < size; rank++) {
            const struct report *r = &test->reports[rank];

            er_tap_check(r->result.steps == STEPS && r->epochs_ended == EPOCHS);
            er_tap_check(r->result.loss == r->losses[STEPS] / 10);
            er_tap_check(same_params(r, &test->reports[0]) && same_losses(r, test->reports, 1));
        }
    }
}

static int die(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == test->step)
        raise(SIGKILL);
    return 0;
}

/* A rank is killed at step 15; the next generation goes on from the checkpoint of step 10. */
static void resumed_run_has_the_same_bits(void)
{
    struct report whole;

    set_up();
    for (int size = 1; size <= RANKS_MAX; size++) {
        test->dir[0] = '\0';
        test->rank = -1;
        go(size);
        whole = test->reports[0];
        er_test_tempdir(test->dir);
        test->checkpoint_steps = 5;
        test->deed = die;
        test->rank = size - 1;
        test->step = 13;
        go(size);
        for (int rank = 0; rank < size - 1; rank++)
            er_tap_check(test->reports[rank].rc == ER_E_PEER_LOST);
        test->rank = -1;
        go(size);
        expect_all(size, 0);
        for (int rank = 0; rank < size; rank++) {
            er_tap_check(test->reports[rank].result.resumed_from == 10);
            er_tap_check(same_losses(&test->reports[rank], &whole, 11));
            er_tap_check(same_params(&test->reports[rank], &whole));
        }
        er_tap_check(test->reports[0].loaded == 10);
        er_test_rmtree(test->dir);
    }
}

/* The same while checkpoints are written beside the steps: which one is the newest on disk when the
 * rank dies depends on the disk, but not what follows. */
static void a_run_resumed_from_whatever_was_on_disk_has_the_same_bits(void)
{
    struct report whole;

    set_up();
    for (int size = 1; size <= RANKS_MAX; size++) {
        uint64_t from;

        test->dir[0] = '\0';
        test->rank = -1;
        go(size);
        whole = test->reports[0];
        er_test_tempdir(test->dir);
        test->beside = true;
        test->checkpoint_steps = 2;
        test->deed = die;
        test->rank = size - 1;
        test->step = 21;
        go(size);
        test->rank = -1;
        go(size);
        expect_all(size, 0);
        from = test->reports[0].result.resumed_from;
        er_tap_check(from <= 20);
        for (int rank = 0; rank < size; rank++) {
            er_tap_check(test->reports[rank].result.resumed_from == from);
            er_tap_check(same_losses(&test->reports[rank], &whole, from + 1));
            er_tap_check(same_params(&test->reports[rank], &whole));
        }
        er_test_rmtree(test->dir);
    }
}

static void another_world_size_goes_on_where_the_last_one_stopped(void)
{
    struct report whole;

    set_up();
    go(1);
    whole = test->reports[0];
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 4;
    test->deed = die;
    test->rank = 2;
    test->step = 9;
    go(4);
    test->rank = -1;
    go(3);
    expect_all(3, 0);
    er_tap_check(test->reports[1].result.resumed_from == 8);
    for (uint64_t s = 9; s <= STEPS; s++)
        er_tap_check(fabs(test->reports[1].losses[s] - whole.losses[s]) <=
                     1e-5 * fabs(whole.losses[s]));
    er_test_rmtree(test->dir);
}

static int spoil_loss(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == test->step)
        loss->sum = NAN;
    return 0;
}

static void every_rank_names_the_one_whose_loss_is_not_finite(void)
{
    set_up();
    test->deed = spoil_loss;
    test->rank = 2;
    test->step = 7;
    go(4);
    expect_all(4, -EDOM);
    for (int rank = 0; rank < 4; rank++) {
        er_tap_check(strcmp(test->reports[rank].text, "step 7: the loss of rank 2 is not finite") ==
                     0);
        er_tap_check(test->reports[rank].losses[7] == 0); /* nobody applied it */
        er_tap_check(test->reports[rank].losses[6] > 0);
    }
}

/* One rank's loss, one policy for all: the step is applied nowhere, and all go on alike. */
static void every_rank_does_the_same_about_it(void)
{
    static const enum er_train_nonfinite policies[] = {ER_NONFINITE_SKIP, ER_NONFINITE_ROLL_BACK};

    for (size_t i = 0; i < ER_ARRAY_N(policies); i++) {
        set_up();
        er_test_tempdir(test->dir);
        test->checkpoint_steps = 5;
        test->deed = spoil_loss;
        test->rank = 2;
        test->step = 13;
        for (int rank = 0; rank < RANKS_MAX; rank++)
            test->nonfinite[rank] = policies[i];
        go(4);
        expect_all(4, 0);
        for (int rank = 0; rank < 4; rank++) {
            const struct report *r = &test->reports[rank];

            er_tap_check(r->result.steps == STEPS && r->result.skipped == 1);
            er_tap_check(r->result.rolled_back == (policies[i] == ER_NONFINITE_ROLL_BACK));
            er_tap_check(r->losses[13] == 0 && r->losses[14] > 0);
            er_tap_check(same_params(r, &test->reports[0]));
        }
        er_test_rmtree(test->dir);
    }
}

static void ranks_that_would_do_different_things_are_told(void)
{
    set_up();
    test->deed = spoil_loss;
    test->rank = 1;
    test->step = 7;
    test->nonfinite[0] = ER_NONFINITE_SKIP;
    go(3);
    expect_all(3, ER_E_MISMATCH);
    er_tap_check(strstr(test->reports[2].text, "different policies") != NULL);
}

static int fail(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return step->step == test->step ? -1 : 0;
}

static void a_rank_that_fails_leaves_nobody_waiting(void)
{
    set_up();
    test->deed = fail;
    test->rank = 0;
    test->step = 4;
    go(3);
    er_tap_check(test->reports[0].rc == ER_E_USAGE);
    for (int rank = 1; rank < 3; rank++) {
        er_tap_check(test->reports[rank].rc == ER_E_PEER_LOST);
        er_tap_check(strstr(test->reports[rank].text, "rank 0") != NULL);
    }
}

static int notice(enum er_notice notice, const struct er_step *step)
{
    if (step->step == test->step)
        er_fake_notice(test->world, test->rank, 1, notice);
    return 0;
}

/* The ranks are told one after the other, this one last. */
static int notice_in_turn(unsigned notice, const struct er_step *step)
{
    uint64_t turn = step->step - test->step;

    if (step->step >= test->step && turn < 3)
        er_fake_notice(test->world, (int)((uint64_t)test->rank + turn + 1) % 3, 1,
                       (enum er_notice)notice);
    return 0;
}

static int ask_to_drain(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return notice_in_turn(ER_NOTICE_DRAIN, step);
}

/* Whoever was told when: all leave after the same step, with the state saved. */
static void a_drained_rank_ends_the_run_for_all_at_one_step(void)
{
    set_up();
    er_test_tempdir(test->dir);
    test->deed = ask_to_drain;
    test->rank = 1;
    test->step = 5;
    go(3);
    expect_all(3, 0);
    for (int rank = 0; rank < 3; rank++) {
        er_tap_check(test->reports[rank].result.stopped);
        er_tap_check(test->reports[rank].result.steps == 7);
    }
    er_tap_check(test->reports[0].commits == 1);
    test->rank = -1;
    go(3);
    expect_all(3, 0);
    er_tap_check(test->reports[2].result.resumed_from == 7);
    er_tap_check(!test->reports[2].result.stopped && test->reports[2].result.steps == STEPS);
    er_test_rmtree(test->dir);
}

static int stop_everybody(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == test->step) {
        for (int rank = 0; rank < RANKS_MAX; rank++)
            er_fake_notice(test->world, rank, 1, ER_NOTICE_STOP);
    }
    return 0;
}

/* Operations fail as soon as the notice is there, wherever the ranks are; nobody is left waiting. A
 * rank that had agreed with the others before that says that it stopped. */
static void a_stopped_generation_ends_at_once(void)
{
    set_up();
    test->deed = stop_everybody;
    test->rank = 1;
    test->step = 5;
    go(3);
    for (int rank = 0; rank < 3; rank++) {
        const struct report *r = &test->reports[rank];

        er_tap_check(r->rc == ER_E_ABORTED || r->rc == ER_E_PEER_LOST ||
                     (r->rc == 0 && r->result.stopped));
        er_tap_check(r->losses[8] == 0);
        er_tap_note("rank %d: %s", rank, r->text);
    }
}

static int ask_to_rejoin(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return notice_in_turn(ER_NOTICE_REJOIN | ER_NOTICE_SAVE, step);
}

static void a_change_of_members_ends_the_generation_with_its_state_saved(void)
{
    set_up();
    er_test_tempdir(test->dir);
    test->deed = ask_to_rejoin;
    test->rank = 2;
    test->step = 1;
    go(3);
    expect_all(3, ER_E_ABORTED);
    er_tap_check(test->reports[0].commits == 1);
    test->rank = -1;
    go(2);
    expect_all(2, 0);
    er_tap_check(test->reports[1].result.resumed_from == 3);
    er_test_rmtree(test->dir);
}

static int ask_for_checkpoint(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return notice(ER_NOTICE_CHECKPOINT, step);
}

static void a_requested_checkpoint_is_written_once(void)
{
    set_up();
    er_test_tempdir(test->dir);
    test->deed = ask_for_checkpoint;
    test->rank = 2;
    test->step = 9;
    go(3);
    expect_all(3, 0);
    er_tap_check(test->reports[0].commits == 2); /* asked for, and the end */
    er_tap_check(test->reports[1].commits == 0);
    er_test_rmtree(test->dir);
}

static void the_clock_of_rank_0_decides_for_all(void)
{
    set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_every_us = 1;
    go(3);
    expect_all(3, 0);
    er_tap_check(test->reports[0].commits == STEPS);
    er_test_rmtree(test->dir);
}

/* One is due at every step: while one is in flight the next waits, and is then the newest state. */
static void checkpoints_beside_the_steps_end_with_the_last_one(void)
{
    uint64_t first;

    set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_every_us = 1;
    test->beside = true;
    go(3);
    expect_all(3, 0);
    first = test->reports[0].commits;
    er_tap_check(first >= 1 && first <= STEPS && test->reports[0].failed_commits == 0);
    er_tap_note("%d checkpoints in %d steps", (int)first, STEPS);
    go(2); /* nothing is left to do: the last step was saved */
    expect_all(2, 0);
    er_tap_check(test->reports[0].result.resumed_from == STEPS);
    er_test_rmtree(test->dir);
}

static int lose_folder(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == test->step) {
        er_test_rmtree(test->dir);
        er_test_write_file(test->dir, "not a folder");
    }
    return 0;
}

static void a_lost_folder_is_told_and_training_goes_on(void)
{
    set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 6;
    test->deed = lose_folder;
    test->rank = 0;
    test->step = 8;
    go(3);
    expect_all(3, 0);
    er_tap_check(test->reports[0].commits == 1); /* steps 12, 18 and 24 are not */
    er_tap_check(test->reports[0].failed_commits == 3);
    er_tap_check(test->reports[1].failed_commits == 0);
    remove(test->dir);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"ranks_begin_and_end_with_the_same_state", ranks_begin_and_end_with_the_same_state, 0},
        {"resumed_run_has_the_same_bits", resumed_run_has_the_same_bits, 0},
        {"a_run_resumed_from_whatever_was_on_disk_has_the_same_bits",
         a_run_resumed_from_whatever_was_on_disk_has_the_same_bits, 0},
        {"another_world_size_goes_on_where_the_last_one_stopped",
         another_world_size_goes_on_where_the_last_one_stopped, 0},
        {"every_rank_names_the_one_whose_loss_is_not_finite",
         every_rank_names_the_one_whose_loss_is_not_finite, 0},
        {"every_rank_does_the_same_about_it", every_rank_does_the_same_about_it, 0},
        {"ranks_that_would_do_different_things_are_told",
         ranks_that_would_do_different_things_are_told, 0},
        {"a_rank_that_fails_leaves_nobody_waiting", a_rank_that_fails_leaves_nobody_waiting, 0},
        {"a_drained_rank_ends_the_run_for_all_at_one_step",
         a_drained_rank_ends_the_run_for_all_at_one_step, 0},
        {"a_stopped_generation_ends_at_once", a_stopped_generation_ends_at_once, 0},
        {"a_change_of_members_ends_the_generation_with_its_state_saved",
         a_change_of_members_ends_the_generation_with_its_state_saved, 0},
        {"a_requested_checkpoint_is_written_once", a_requested_checkpoint_is_written_once, 0},
        {"the_clock_of_rank_0_decides_for_all", the_clock_of_rank_0_decides_for_all, 0},
        {"checkpoints_beside_the_steps_end_with_the_last_one",
         checkpoints_beside_the_steps_end_with_the_last_one, 0},
        {"a_lost_folder_is_told_and_training_goes_on", a_lost_folder_is_told_and_training_goes_on,
         0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
