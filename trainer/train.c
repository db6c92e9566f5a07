#include "trainer/train.h"

#include <errno.h>

#include "base/clock.h"
#include "trainer/train_internal.h"

static unsigned long ul(uint64_t x)
{
    return (unsigned long)x;
}

int er_train_callback_rc(int rc, const char *callback, struct er_error *err)
{
    if (rc > 0)
        return er_error_set(err, ER_E_USAGE, "%s returned %d: 0 or a negative code is expected",
                            callback, rc);
    return rc;
}

/* Workers have failed in that step again and again. */
static bool is_left_out(const struct er_train *train, uint64_t step)
{
    const struct er_world *world = er_world(train->ctx);

    for (size_t i = 0; i < world->skip_steps_n; i++) {
        if (world->skip_steps[i] == step)
            return true;
    }
    return false;
}

static int gradients(struct er_train *train, const struct er_range *range, struct er_loss *ret,
                     struct er_error *err)
{
    struct er_step step = {
        .step = train->applied + 1, .range = *range, .ddp = train->ddp, .clock = &train->clock};
    int rc;

    er_train_clock_begin(train);
    train->held.grads_of = 0;
    rc = er_train_catchup_begin(train, err);
    if (rc < 0)
        return rc;
    if (is_left_out(train, step.step))
        return 0; /* all ranks add nothing */
    rc = er_train_callback_rc(train->ops->grads(train->user, &step, ret, err), "grads()", err);
    return rc < 0 ? er_error_wrap(err, rc, "rank %d, gradients of step %lu", train->rank,
                                  ul(step.step))
                  : 0;
}

/* Everything that keeps a step from being applied, in words. */
static int refuse(const struct er_train *train, const struct er_vote *vote,
                  enum er_train_verdict verdict, struct er_error *err)
{
    int culprit = er_train_policy_culprit(vote, train->size);

    if (verdict == ER_TRAIN_VERDICT_REFUSED)
        return er_error_set(err, ER_E_ABORTED, "step %lu: %u of %d ranks are ready to apply",
                            ul(vote->step), vote->ok, train->size);
    if (verdict == ER_TRAIN_VERDICT_EMPTY)
        return er_error_set(err, -EDOM, "step %lu: no sample counts (weight %g)", ul(vote->step),
                            vote->weight);
    if (culprit >= 0)
        return er_error_set(err, -EDOM, "step %lu: the loss of rank %d is not finite",
                            ul(vote->step), culprit);
    if (vote->nonfinite > 0)
        return er_error_set(err, -EDOM, "step %lu: %lu gradient elements are not finite",
                            ul(vote->step), ul(vote->nonfinite));
    return er_error_set(err, -EDOM, "step %lu: the sum of all losses is not finite",
                        ul(vote->step));
}

/* Every gradient reduced, and the vote. */
static int reduce(struct er_train *train, struct er_vote *vote, struct er_error *err)
{
    int rc =
        train->fsdp ? er_fsdp_finish(train->fsdp, vote, err) : er_ddp_finish(train->ddp, vote, err);

    if (rc == 0)
        train->times =
            train->fsdp ? er_fsdp_last_times(train->fsdp) : er_ddp_last_times(train->ddp);
    return rc;
}

/* Whether the agreed step is applied, and if not, why. */
static int settle(struct er_train *train, const struct er_vote *vote, struct er_error *err)
{
    enum er_train_verdict verdict = er_train_policy_judge(vote, train->size);
    struct er_error why = ER_ERROR_INIT;

    if (!er_train_policy_scaled_alike(vote))
        return er_error_set(err, ER_E_MISMATCH,
                            "step %lu: some ranks scale their losses, some do not "
                            "(er_train_opts.scaler)",
                            ul(vote->step));
    if (verdict == ER_TRAIN_VERDICT_APPLY) {
        er_train_policy_good(&train->bad, vote->step);
        return 0;
    }
    if (verdict == ER_TRAIN_VERDICT_LEFT_OUT) {
        train->bad.skipped++;
        er_train_tell(train, ER_TRAIN_LEFT_OUT, vote->step, "workers keep failing in this step");
        return 0;
    }
    if (verdict == ER_TRAIN_VERDICT_NONFINITE) {
        int scaled = er_train_scaler_judge(train, vote, err);

        if (scaled != 0)
            return scaled < 0 ? scaled : 0;
    }
    if (refuse(train, vote, verdict, &why) == -EDOM && verdict == ER_TRAIN_VERDICT_NONFINITE)
        return er_train_bad_step(train, vote, &why, err);
    return er_error_set(err, why.code, "%s", why.text);
}

/* ER_TRAIN_ROLLED_BACK: the step does not count. */
static int agree(struct er_train *train, const struct er_loss *loss, struct er_vote *vote,
                 struct er_error *err)
{
    struct er_train_told told;
    int rc;

