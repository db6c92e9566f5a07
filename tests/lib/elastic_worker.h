#pragma once
/*
 * A worker for tests of membership changes: it trains a model whose gradients add up without
 * rounding, so that a run ends with the same bits whatever its world sizes were; and a sample that
 * was left out, or used twice, shows in every parameter.
 *
 * Environment: WORKER_DIR, where it leaves files named after its place on its node ("n0-0": node
 * id, local rank); WORKER_PARAMS (default 257); WORKER_STEPS (300, of 48 samples) in WORKER_EPOCHS
 * (3); WORKER_SHARDED, 1: the state is divided over the ranks (FSDP), 2: with a shadow;
 * WORKER_SAVE_STEPS; WORKER_NEWCOMERS, how they get the state (enum er_train_newcomers);
 * WORKER_MIXES, an update that looks at other elements as well, with other results then;
 * WORKER_KILL, a list of " place:step:point ", where the first process of that place kills itself;
 * WORKER_PS, parameter servers instead (elastic_ps.h), where a step is a part of one and the points
 * after the first are those of er_elastic_part_point(); WORKER_POISON, a step in which every worker
 * exits with 3 (0: none). While the file `slow` is there, each step takes WORKER_SLOW_MS (10)
 * longer, and more with every 20 steps. Files:
 *
 *   hold-open.<place>, hold-start.<place>, hold-data.<place>, hold-eval.<place>
 *                   while it is there, the worker waits before it asks for its world, before it
 *                   trains, for the data of a step, or at the end of an epoch
 *   reset.<place>   the worker resets its connections to peers in its next step, and removes it
 *   born.<place>    a line for each process, before it asks for its world
 *   pid.<place>     a line for each process that has its world
 *   trace.<place>   a line for each applied step: microseconds, step, generation, rank, size, pid,
 *                   digest of parameters and momentum (0 without WORKER_DIGESTS=1; not sharded),
 *                   samples of this rank
 *   params.<place>  at the end: parameters, then momentum
 *
 * WORKER_SLEEP is a list of " place:step " where the first process of the place stands still for
 * ever (step 0: in start-up); the slow steps of the place WORKER_DRAG take four times as long.
 * WORKER_NONFINITE: what becomes of a step that is not finite (enum er_train_nonfinite).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum er_kill_point { ER_KILL_IN_BACKWARD, ER_KILL_BEFORE_APPLY, ER_KILL_AFTER_APPLY };

#define ER_WORKER_BATCH 48

struct er_comm;
struct er_error;

/* What a program adds to the worker; each may be NULL. `place` as in the names of the files. */
struct er_elastic_hooks {
    /* With the rank's gradients (n), before they are reduced. Not sharded. */
    void (*step)(const char *place, uint64_t step, float *grads, size_t n);
    /* At the end of an epoch, on all ranks. */
    int (*epoch)(const char *place, struct er_comm *comm, struct er_error *err);
};

/* Before er_elastic_worker(). */
void er_elastic_worker_hooks(const struct er_elastic_hooks *hooks);

/* The whole process; its exit code. */
int er_elastic_worker(void);

/* Whether this is the first process of its place, and the place with that step is in the list in
 * the environment, " place:step ". */
bool er_elastic_worker_listed(const char *name, uint64_t step);

/* What a run must end with: `params` parameters, then as many of momentum. */
void er_elastic_reference(float *ret, size_t params, uint64_t steps, uint64_t epochs);
/* The same without the samples of a step (0: of none). */
void er_elastic_reference_without(float *ret, size_t params, uint64_t steps, uint64_t epochs,
                                  uint64_t without);

/* The first half of it with WORKER_PS 2: parameters alone. */
void er_elastic_reference_apart(float *ret, size_t params, uint64_t steps, uint64_t epochs,
                                uint32_t parts);

/* For who wraps a function of the library: dies there when it is that point of a part of that step,
 * or of the first step behind it that this worker has a part of. */
void er_elastic_part_point(enum er_kill_point point);

/* What its trace must say behind each of the `steps` steps: digests. */
void er_elastic_digests(uint64_t *ret, size_t params, uint64_t steps, uint64_t epochs);
