#pragma once
/*
 * The guard: elastic-run's first process, tiny, which outlives the agent in every case.
 *
 *     shell -- guard (subreaper; owns state directory and cgroup) -- agent (own session) -- workers
 *
 * It passes every signal on to the agent (Ctrl-Z and fg too, then stopping itself) and the agent's
 * exit code on to its caller. When the agent dies by a signal it kills every descendant, removes
 * sockets, cgroup and folders, says so in one line and exits 70. When the guard itself dies, the
 * agent gets er_guard_death_signal() and stops everything.
 */
#include <signal.h>

#include "base/error.h"

struct er_guard {
    int fd; /* to the guard; owned by the agent, close-on-exec */
};

/* Signals that the guard passes on and the agent looks at; blocked in both from here on. */
void er_guard_signals(sigset_t *ret_set);

/* Blocks the signals and forks; returns in the child, the agent-to-be, alone. The parent never
 * returns. -errno when it cannot fork: nothing is running then. */
int er_guard_start(struct er_guard *ret, struct er_error *err);
int er_guard_death_signal(void);

/* What the guard must remove if the agent cannot. Paths of at most 400 bytes; a failure is
 * reported, not fatal. */
int er_guard_owns_dir(struct er_guard *guard, const char *path);
int er_guard_owns_cgroup(struct er_guard *guard, const char *path);
/* What it names, beside its line about the agent's death. */
int er_guard_knows_logs(struct er_guard *guard, const char *path);
