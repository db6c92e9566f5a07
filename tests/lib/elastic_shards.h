#pragma once
/* The sharded form of the worker's model (tests/lib/elastic_worker.h): the same sums, so the same
 * bits at the end, whoever holds what meanwhile. One for a process. */
#include "trainer/fsdp.h"
#include "trainer/sampler.h"

/* Adds sample `id` to the gradients of elements [first, first + n) of the model; the arrays begin
 * there. */
typedef void (*er_elastic_part_fn)(float *grads, const float *params, size_t first, size_t n,
                                   uint64_t id);

/* Of `n` parameters. */
void er_elastic_shards_init(size_t n);
/* As er_train_ops.shard and .state. */
int er_elastic_shards_open(void *user, struct er_comm *comm, struct er_fsdp **ret,
                           struct er_error *err);
void er_elastic_shards_state(void *user, const struct er_slice **ret, size_t *ret_n);
/* A forward and a backward pass over samples [range->first, + range->count) of `order`; *loss gets
 * what the values give. */
int er_elastic_shards_pass(const struct er_order *order, const struct er_range *range,
                           er_elastic_part_fn part, double *loss, struct er_error *err);
/* Momentum SGD as the worker's; false: of a copy, not of the own shard. */
bool er_elastic_shards_update(double weight, float rate, float momentum);
/* Collective: all parameters, then all of momentum. */
int er_elastic_shards_gather(struct er_comm *comm, float *ret, struct er_error *err);
