#pragma once
/* Names in the folder of checkpoints, and what the folder tells. */
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Path of a checkpoint's folder, of its temporary form, of a file in a folder. -ENAMETOOLONG. */
int er_ckpt_step_path(const char *dir, uint64_t step, char ret_path[PATH_MAX],
                      struct er_error *err);
/* `nonce` tells attempts of one generation apart. */
int er_ckpt_temp_path(const char *dir, uint64_t step, uint64_t generation, uint64_t nonce,
                      char ret_path[PATH_MAX], struct er_error *err);
int er_ckpt_join(const char *folder, const char *name, char ret_path[PATH_MAX],
                 struct er_error *err);

/* "step-000000000042" -> 42; false for any other name. */
bool er_ckpt_step_parse(const char *name, uint64_t *ret);

/* Removes the folder `path` of `step`. It loses its name first: what is removed file by file is
 * under no name that somebody uses, or is about to give it. One that is not there is fine. */
int er_ckpt_discard(const char *dir, const char *path, uint64_t step, uint64_t generation,
                    struct er_error *err);
/* Remove temporary folders of generations up to `generation` but `keep` (a path, or NULL):
 * leftovers of writers that died, or will find nothing to publish. A folder that another cleaner
 * removes meanwhile is fine. *ret_n (may be NULL) counts. */
int er_ckpt_clean(const char *dir, uint64_t generation, const char *keep, size_t *ret_n,
                  struct er_error *err);

/*
 * The newest generation that has begun leaves a file ".fence-g<n>". A writer of an older one that
 * was paused and goes on finds it, and neither publishes nor deletes. (The commit in the job's
 * store is the authority; this keeps a stale writer's hands off the disk before it gets there.)
 * Numbers go on from one run of a job to the next: an agent starts above the newest fence.
 * Set where a generation loads, and, for one that goes on from memory, where it publishes.
 * ER_E_STALE: a newer one has begun.
 */
int er_ckpt_fence(const char *dir, uint64_t generation, struct er_error *err);
/* Alone the look: ER_E_STALE, a newer generation has begun. */
int er_ckpt_check_fence(const char *dir, uint64_t generation, struct er_error *err);
