#pragma once
/* The test worker's model on parameter servers: memory and run. WORKER_PS 1: in lock-step, as the
 * others train; 2: WORKER_STALENESS (2) steps apart, with gradients that do not depend on the
 * parameters, so that their sums are the same in any order. WORKER_SERVERS (0), WORKER_PARTS (4).
 */
#include "trainer/train.h"

/* Sets where parameters and gradients are, `n` each. */
void er_elastic_ps_init(size_t n, float **ret_params, float **ret_grads);
/* Which parts of which steps come to a worker is not known: whether it is to die at that point (as
 * in WORKER_KILL) of this step, since it was to die there or in an earlier one. */
bool er_elastic_ps_dies(const char *place, uint64_t step, int point);
int er_elastic_ps_run(struct er_ctx *ctx, const struct er_train_ops *ops, void *user,
                      const struct er_train_opts *opts, double rate, double momentum,
                      struct er_train_result *ret, struct er_error *err);