    er_train_phase(train, ER_PHASE_COMMUNICATE);
    *vote = (struct er_vote){.loss = loss->sum,
                             .weight = loss->weight,
                             .nonfinite = loss->nonfinite,
                             .busy_us = train->clock.busy_us,
                             .flags = ER_VOTE_NONFINITE << train->opts->nonfinite |
                                      (train->opts->scaler ? ER_VOTE_SCALED : ER_VOTE_UNSCALED)};
    if (is_left_out(train, train->applied + 1))
        vote->flags |= ER_VOTE_LEFT_OUT;
    told.notice = er_notice(train->ctx);
    told.save_first = er_notice_saves(train->ctx);
    er_train_policy_fill_vote(&train->policy, vote, train->applied + 1, train->rank, train->size,
                              told, er_now_us());
    er_train_policy_fill_saving(vote, !train->ckpt ||
                                          (!train->snapshot && er_ckpt_local_done(train->ckpt)));
    rc = reduce(train, vote, err);
    if (train->fsdp ? er_fsdp_reduced(train->fsdp) : er_ddp_reduced(train->ddp))
        train->held.grads_of = train->applied + 1;
    if (rc >= 0)
        train->clock.pace.median_busy_us += vote->busy_us;
    if (rc == 0)
        rc = er_train_catchup_end(train, err);
    return rc < 0 ? rc : settle(train, vote, err);
}

static int apply(struct er_train *train, uint64_t step, const struct er_vote *vote,
                 struct er_error *err)
{
    int rc = er_train_callback_rc(train->ops->apply(train->user, step, vote, err), "apply()", err);

    return rc < 0 ? rc : er_train_shards_apply(train, step, vote, err);
}

int er_train_apply(struct er_train *train, const struct er_vote *vote, struct er_error *err)
{
    uint64_t step = train->applied + 1;
    int rc = train->ckpt ? er_train_save_copied(train, err) : 0;

    if (rc < 0)
        return rc;
    er_train_phase(train, ER_PHASE_OPTIMIZER);
    if (er_train_policy_usable(vote))
        rc = apply(train, step, vote, err);
    else
        er_train_drop(train); /* skipped */
    if (rc < 0)
        return er_error_wrap(err, rc, "optimizer step %lu", ul(step));
    er_train_scaler_step(train, er_train_policy_finite(vote));
    train->applied = step;
    train->held.vote = *vote;
    train->held.grads_of = 0;
    if (er_train_policy_usable(vote) || er_train_policy_overflowed(vote))
        train->result.loss = vote->loss / vote->weight;
    er_train_phase(train, ER_PHASE_IDLE);
    return 0;
}

static int end_epoch(struct er_train *train, struct er_error *err)
{
    uint64_t epoch = train->applied / train->epoch_steps - 1;
    int rc;

    if (!train->ops->epoch_end)
        return 0;
    er_progress(train->ctx, ER_PHASE_EVALUATION, train->applied);
    rc = er_train_callback_rc(
        train->ops->epoch_end(train->user, epoch, train->applied, train->comm, err), "epoch_end()",
        err);
    er_progress(train->ctx, ER_PHASE_IDLE, train->applied);
    return rc < 0 ? er_error_wrap(err, rc, "end of epoch %lu", ul(epoch)) : 0;
}

/* The state goes on without some of the ranks, and is not on the disk. */
static bool hands_over(const struct er_train *train, const struct er_train_policy_todo *todo,
                       const struct er_vote *vote)
{
    return train->fsdp && !todo->save && todo->ending != ER_GO_ON && todo->ending != ER_END_DONE &&
           vote->notice != ER_NOTICE_STOP && (vote->flags & ER_VOTE_STAYS);
}

/* A step alone needs no newcomer that has the state; a checkpoint can wait for it. */
static int before_the_rest(struct er_train *train, struct er_train_policy_todo *todo,
                           const struct er_vote *vote, struct er_error *err)
{
    bool goes_on = todo->ending == ER_GO_ON && !todo->epoch_end;

    if (train->catchup.learners_n == 0)
        return 0;
    if (goes_on && todo->save) {
        todo->save = false;
        todo->owe = true;
    }
    /* After a STOP some may be gone. */
    if (goes_on || (vote->notice == ER_NOTICE_STOP && todo->ending != ER_END_DONE))
        return 0;
    return er_train_catchup_finish(train, err);
}

/* What follows a step that has been applied; every rank takes the same way. */
static int follow_up(struct er_train *train, const struct er_vote *vote, enum er_train_ending *ret,
                     struct er_error *err)
{
    struct er_train_policy_todo todo = er_train_policy_after(&train->policy, train->applied, vote);
    int rc = todo.advance ? er_train_save_advance(train, err) : 0;

