#pragma once
/*
 * Which sample is used when: pure functions of (seed, epoch, step, rank, world size), so that any
 * sequence of world sizes visits each sample exactly once per epoch and nothing about data order
 * has to be saved.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_ORDER_TABLE_MAX                                                                         \
    4096 /* up to this many samples: an exact Fisher-Yates table; above: Feistel network */

struct er_order {
    uint64_t n, seed, epoch;
    uint64_t a, b; /* mixed-radix Feistel: a * b >= n */
    uint64_t keys[10];
    uint16_t table[ER_ORDER_TABLE_MAX];
};

/* The permutation of [0, n) of one epoch, n >= 1. */
void er_order_init(struct er_order *order, uint64_t n, uint64_t seed, uint64_t epoch);
/* Sample at position i < n: a bijection of [0, n); O(1). */
uint64_t er_order_at(const struct er_order *order, uint64_t i);

/* A training plan: global, whatever the world size. */
struct er_plan {
    uint64_t samples;      /* in the data set, >= 1 */
    uint64_t global_batch; /* samples of a step over all ranks, >= 1; the last step of an epoch may
                              be shorter */
    uint64_t seed;
    uint32_t shards; /* exact mode: a step is divided into so many parts, and ranks take whole ones;
                        0: ranks divide it by samples */
};

/* Positions [first, first + count) of epoch `epoch` for one rank; count may be 0 (tail, or more
 * ranks than samples). */
struct er_range {
    uint64_t epoch, first, count;
    uint64_t step_first, step_count; /* the whole step's positions over all ranks */
    uint32_t first_shard, shards_n;  /* exact mode: this rank's */
};

/* Steps of one epoch: ceil(samples / global_batch). */
uint64_t er_plan_steps(const struct er_plan *plan);
/* Step numbers start at 1 and run over all epochs. Ranks' ranges are contiguous, in rank order, and
 * cover the step. */
struct er_range er_batch(const struct er_plan *plan, uint64_t step, int rank, int size);

/* Exact mode: positions of shard `shard` of the step, which depend on the plan alone; may be none.
 */
struct er_range er_batch_shard(const struct er_plan *plan, uint64_t step, uint32_t shard);

/*
 * The other way to divide an epoch, for programs that come from torch's DistributedSampler: rank r
 * of W takes positions r, r + W, r + 2 W ... of the order, the same number on every rank. Only for
 * a world that does not change. Source: torch.utils.data.distributed.DistributedSampler,
 * version 2.x.
 */
struct er_strided {
    uint64_t samples, world, rank; /* world >= 1, rank < world */
    bool drop_last; /* the tail that does not divide evenly is left out, not padded */
};
/* Samples of each rank. */
uint64_t er_strided_count(const struct er_strided *strided);
/* Position in the order of this rank's i-th sample. *ret_weight is 0 for those that only fill up
 * the tail (they repeat the first ones), so that no sample counts twice in a gradient; else 1. */
uint64_t er_strided_at(const struct er_strided *strided, uint64_t i, double *ret_weight);

/* Counter-based random number: the same for the same arguments, on any rank, in any order. `op`
 * keeps uses apart; 0xffff0000 and above are the library's own. */
uint64_t er_rng(uint64_t seed, uint64_t sample, uint32_t op, uint64_t i);

#ifdef __cplusplus
}
#endif
