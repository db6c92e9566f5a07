/* Steps whose loss or gradients are not finite. Every rank comes here with the same vote. */
#include <errno.h>
#include <stdio.h>

#include "trainer/train_internal.h"

void er_train_drop(struct er_train *train)
{
    if (train->fsdp)
        er_fsdp_drop(train->fsdp);
    else
        er_ddp_drop(train->ddp);
}

static void tell(struct er_train *train, uint64_t step, const struct er_error *why,
                 const char *remedy)
{
    char text[ER_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s; %.300s", remedy, why->text);
    er_train_tell(train, ER_TRAIN_NOT_FINITE, step, text);
}

/* Its gradients go as well: the next step's begin at 0. */
static int roll_back(struct er_train *train, const struct er_error *why, struct er_error *err)
{
    int rc = er_train_save_finish(train, err);

    if (rc < 0)
        return rc;
    er_train_drop(train);
    rc = train->ckpt ? er_train_go_back(train, err) : 1;
    if (rc == 1)
        return er_error_set(err, -EDOM, "%s; no checkpoint to go back to", why->text);
    return rc < 0 ? er_error_wrap(err, rc, "going back") : ER_TRAIN_ROLLED_BACK;
}

int er_train_bad_step(struct er_train *train, const struct er_vote *vote,
                      const struct er_error *why, struct er_error *err)
{
    const struct er_train_opts *opts = train->opts;

    if (!er_train_policy_same(vote))
        return er_error_set(err, ER_E_MISMATCH, "%s; ranks have different policies for that",
                            why->text);
    switch (er_train_policy_bad(&train->bad, opts->nonfinite, opts->nonfinite_max, vote->step)) {
    case ER_REMEDY_SKIP:
        tell(train, vote->step, why, "skipped");
        return er_train_ledger_skip(train, vote->step, err);
    case ER_REMEDY_ROLL_BACK:
        tell(train, vote->step, why, "going back to the newest checkpoint");
        return roll_back(train, why, err);
    case ER_REMEDY_STOP:
        break;
    }
    if (train->bad.row > 0)
        return er_error_set(err, -EDOM, "%s; %u steps in a row were not", why->text,
                            train->bad.row + 1);
    return er_error_set(err, -EDOM, "%s", why->text);
}
