#pragma once
/* Newcomers that come to the state while training goes on (trainer/catchup.h has the slices).
 * Internal to the loop. */
#include "base/hash.h"
#include "trainer/catchup.h"
#include "trainer/sync.h"

struct er_train;

struct er_train_catchup {
    int learners_n; /* 0: everybody has the state */
    bool *learns;   /* of each rank; owned, as everything here */
    int *holders;   /* ranks that have the state */
    int holders_n;
    struct er_sync_part *parts;
    size_t *bytes;
    struct er_catchup_state state;
    uint64_t total, compared, sent; /* bytes of each block, from its start */
    /* Of the step under way: */
    uint64_t sending; /* sent, once it is over */
    struct er_op *op[ER_CATCHUP_OPS_MAX];
    size_t op_n;
    struct er_op *compare; /* NULL: nothing is */
    struct er_digest mine, *all;
};

/* Collective: ranks with learns[rank] get the state from now on. Takes `parts` (the same names and
 * sizes on all ranks, else ER_E_MISMATCH), which stay where they are. 1: nothing was begun or
 * taken, since it does not pay (er_catchup_pays(), `always`). */
int er_train_catchup_start(struct er_train *train, const bool *learns, struct er_sync_part *parts,
                           size_t n, bool always, struct er_error *err);
/* Collective: in a step, before its gradients; and behind its vote, before the state changes. */
int er_train_catchup_begin(struct er_train *train, struct er_error *err);
int er_train_catchup_end(struct er_train *train, struct er_error *err);
/* Collective, between two steps: the rest at once. */
int er_train_catchup_finish(struct er_train *train, struct er_error *err);
void er_train_catchup_drop(struct er_train *train);
