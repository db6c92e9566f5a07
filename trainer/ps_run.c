#include "trainer/ps.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "trainer/engine_ops.h"
#include "trainer/ps_run_internal.h"

static void set_train(struct er_ps_loop *run, struct er_ctx *ctx, const struct er_train_ops *ops,
                      void *user)
{
    const struct er_ps_opts *o = run->opts;

    run->train_opts = (struct er_train_opts){.plan = o->plan,
                                             .epochs = o->epochs,
                                             .checkpoint_steps = o->checkpoint_steps,
                                             .checkpoint_dir = o->checkpoint_dir,
                                             .checkpoint_wait = true,
                                             .log_steps = 1,
                                             .comm = o->comm,
                                             .log = o->log};
    run->train_ops = *ops;
    run->train = (struct er_train){.ctx = ctx,
                                   .ops = &run->train_ops,
                                   .user = user,
                                   .opts = &run->train_opts,
                                   .rejoins = !o->restart_on_loss,
                                   .layout = "parameter servers"};
}

/* ---- values and gradients of the worker ---- */

/* The servers' values to where the worker computes; its kernels come after. */
static int pull(struct er_ps_loop *run, uint64_t steps, struct er_error *err)
{
    float *values = run->host.block[ER_FLAT_VALUE];
    int rc = er_ps_client_pull(run->client, values, steps, err);

    if (rc < 0 || !run->pinned)
        return rc;
    return er_stream_copy(er_engine_stream(run->engine), run->flat->block[ER_FLAT_VALUE], values,
                          run->flat->total * sizeof(float), ER_COPY_TO_DEVICE, err);
}

/* Gradients to the host, and 0 where they were. */
static int take_grads(struct er_ps_loop *run, struct er_error *err)
{
    float *from = run->flat->block[ER_FLAT_GRAD];
    int rc;

    if (!run->pinned)
        return 0;
    rc = er_stream_copy(er_engine_stream(run->engine), run->host.block[ER_FLAT_GRAD], from,
                        run->flat->total * sizeof(float), ER_COPY_TO_HOST, err);
    return rc ? rc : er_engine_wait(run->engine, err);
}

static int clear_grads(struct er_ps_loop *run, struct er_error *err)
{
    return run->engine->ops->fill(run->engine, run->flat->block[ER_FLAT_GRAD], 0.0f,
                                  run->flat->total, err);
}

/* ---- work ---- */

static int work(struct er_ps_loop *run, uint64_t part, struct er_error *err)
{
    struct er_train *train = &run->train;
    uint64_t number = part / run->parts + 1, done = number - 1;
    uint64_t needs = done > run->opts->staleness ? done - run->opts->staleness : 0;
    struct er_step step = {
        .step = number,
        .range = er_batch(&run->opts->plan, number, (int)(part % run->parts), (int)run->parts)};
    struct er_loss loss = {0};
    int rc;

    er_progress(train->ctx, ER_PHASE_COMMUNICATE, train->applied);
    rc = pull(run, needs, err);
    if (rc < 0)
        return rc;
    er_progress(train->ctx, ER_PHASE_FORWARD, train->applied);
    rc = er_train_callback_rc(train->ops->grads(train->user, &step, &loss, err), "grads()", err);
    if (rc < 0)
        return er_error_wrap(err, rc, "rank %d, gradients of step %lu", train->rank,
                             (unsigned long)number);
    if (!isfinite(loss.sum) || loss.nonfinite > 0)
        return er_error_set(err, -EDOM, "step %lu: the loss or a gradient of rank %d is not finite",
                            (unsigned long)number, train->rank);
    er_progress(train->ctx, ER_PHASE_COMMUNICATE, train->applied);
    rc = take_grads(run, err);
    if (rc == 0)
        rc = er_ps_client_stage(run->client, run->host.block[ER_FLAT_GRAD],
                                &(struct er_ps_push){part, needs, loss.weight}, err);
    if (rc == 0)
        rc = er_ps_client_commit(run->client, err);
    if (rc == 0)
        rc = clear_grads(run, err);
    if (rc < 0)
        return rc;
    run->loss += loss.sum;
    run->weight += loss.weight;
    er_progress(train->ctx, ER_PHASE_IDLE, done);
    return 0;
}

