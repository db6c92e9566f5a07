#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/field.h"
#include "base/parse.h"
#include "ckpt/folder.h"
#include "ckpt/slices.h"
#include "trainer/engine_ops.h"
#include "trainer/numerics.h"
#include "trainer/sync.h"
#include "trainer/train_internal.h"

/* The list of checkpoints passed over is one message to the agent; what does not fit is not listed.
 */
#define SKIPPED_MAX_BYTES (32 * 1024)
#define SKIPPED_WHY_BYTES 512
#define SKIPPED_ONE_BYTES (6 * SKIPPED_WHY_BYTES + 64) /* every character escaped */

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

static int group_commit(void *user, const struct er_ckpt_done *done, struct er_error *err)
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

    return er_commit(train->ctx, &commit, err);
}

static struct er_ckpt_group describe_group(struct er_train *train)
{
    return (struct er_ckpt_group){
        .rank = train->rank,
        .size = train->size,
        .user = train,
        .gather = group_gather,
        .commit = group_commit,
    };
}

/* In the job's folder generations go on from run to run; in another they mean nothing. */
static uint64_t folder_generation(const struct er_train *train)
{
    return train->opts->checkpoint_dir ? 0 : er_world(train->ctx)->generation;
}

int er_train_open_checkpoints(struct er_train *train, struct er_error *err)
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
    return er_numerics_agree(train->comm, err);
}

