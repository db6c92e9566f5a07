#pragma once
/*
 * Processes below this one that nobody else will end: what workers left behind, reparented to us
 * because we are a subreaper.
 */
#include <stddef.h>
#include <sys/types.h>

/* `sig` (0: none, they are counted) to every descendant of the calling process, children's children
 * included, in one pass over /proc, but for the `spared_n` in `spared` and theirs. Returns how many
 * there were (zombies do not count), or -errno. New ones may appear while it looks: call again
 * until waitpid(2) says that no child is left. */
int er_orphan_pass(int sig, const pid_t *spared, size_t spared_n);
/* Kill and reap until no child is left; for the guard. Gives up on processes that the kernel does
 * not let die (uninterruptible sleep) after 60 s. */
void er_orphan_kill_all(void);
/* Parent of a process, or -errno (-ESRCH: gone). */
pid_t er_orphan_parent(pid_t pid);
