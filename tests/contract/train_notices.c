/* The training loop with real ranks: what it is told by notices, and checkpoints that are asked
 * for, are due, are written beside the steps or fail. */
#include "tests/contract/train_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "tests/lib/tap.h"

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
    train_set_up();
    er_test_tempdir(test->dir);
    test->deed = ask_to_drain;
    test->rank = 1;
    test->step = 5;
    train_go(3);
    train_expect(3, 0);
    for (int rank = 0; rank < 3; rank++) {
        er_tap_check(test->reports[rank].result.stopped);
        er_tap_check(test->reports[rank].result.steps == 7);
    }
    er_tap_check(test->reports[0].commits == 1);
    test->rank = -1;
    train_go(3);
    train_expect(3, 0);
    er_tap_check(test->reports[2].result.resumed_from == 7);
    er_tap_check(!test->reports[2].result.stopped && test->reports[2].result.steps == TRAIN_STEPS);
    er_test_rmtree(test->dir);
}

static int stop_everybody(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    if (step->step == test->step) {
        for (int rank = 0; rank < TRAIN_RANKS_MAX; rank++)
            er_fake_notice(test->world, rank, 1, ER_NOTICE_STOP);
    }
    return 0;
}

/* Operations fail as soon as the notice is there, wherever the ranks are; nobody is left waiting. A
 * rank that had agreed with the others before that says that it stopped. */
static void a_stopped_generation_ends_at_once(void)
{
    train_set_up();
    test->deed = stop_everybody;
    test->rank = 1;
    test->step = 5;
    train_go(3);
    for (int rank = 0; rank < 3; rank++) {
        const struct train_report *r = &test->reports[rank];

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
    train_set_up();
    er_test_tempdir(test->dir);
    test->deed = ask_to_rejoin;
    test->rank = 2;
    test->step = 1;
    train_go(3);
    train_expect(3, ER_E_ABORTED);
    er_tap_check(test->reports[0].commits == 1);
    test->rank = -1;
    train_go(2);
    train_expect(2, 0);
    er_tap_check(test->reports[1].result.resumed_from == 3);
    er_test_rmtree(test->dir);
}

static int ask_for_checkpoint(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    return notice(ER_NOTICE_CHECKPOINT, step);
}

static void a_requested_checkpoint_is_written_once(void)
{
    train_set_up();
    er_test_tempdir(test->dir);
    test->deed = ask_for_checkpoint;
    test->rank = 2;
    test->step = 9;
    train_go(3);
    train_expect(3, 0);
    er_tap_check(test->reports[0].commits == 2); /* asked for, and the end */
    er_tap_check(test->reports[1].commits == 0);
    er_test_rmtree(test->dir);
}

static void the_clock_of_rank_0_decides_for_all(void)
{
    train_set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_every_us = 1;
    train_go(3);
    train_expect(3, 0);
    er_tap_check(test->reports[0].commits == TRAIN_STEPS);
    er_test_rmtree(test->dir);
}

/* One is due at every step: while one is in flight the next waits, and is then the newest state. */
static void checkpoints_beside_the_steps_end_with_the_last_one(void)
{
    uint64_t first;

    train_set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_every_us = 1;
    test->beside = true;
    train_go(3);
    train_expect(3, 0);
    first = test->reports[0].commits;
    er_tap_check(first >= 1 && first <= TRAIN_STEPS && test->reports[0].failed_commits == 0);
    er_tap_note("%d checkpoints in %d steps", (int)first, TRAIN_STEPS);
    train_go(2); /* nothing is left to do: the last step was saved */
    train_expect(2, 0);
    er_tap_check(test->reports[0].result.resumed_from == TRAIN_STEPS);
    er_test_rmtree(test->dir);
}

/* Gives the disk time until a commit has been asked for, then lets six steps pass. */
static int hold_commits(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    const struct timespec pause = {.tv_nsec = 30000000};

    if (step->step == 1)
        er_fake_hold_commits(test->world, true);
    if (report->commits == 0)
        nanosleep(&pause, NULL);
    if (report->held_steps < 6 && report->commits > report->commits_held)
        report->commits_held = report->commits;
    report->held_steps += report->commits > 0;
    if (report->held_steps == 6 || step->step == test->step)
        er_fake_hold_commits(test->world, false);
    return 0;
}

static void steps_go_on_while_a_commit_is_not_answered(void)
{
    train_set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 2;
    test->beside = true;
    test->deed = hold_commits;
    test->rank = 0;
    test->step = TRAIN_STEPS - 1; /* on a disk that is that slow, it was for nothing */
    train_go(3);
    train_expect(3, 0);
    er_tap_note("%d steps were made meanwhile", (int)test->reports[0].held_steps);
    er_tap_check(test->reports[0].commits_held <= 1); /* one at a time */
    er_tap_check(test->reports[0].commits >= 1 && test->reports[0].failed_commits == 0);
    train_go(2);
    train_expect(2, 0);
    er_tap_check(test->reports[0].result.resumed_from == TRAIN_STEPS);
    er_test_rmtree(test->dir);
}

static void commits_that_fail_later_count(void)
{
    train_set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 1;
    test->beside = true;
    test->refuse_commits = true;
    test->failures_max = 2;
    train_go(3);
    train_expect(3, -EIO);
    er_tap_check(strstr(test->reports[2].text, "2 checkpoints in a row failed") != NULL);
    er_tap_check(test->reports[0].failed_commits == 2);
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
    train_set_up();
    er_test_tempdir(test->dir);
    test->checkpoint_steps = 6;
    test->deed = lose_folder;
    test->rank = 0;
    test->step = 8;
    train_go(3);
    train_expect(3, 0);
    er_tap_check(test->reports[0].commits == 1); /* steps 12, 18 and 24 are not */
    er_tap_check(test->reports[0].failed_commits == 3);
    er_tap_check(test->reports[1].failed_commits == 0);
    remove(test->dir);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_drained_rank_ends_the_run_for_all_at_one_step",
         a_drained_rank_ends_the_run_for_all_at_one_step, 0},
        {"a_stopped_generation_ends_at_once", a_stopped_generation_ends_at_once, 0},
        {"a_change_of_members_ends_the_generation_with_its_state_saved",
         a_change_of_members_ends_the_generation_with_its_state_saved, 0},
        {"a_requested_checkpoint_is_written_once", a_requested_checkpoint_is_written_once, 0},
        {"the_clock_of_rank_0_decides_for_all", the_clock_of_rank_0_decides_for_all, 0},
        {"checkpoints_beside_the_steps_end_with_the_last_one",
         checkpoints_beside_the_steps_end_with_the_last_one, 0},
        {"steps_go_on_while_a_commit_is_not_answered", steps_go_on_while_a_commit_is_not_answered,
         0},
        {"commits_that_fail_later_count", commits_that_fail_later_count, 0},
        {"a_lost_folder_is_told_and_training_goes_on", a_lost_folder_is_told_and_training_goes_on,
         0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
