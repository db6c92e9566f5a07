/* Where a generation begins when nobody holds a state: the newest checkpoint, else rank 0's. */
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
#include "ckpt/folder.h"
#include "ckpt/slices.h"
#include "trainer/sync.h"
#include "trainer/train_internal.h"

/* The list of checkpoints passed over is one message to the agent; what does not fit is not listed.
 */
#define SKIPPED_MAX_BYTES (32 * 1024)
#define SKIPPED_WHY_BYTES 512
#define SKIPPED_ONE_BYTES (6 * SKIPPED_WHY_BYTES + 64) /* every character escaped */

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

    if (rc == 0 && train->fsdp)
        rc = er_fsdp_fill_again(train->fsdp, err);
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
    int rc;

    er_train_catchup_drop(train); /* everybody loads */
    rc = load(train, err);
    if (rc == 0)
        rc = er_train_shards_shadow(train, err);
    if (rc)
        return rc;
    begin_policy(train);
    return er_train_ledger_begin(train, ER_LEDGER_FROM_CHECKPOINT, err);
}

int er_train_begin_anew(struct er_train *train, struct er_error *err)
{
    int rc;

    train->applied = 0;
    rc = er_train_save_finish(train, err);
    if (rc == 0 && train->fsdp)
        rc = er_train_shards_empty(train, err);
    if (rc == 0)
        rc = load(train, err);
    if (rc == 1)
        rc = share_state(train, err);
    if (rc == 0)
        rc = er_train_shards_shadow(train, err);
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
    int rc = er_train_recover(train, err);
    bool anew = rc == 1;

    if (anew)
        rc = er_train_begin_anew(train, err);
    return rc < 0 ? rc : er_train_begun(train, anew, err);
}

int er_train_begun(struct er_train *train, bool anew, struct er_error *err)
{
    enum er_ledger_source from = !anew                ? ER_LEDGER_FROM_MEMORY
                                 : train->applied > 0 ? ER_LEDGER_FROM_CHECKPOINT
                                                      : ER_LEDGER_FROM_START;
    /* Nobody applies a step before that: rank 0 has to vote. */
    int rc = er_train_ledger_begin(train, from, err);

    if (rc < 0)
        return rc;
    reserve(train);
    train->began = train->applied;
    begin_policy(train);
    er_progress(train->ctx, ER_PHASE_STARTUP, train->applied);
    return 0;
}
