#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "trainer/train_internal.h"

/* The layout itself, or its digest where it does not fit. */
static void put_layout(const struct er_train *train, struct er_meta *meta)
{
    const char *layout = train->layout;
    size_t n = strlen(layout);

    if (n < sizeof(meta->layout)) {
        memcpy(meta->layout, layout, n + 1);
    } else {
        char hex[ER_DIGEST_HEX_MAX];

        er_digest_format(er_hash(layout, n), hex);
        snprintf(meta->layout, sizeof(meta->layout), "xxh3:%s", hex);
    }
}

static struct er_meta describe(const struct er_train *train)
{
    const struct er_world *world = er_world(train->ctx);
    struct er_meta meta = {
        .applied = train->applied,
        .generation = world->generation,
        .first_step = train->began + 1,
        .seed = train->opts->plan.seed,
        .global_batch = train->opts->plan.global_batch,
        .samples = train->opts->plan.samples,
        .world_size = train->size,
    };

    snprintf(meta.run, sizeof(meta.run), "%s", world->run ? world->run : "");
    put_layout(train, &meta);
    return meta;
}

/* A failed write is told to the job by rank 0 (a committed one by the checkpoint's own commit).
 * Best effort: training does not fail because a report did. */
static void report_failure(struct er_train *train, uint64_t step, int rc, const char *why)
{
    struct er_commit commit = {.step = step, .error = rc, .path = why, .digest = ""};

    if (train->rank == 0)
        er_commit(train->ctx, &commit, NULL);
    er_train_tell(train, ER_TRAIN_SAVE_FAILED, step, why);
}

static void take_events(struct er_train *train)
{
    struct er_ckpt_event event;

    for (er_ckpt_poll(train->ckpt, &event); event.kind != ER_CKPT_NOTHING;
         er_ckpt_poll(train->ckpt, &event)) {
        if (event.kind != ER_CKPT_COMMITTED)
            continue;
        if (event.stood_in > 0)
            er_train_tell(train, ER_TRAIN_STOOD_IN, event.step, event.note);
        er_train_tell(train, ER_TRAIN_SAVED, event.step, event.text);
    }
}

/* The checkpoint of `step` is over, with `rc`, or the generation before it. */
static int conclude(struct er_train *train, uint64_t step, int rc, const struct er_error *why,
                    enum er_train_ending ending, struct er_error *err)
{
    if (rc < 0 && er_ckpt_in_flight(train->ckpt)) { /* the ranks are no longer together */
        train->policy.flight_step = step;
        return er_error_set(err, rc, "checkpoint of step %" PRIu64 ": %s", step, why->text);
    }
    take_events(train);
    switch (er_train_policy_saved(&train->policy, step, rc, ending, er_now_us())) {
    case ER_SAVE_FINE:
        train->held.saved_step = step;
        return 0;
    case ER_SAVE_TOLERATED:
        report_failure(train, step, rc, why->text);
        return 0;
    case ER_SAVE_TOO_MANY:
        report_failure(train, step, rc, why->text);
        return er_error_set(err, -EIO, "%" PRIu32 " checkpoints in a row failed, the last one: %s",
                            train->policy.failures, why->text);
    case ER_SAVE_FATAL:
        break;
    }
    return er_error_set(err, rc, "checkpoint of step %" PRIu64 ": %s", step, why->text);
}

int er_train_save_advance(struct er_train *train, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc = er_ckpt_advance(train->ckpt, &why);

    return rc == 1 ? 0 : conclude(train, train->policy.flight_step, rc, &why, ER_GO_ON, err);
}

int er_train_save_settle(struct er_train *train, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc;

    if (!train->ckpt || !er_ckpt_in_flight(train->ckpt))
        return 0;
    rc = er_ckpt_settle(train->ckpt, &why);
    return rc == 1 ? 0 : conclude(train, train->policy.flight_step, rc, &why, ER_GO_ON, err);
}

