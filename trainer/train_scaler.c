/* Losses that are scaled: the scale is part of the state, and a step that overflows halves it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/scaler.h"
#include "trainer/train_internal.h"

int er_train_scaler_open(struct er_train *train, struct er_error *err)
{
    struct er_scaler *scaler = train->opts->scaler;

    if (!scaler)
        return 0;
    if (train->opts->plan.shards > 0)
        return er_error_set(err, ER_E_USAGE,
                            "exact mode: losses are not scaled (er_train_opts.scaler), its sums "
                            "have a range of their own");
    if (train->fsdp && !er_fsdp_counts_nonfinite(train->fsdp))
        return er_error_set(err, ER_E_USAGE,
                            "scaled losses: er_fsdp_opts.count_nonfinite must be on, else nobody "
                            "sees gradients that overflow");
    er_train_scaler_close(train); /* of other pieces */
    train->with_scale = calloc(train->state_n + 1, sizeof(*train->with_scale));
    if (!train->with_scale)
        return er_error_set(err, -ENOMEM, "list of %zu tensors", train->state_n + 1);
    memcpy(train->with_scale, train->state, train->state_n * sizeof(*train->state));
    train->with_scale[train->state_n++] = er_scaler_slice(scaler);
    train->state = train->with_scale;
    return 0;
}

void er_train_scaler_close(struct er_train *train)
{
    free(train->with_scale);
    train->with_scale = NULL;
}

int er_train_scaler_judge(struct er_train *train, const struct er_vote *vote, struct er_error *err)
{
    const struct er_scaler *scaler = train->opts->scaler;
    char text[128];
    int rc;

    if (!scaler || !er_train_policy_overflowed(vote) || !er_scaler_can_fall(scaler))
        return 0;
    snprintf(text, sizeof(text),
             "skipped; %llu gradient elements are not finite, the loss scale falls to %g",
             (unsigned long long)vote->nonfinite, (double)(1ull << (scaler->state[0] - 1)));
    er_train_tell(train, ER_TRAIN_NOT_FINITE, vote->step, text);
    train->bad.skipped++;
    rc = er_train_ledger_skip(train, vote->step, err);
    return rc < 0 ? rc : 1;
}

void er_train_scaler_step(struct er_train *train, bool finite)
{
    if (train->opts->scaler)
        er_scaler_step(train->opts->scaler, finite);
}
