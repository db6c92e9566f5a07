#include "trainer/ps.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "trainer/ps_client.h"
#include "trainer/sync.h"
#include "trainer/train_internal.h"

/* The common parts of a run (options, checkpoints, lines) are those of the training loop. */
struct ps_run {
    struct er_train train;
    struct er_train_opts train_opts;
    struct er_train_ops train_ops;
    const struct er_ps_opts *opts;
    struct er_flat *flat;
    struct er_ps_server *server; /* NULL: none on this rank */
    struct er_ps_client *client;
    int servers;
    uint32_t parts;
    struct er_slice *slices; /* owned; of our server */
    size_t slices_n;
    double loss, weight; /* of the parts since the last line */
};

/* ---- opening ---- */

static void set_train(struct ps_run *run, struct er_ctx *ctx, const struct er_train_ops *ops,
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
                                   .layout = "parameter servers"};
}

static int check(const struct ps_run *run, struct er_error *err)
{
    const struct er_ps_opts *o = run->opts;

    if (o->servers < 0 || o->parts > ER_PS_WORKERS_MAX || o->plan.shards > 0)
        return er_error_set(err, ER_E_USAGE,
                            "%d servers, %u parts of a step, %u shards: at least 0, at most %d, "
                            "none (exact mode is for DDP) are expected",
                            o->servers, o->parts, o->plan.shards, ER_PS_WORKERS_MAX);
    return 0;
}

static int open_server(struct ps_run *run, struct er_host_record *ret_record, struct er_error *err)
{
    const struct er_train *train = &run->train;
    const struct er_ps_server_opts opts = {
        .index = train->rank,
        .servers = run->servers,
        .flat = run->flat,
        .optim = run->opts->optim,
        .schedule = run->opts->schedule,
        .staleness_aware = run->opts->staleness_aware,
        .parts = run->parts,
        .steps = train->total_steps,
        .staleness = run->opts->staleness,
        .pause_steps = {train->epoch_steps, train->ckpt ? train->saving.steps : 0},
    };
    int rc;

    if (train->rank >= run->servers)
        return 0;
    rc = er_ps_server_open(&run->server, &opts, ret_record, err);
    if (rc < 0)
        return rc;
    run->slices = calloc(er_flat_slices_n(run->flat) + 1, sizeof(*run->slices));
    if (!run->slices)
        return er_error_set(err, -ENOMEM, "list of tensors");
    run->slices_n = er_ps_server_slices(run->server, run->slices);
    return 0;
}

/* Of all ranks, up to the end of `step`. */
static uint64_t samples_until(const struct ps_run *run, uint64_t step)
{
    const struct er_plan *plan = &run->opts->plan;
    uint64_t of_epoch = step % run->train.epoch_steps * plan->global_batch;

    return step / run->train.epoch_steps * plan->samples +
           (of_epoch < plan->samples ? of_epoch : plan->samples);
}

/* The newest checkpoint into the servers, else what they were opened with. */
static int restore(struct ps_run *run, struct er_error *err)
{
    int rc;

    run->train.state = run->slices;
    run->train.state_n = run->slices_n;
    rc = er_train_restore(&run->train, err);
    run->train.line_samples = samples_until(run, run->train.applied);
    return rc;
}

/* Everybody's records of listening servers; those of ranks without one are empty. */
static int exchange(struct ps_run *run, const struct er_host_record *mine,
                    struct er_host_record **ret, struct er_error *err)
{
    struct er_host_record *all = calloc((size_t)run->train.size, sizeof(*all));
    int rc;

    if (!all)
        return er_error_set(err, -ENOMEM, "addresses of %d ranks", run->train.size);
    *ret = all;
    rc = er_sync_gather(run->train.comm, mine, sizeof(*mine), all, err);
    return rc < 0 ? er_error_wrap(err, rc, "addresses of the parameter servers") : 0;
}

static int connect_all(struct ps_run *run, const struct er_host_record *mine, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_host_record *records = NULL;
    int rc = exchange(run, mine, &records, err);

    if (rc == 0 && run->server)
        rc = er_ps_server_run(run->server, records, run->train.applied, err);
    if (rc == 0)
        rc = er_ps_client_open(&run->client, run->train.ctx, (uint32_t)run->train.rank, run->flat,
                               records, run->servers, err);
    return rc;
}

/* Rank 0's first values for all, as er_train_restore() does for replicated state. */
static int share_values(struct ps_run *run, struct er_error *err)
{
    const struct er_sync_part part = {"parameters", run->flat->block[ER_FLAT_VALUE],
                                      run->flat->total * sizeof(float)};

    return er_sync_parts(run->train.comm, &part, 1, err);
}

