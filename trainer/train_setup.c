#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "trainer/engine_ops.h"
#include "trainer/numerics.h"
#include "trainer/sync.h"
#include "trainer/train_internal.h"

/* ---- options ---- */

static int check_options(struct er_train *train, struct er_error *err)
{
    const struct er_train_ops *ops = train->ops;
    const struct er_train_opts *opts = train->opts;

    if (!ops->grads)
        return er_error_set(err, ER_E_USAGE, "grads must be given");
    if (opts->nonfinite >= ER_NONFINITE_COUNT)
        return er_error_set(err, ER_E_USAGE, "nonfinite: %d is no policy", (int)opts->nonfinite);
    if (opts->plan.samples < 1 || opts->plan.global_batch < 1 || opts->epochs < 1)
        return er_error_set(err, ER_E_USAGE,
                            "samples %" PRIu64 ", global batch %" PRIu64 ", epochs %" PRIu64
                            ": each must be at least 1",
                            opts->plan.samples, opts->plan.global_batch, opts->epochs);
    train->epoch_steps = er_plan_steps(&opts->plan);
    if (__builtin_mul_overflow(train->epoch_steps, opts->epochs, &train->total_steps))
        return er_error_set(err, ER_E_USAGE, "%" PRIu64 " epochs of %" PRIu64 " steps: too many",
                            opts->epochs, train->epoch_steps);
    return 0;
}

/* What the job spec says, which the agent hands over in the environment; 0: nothing, or none. */
static int from_job(const char *name, bool is_time, uint64_t *ret, struct er_error *err)
{
    const char *text = getenv(name);
    uint64_t value = 0;
    int rc = 0;

    if (!text || !text[0] || strcmp(text, "none") == 0)
        return 0;
    rc = is_time ? er_parse_duration(text, false, &value, err)
                 : er_parse_u64(text, 1, UINT32_MAX, &value, err);
    if (rc < 0)
        return er_error_wrap(err, ER_E_CONFIG, "%s", name);
    *ret = value;
    return 0;
}

static int choose_saving(struct er_train *train, struct er_error *err)
{
    const struct er_train_opts *opts = train->opts;
    struct er_train_saving *saving = &train->saving;
    const struct {
        const char *name;
        bool is_time;
        uint64_t own, *to;
    } rows[] = {
        {"ELASTIC_CHECKPOINT_EVERY_STEPS", false, opts->checkpoint_steps, &saving->steps},
        {"ELASTIC_CHECKPOINT_EVERY", true, opts->checkpoint_every_us, &saving->every_us},
        {"ELASTIC_CHECKPOINT_KEEP_LAST", false, opts->checkpoint_keep, &saving->keep},
        {"ELASTIC_CHECKPOINT_KEEP_EVERY", false, opts->checkpoint_keep_every, &saving->keep_every},
        {"ELASTIC_CHECKPOINT_FAILURES_MAX", false, opts->checkpoint_failures_max,
         &saving->failures_max},
    };
    int rc = 0;

    for (size_t i = 0; i < ER_ARRAY_N(rows) && rc == 0; i++) {
        *rows[i].to = rows[i].own;
        if (rows[i].own == 0)
            rc = from_job(rows[i].name, rows[i].is_time, rows[i].to, err);
    }
    return rc;
}

/* ---- checkpoints as a group of ranks ---- */

static int group_gather(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    struct er_train *train = user;

    return er_sync_gather(train->comm, mine, n, all, err);
}

static int group_commit_begin(void *user, const struct er_ckpt_done *done, struct er_error *err)
{
    struct er_train *train = user;
    struct er_commit commit = {
        .step = done->step,
        .bytes = done->bytes,
        .written_bytes = done->written_bytes,
        .pause_us = done->pause_us,
        .duration_us = done->duration_us,
        .path = done->path,
        .digest = done->digest,
    };

    return er_commit_begin(train->ctx, &commit, err);
}

static int group_commit_end(void *user, uint64_t wait_us, struct er_error *err)
{
    struct er_train *train = user;

    return er_commit_end(train->ctx, wait_us, err);
}

