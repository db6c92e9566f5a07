#pragma once
/*
 * The guard: elastic-run's first process, tiny, which outlives the agent in every case.
 *
 *     shell -- guard (subreaper; owns state directory and cgroup) -- agent (own session) -- workers
 *
 * It passes every signal on to the agent (Ctrl-Z and fg too, then stopping itself) and the agent's
 * exit code on to its caller. When the agent dies by a signal it kills every descendant (but the
 * keeper of a managed etcd), removes sockets, cgroup and folders, says so in one line and exits 70.
 * SIGABRT, which a service manager sends whose watchdog missed the agent, ends it likewise.
 * An agent that does not look at its signals any more (stopped, stuck) is killed after the third
 * one that should stop it. When the guard itself dies, the agent gets er_guard_death_signal() and
 * stops everything.
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

struct er_guard {
    int fd; /* to the guard; owned by the agent, close-on-exec */
    pid_t pid;
};

/* Signals that the guard passes on and the agent looks at. */
void er_guard_signals(sigset_t *ret_set);

/* Forks; returns in the child, the agent-to-be, alone, where signals that stop a job and the
 * guard's death end the process at once, as long as nothing reads them: nothing is running yet. The
 * parent never returns. -errno when it cannot fork. */
int er_guard_start(struct er_guard *ret, struct er_error *err);
/* From here on the agent reads its signals (signalfd): they are blocked. */
void er_guard_hold_signals(void);
int er_guard_death_signal(void);
bool er_guard_lives(const struct er_guard *guard);

/* What the guard must remove if the agent cannot. Paths of less than 400 bytes; a failure is
 * reported, not fatal. The state folder is its business in any case, together with the lock,
 * which it keeps (a duplicate) until the folder has gone: only then may another job have it. */
int er_guard_owns_dir(struct er_guard *guard, const char *path, int lock_fd);
/* `leaf`: see er_cgroup_leave(); "": none. */
int er_guard_owns_cgroup(struct er_guard *guard, const char *path, const char *leaf);
/* What it tells the store after the agent's death: er_goodbye_new(). */
int er_guard_owes_goodbye(struct er_guard *guard, int fd);
/* What it names, beside its line about the agent's death. */
int er_guard_knows_logs(struct er_guard *guard, const char *path);
/* A child of the guard that is to outlive it and the agent, with all that it starts: the keeper of
 * a managed etcd. */
int er_guard_keeps(struct er_guard *guard, pid_t pid);
