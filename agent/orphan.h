#pragma once
/*
 * Processes below this one that nobody else will end: what workers left behind, reparented to us
 * because we are a subreaper.
 */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* `sig` (0: none, they are counted) to every descendant of the calling process, children's children
 * included, in one pass over /proc, but for the `spared_n` in `spared` and theirs. Returns how many
 * there were (zombies do not count), or -errno. New ones may appear while it looks: call again
 * until waitpid(2) says that no child is left. */
int er_orphan_pass(int sig, const pid_t *spared, size_t spared_n);
/* One descendant that has not been reaped, spared ones and theirs aside; 0: none. */
pid_t er_orphan_find(const pid_t *spared, size_t spared_n);
/* "pid 12 (python3, state D, in nfs_wait_bit_killable)" for a process that does not end. */
void er_orphan_describe(pid_t pid, char *ret_text, size_t cap);
/* Processes of anybody's whose environment has exactly `entry` ("NAME=value"), but for us and our
 * ancestors, are killed, until none is left or 5 s have passed. Returns how many there were. */
int er_orphan_kill_marked(const char *entry);
/* How long a process that was killed is waited for: 60 s, or the seconds that
 * TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT names. */
uint64_t er_orphan_patience_us(void);
/* Kill and reap until no child is left but the spared ones; for the guard. Gives up on processes
 * that the kernel does not let die (uninterruptible sleep) in er_orphan_patience_us(). */
void er_orphan_kill_all(const pid_t *spared, size_t spared_n);
/* When the process started, in ticks since boot; 0: it has gone. Pids are used again. */
uint64_t er_orphan_started(pid_t pid);
/* Parent of a process, or -errno (-ESRCH: gone). */
pid_t er_orphan_parent(pid_t pid);
