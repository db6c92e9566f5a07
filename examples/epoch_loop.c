/*
 * A program's own loop in the shape "load checkpoint / for each epoch / train / save": after a
 * restart it goes on where the newest checkpoint ends.
 *
 *     elastic-run --nproc-per-node 2 --set checkpoint.dir=/tmp/epochs build/examples/epoch_loop
 */
#include <stdio.h>

#include "ckpt/ckpt.h"
#include "runtime/elastic.h"

enum { EPOCHS = 5, N = 4 };

/* Publishes a checkpoint through the job's record, which refuses a worker of a generation that is
 * over. */
static int commit(void *user, const struct er_ckpt_done *done, struct er_error *err)
{
    return er_commit(
        user,
        &(struct er_commit){
            .step = done->step, .bytes = done->bytes, .path = done->path, .digest = done->digest},
        err);
}

static int run(struct er_ctx *ctx, struct er_error *err)
{
    static float weights[N];
    const struct er_world *world = er_world(ctx);
    const struct er_ckpt_group group = {.size = 1, .user = ctx, .commit = commit};
    const struct er_slice state = {"weights", ER_CKPT_F32, 1, {N}, 0, N, weights, true};
    const struct er_ckpt_opts opts = {.generation = world->generation};
    struct er_meta meta = {0};
    struct er_ckpt *ckpt = NULL;
    int rc;

    if (!world->checkpoint_dir[0])
        return er_error_set(err, ER_E_CONFIG,
                            "no folder for checkpoints: set checkpoint.dir, or "
                            "ELASTIC_CHECKPOINT_DIR for a run without elastic-run");
    rc = er_ckpt_open(&ckpt, world->checkpoint_dir, &group, &opts, err);
    if (rc == 0)
        rc = er_ckpt_load(ckpt, &state, 1, &meta, NULL, NULL, err); /* 1: none yet */
    if (rc >= 0)
        rc = er_barrier(ctx, "loaded", UINT64_MAX, err); /* before anybody saves a newer one */
    if (rc == 0 && meta.applied >= EPOCHS)
        printf("rank %d: already done at epoch %d\n", world->rank, (int)meta.applied);
    /* Of this run, not of the one that was loaded. */
    meta.generation = world->generation;
    meta.first_step = meta.applied + 1;
    meta.world_size = world->size;
    for (uint64_t epoch = meta.applied + 1; rc >= 0 && epoch <= EPOCHS; epoch++) {
        for (int i = 0; i < N; i++)
            weights[i] += 0.5f * (1.0f - weights[i]); /* "training" */
        er_progress(ctx, ER_PHASE_CHECKPOINT, epoch);
        meta.applied = epoch;
        rc = world->rank == 0 ? er_ckpt_save(ckpt, &state, 1, &meta, err) : 0;
        if (rc == 0)
            rc = er_barrier(ctx, "saved", UINT64_MAX, err);
        printf("rank %d: epoch %d, weight %g\n", world->rank, (int)epoch, (double)weights[0]);
    }
    er_ckpt_close(ckpt);
    return rc;
}

int main(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    int rc = er_open(&ctx, &err);

    if (rc == 0)
        rc = run(ctx, &err);
    if (rc < 0) {
        fprintf(stderr, "epoch_loop: %s\n", err.text);
        er_fail(ctx, "%s", err.text);
    }
    er_close(ctx);
    return rc == ER_E_CONFIG ? ER_WORKER_EXIT_FATAL : rc < 0;
}