_Static_assert(ER_COMMIT_OPEN == ER_CKPT_COMMIT_OPEN, "handed through");

static struct er_ckpt_group describe_group(struct er_train *train)
{
    return (struct er_ckpt_group){
        .rank = train->rank,
        .size = train->size,
        .user = train,
        .gather = group_gather,
        .commit_begin = group_commit_begin,
        .commit_end = group_commit_end,
    };
}

/* In the job's folder generations go on from run to run; in another they mean nothing. */
static uint64_t folder_generation(const struct er_train *train)
{
    return train->opts->checkpoint_dir ? 0 : er_world(train->ctx)->generation;
}

static int open_checkpoints(struct er_train *train, struct er_error *err)
{
    struct er_ckpt_opts opts = {.keep_last = (uint32_t)train->saving.keep,
                                .keep_every = train->saving.keep_every};
    const struct er_ckpt_group group = describe_group(train);
    const char *dir = train->opts->checkpoint_dir;

    if (!dir)
        dir = er_world(train->ctx)->checkpoint_dir;
    if (!dir || !dir[0])
        return 0;
    opts.generation = folder_generation(train);
    return er_ckpt_open(&train->ckpt, dir, &group, &opts, err);
}

/* The reducer's gradients are those of the plan. */
static int check_sums(const struct er_train *train, struct er_error *err)
{
    uint32_t shards = train->opts->plan.shards;
    bool exact = shards > 0, i64 = train->opts->ddp.dtype == ER_I64;

    if (train->fsdp && er_fsdp_exact_shards(train->fsdp) != shards)
        return er_error_set(err, ER_E_USAGE,
                            "plan.shards is %u, er_fsdp_opts.exact_shards %u: they must be equal",
                            shards, er_fsdp_exact_shards(train->fsdp));
    if (train->ddp && exact != i64)
        return er_error_set(err, ER_E_USAGE,
                            "plan.shards is %u, the gradients are %s: exact mode needs both, "
                            "shards and int64 sums (trainer/exact.h)",
                            shards, er_dtype_name(train->opts->ddp.dtype));
    return 0;
}

/* Exact mode: a shard is not divided, and all ranks must get the same bits from the same numbers.
 */
static int check_exact(const struct er_train *train, struct er_error *err)
{
    uint32_t shards = train->opts->plan.shards;

    if (shards == 0)
        return 0;
    if ((uint32_t)train->size > shards)
        return er_error_set(err, ER_E_USAGE, "exact mode: %d ranks for %u shards", train->size,
                            shards);
    return er_numerics_agree(train->comm, train->engine, err);
}

static int check_shards(const struct er_train *train, struct er_error *err)
{
    if (er_fsdp_engine(train->fsdp) == train->engine)
        return 0;
    return er_error_set(
        err, ER_E_USAGE,
        "er_fsdp_opts.engine is '%s', er_train_opts.engine '%s': they must be equal",
        er_engine_describe(er_fsdp_engine(train->fsdp)), er_engine_describe(train->engine));
}

static int open_reducer(struct er_train *train, struct er_error *err)
{
    struct er_ddp_opts opts = train->opts->ddp;
    const struct er_span *spans = NULL;
    size_t spans_n = 0;
    int rc;

    rc = er_train_open_wire(train, err);
    if (rc < 0)
        return rc;
    if (train->ops->shard) {
        rc = er_train_shards_open(train, err);
        if (rc == 0)
            rc = check_shards(train, err);
        if (rc == 0)
            train->layout = er_fsdp_layout(train->fsdp);
        return rc;
    }
    train->ops->spans(train->user, &spans, &spans_n);
    if ((train->opts->nonfinite != ER_NONFINITE_STOP || train->opts->scaler) &&
        opts.dtype == ER_F32)
        opts.count_nonfinite = true; /* else parameters are spoilt before a loss tells */
    opts.engine = train->engine;
    opts.control = train->comm;
    rc = er_ddp_open(&train->ddp, train->wire, spans, spans_n, &opts, err);
    if (rc == 0)
        rc = er_ddp_check(train->ddp, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "before the first step");
    train->layout = er_ddp_layout(train->ddp);
    return 0;
}

