#pragma once
/*
 * A cgroup (version 2) for each generation, when the agent's own cgroup is delegated to it
 * (systemd's Delegate=yes); otherwise nothing, and process groups, subreaping and the guard do the
 * work. A table with two implementations: callers never ask which.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct er_cgroup;

struct er_cgroup_ops {
    const char *name; /* "v2" | "none" */
    /* Returns the folder's descriptor for CLONE_INTO_CGROUP through ret_fd (owned by the cgroup;
     * -1: none). */
    int (*begin)(struct er_cgroup *cgroup, int *ret_fd, struct er_error *err);
    void (*kill)(struct er_cgroup *cgroup);
    /* How often the kernel's memory limit killed in this generation so far. */
    uint64_t (*oom_kills)(struct er_cgroup *cgroup);
    void (*end)(struct er_cgroup *cgroup);
};

struct er_cgroup {
    const struct er_cgroup_ops *ops;
    char path[320]; /* v2: below our own; the same name for every generation */
    char leaf[320]; /* v2: where guard and agent are, so that memory is counted; "": no such */
    int fd;         /* while a generation runs, -1 otherwise */
};

/* Chooses the implementation; never fails. The caller's parent is the guard. */
void er_cgroup_init(struct er_cgroup *cgroup);
/* Would er_cgroup_init() choose version 2? Changes nothing. */
bool er_cgroup_is_delegated(void);
/* Kill whatever is in the cgroup folder `path` and remove it (guard). */
void er_cgroup_destroy(const char *path);
/* Leave `leaf` for the cgroup above it, as it was before, and remove it (guard, when the agent has
 * gone and the generations' cgroup as well). */
void er_cgroup_leave(const char *leaf);