int er_train_save_finish(struct er_train *train, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc;

    if (!train->ckpt)
        return 0;
    rc = train->snapshot ? er_train_save_copied(train, err) : 0;
    if (rc < 0 || !er_ckpt_in_flight(train->ckpt))
        return rc;
    rc = er_ckpt_finish(train->ckpt, &why);
    return conclude(train, train->policy.flight_step, rc, &why, ER_GO_ON, err);
}

/* At the end, and for those who wait: what is in flight first, then this one, to the disk. */
static int save_now(struct er_train *train, const struct er_meta *meta, enum er_train_ending ending,
                    struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc = er_train_save_finish(train, err);

    if (rc == 0)
        rc = er_train_pull(train, err);
    if (rc < 0)
        return rc;
    rc = er_ckpt_save(train->ckpt, train->state, train->state_n, meta, &why);
    return conclude(train, train->applied, rc, &why, ending, err);
}

/* From a GPU: to the host first, beside the next step, at whose end er_train_save_copied() goes on.
 * The copy of the checkpoint before must be through with that memory. */
static int begin_pull(struct er_train *train, struct er_error *err)
{
    int rc;

    if (er_ckpt_in_flight(train->ckpt)) {
        train->policy.owed = true;
        return 0;
    }
    rc = er_train_pull_begin(train, err);
    if (rc < 0)
        return rc;
    train->snapshot = train->applied;
    er_train_policy_begun(&train->policy, train->applied, er_now_us());
    return 0;
}

/* Copies the state beside the next step. */
static int begin(struct er_train *train, const struct er_meta *meta, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc;

    if (train->mirror && !train->snapshot)
        return begin_pull(train, err);
    rc = er_ckpt_begin(train->ckpt, train->state, train->state_n, meta, &why);

    if (rc == ER_CKPT_BUSY) {
        train->policy.owed = true;
        return 0;
    }
    if (rc < 0)
        return conclude(train, train->applied, rc, &why, ER_GO_ON, err);
    er_train_policy_begun(&train->policy, train->applied, er_now_us());
    return 0;
}

/* What was there when the copy began is still there: the state changes after this. */
int er_train_save_copied(struct er_train *train, struct er_error *err)
{
    struct er_meta meta;
    int rc;

    if (!train->snapshot)
        return er_ckpt_before_apply(train->ckpt, err);
    rc = er_train_pull_end(train, err);
    if (rc < 0)
        return rc;
    meta = describe(train);
    rc = begin(train, &meta, err);
    train->snapshot = 0;
    return rc;
}

int er_train_save(struct er_train *train, enum er_train_ending ending, struct er_error *err)
{
    const struct er_meta meta = describe(train);
    int rc;

    er_progress(train->ctx, ER_PHASE_CHECKPOINT, train->applied);
    if (ending != ER_GO_ON || train->opts->checkpoint_wait)
        rc = save_now(train, &meta, ending, err);
    else
        rc = begin(train, &meta, err);
    er_progress(train->ctx, ER_PHASE_IDLE, train->applied);
    return rc;
}

int er_train_save_regroup(struct er_train *train, const struct er_ckpt_group *group,
                          uint64_t generation, struct er_error *err)
{
    struct er_ckpt_event event;
    int rc = er_ckpt_regroup(train->ckpt, group, generation, err);

    if (rc < 0)
        return er_error_wrap(err, rc, "checkpoints");
    for (er_ckpt_poll(train->ckpt, &event); event.kind != ER_CKPT_NOTHING;
         er_ckpt_poll(train->ckpt, &event)) {
        bool saved = event.kind == ER_CKPT_COMMITTED;

        if (saved)
            train->held.saved_step = event.step;
        else
            train->held.owed = true;
        er_train_tell(train, saved ? ER_TRAIN_SAVED : ER_TRAIN_SAVE_FAILED, event.step, event.text);
    }
    return er_ckpt_before_apply(train->ckpt, err); /* others may bring a newer state */
}
