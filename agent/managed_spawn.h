#pragma once
/* Managed etcd: where our keeper program is, and how it is started. */
#include <sys/types.h>

#include "agent/keeper_opts.h"

/* Beside the running program, or where it is installed. ER_E_UNSUPPORTED: in neither place. */
int er_managed_find_keeper(char ret[ER_KEEPER_PATH_MAX], struct er_error *err);
/* Starts `keeper keep OPTIONS` as a child of our parent, in a session of its own, connected by
 * ret_fd (non-blocking, close-on-exec); a failed exec arrives there as "failed ...". */
int er_managed_spawn_keeper(const char *keeper, const struct er_keeper_opts *opts, pid_t *ret_pid,
                            int *ret_fd, struct er_error *err);
/* Runs `keeper tls OPTIONS` to its end. Its error's text is in `err`, with ER_E_CONFIG. */
int er_managed_make_tls(const char *keeper, const struct er_keeper_opts *opts,
                        struct er_error *err);

/* Where a member's data are: `named`/<name>-<index>; without one a folder of the system's or the
 * user's state, or, when that is on a network file system, `home`/data. */
void er_managed_data_dir(const char *named, const char *name, size_t index, const char *home,
                         char ret[ER_KEEPER_PATH_MAX]);