static int open_run(struct ps_run *run, struct er_error *err)
{
    struct er_host_record mine = {0};
    int rc = check(run, err);

    if (rc == 0)
        rc = er_train_open_comm(&run->train, err);
    if (rc < 0)
        return rc;
    run->servers = run->opts->servers && run->opts->servers < run->train.size ? run->opts->servers
                                                                              : run->train.size;
    run->parts = run->opts->parts ? run->opts->parts : (uint32_t)run->train.size;
    rc = share_values(run, err);
    if (rc == 0)
        rc = er_train_open_checkpoints(&run->train, err);
    if (rc == 0)
        rc = open_server(run, &mine, err);
    if (rc == 0)
        rc = restore(run, err);
    return rc < 0 ? rc : connect_all(run, &mine, err);
}

/* ---- work ---- */

static int work(struct ps_run *run, uint64_t part, struct er_error *err)
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
    rc = er_ps_client_pull(run->client, run->flat->block[ER_FLAT_VALUE], needs, err);
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
    rc = er_ps_client_stage(run->client, run->flat->block[ER_FLAT_GRAD],
                            &(struct er_ps_push){part, needs, loss.weight}, err);
    if (rc == 0)
        rc = er_ps_client_commit(run->client, err);
    if (rc < 0)
        return rc;
    memset(run->flat->block[ER_FLAT_GRAD], 0, run->flat->total * sizeof(float));
    run->loss += loss.sum;
    run->weight += loss.weight;
    er_progress(train->ctx, ER_PHASE_IDLE, done);
    return 0;
}

/* Loss of all ranks since the last meeting. */
static int tell(struct ps_run *run, struct er_error *err)
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

/* All ranks are here, nothing is under way, `step` is done. 1: the run ends here. */
static int meet(struct ps_run *run, uint64_t step, struct er_error *err)
{
    struct er_train *train = &run->train;
    struct er_vote vote = {
        .step = step, .ok = 1, .notice = er_notice(train->ctx), .loss = run->loss, .weight = 1};
    bool is_epoch = step % train->epoch_steps == 0, ends;
    int rc = er_vote(train->comm, &vote, err);

    if (rc < 0)
        return rc;
    train->applied = step;
    train->samples = samples_until(run, step);
    ends = vote.notice >= ER_NOTICE_REJOIN || step == train->total_steps;
    rc = tell(run, err);
    if (rc == 0)
        rc = er_ps_client_pull(run->client, run->flat->block[ER_FLAT_VALUE], step, err);
    if (rc == 0)
        er_train_tell_step(train, &(struct er_range){.epoch = (step - 1) / train->epoch_steps});
    if (rc == 0 && train->ckpt)
        rc = er_train_save(train, ends ? ER_END_DONE : ER_GO_ON, err);
    if (rc == 0 && is_epoch && train->ops->epoch_end)
        rc = er_train_callback_rc(train->ops->epoch_end(train->user, step / train->epoch_steps - 1,
                                                        step, train->comm, err),
                                  "epoch_end()", err);
    if (rc < 0)
        return rc;
    er_progress(train->ctx, ER_PHASE_IDLE, step);
    train->result.stopped = ends && step < train->total_steps;
    return train->result.stopped;
}

static int run_parts(struct ps_run *run, struct er_error *err)
{
    int rc = 0;

    while (rc == 0) {
        enum er_ps_answer answer = ER_PS_DONE;
        uint64_t number = 0;

        rc = er_ps_client_lease(run->client, &answer, &number, err);
        if (rc < 0 || answer == ER_PS_DONE)
            break;
        rc = answer == ER_PS_PART ? work(run, number, err) : meet(run, number, err);
    }
    return rc < 0 ? rc : 0;
}

/* Nobody's server ends while another still asks it. */
static int part_ways(struct ps_run *run, struct er_error *err)
{
    int rc = er_comm_barrier(run->train.comm, err);

    run->train.result.steps = run->train.applied;
    return rc;
}

int er_ps_run(struct er_ctx *ctx, struct er_flat *flat, const struct er_train_ops *ops, void *user,
              const struct er_ps_opts *opts, struct er_train_result *ret, struct er_error *err)
{
    struct ps_run run = {.opts = opts, .flat = flat};
    int rc;

    set_train(&run, ctx, ops, user);
    rc = open_run(&run, err);
    if (rc == 0)
        rc = er_ready(ctx, err);
    if (rc == 0)
        rc = run_parts(&run, err);
    if (rc == 0)
        rc = part_ways(&run, err);
    er_ps_client_close(run.client);
    er_train_close(&run.train);
    er_ps_server_close(run.server);
    free(run.slices);
    if (rc == 0)
        *ret = run.train.result;
    return rc;
}