    if (rc == 0 && todo.ending != ER_GO_ON && vote->notice != ER_NOTICE_STOP)
        rc = er_train_save_settle(train, err);
    if (rc == 0)
        rc = before_the_rest(train, &todo, vote, err);
    if (rc == 0 && todo.save)
        rc = er_train_save(train, todo.ending, err);
    else
        train->policy.owed |= todo.owe;
    if (rc == 0 && todo.epoch_end)
        rc = end_epoch(train, err);
    if (rc == 0 && hands_over(train, &todo, vote))
        rc = er_train_shards_hand_over(train, todo.ending, err);
    if (rc < 0)
        return rc;
    if (todo.ending == ER_END_STOPPED)
        er_train_tell(train, ER_TRAIN_STOPPED, train->applied,
                      vote->notice == ER_NOTICE_DRAIN ? "drain" : "stop");
    *ret = todo.ending;
    return 0;
}

static int one_step(struct er_train *train, enum er_train_ending *ret, struct er_error *err)
{
    struct er_range range = er_train_range(train);
    struct er_loss loss = {0};
    struct er_vote vote;
    int rc = gradients(train, &range, &loss, err);

    if (rc == 0)
        rc = agree(train, &loss, &vote, err);
    if (rc == 0)
        rc = er_train_apply(train, &vote, err);
    if (rc != 0) /* rolled back, too: the next step is another one */
        return rc < 0 ? rc : 0;
    train->samples += range.step_count;
    er_train_clock_end(train);
    er_train_tell_step(train, &range);
    return follow_up(train, &vote, ret, err);
}

static int run_steps(struct er_train *train, struct er_error *err)
{
    enum er_train_ending ending = train->applied < train->total_steps ? ER_GO_ON : ER_END_DONE;
    bool epoch_end = train->applied > 0 && train->applied % train->epoch_steps == 0;
    int rc = 0;

    if (epoch_end || ending == ER_END_DONE) /* nothing else comes before that */
        rc = er_train_catchup_finish(train, err);
    /* Whether an epoch that ends where this run resumes was evaluated is not known: do it again. */
    if (rc == 0 && epoch_end)
        rc = end_epoch(train, err);
    /* The last step was applied, and a rank lost before it was saved. */
    if (rc == 0 && ending == ER_END_DONE && train->ckpt && train->held.saved_step != train->applied)
        rc = er_train_save(train, ending, err);
    while (rc == 0 && ending == ER_GO_ON)
        rc = one_step(train, &ending, err);
    /* Who leaves with the result takes it along: not before all have it. */
    if (rc == 0 && ending == ER_END_DONE)
        rc = er_comm_barrier(train->comm, err);
    if (rc == 0)
        rc = er_train_ledger_end(train, err);
    if (rc < 0)
        return rc;
    train->result.steps = train->applied;
    train->result.skipped = train->bad.skipped;
    train->result.rolled_back = train->bad.rolled_back;
    train->result.stopped = ending == ER_END_STOPPED;
    train->leaving = ending == ER_END_REJOIN;
    if (ending == ER_END_REJOIN)
        return er_error_set(err, ER_E_ABORTED, "membership changes: generation left after step %lu",
                            ul(train->applied));
    return 0;
}

static int run_generation(void *user, struct er_error *err)
{
    struct er_train *train = user;
    int rc = er_train_open(train, err);

    if (rc == 0)
        rc = er_train_restore(train, err);
    if (rc == 0)
        rc = er_ready(train->ctx, err);
    if (rc == 0)
        rc = run_steps(train, err);
    er_train_leave(train);
    return rc;
}

/* The generation is over, and nothing is wrong with this rank. */
static bool others_were_lost(int rc)
{
    return rc == ER_E_PEER_LOST || rc == ER_E_ABORTED || rc == ER_E_STALE;
}

/* Why it left matters where nobody turns out to have been lost. */
static int rejoin(struct er_train *train, int rc, const struct er_error *why)
{
    if (rc == ER_E_PEER_LOST)
        er_fail(train->ctx, "%s", why->text);
    return er_rejoin(train->ctx, UINT64_MAX, NULL);
}

int er_train_outlive(struct er_train *train, int (*generation)(void *user, struct er_error *err),
                     void *user, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc, next = 0;

    if (train->rejoins)
        er_rejoin_offer(train->ctx);
    rc = generation(user, &why);
    while (train->rejoins && others_were_lost(rc) && (next = rejoin(train, rc, &why)) == 0) {
        train->result.recoveries++;
        train->leaving = false;
        why = (struct er_error)ER_ERROR_INIT;
        rc = generation(user, &why);
    }
    if (rc < 0 && train->leaving && next == ER_REJOIN_DONE)
        train->result.stopped = true; /* it left as it was told, and is not needed any more */
    else if (rc < 0) /* without a next generation the error is that of the last one */
        return er_error_set(err, rc, "%s", why.text);
    return 0;
}

int er_train_run(struct er_ctx *ctx, const struct er_train_ops *ops, void *user,
                 const struct er_train_opts *opts, struct er_train_result *ret,
                 struct er_error *err)
{
    struct er_train train = {.ctx = ctx, .ops = ops, .user = user, .opts = opts};
    int rc;

    train.rejoins = !opts->restart_on_loss;
    rc = er_train_outlive(&train, run_generation, &train, err);
    er_train_close(&train);
    if (rc == 0)
        *ret = train.result;
    return rc;
}
