/* The decisions of the training loop. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>

#include "base/cleanup.h"
#include "trainer/train_policy.h"

#define TOTAL        100
#define EPOCH        20
#define TOLD(NOTICE) ((struct er_train_told){.notice = ER_NOTICE_##NOTICE})

static struct er_train_policy make(struct er_train_policy_opts opts)
{
    struct er_train_policy policy;

    opts.total_steps = TOTAL;
    opts.epoch_steps = EPOCH;
    opts.checkpoints = true;
    er_train_policy_init(&policy, &opts, 0, 1000);
    return policy;
}

static struct er_vote good_vote(void)
{
    return (struct er_vote){.ok = 4, .loss = 3.0, .weight = 64};
}

Test(train_policy, a_step_is_applied_only_when_every_rank_is_ready)
{
    struct er_vote vote = good_vote();

    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_APPLY);
    vote.ok = 3;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_REFUSED);
    vote.ok = 5;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_REFUSED);
}

Test(train_policy, a_step_without_finite_numbers_is_not_applied)
{
    struct er_vote vote = good_vote();

    vote.loss = NAN;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_NONFINITE);
    vote.loss = INFINITY;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_NONFINITE);
    vote = good_vote();
    vote.nonfinite = 1;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_NONFINITE);
    vote = good_vote();
    vote.weight = NAN;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_NONFINITE);
    vote.weight = 0;
    cr_expect_eq(er_train_policy_judge(&vote, 4), ER_TRAIN_VERDICT_EMPTY);
}

Test(train_policy, so_many_bad_steps_in_a_row_end_the_run)
{
    struct er_train_bad bad = {0};

    cr_expect_eq(er_train_policy_bad(&bad, ER_NONFINITE_STOP, 2, 1), ER_REMEDY_STOP);
    cr_expect_eq(er_train_policy_bad(&bad, ER_NONFINITE_SKIP, 2, 1), ER_REMEDY_SKIP);
    cr_expect_eq(er_train_policy_bad(&bad, ER_NONFINITE_SKIP, 2, 2), ER_REMEDY_SKIP);
    cr_expect_eq(er_train_policy_bad(&bad, ER_NONFINITE_SKIP, 2, 3), ER_REMEDY_STOP);
    er_train_policy_good(&bad, 3);
    cr_expect_eq(er_train_policy_bad(&bad, ER_NONFINITE_SKIP, 2, 4), ER_REMEDY_SKIP);
    cr_expect_eq(bad.skipped, 3);
}

/* From the checkpoint of step 10, steps 15 and 17 are bad each time. */
Test(train_policy, going_back_comes_to_an_end)
{
    struct er_train_bad bad = {0};
    size_t steps = 0;

    for (uint64_t step = 11; step <= 20; step++) {
        enum er_train_remedy remedy = ER_REMEDY_SKIP;

        cr_assert_lt(steps++, 100);
        if (step == 15 || step == 17)
            remedy = er_train_policy_bad(&bad, ER_NONFINITE_ROLL_BACK, 0, step);
        else
            er_train_policy_good(&bad, step);
        cr_assert_neq(remedy, ER_REMEDY_STOP);
        step = remedy == ER_REMEDY_ROLL_BACK ? 10 : step;
    }
    cr_expect_eq(bad.rolled_back, 2);
    cr_expect_eq(bad.skipped, 3); /* 15 twice, 17 once */
}

Test(train_policy, ranks_with_other_policies_are_seen)
{
    struct er_vote vote = good_vote();

    for (unsigned policy = 0; policy < ER_NONFINITE_COUNT; policy++) {
        vote.flags = ER_VOTE_SAVE_DUE | ER_VOTE_NONFINITE << policy;
        cr_expect(er_train_policy_same(&vote));
        vote.flags |= ER_VOTE_NONFINITE << (policy + 1) % ER_NONFINITE_COUNT;
        cr_expect_not(er_train_policy_same(&vote));
    }
}

