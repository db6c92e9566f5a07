#pragma once
/* Removing checkpoints that no rule of retention wants. */
#include "ckpt/ckpt_internal.h"

/* Told of each folder that is gone. */
typedef void (*er_ckpt_gone_fn)(void *user, uint64_t step);

/*
 * `current` has just been committed, or verified. Leaves everything newer alone. A folder first
 * loses its name, whole, then its files, so that a reader sees all or nothing; one that somebody
 * else removes meanwhile is fine. Stops at the first failure. ER_E_STALE: a newer generation than
 * `generation`, in whose name this is done, has begun.
 */
int er_ckpt_gc(const char *dir, const struct er_ckpt_opts *opts, uint64_t current,
               uint64_t generation, er_ckpt_gone_fn gone, void *user, struct er_error *err);
/* Which steps would go; *ret malloc'ed. */
int er_ckpt_gc_plan(const char *dir, const struct er_ckpt_opts *opts, uint64_t current,
                    uint64_t **ret, size_t *ret_n, struct er_error *err);