int er_train_open_comm(struct er_train *train, struct er_error *err)
{
    struct er_comm_opts comm = train->opts->comm;
    int rc = check_options(train, err);

    train->engine = train->opts->engine ? train->opts->engine : er_engine_cpu();
    if (train->engine->device) { /* NCCL is for the gradients: er_train_open_wire() */
        comm.backend = ER_COMM_AUTO;
        comm.name = "control";
        comm.shrink_from = NULL;
    }
    if (rc == 0)
        rc = choose_saving(train, err);
    if (rc < 0)
        return rc;
    er_progress(train->ctx, ER_PHASE_STARTUP, train->applied);
    rc = er_comm_open(&train->comm, train->ctx, &comm, err);
    if (rc == 0)
        rc = er_comm_wait_ready(train->comm, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "communicator");
    train->rank = er_comm_rank(train->comm);
    train->size = er_comm_size(train->comm);
    return 0;
}

static int check_engine(const struct er_train *train, struct er_error *err)
{
    const struct er_train_opts *opts = train->opts;

    if (!opts->engine || !opts->engine->device)
        return 0;
    if (opts->comm.backend != ER_COMM_AUTO && opts->comm.backend != ER_COMM_NCCL)
        return er_error_set(err, ER_E_USAGE,
                            "gradients in a GPU's memory need a communicator of backend nccl");
    return 0;
}

/* Survivors of a generation have theirs; newcomers join in the same exchange. */
int er_train_join_checkpoints(struct er_train *train, struct er_error *err)
{
    const struct er_ckpt_group group = describe_group(train);
    int rc = train->ckpt ? 0 : open_checkpoints(train, err);

    if (rc < 0 || !train->ckpt)
        return rc;
    return er_train_save_regroup(train, &group, folder_generation(train), err);
}

int er_train_open(struct er_train *train, struct er_error *err)
{
    const struct er_train_ops *ops = train->ops;
    int rc;

    if (!ops->apply || !ops->state || !ops->spans == !ops->shard)
        return er_error_set(err, ER_E_USAGE,
                            "grads, apply, state, and one of spans and shard must be given");
    if (train->opts->shadow && !ops->shard)
        return er_error_set(err, ER_E_USAGE,
                            "shadow is for sharded states (shard): with spans every "
                            "rank has all of it");
    rc = check_engine(train, err);
    if (rc == 0)
        rc = er_train_open_comm(train, err);
    if (rc == 0)
        rc = check_exact(train, err);
    if (rc == 0)
        rc = open_reducer(train, err);
    if (rc == 0)
        rc = check_sums(train, err);
    if (rc < 0)
        return rc;
    ops->state(train->user, &train->state, &train->state_n);
    rc = er_train_mirror_open(train, err);
    if (rc == 0)
        rc = er_train_scaler_open(train, err);
    return rc ? rc : er_train_join_checkpoints(train, err);
}

void er_train_leave(struct er_train *train)
{
    struct er_comm *comms[] = {train->comm, train->wire};
    bool apart = train->wire != train->comm;

    if (train->ckpt) /* the copy of a state on the host */
        (void)er_ckpt_before_apply(train->ckpt, NULL);
    er_ddp_close(train->ddp);
    er_comm_abort_all(comms, apart ? 2 : 1);
    if (train->fsdp)
        er_fsdp_abandon(train->fsdp);
    if (train->engine) /* only now: what waits for a peer would wait for ever */
        er_engine_wait(train->engine, NULL);
    er_train_mirror_close(train);
    er_train_scaler_close(train);
    er_train_catchup_drop(train); /* nothing is under way any more */
    train->wire = NULL;
    train->snapshot = 0;
    train->ddp = NULL;
    train->comm = NULL;
}

void er_train_close(struct er_train *train)
{
    er_ckpt_close(train->ckpt);
    er_shards_drop(&train->shards);
    train->ckpt = NULL;
    er_train_leave(train);
}