Test(train_policy, the_lowest_rank_with_a_bad_loss_is_named)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){0});
    uint64_t agreed = 0;
    struct er_vote result = good_vote();

    for (int rank = 0; rank < 4; rank++) {
        struct er_vote vote = {.loss = rank == 1 || rank == 3 ? NAN : 1.0, .weight = 1};

        er_train_policy_fill_vote(&policy, &vote, 7, rank, 4, TOLD(NONE), 2000);
        cr_expect_eq(vote.step, 7);
        agreed = vote.user[0] > agreed ? vote.user[0] : agreed;
    }
    result.user[0] = agreed;
    cr_expect_eq(er_train_policy_culprit(&result, 4), 1);
    result.user[0] = 0;
    cr_expect_eq(er_train_policy_culprit(&result, 4), -1);
}

Test(train_policy, checkpoints_by_steps_and_at_the_end)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.checkpoint_steps = 30});
    struct er_vote vote = good_vote();

    for (uint64_t step = 1; step <= TOTAL; step++) {
        struct er_train_policy_todo todo = er_train_policy_after(&policy, step, &vote);

        cr_expect_eq(todo.save, step % 30 == 0 || step == TOTAL, "step %lu", step);
        cr_expect_eq(todo.epoch_end, step % EPOCH == 0, "step %lu", step);
        cr_expect_eq(todo.ending, step == TOTAL ? ER_END_DONE : ER_GO_ON);
    }
}

Test(train_policy, one_checkpoint_in_flight_and_the_next_is_owed)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.checkpoint_steps = 10});
    struct er_vote vote = good_vote();

    cr_expect(er_train_policy_after(&policy, 10, &vote).save);
    er_train_policy_begun(&policy, 10, 1000);
    er_train_policy_fill_saving(&vote, false);
    cr_expect_not(er_train_policy_after(&policy, 11, &vote).advance, "a rank is not done yet");
    cr_expect(er_train_policy_after(&policy, 20, &vote).save);
    policy.owed = true; /* what the loop notes when it finds the one in flight */
    er_train_policy_fill_saving(&vote, true);
    cr_expect(er_train_policy_after(&policy, 21, &vote).advance);
    cr_expect_eq(er_train_policy_saved(&policy, 10, 0, ER_GO_ON, 2000), ER_SAVE_FINE);
    cr_expect_eq(policy.saved_step, 10);
    cr_expect_not(er_train_policy_after(&policy, 22, &vote).advance, "none in flight");
    cr_expect(er_train_policy_after(&policy, 22, &vote).save,
              "the newest state, not that of step 20");
    er_train_policy_begun(&policy, 22, 3000);
    cr_expect_not(er_train_policy_after(&policy, 23, &vote).save);
    cr_expect_eq(policy.tried_us, 3000);
}

Test(train_policy, nothing_is_saved_without_a_directory)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.checkpoint_steps = 1});
    struct er_vote vote = good_vote();

    policy.opts.checkpoints = false;
    vote.notice = ER_NOTICE_STOP;
    cr_expect_not(er_train_policy_after(&policy, 5, &vote).save);
    cr_expect_eq(er_train_policy_after(&policy, 5, &vote).ending, ER_END_STOPPED);
}

Test(train_policy, only_rank_0_reads_the_clock_and_all_obey_the_vote)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.checkpoint_every_us = 500});
    struct er_vote early = good_vote(), due = good_vote(), other = good_vote();

    er_train_policy_fill_vote(&policy, &early, 1, 0, 4, TOLD(NONE), 1499);
    cr_expect_not(early.flags & ER_VOTE_SAVE_DUE);
    er_train_policy_fill_vote(&policy, &due, 1, 0, 4, TOLD(NONE), 1500);
    cr_expect(due.flags & ER_VOTE_SAVE_DUE);
    er_train_policy_fill_vote(&policy, &other, 1, 1, 4, TOLD(NONE), 9999);
    cr_expect_not(other.flags & ER_VOTE_SAVE_DUE);
    cr_expect_not(er_train_policy_after(&policy, 1, &early).save);
    cr_expect(er_train_policy_after(&policy, 1, &due).save);
}

Test(train_policy, time_starts_over_after_each_attempt)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.checkpoint_every_us = 500});
    struct er_vote vote = good_vote();

    cr_expect_eq(er_train_policy_saved(&policy, 3, -ENOSPC, ER_GO_ON, 2000), ER_SAVE_TOLERATED);
    er_train_policy_fill_vote(&policy, &vote, 4, 0, 4, TOLD(NONE), 2499);
    cr_expect_not(vote.flags & ER_VOTE_SAVE_DUE);
    er_train_policy_fill_vote(&policy, &vote, 4, 0, 4, TOLD(NONE), 2500);
    cr_expect(vote.flags & ER_VOTE_SAVE_DUE);
}

