#pragma once
/*
 * The word of an agent that died: its guard tells the store, so that the others need not wait for
 * its lease to end. The node's record becomes that of another incarnation, one that is leaving and
 * runs nothing; leadership is laid down. Both end with the lease, or with the next agent of this
 * node.
 *
 * The agent keeps what is needed for it in a shared file in memory, which the guard has too.
 */
#include <stdint.h>

#include "agent/store_open.h"

struct er_goodbye; /* the shared memory; opaque */

/* *ret_fd is the caller's: for er_guard_owes_goodbye(), then to be closed. -E2BIG: names or paths
 * too long for it. */
int er_goodbye_new(struct er_goodbye **ret, int *ret_fd, const struct er_store_access *access,
                   const char *prefix, const char *job, const char *node_id, uint64_t incarnation,
                   struct er_error *err);
/* NULL is fine. */
void er_goodbye_free(struct er_goodbye *goodbye);
/* The lease as it is now (0: none), and the newest generation. Plain stores. */
void er_goodbye_update(struct er_goodbye *goodbye, uint64_t lease, uint64_t generation);
/* Says it, in a process of its own: loads the etcd store. Within `wait_us`. 0: said, or nothing to
 * say; -ETIMEDOUT; other errors of the store. */
int er_goodbye_say(int fd, uint64_t wait_us);
