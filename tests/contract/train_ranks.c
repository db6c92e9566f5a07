#include "tests/contract/train_ranks.h"

#include <errno.h>
#include <string.h>

#include "tests/lib/tap.h"

struct train_test *test;
struct train_report *report;

/* The part of libelastic that the fake world leaves to its users. */
int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    report->commits += commit->error == 0;
    report->failed_commits += commit->error != 0;
    return commit->error == 0 && test->refuse_commits
               ? er_error_set(err, -EIO, "the store is out of order")
               : 0;
}

int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
              const char *skipped, struct er_error *err)
{
    report->loaded = step;
    return 0;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static const struct er_plan plan = {
        .samples = TRAIN_SAMPLES, .global_batch = TRAIN_BATCH, .seed = 3};
    int rank = er_world(ctx)->rank;
    struct er_train_opts opts = {
        .plan = plan,
        .epochs = TRAIN_EPOCHS,
        .checkpoint_dir = test->dir,
        .checkpoint_steps = test->checkpoint_steps,
        .checkpoint_every_us = test->checkpoint_every_us,
        .checkpoint_wait = !test->beside,
        .checkpoint_failures_max = test->failures_max,
        .nonfinite = test->nonfinite[rank],
    };
    /* Each rank begins elsewhere: rank 0's state, or the checkpoint's, must win. */
    struct er_toy *toy = er_toy_new(16, &plan, 40 + (uint64_t)rank);
    struct er_error err = ER_ERROR_INIT;

    report = &test->reports[rank];
    er_scaler_init(&report->scaler, TRAIN_BATCH);
    if (test->scaled[rank])
        opts.scaler = &report->scaler;
    if (rank == test->rank)
        toy->after_backward = test->deed;
    report->rc = er_train_run(ctx, &er_toy_ops, toy, &opts, &report->result, &err);
    memcpy(report->text, err.text, sizeof(report->text));
    memcpy(report->losses, toy->losses, sizeof(report->losses));
    memcpy(report->params, toy->params, toy->params_n * sizeof(float));
    report->epochs_ended = toy->epochs_ended;
    er_toy_free(toy);
    return 0;
}

void train_set_up(void)
{
    test = er_ranks_shared(sizeof(*test));
    test->world = er_fake_world_new();
    test->rank = -1;
}

void train_go(int size)
{
    memset(test->reports, 0, sizeof(test->reports));
    for (int rank = 0; rank < TRAIN_RANKS_MAX; rank++)
        test->reports[rank].rc = -ECANCELED; /* it never came so far */
    er_ranks_run_in(test->world, size, rank_main, NULL, NULL);
    er_fake_world_free(test->world);
    test->world = er_fake_world_new();
}

void train_expect(int size, int rc)
{
    for (int rank = 0; rank < size; rank++) {
        if (!er_tap_check(test->reports[rank].rc == rc))
            er_tap_note("rank %d of %d: %d %s", rank, size, test->reports[rank].rc,
                        test->reports[rank].text);
    }
}
