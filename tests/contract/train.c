/* The training loop with real ranks: the same bits whatever happens, other world sizes, steps that
 * are not applied, ranks that are lost. */
#include "tests/contract/train_ranks.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/tap.h"

static bool same_params(const struct train_report *a, const struct train_report *b)
{
    return memcmp(a->params, b->params, sizeof(a->params)) == 0;
}

static bool same_losses(const struct train_report *a, const struct train_report *b, uint64_t from)
{
    return memcmp(a->losses + from, b->losses + from, (TRAIN_STEPS + 1 - from) * sizeof(double)) ==
           0;
}

static void ranks_begin_and_end_with_the_same_state(void)
{
    train_set_up();
    for (int size = 1; size <= TRAIN_RANKS_MAX; size++) {
        train_go(size);
        train_expect(size, 0);
        for (int rank = 0; rank < size; rank++) {
            const struct train_report *r = &test->reports[rank];

            er_tap_check(r->result.steps == TRAIN_STEPS && r->epochs_ended == TRAIN_EPOCHS);
            er_tap_check(r->result.loss == r->losses[TRAIN_STEPS] / 10);
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
    struct train_report whole;

    train_set_up();
    for (int size = 1; size <= TRAIN_RANKS_MAX; size++) {
        test->dir[0] = '\0';
        test->rank = -1;
        train_go(size);
        whole = test->reports[0];
        er_test_tempdir(test->dir);
        test->checkpoint_steps = 5;
        test->deed = die;
        test->rank = size - 1;
        test->step = 13;
        train_go(size);
        for (int rank = 0; rank < size - 1; rank++)
            er_tap_check(test->reports[rank].rc == ER_E_PEER_LOST);
        test->rank = -1;
        train_go(size);
        train_expect(size, 0);
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
    struct train_report whole;

    train_set_up();
    for (int size = 1; size <= TRAIN_RANKS_MAX; size++) {
        uint64_t from;

        test->dir[0] = '\0';
        test->rank = -1;
        train_go(size);
        whole = test->reports[0];
        er_test_tempdir(test->dir);
        test->beside = true;
        test->checkpoint_steps = 2;
        test->deed = die;
        test->rank = size - 1;
        test->step = 21;
        train_go(size);
        test->rank = -1;
        train_go(size);
        train_expect(size, 0);
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
    struct train_report whole;

    train_set_up();
    train_go(1);
    whole = test->reports[0];
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 4;
    test->deed = die;
    test->rank = 2;
    test->step = 9;
    train_go(4);
    test->rank = -1;
    train_go(3);
    train_expect(3, 0);
    er_tap_check(test->reports[1].result.resumed_from == 8);
    for (uint64_t s = 9; s <= TRAIN_STEPS; s++)
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
    train_set_up();
    test->deed = spoil_loss;
    test->rank = 2;
    test->step = 7;
    train_go(4);
    train_expect(4, -EDOM);
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
        train_set_up();
        er_test_tempdir(test->dir);
        test->checkpoint_steps = 5;
        test->deed = spoil_loss;
        test->rank = 2;
        test->step = 13;
        for (int rank = 0; rank < TRAIN_RANKS_MAX; rank++)
            test->nonfinite[rank] = policies[i];
        train_go(4);
        train_expect(4, 0);
        for (int rank = 0; rank < 4; rank++) {
            const struct train_report *r = &test->reports[rank];

            er_tap_check(r->result.steps == TRAIN_STEPS && r->result.skipped == 1);
            er_tap_check(r->result.rolled_back == (policies[i] == ER_NONFINITE_ROLL_BACK));
            er_tap_check(r->losses[13] == 0 && r->losses[14] > 0);
            er_tap_check(same_params(r, &test->reports[0]));
        }
        er_test_rmtree(test->dir);
    }
}

static void ranks_that_would_do_different_things_are_told(void)
{
    train_set_up();
    test->deed = spoil_loss;
    test->rank = 1;
    test->step = 7;
    test->nonfinite[0] = ER_NONFINITE_SKIP;
    train_go(3);
    train_expect(3, ER_E_MISMATCH);
    er_tap_check(strstr(test->reports[2].text, "different policies") != NULL);
}

static int overflow(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == test->step)
        loss->nonfinite = 3;
    return step->step == 12 ? -1 : 0; /* a run that ends early */
}

static void expect_scale(int size, int64_t exponent, int64_t good)
{
    for (int rank = 0; rank < size; rank++) {
        const struct er_scaler *scaler = &test->reports[rank].scaler;

        if (!er_tap_check(scaler->state[0] == exponent && scaler->state[1] == good))
            er_tap_note("rank %d: 2^%ld, %ld good steps", rank, (long)scaler->state[0],
                        (long)scaler->state[1]);
    }
}

/* Under the policy that stops; on all ranks alike, also on those that come from a checkpoint. */
static void a_step_that_overflows_halves_the_scale(void)
{
    train_set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 9;
    test->deed = overflow;
    test->rank = 2;
    test->step = 7;
    for (int rank = 0; rank < TRAIN_RANKS_MAX; rank++)
        test->scaled[rank] = true;
    train_go(4);
    er_tap_check(test->reports[2].rc == ER_E_USAGE);
    expect_scale(4, ER_SCALER_FIRST - 1, 4);
    test->rank = -1;
    test->scaled[1] = false;
    train_go(3);
    train_expect(3, ER_E_MISMATCH);
    er_tap_check(strstr(test->reports[0].text, "some ranks scale their losses") != NULL);
    test->scaled[1] = true;
    train_go(2);
    train_expect(2, 0);
    er_tap_check(test->reports[1].result.resumed_from == 9);
    expect_scale(2, ER_SCALER_FIRST - 1, TRAIN_STEPS - 7);
    /* A loss that is not finite is not the scale's fault. */
    er_test_rmtree(test->dir);
    er_test_tempdir(test->dir);
    test->deed = spoil_loss;
    test->rank = 1;
    train_go(3);
    train_expect(3, -EDOM);
    expect_scale(3, ER_SCALER_FIRST, 6);
    er_test_rmtree(test->dir);
}

static int fail(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return step->step == test->step ? -1 : 0;
}

static void a_rank_that_fails_leaves_nobody_waiting(void)
{
    train_set_up();
    test->deed = fail;
    test->rank = 0;
    test->step = 4;
    train_go(3);
    er_tap_check(test->reports[0].rc == ER_E_USAGE);
    for (int rank = 1; rank < 3; rank++) {
        er_tap_check(test->reports[rank].rc == ER_E_PEER_LOST);
        er_tap_check(strstr(test->reports[rank].text, "rank 0") != NULL);
    }
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
        {"a_step_that_overflows_halves_the_scale", a_step_that_overflows_halves_the_scale, 0},
        {"a_rank_that_fails_leaves_nobody_waiting", a_rank_that_fails_leaves_nobody_waiting, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
