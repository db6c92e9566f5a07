#include "trainer/train_policy.h"

#include <math.h>

#include "base/cleanup.h"

#define BAD_ROW_MAX 8

void er_train_policy_init(struct er_train_policy *policy, const struct er_train_policy_opts *opts,
                          uint64_t resumed_from, uint64_t now_us)
{
    *policy =
        (struct er_train_policy){.opts = *opts, .saved_step = resumed_from, .tried_us = now_us};
}

static bool due_by_time(const struct er_train_policy *policy, uint64_t now_us)
{
    return policy->opts.checkpoints && policy->opts.checkpoint_every_us > 0 &&
           now_us - policy->tried_us >= policy->opts.checkpoint_every_us;
}

/* The notice word stays until the agent changes it. */
static enum er_notice ask_once(struct er_train_policy *policy, enum er_notice notice)
{
    bool taken = policy->request_taken;

    policy->request_taken = notice == ER_NOTICE_CHECKPOINT;
    return notice == ER_NOTICE_CHECKPOINT && taken ? ER_NOTICE_NONE : notice;
}

void er_train_policy_fill_vote(struct er_train_policy *policy, struct er_vote *vote, uint64_t step,
                               int rank, int size, struct er_train_told told, uint64_t now_us)
{
    vote->step = step;
    vote->notice = ask_once(policy, told.notice);
    policy->told = told.notice;
    if (told.notice < ER_NOTICE_REJOIN)
        vote->flags |= ER_VOTE_UNTOLD;
    else if (told.notice == ER_NOTICE_REJOIN)
        vote->flags |= ER_VOTE_STAYS | (told.save_first ? ER_VOTE_SAVE_FIRST : 0);
    if (rank == 0 && due_by_time(policy, now_us))
        vote->flags |= ER_VOTE_SAVE_DUE;
    /* The vote takes the maximum: the lowest rank wins. */
    if (!isfinite(vote->loss) || !isfinite(vote->weight))
        vote->user[0] = (uint64_t)(size - rank);
}

void er_train_policy_fill_saving(struct er_vote *vote, bool done)
{
    vote->user[1] = !done;
}

bool er_train_policy_finite(const struct er_vote *vote)
{
    return isfinite(vote->loss) && isfinite(vote->weight) && vote->nonfinite == 0;
}

bool er_train_policy_usable(const struct er_vote *vote)
{
    return er_train_policy_finite(vote) && !(vote->flags & ER_VOTE_LEFT_OUT);
}

void er_train_policy_good(struct er_train_bad *bad, uint64_t step)
{
    if (step <= bad->good)
        return;
    bad->good = step;
    bad->row = 0;
}

/* Going back always has a later reason than before, and so comes to an end. */
enum er_train_remedy er_train_policy_bad(struct er_train_bad *bad, enum er_train_nonfinite policy,
                                         uint32_t max, uint64_t step)
{
    if (policy == ER_NONFINITE_STOP || bad->row >= (max > 0 ? max : BAD_ROW_MAX))
        return ER_REMEDY_STOP;
    bad->row++;
    if (policy == ER_NONFINITE_ROLL_BACK && step > bad->back_from) {
        bad->back_from = step;
        bad->rolled_back++;
        return ER_REMEDY_ROLL_BACK;
    }
    bad->skipped++;
    return ER_REMEDY_SKIP;
}

bool er_train_policy_same(const struct er_vote *vote)
{
    uint32_t bits = vote->flags / ER_VOTE_NONFINITE % (1u << ER_NONFINITE_COUNT);

    return (bits & (bits - 1)) == 0;
}

bool er_train_policy_scaled_alike(const struct er_vote *vote)
{
    return !(vote->flags & ER_VOTE_SCALED) || !(vote->flags & ER_VOTE_UNSCALED);
}

bool er_train_policy_overflowed(const struct er_vote *vote)
{
    return isfinite(vote->loss) && isfinite(vote->weight) && vote->weight > 0 &&
           vote->nonfinite > 0;
}

