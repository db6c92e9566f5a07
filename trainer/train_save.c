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
    const char *layout = er_ddp_layout(train->ddp);
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
static void report_failure(struct er_train *train, int rc, const char *why)
{
    struct er_commit commit = {.step = train->applied, .error = rc, .path = why, .digest = ""};

    if (train->rank == 0)
        er_commit(train->ctx, &commit, NULL);
    er_train_tell(train, ER_TRAIN_SAVE_FAILED, train->applied, why);
}

static void take_events(struct er_train *train)
{
    struct er_ckpt_event event;

    for (er_ckpt_poll(train->ckpt, &event); event.kind != ER_CKPT_NOTHING;
         er_ckpt_poll(train->ckpt, &event)) {
        if (event.kind == ER_CKPT_COMMITTED)
            er_train_tell(train, ER_TRAIN_SAVED, event.step, event.text);
    }
}

int er_train_save(struct er_train *train, enum er_ending ending, struct er_error *err)
{
    struct er_meta meta = describe(train);
    struct er_error why = ER_ERROR_INIT;
    int rc;

    er_progress(train->ctx, ER_PHASE_CHECKPOINT, train->applied);
    rc = er_ckpt_save(train->ckpt, train->state, train->state_n, &meta, &why);
    take_events(train);
    er_progress(train->ctx, ER_PHASE_IDLE, train->applied);
    switch (er_policy_saved(&train->policy, train->applied, rc, ending, er_now_us())) {
    case ER_SAVE_FINE:
        return 0;
    case ER_SAVE_TOLERATED:
        report_failure(train, rc, why.text);
        return 0;
    case ER_SAVE_TOO_MANY:
        report_failure(train, rc, why.text);
        return er_error_set(err, -EIO, "%" PRIu32 " checkpoints in a row failed, the last one: %s",
                            train->policy.failures, why.text);
    case ER_SAVE_FATAL:
        break;
    }
    return er_error_set(err, rc, "checkpoint of step %" PRIu64 ": %s", train->applied, why.text);
}