static int open_reducer(struct er_train *train, struct er_error *err)
{
    struct er_ddp_opts opts = train->opts->ddp;
    const struct er_span *spans = NULL;
    size_t spans_n = 0;
    int rc;

    if (train->ops->shard) {
        rc = er_train_callback_rc(train->ops->shard(train->user, train->comm, &train->fsdp, err),
                                  "shard()", err);
        if (rc == 0)
            train->layout = er_fsdp_layout(train->fsdp);
        return rc;
    }
    train->ops->spans(train->user, &spans, &spans_n);
    if (train->opts->nonfinite != ER_NONFINITE_STOP && opts.dtype == ER_F32)
        opts.count_nonfinite = true; /* else parameters are spoilt before a loss tells */
    opts.engine = train->engine;
    opts.control = train->comm;
    rc = er_train_open_wire(train, err);
    if (rc == 0)
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

/* What a GPU does not do yet. */
static int check_engine(const struct er_train *train, struct er_error *err)
{
    const struct er_train_opts *opts = train->opts;

    if (!opts->engine || !opts->engine->device)
        return 0;
    if (train->ops->shard)
        return er_error_set(err, ER_E_UNSUPPORTED, "FSDP is not offered on a GPU, only DDP");
    if (opts->plan.shards > 0 || opts->ddp.dtype != ER_F32)
        return er_error_set(err, ER_E_UNSUPPORTED, "exact mode is not offered on a GPU");
    if (opts->comm.backend != ER_COMM_AUTO && opts->comm.backend != ER_COMM_NCCL)
        return er_error_set(err, ER_E_USAGE,
                            "gradients in a GPU's memory need a communicator of backend nccl");
    return 0;
}

/* Survivors of a generation have theirs; newcomers join in the same exchange. */
static int open_or_regroup(struct er_train *train, struct er_error *err)
{
    const struct er_ckpt_group group = describe_group(train);
    int rc = train->ckpt ? 0 : er_train_open_checkpoints(train, err);

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
    return rc ? rc : open_or_regroup(train, err);
}

void er_train_leave(struct er_train *train)
{
    struct er_comm *comms[] = {train->comm, train->wire};
    bool apart = train->wire != train->comm;

    if (train->ckpt) /* the copy of a state on the host */
        (void)er_ckpt_before_apply(train->ckpt, NULL);
    er_ddp_close(train->ddp);
    er_comm_abort_all(comms, apart ? 2 : 1);
    if (train->engine) /* only now: what waits for a peer would wait for ever */
        er_engine_wait(train->engine, NULL);
    er_train_mirror_close(train);
    train->wire = NULL;
    train->snapshot = 0;
    train->ddp = NULL;
    train->comm = NULL;
}

void er_train_close(struct er_train *train)
{
    er_ckpt_close(train->ckpt);
    train->ckpt = NULL;
    er_train_leave(train);
}

/* ---- where to begin ---- */

struct skipped {
    struct er_train *train;
    struct er_buf json; /* of objects, without the brackets */
};

static void note_skipped(void *user, uint64_t step, const char *why)
{
    struct skipped *skipped = user;

    er_train_tell(skipped->train, ER_TRAIN_SKIPPED, step, why);
    if (skipped->json.len + SKIPPED_ONE_BYTES > skipped->json.max)
        return;
    er_buf_printf(&skipped->json,
                  "%s{\"step\": %" PRIu64 ", \"why\": ", skipped->json.len > 0 ? ", " : "", step);
    er_json_quote(&skipped->json, why, strnlen(why, SKIPPED_WHY_BYTES));
    er_buf_add_str(&skipped->json, "}");
}

/* Steps mean something only together with the plan that numbered them. */
static int check_plan(const struct er_train *train, const struct er_meta *meta,
                      struct er_error *err)
{
    const struct er_plan *plan = &train->opts->plan;
    const struct {
        const char *name;
        uint64_t saved, now;
    } fields[] = {
        {"samples", meta->samples, plan->samples},
        {"global batch", meta->global_batch, plan->global_batch},
        {"seed", meta->seed, plan->seed},
    };

    for (size_t i = 0; i < ER_ARRAY_N(fields); i++) {
        if (fields[i].saved != fields[i].now)
            return er_error_set(err, ER_E_CONFIG,
                                "checkpoint of step %" PRIu64 " has %s %" PRIu64
                                ", this run %" PRIu64 ": it cannot go on from there",
                                meta->applied, fields[i].name, fields[i].saved, fields[i].now);
    }
    return 0;
}

static int begin_from(struct er_train *train, const struct er_meta *meta, const char *skipped,
                      struct er_error *err)
{
    const char *dir = train->opts->checkpoint_dir;
    char path[PATH_MAX], list[SKIPPED_MAX_BYTES + 3] = "";
    int rc = check_plan(train, meta, err);

    if (rc == 0)
        rc = er_ckpt_step_path(dir ? dir : er_world(train->ctx)->checkpoint_dir, meta->applied,
                               path, err);
    if (rc < 0)
        return rc;
    train->applied = train->result.resumed_from = meta->applied;
    train->began = train->held.saved_step = meta->applied;
    if (skipped[0])
        snprintf(list, sizeof(list), "[%s]", skipped);
    er_train_tell(train, ER_TRAIN_RESUMED, meta->applied, path);
    return train->rank == 0 ? er_loaded(train->ctx, meta->applied, path, "disk", list, err) : 0;
}

/* 1: there is none. */
static int load_newest(struct er_train *train, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_meta *meta = calloc(1, sizeof(*meta));
    struct skipped skipped = {.train = train};
    int rc;

    if (!meta)
        return er_error_set(err, -ENOMEM, "description of a checkpoint");
    er_buf_init(&skipped.json, SKIPPED_MAX_BYTES);
    er_progress(train->ctx, ER_PHASE_CHECKPOINT, 0);
    rc = er_ckpt_load(train->ckpt, train->state, train->state_n, meta, note_skipped, &skipped, err);
    if (rc == 0)
        rc = er_train_push(train, err);
    if (rc == 0)
        rc = begin_from(train, meta, er_buf_str(&skipped.json), err);
    er_buf_done(&skipped.json);
    return rc;
}

int er_train_parts(const struct er_train *train, struct er_sync_part **ret, size_t *ret_n,
                   struct er_error *err)
{
    struct er_sync_part *parts = calloc(train->state_n + 1, sizeof(*parts));
    size_t n = 0;

    if (!parts)
        return er_error_set(err, -ENOMEM, "list of %zu tensors", train->state_n);
    for (size_t i = 0; i < train->state_n; i++) {
        const struct er_slice *slice = &train->state[i];

        if (slice->replicated)
            parts[n++] = (struct er_sync_part){
                slice->name, slice->data, (size_t)slice->count * er_ckpt_dtype_size(slice->dtype)};
    }
    *ret = parts;
    *ret_n = n;
    return 0;
}

/* A fresh start: everybody begins with rank 0's replicated state. Slices of one rank's own are left
 * as the program initialised them. */
static int share_state(struct er_train *train, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_sync_part *parts = NULL;
    size_t n = 0;
    int rc = er_train_parts(train, &parts, &n, err);

    if (rc == 0)
        rc = er_train_pull(train, err);
    if (rc == 0)
        rc = er_sync_parts(train->comm, parts, n, err);
    if (rc == 0)
        rc = er_train_push(train, err);
    return rc < 0 ? er_error_wrap(err, rc, "initial state") : 0;
}

/* Steps count from `applied`, and a checkpoint of it is on disk. */
static void begin_policy(struct er_train *train)
{
    const struct er_train_policy_opts policy = {
        .total_steps = train->total_steps,
        .epoch_steps = train->epoch_steps,
        .checkpoints = train->ckpt != NULL,
        .checkpoint_steps = train->saving.steps,
        .checkpoint_every_us = train->saving.every_us,
        .failures_max = (uint32_t)train->saving.failures_max,
        .rejoins = train->rejoins,
    };
    bool flies = train->ckpt && er_ckpt_in_flight(train->ckpt);
    uint64_t flight_step = train->policy.flight_step, tried_us = train->policy.tried_us;

    train->line_us = er_now_us();
    train->line_samples = train->samples;
    train->pace_us = train->line_us;
    train->pace_step = train->applied;
    er_train_policy_init(&train->policy, &policy, train->held.saved_step,
                         tried_us > 0 ? tried_us : train->line_us);
    train->policy.flight_step = flies ? flight_step : 0;
    train->policy.owed = train->held.owed;
    train->held.owed = false;
}

/* Until the state is whole, this rank has none. */
static int load(struct er_train *train, struct er_error *err)
{
    int rc;

    train->held = (struct er_train_held){0};
    rc = train->ckpt ? load_newest(train, err) : 1;
    train->held.state = rc == 0;
    return rc;
}

int er_train_go_back(struct er_train *train, struct er_error *err)
{
    int rc = load(train, err);

    if (rc)
        return rc;
    begin_policy(train);
    return er_train_ledger_begin(train, ER_LEDGER_FROM_CHECKPOINT, err);
}

/* Nobody holds a state. */
static int begin_anew(struct er_train *train, struct er_error *err)
{
    int rc;

    train->applied = 0;
    rc = er_train_save_finish(train, err);
    if (rc == 0)
        rc = load(train, err);
    if (rc == 1)
        rc = share_state(train, err);
    train->held.state = rc == 0;
    return rc;
}

/* For checkpoints beside the steps, where there are to be any. Without memory for the copy each of
 * them fails, and says so. */
static void reserve(struct er_train *train)
{
    const struct er_train_saving *saving = &train->saving;

    if (train->ckpt && !er_ckpt_in_flight(train->ckpt) && !train->opts->checkpoint_wait &&
        (saving->steps > 0 || saving->every_us > 0))
        (void)er_ckpt_reserve(train->ckpt, train->state, train->state_n, NULL);
}

int er_train_restore(struct er_train *train, struct er_error *err)
{
    enum er_ledger_source from = ER_LEDGER_FROM_MEMORY;
    int rc = er_train_recover(train, err);

    if (rc == 1) {
        rc = begin_anew(train, err);
        from = train->applied > 0 ? ER_LEDGER_FROM_CHECKPOINT : ER_LEDGER_FROM_START;
    }
    if (rc == 0) /* nobody applies a step before that: rank 0 has to vote */
        rc = er_train_ledger_begin(train, from, err);
    if (rc < 0)
        return rc;
    reserve(train);
    train->began = train->applied;
    begin_policy(train);
    er_progress(train->ctx, ER_PHASE_STARTUP, train->applied);
    return 0;
}