/* Loss of all ranks since the last meeting. */
static int tell(struct er_ps_loop *run, struct er_error *err)
{
    struct er_train *train = &run->train;
    double sums[2] = {run->loss, run->weight};
    struct er_op *op;
    int rc = er_all_reduce(train->comm, sums, 2, ER_F64, ER_SUM, &op, err);

    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, err);
    if (rc < 0)
        return rc;
    train->result.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    run->loss = run->weight = 0;
    er_progress_figures(train->ctx, train->samples, train->result.loss, train->total_steps);
    return 0;
}

/* Somebody stays who is to have the parts of servers that leave. */
static int hand_over(struct er_ps_loop *run, enum er_train_ending ending, struct er_error *err)
{
    struct er_train *train = &run->train;
    size_t size = (size_t)train->size;
    uint8_t mine = train->policy.told == ER_NOTICE_REJOIN;
    ER_CLEANUP(er_cleanup_free) uint8_t *stays = calloc(size, 1);
    ER_CLEANUP(er_cleanup_free) int *from = calloc(size, sizeof(*from));
    ER_CLEANUP(er_cleanup_free) int *to = calloc(size, sizeof(*to));
    int rc, n;

    if (!stays || !from || !to)
        return er_error_set(err, -ENOMEM, "who stays of %d ranks", train->size);
    rc = er_sync_gather(train->comm, &mine, 1, stays, err);
    if (rc < 0)
        return rc;
    n = er_ps_plan_takers(stays, train->size, run->servers, from, to);
    if (n < 0) /* from where all begin then */
        return train->ckpt && train->policy.saved_step != train->applied
                   ? er_train_save(train, ending, err)
                   : 0;
    rc = er_ps_keep_hand_over(&run->keep, train->comm, run->server, run->lineage, from, to, n,
                              run->flat->total, run->servers, err);
    return rc < 0 ? er_error_wrap(err, rc, "parts of servers that leave") : 0;
}

/* Nobody's server ends while another still asks it. */
static int part_ways(struct er_ps_loop *run, struct er_error *err)
{
    int rc = er_comm_barrier(run->train.comm, err);

    run->train.result.steps = run->train.applied;
    return rc < 0 ? rc : er_train_ledger_end(&run->train, err);
}

/* All have agreed to leave here. 1: for good. */
static int leave(struct er_ps_loop *run, enum er_train_ending ending, const struct er_vote *vote,
                 struct er_error *err)
{
    struct er_train *train = &run->train;
    int rc = 0;

    if (vote->notice != ER_NOTICE_STOP && (vote->flags & ER_VOTE_STAYS))
        rc = hand_over(run, ending, err);
    if (rc == 0)
        rc = part_ways(run, err);
    if (rc < 0)
        return rc;
    if (ending == ER_END_STOPPED) {
        er_train_tell(train, ER_TRAIN_STOPPED, train->applied,
                      vote->notice == ER_NOTICE_DRAIN ? "drain" : "stop");
        train->result.stopped = true;
        return 1;
    }
    train->leaving = true;
    return er_error_set(err, ER_E_ABORTED, "membership changes: generation left after step %lu",
                        (unsigned long)train->applied);
}

/* Whether all meet there in any case, to save or to look at the parameters. */
static bool is_boundary(const struct er_train *train, uint64_t step)
{
    return step % train->epoch_steps == 0 || step == train->total_steps ||
           (train->ckpt && train->saving.steps > 0 && step % train->saving.steps == 0);
}

static int save(struct er_ps_loop *run, enum er_train_ending ending, struct er_error *err)
{
    int rc = er_train_save(&run->train, ending, err);

    er_ps_loop_forget_first(run);
    return rc;
}

static int end_epoch(struct er_ps_loop *run, uint64_t step, struct er_error *err)
{
    struct er_train *train = &run->train;
    uint64_t epoch = step / train->epoch_steps - 1;

    if (!train->ops->epoch_end)
        return 0;
    er_progress(train->ctx, ER_PHASE_EVALUATION, step);
    return er_train_callback_rc(train->ops->epoch_end(train->user, epoch, step, train->comm, err),
                                "epoch_end()", err);
}