Test(train_policy, a_step_is_saved_once)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.checkpoint_steps = 10});
    struct er_vote vote = good_vote();

    cr_expect(er_train_policy_after(&policy, 10, &vote).save);
    cr_expect_eq(er_train_policy_saved(&policy, 10, 0, ER_GO_ON, 2000), ER_SAVE_FINE);
    cr_expect_not(er_train_policy_after(&policy, 10, &vote).save);
}

Test(train_policy, each_notice_has_its_own_end)
{
    static const struct {
        enum er_notice notice;
        bool save;
        enum er_train_ending ending;
    } cases[] = {
        {ER_NOTICE_NONE, false, ER_GO_ON},       {ER_NOTICE_CHECKPOINT, true, ER_GO_ON},
        {ER_NOTICE_REJOIN, true, ER_END_REJOIN}, {ER_NOTICE_DRAIN, true, ER_END_STOPPED},
        {ER_NOTICE_STOP, true, ER_END_STOPPED},
    };
    struct er_train_policy policy = make((struct er_train_policy_opts){0});

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct er_vote vote = good_vote();
        struct er_train_policy_todo todo;

        vote.notice = cases[i].notice;
        policy.told = cases[i].notice;
        todo = er_train_policy_after(&policy, EPOCH, &vote);
        cr_expect_eq(todo.save, cases[i].save, "notice %u", vote.notice);
        cr_expect_eq(todo.ending, cases[i].ending, "notice %u", vote.notice);
        cr_expect_eq(todo.epoch_end, cases[i].ending == ER_GO_ON, "notice %u", vote.notice);
    }
}

/* Ranks of one step, each told its own notice, as they see it through the vote. */
static struct er_vote agree(struct er_train_policy *ranks, size_t n,
                            const struct er_train_told *told)
{
    struct er_vote agreed = good_vote();

    for (size_t i = 0; i < n; i++) {
        struct er_vote vote = {.weight = 1};

        er_train_policy_fill_vote(&ranks[i], &vote, 7, (int)i, (int)n, told[i], 2000);
        agreed.notice = vote.notice > agreed.notice ? vote.notice : agreed.notice;
        agreed.flags |= vote.flags;
    }
    return agreed;
}

Test(train_policy, a_change_waits_until_every_rank_was_told)
{
    static const struct {
        struct er_train_told told[3];
        enum er_train_ending ending[3];
        bool save;
    } cases[] = {
        {{TOLD(REJOIN), TOLD(NONE), TOLD(DRAIN)}, {ER_GO_ON, ER_GO_ON, ER_GO_ON}, false},
        {{TOLD(NONE), TOLD(DRAIN), TOLD(DRAIN)}, {ER_GO_ON, ER_GO_ON, ER_GO_ON}, false},
        {{TOLD(REJOIN), TOLD(REJOIN), TOLD(DRAIN)},
         {ER_END_REJOIN, ER_END_REJOIN, ER_END_STOPPED},
         false},
        {{TOLD(DRAIN), TOLD(DRAIN), TOLD(DRAIN)},
         {ER_END_STOPPED, ER_END_STOPPED, ER_END_STOPPED},
         true},
        {{{ER_NOTICE_REJOIN, true}, TOLD(REJOIN), TOLD(DRAIN)},
         {ER_END_REJOIN, ER_END_REJOIN, ER_END_STOPPED},
         true},
        {{TOLD(STOP), TOLD(NONE), TOLD(REJOIN)},
         {ER_END_REJOIN, ER_END_REJOIN, ER_END_REJOIN},
         false},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct er_train_policy ranks[3];
        struct er_vote vote;

        for (size_t r = 0; r < 3; r++)
            ranks[r] = make((struct er_train_policy_opts){.rejoins = true});
        vote = agree(ranks, 3, cases[i].told);
        for (size_t r = 0; r < 3; r++) {
            struct er_train_policy_todo todo = er_train_policy_after(&ranks[r], 7, &vote);

            cr_expect_eq(todo.ending, cases[i].ending[r], "case %zu, rank %zu", i, r);
            cr_expect_eq(todo.save, cases[i].save, "case %zu, rank %zu", i, r);
        }
    }
}

