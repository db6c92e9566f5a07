#pragma once
/* The keeper's child: etcd. Its ports, its process, the end of its log. */
#include <sys/types.h>

#include "agent/keeper_argv.h"
#include "base/buf.h"

/* Can the member's ports be bound? -EADDRINUSE and others, with a text that names address and port;
 * one that is in use is tried again for `wait_us`: its owner may just be ending. */
int er_keeper_ports_free(const struct er_managed_plan *plan, uint32_t index,
                         const struct er_managed_listen *listen, uint64_t wait_us,
                         struct er_error *err);
/* Starts it in `home`; output goes to its log there. It dies with its parent, in a process group of
 * its own. */
int er_keeper_etcd_start(const struct er_keeper_argv *argv, const char *home, pid_t *ret_pid,
                         int *ret_pidfd, struct er_error *err);
/* What it said last, for people: `message: error`, one a line. */
void er_keeper_log_tail(const char *home, struct er_buf *ret);
/* A log that grew beyond a few megabytes begins anew. */
void er_keeper_log_trim(const char *home);