static int vote_at(struct er_ps_loop *run, uint64_t step, struct er_vote *ret, struct er_error *err)
{
    struct er_train *train = &run->train;
    const struct er_train_told told = {er_notice(train->ctx), er_notice_saves(train->ctx)};

    *ret = (struct er_vote){.ok = 1, .loss = run->loss, .weight = 1};
    er_train_policy_fill_vote(&train->policy, ret, step, train->rank, train->size, told,
                              er_now_us());
    return er_vote(train->comm, ret, err);
}

/* All ranks are here, nothing is under way, `step` is done. 1: the run ends here. */
static int meet(struct er_ps_loop *run, uint64_t step, struct er_error *err)
{
    struct er_train *train = &run->train;
    struct er_train_policy_todo todo;
    struct er_vote vote;
    bool goes_on;
    int rc = vote_at(run, step, &vote, err);

    if (rc < 0)
        return rc;
    train->applied = step;
    train->samples = er_ps_loop_samples(run, step);
    todo = er_train_policy_after(&train->policy, step, &vote);
    goes_on = todo.ending == ER_GO_ON || todo.ending == ER_END_DONE;
    rc = tell(run, err);
    if (rc == 0)
        rc = pull(run, step, err);
    if (rc == 0)
        er_train_tell_step(train, &(struct er_range){.epoch = (step - 1) / train->epoch_steps});
    todo.save = todo.save || (goes_on && train->ckpt && is_boundary(train, step) &&
                              train->policy.saved_step != step);
    if (rc == 0 && todo.save)
        rc = save(run, todo.ending, err);
    else
        train->policy.owed |= todo.owe;
    if (rc == 0 && todo.epoch_end)
        rc = end_epoch(run, step, err);
    if (rc < 0)
        return rc;
    er_progress(train->ctx, ER_PHASE_IDLE, step);
    return goes_on ? 0 : leave(run, todo.ending, &vote, err);
}

/* What comes behind a step may have been left undone when the generation before ended there. */
static int end_step_before(struct er_ps_loop *run, struct er_error *err)
{
    struct er_train *train = &run->train;
    uint64_t step = train->applied;
    bool is_last = step == train->total_steps;
    int rc = 0;

    if (step == 0 || !run->whole)
        return 0;
    if (train->ckpt && train->policy.saved_step != step &&
        (train->policy.owed || is_boundary(train, step)))
        rc = save(run, is_last ? ER_END_DONE : ER_GO_ON, err);
    if (rc == 0 && step % train->epoch_steps == 0) {
        rc = pull(run, step, err);
        if (rc == 0)
            rc = end_epoch(run, step, err);
    }
    er_progress(train->ctx, ER_PHASE_IDLE, step);
    return rc;
}

static int run_parts(struct er_ps_loop *run, struct er_error *err)
{
    int rc = end_step_before(run, err);

    while (rc == 0) {
        enum er_ps_answer answer = ER_PS_DONE;
        uint64_t number = 0;

        rc = er_ps_client_lease(run->client, &answer, &number, err);
        if (rc < 0)
            break;
        if (answer == ER_PS_DONE)
            return part_ways(run, err);
        rc = answer == ER_PS_PART ? work(run, number, err) : meet(run, number, err);
    }
    return rc < 0 ? rc : 0;
}

static int run_generation(void *user, struct er_error *err)
{
    struct er_ps_loop *run = user;
    int rc = er_ps_loop_begin(run, err);

    if (rc == 0)
        rc = er_ready(run->train.ctx, err);
    if (rc == 0)
        rc = run_parts(run, err);
    er_ps_loop_leave(run);
    return rc;
}

int er_ps_run(struct er_ctx *ctx, struct er_flat *flat, const struct er_train_ops *ops, void *user,
              const struct er_ps_opts *opts, struct er_train_result *ret, struct er_error *err)
{
    struct er_ps_loop *run = calloc(1, sizeof(*run));
    int rc;

    if (!run)
        return er_error_set(err, -ENOMEM, "parameter servers");
    run->opts = opts;
    run->flat = flat;
    run->engine = opts->engine ? opts->engine : er_engine_cpu();
    set_train(run, ctx, ops, user);
    rc = er_train_outlive(&run->train, run_generation, run, err);
    er_ps_loop_close(run);
    if (rc == 0)
        *ret = run->train.result;
    free(run);
    return rc;
}