Test(train_policy, a_checkpoint_that_a_change_came_before_is_owed)
{
    struct er_train_policy policy =
        make((struct er_train_policy_opts){.checkpoint_steps = 7, .rejoins = true});
    struct er_vote vote = agree(&policy, 1, (struct er_train_told[]){TOLD(REJOIN)});
    struct er_train_policy_todo todo = er_train_policy_after(&policy, 7, &vote);

    cr_expect(todo.owe && !todo.save);
    policy.told = ER_NOTICE_NONE;
    vote = good_vote();
    policy.owed = true; /* what the loop carries over */
    cr_expect(er_train_policy_after(&policy, 8, &vote).save);
}

Test(train_policy, a_notice_at_the_last_step_changes_nothing)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){0});
    struct er_vote vote = good_vote();
    struct er_train_policy_todo todo;

    vote.notice = ER_NOTICE_STOP;
    todo = er_train_policy_after(&policy, TOTAL, &vote);
    cr_expect_eq(todo.ending, ER_END_DONE);
    cr_expect(todo.epoch_end);
}

Test(train_policy, a_request_that_stays_is_asked_for_once)
{
    static const enum er_notice seen[] = {ER_NOTICE_CHECKPOINT, ER_NOTICE_CHECKPOINT,
                                          ER_NOTICE_NONE,       ER_NOTICE_CHECKPOINT,
                                          ER_NOTICE_DRAIN,      ER_NOTICE_DRAIN};
    static const enum er_notice voted[] = {ER_NOTICE_CHECKPOINT, ER_NOTICE_NONE,  ER_NOTICE_NONE,
                                           ER_NOTICE_CHECKPOINT, ER_NOTICE_DRAIN, ER_NOTICE_DRAIN};
    struct er_train_policy policy = make((struct er_train_policy_opts){0});

    for (size_t i = 0; i < ER_ARRAY_N(seen); i++) {
        struct er_vote vote = {.weight = 1};

        er_train_policy_fill_vote(&policy, &vote, i + 1, 0, 4,
                                  (struct er_train_told){.notice = seen[i]}, 2000);
        cr_expect_eq(vote.notice, voted[i], "vote %zu", i);
    }
}

Test(train_policy, failures_in_a_row_become_fatal_at_the_limit)
{
    struct er_train_policy policy = make((struct er_train_policy_opts){.failures_max = 2});
    struct er_train_policy patient = make((struct er_train_policy_opts){0});

    cr_expect_eq(er_train_policy_saved(&policy, 1, -ENOSPC, ER_GO_ON, 0), ER_SAVE_TOLERATED);
    cr_expect_eq(er_train_policy_saved(&policy, 2, 0, ER_GO_ON, 0), ER_SAVE_FINE);
    cr_expect_eq(er_train_policy_saved(&policy, 3, -ENOSPC, ER_GO_ON, 0), ER_SAVE_TOLERATED);
    cr_expect_eq(er_train_policy_saved(&policy, 4, -EIO, ER_GO_ON, 0), ER_SAVE_TOO_MANY);
    for (uint64_t i = 0; i < 50; i++)
        cr_expect_eq(er_train_policy_saved(&patient, i, -EIO, ER_END_DONE, 0), ER_SAVE_TOLERATED);
}

Test(train_policy, a_lost_generation_is_not_a_failed_write)
{
    static const int codes[] = {ER_E_PEER_LOST, ER_E_ABORTED, ER_E_STALE, ER_E_MISMATCH};
    struct er_train_policy policy = make((struct er_train_policy_opts){0});

    for (size_t i = 0; i < ER_ARRAY_N(codes); i++)
        cr_expect_eq(er_train_policy_saved(&policy, 1, codes[i], ER_GO_ON, 0), ER_SAVE_FATAL);
    cr_expect_eq(er_train_policy_saved(&policy, 1, -ENOSPC, ER_END_STOPPED, 0), ER_SAVE_FATAL);
}
