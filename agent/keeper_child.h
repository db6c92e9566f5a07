#pragma once
/* The keeper's child: etcd. Its process, the end of its log. */
#include <sys/types.h>

#include "agent/keeper_argv.h"
#include "base/buf.h"

/* Starts it in `home`; output goes to its log there. It dies with its parent, in a process group of
 * its own. */
int er_keeper_etcd_start(const struct er_keeper_argv *argv, const char *home, pid_t *ret_pid,
                         int *ret_pidfd, struct er_error *err);
/* What it said last, for people: `message: error`, one a line. */
void er_keeper_log_tail(const char *home, struct er_buf *ret);
/* A log that grew beyond a few megabytes begins anew. */
void er_keeper_log_trim(const char *home);
