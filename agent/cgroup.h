#pragma once
/*
 * A cgroup (version 2) for each generation, when the agent's own cgroup is delegated to it
 * (systemd's Delegate=yes); otherwise nothing, and process groups, subreaping and the guard do the
 * work. A table with two implementations: callers never ask which.
 *
 *   own cgroup                 delegated
 *   |-- elastic-run-N-agent    guard and agent, so that controllers may be given on
 *   `-- elastic-run-N          a generation: killed, counted, removed as one
 *       `-- w<local rank>      with limits: one for each worker
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct er_cgroup;

/* Of each worker. */
struct er_limits {
    uint64_t memory_bytes; /* UINT64_MAX: none */
    double cpus;           /* 0: none */
    uint32_t pids;         /* UINT32_MAX: none */
};

struct er_cgroup_ops {
    const char *name; /* "v2" | "none" */
    int (*begin)(struct er_cgroup *cgroup, struct er_error *err);
    /* The folder of a worker, with its limits, for CLONE_INTO_CGROUP: the descriptor is the
     * caller's; -1: none. */
    int (*worker)(struct er_cgroup *cgroup, int local_rank, int *ret_fd, struct er_error *err);
    void (*kill)(struct er_cgroup *cgroup);
    /* How often the kernel killed for lack of memory so far: in the worker's own cgroup where there
     * are limits, else in the generation's. */
    uint64_t (*oom_kills)(struct er_cgroup *cgroup, int local_rank);
    void (*end)(struct er_cgroup *cgroup);
};

struct er_cgroup {
    const struct er_cgroup_ops *ops;
    char path[320]; /* v2: below our own; the same name for every generation */
    char leaf[320]; /* v2: where guard and agent are, so that memory is counted; "": no such */
    int fd;         /* while a generation runs, -1 otherwise */
    struct er_limits limits;
    bool limited; /* any of them */
};

/* Chooses the implementation. The caller's parent is the guard. ER_E_CONFIG: limits that cannot be
 * kept here, with the reason; nothing else fails. */
int er_cgroup_init(struct er_cgroup *cgroup, const struct er_limits *limits, struct er_error *err);
/* Would er_cgroup_init() choose version 2? Changes nothing. */
bool er_cgroup_is_delegated(void);
/* Could er_cgroup_init() keep them? Changes nothing. */
int er_cgroup_check(const struct er_limits *limits, struct er_error *err);
/* For tests: generations live in `path`, whatever is there. */
void er_cgroup_at(struct er_cgroup *cgroup, const char *path, const struct er_limits *limits);
/* Kill whatever is in the cgroup folder `path` and remove it (guard). */
void er_cgroup_destroy(const char *path);
/* Leave `leaf` for the cgroup above it, as it was before, and remove it (guard, when the agent has
 * gone and the generations' cgroup as well). */
void er_cgroup_leave(const char *leaf);
/* Where cgroups are delegated to us: the process moves to one of its own beside the agent's, so
 * that it neither is in the way of the workers' controllers nor ends with the agent's cgroup. */
void er_cgroup_stand_apart(pid_t pid);
/* The calling process, if that was done to it: back, and its cgroup removed; what does not succeed
 * is left to who delegated. */
void er_cgroup_stand_back(void);
