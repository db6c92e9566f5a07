#pragma once
/*
 * The environment of one worker (docs/job-spec.md, "Environment of a worker"): the agent's own,
 * less what must not reach a worker, plus the spec's `env`, plus torchrun's names and ours. Pure.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "rendezvous/driver.h"

struct er_env_input {
    const char *const *inherited;      /* "NAME=value", NULL-terminated */
    const char *const *overlay_names;  /* spec's `env`, already substituted */
    const char *const *overlay_values; /* NULL: remove the name */
    size_t overlay_n;
    const struct er_assignment *assignment;
    int local_rank;
    const char *job, *role, *node_id, *checkpoint_dir; /* checkpoint_dir "": none */
    /* Of the trainer, told when there is a checkpoint_dir: steps 0 and failures UINT32_MAX are
     * none; the time as text. */
    uint64_t checkpoint_every_steps;
    const char *checkpoint_every;
    uint64_t checkpoint_keep_every; /* 0: none */
    uint32_t checkpoint_keep_last, checkpoint_failures_max;
    const char *error_file, *socket;
    int page_fd;
    uint32_t restart_max; /* UINT32_MAX: no limit */
    bool virtual_local_rank;
};

/*
 * Appends "NAME=value" strings, each with its NUL, and returns their number through ret_n; every
 * name appears once. -ENOBUFS or -ENOMEM as er_buf_add(); ER_E_CONFIG when virtual_local_rank finds
 * no device for this rank in CUDA_VISIBLE_DEVICES.
 */
int er_env_build(struct er_buf *strings, const struct er_env_input *in, size_t *ret_n,
                 struct er_error *err);
/* Value of `name` in a NULL-terminated list, or NULL. */
const char *er_env_get(const char *const *list, const char *name);
