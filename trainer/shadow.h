#pragma once
/*
 * Shards beside a rank's own, and the one that it keeps for another rank (its *shadow*): the same
 * values and optimizer states, updated each step from the owner's reduced gradients, which are
 * forwarded before the vote. Internal to FSDP.
 *
 *   owner    reduce unit | forward it ......... vote | apply
 *   keeper               | receive ............ vote | apply, and once more on the copy
 */
#include "trainer/fsdp_internal.h"
#include "trainer/reshard.h"

/* A shard in memory of its own, laid out as a rank's. */
struct er_shard_copy {
    struct er_shard shard;
    size_t total; /* elements of a block */
    size_t bytes; /* of all of it */
    struct er_engine *engine;
    struct er_pool *pool; /* on the host; on a GPU: */
    void *memory;
    float *block[ER_FLAT_BLOCK_MAX]; /* ER_FLAT_GRAD: NULL in one that is not kept up to date */
    int64_t *sums;                   /* exact mode, likewise */
};

/* Of the model of `f`, in its engine's memory. `live`: with gradients. Zeroed. -ENOMEM. */
int er_shard_copy_new(struct er_shard_copy **ret, const struct er_fsdp *f, struct er_shard shard,
                      bool live, struct er_error *err);
/* NULL is fine. */
void er_shard_copy_free(struct er_shard_copy *copy);

#define ER_SHADOW_FLIGHTS 8 /* units on their way at once */

struct er_shadow {
    struct er_shard_copy *copy;              /* owned */
    int shift, owner, keeper;                /* rank + shift is the owner; who has this rank's */
    struct er_op *flight[ER_SHADOW_FLIGHTS]; /* of a unit: the receive; both end together */
    size_t begun, waited;                    /* units of this step */
};

/* Takes `copy`, whole and live, of the shard of rank + shift; what `f` had goes. -ENOMEM. */
int er_shadow_set(struct er_fsdp *f, struct er_shard_copy *copy, int shift, struct er_error *err);
void er_shadow_free(struct er_shadow *shadow);
/* A unit's gradients are reduced for good; all of them are forwarded and here. The same on all
 * ranks. Nothing without a shadow. */
int er_shadow_forward(struct er_fsdp *f, size_t unit, struct er_error *err);
int er_shadow_await(struct er_fsdp *f, struct er_error *err);
/* What is under way belongs to a communicator that is gone. */
void er_shadow_forget(struct er_fsdp *f);

/* Where a unit begins in a shard's blocks. */
size_t er_shard_at(const struct er_fsdp *f, struct er_shard shard, size_t unit);
/* Blocks that are state: values, then each optimizer state. ER_FLAT_BLOCK_MAX entries at most. */
size_t er_shard_blocks(const struct er_fsdp *f, size_t ret[ER_FLAT_BLOCK_MAX]);