enum er_train_verdict er_train_policy_judge(const struct er_vote *vote, int size)
{
    if (vote->ok != (uint32_t)size)
        return ER_TRAIN_VERDICT_REFUSED;
    if (vote->flags & ER_VOTE_LEFT_OUT)
        return ER_TRAIN_VERDICT_LEFT_OUT;
    if (!er_train_policy_finite(vote))
        return ER_TRAIN_VERDICT_NONFINITE;
    if (!(vote->weight > 0))
        return ER_TRAIN_VERDICT_EMPTY;
    return ER_TRAIN_VERDICT_APPLY;
}

int er_train_policy_culprit(const struct er_vote *vote, int size)
{
    return vote->user[0] > 0 ? size - (int)vote->user[0] : -1;
}

/* A STOP that the ranks could still agree on ends the generation: whether there is another one for
 * this process, its agent knows. */
static enum er_train_ending ending_of(const struct er_train_policy *policy, uint64_t applied,
                                      const struct er_vote *vote)
{
    if (applied >= policy->opts.total_steps)
        return ER_END_DONE; /* nothing is left to do: the notice is moot */
    if (vote->notice == ER_NOTICE_STOP)
        return policy->opts.rejoins ? ER_END_REJOIN : ER_END_STOPPED;
    if (vote->notice < ER_NOTICE_REJOIN || (vote->flags & ER_VOTE_UNTOLD))
        return ER_GO_ON;
    return policy->told == ER_NOTICE_REJOIN ? ER_END_REJOIN : ER_END_STOPPED;
}

/* Whether a run that ends here has to leave its state on the disk. */
static bool saves_at_end(const struct er_train_policy *policy, enum er_train_ending ending,
                         const struct er_vote *vote)
{
    if (ending == ER_END_DONE || (vote->flags & ER_VOTE_SAVE_FIRST) || !policy->opts.rejoins)
        return true;
    return vote->notice != ER_NOTICE_STOP && !(vote->flags & ER_VOTE_STAYS);
}

struct er_train_policy_todo er_train_policy_after(const struct er_train_policy *policy,
                                                  uint64_t applied, const struct er_vote *vote)
{
    const struct er_train_policy_opts *opts = &policy->opts;
    struct er_train_policy_todo todo = {.ending = ending_of(policy, applied, vote)};
    bool by_step = opts->checkpoint_steps > 0 && applied % opts->checkpoint_steps == 0;
    bool asked = vote->notice == ER_NOTICE_CHECKPOINT || (vote->flags & ER_VOTE_SAVE_DUE);

    todo.advance = policy->flight_step > 0 && vote->user[1] == 0;
    todo.owe = by_step || asked || policy->owed;
    todo.save = opts->checkpoints && policy->saved_step != applied &&
                (todo.ending == ER_GO_ON ? todo.owe : saves_at_end(policy, todo.ending, vote));
    /* A run that is told to leave does not begin an evaluation. */
    todo.epoch_end =
        applied % opts->epoch_steps == 0 && (todo.ending == ER_GO_ON || todo.ending == ER_END_DONE);
    return todo;
}

void er_train_policy_begun(struct er_train_policy *policy, uint64_t step, uint64_t now_us)
{
    policy->flight_step = step;
    policy->owed = false;
    policy->tried_us = now_us;
}

/* Failures that say nothing about the disk: the ranks are no longer together. */
static bool ends_generation(int rc)
{
    static const int codes[] = {ER_E_PEER_LOST, ER_E_ABORTED,  ER_E_MISMATCH,
                                ER_E_STALE,     ER_E_PROTOCOL, ER_E_AMBIGUOUS};

    for (size_t i = 0; i < ER_ARRAY_N(codes); i++) {
        if (rc == codes[i])
            return true;
    }
    return false;
}

enum er_train_after_save er_train_policy_saved(struct er_train_policy *policy, uint64_t step,
                                               int rc, enum er_train_ending ending, uint64_t now_us)
{
    if (policy->flight_step != step) /* written at once, not begun before */
        policy->tried_us = now_us;
    policy->flight_step = 0;
    if (rc == 0) {
        policy->saved_step = step;
        policy->failures = 0;
        return ER_SAVE_FINE;
    }
    if (ends_generation(rc) || ending == ER_END_STOPPED || ending == ER_END_REJOIN)
        return ER_SAVE_FATAL;
    policy->failures++;
    if (policy->opts.failures_max > 0 && policy->failures >= policy->opts.failures_max)
        return ER_SAVE_TOO_MANY;
    return ER_SAVE_TOLERATED;
}
