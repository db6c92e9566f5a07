#pragma once
/*
 * A worker for tests of membership changes: it trains a model whose gradients add up without
 * rounding, so that a run ends with the same bits whatever its world sizes were; and a sample that
 * was left out, or used twice, shows in every parameter.
 *
 * Environment: WORKER_DIR, where it leaves files named after its place on its node ("n0-0": node
 * id, local rank); WORKER_PARAMS (default 257); WORKER_STEPS (300, of 48 samples) in WORKER_EPOCHS
 * (3); WORKER_KILL, a list of " place:step:point ", where the first process of that place kills
 * itself. While the file `slow` is there, each step takes WORKER_SLOW_MS (10) longer, and more with
 * every 20 steps. Files:
 *
 *   pid.<place>     a line for each process
 *   trace.<place>   a line for each applied step: microseconds, step, generation, rank, size, pid
 *   params.<place>  at the end: parameters, then momentum
 */
#include <stddef.h>
#include <stdint.h>

enum er_kill_point { ER_KILL_IN_BACKWARD, ER_KILL_BEFORE_APPLY, ER_KILL_AFTER_APPLY };

#define ER_WORKER_BATCH 48

/* The whole process; its exit code. */
int er_elastic_worker(void);

/* What a run must end with: `params` parameters, then as many of momentum. */
void er_elastic_reference(float *ret, size_t params, uint64_t steps, uint64_t epochs);
