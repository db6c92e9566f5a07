#pragma once
/*
 * The folder of a running job on this host: sockets, error files. /run/elastic-run/<name>/ as root,
 * else $XDG_RUNTIME_DIR/elastic-run/<name>/, else /tmp/elastic-run-<uid>/<name>/; 0700 throughout.
 * As elastic-agent@.service of systemd: $RUNTIME_DIRECTORY/agent/, that is
 * /run/elastic-agent/<instance>/agent/. Of several agents of a job on one host those with an id of
 * their own have <name>@<node id>. The lock beside it, `.<name>.lock`, is held from before the
 * folder is made until after it has gone; its file is removed by who holds it, so the one at the
 * path decides.
 */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define ER_STATE_PATH_MAX  256
#define ER_STATE_BASES     3
#define ER_STATE_NODE_MARK '@' /* no job's name has it */

struct er_statedir {
    char path[ER_STATE_PATH_MAX]; /* "" until opened */
    int lock_fd;
};

/* Where jobs' folders may lie, best first; returns how many. */
size_t er_statedir_bases(char ret_paths[ER_STATE_BASES][ER_STATE_PATH_MAX]);
/* The same for agents that run as units of systemd; below it <instance>/, which may be another
 * user's. */
size_t er_statedir_unit_bases(char ret_paths[ER_STATE_BASES][ER_STATE_PATH_MAX]);
int er_statedir_unit_file(const char *base, const char *instance, const char *file,
                          char ret_path[ER_STATE_PATH_MAX]);
/* Takes the lock, and chooses where the folder will be. -EBUSY: an agent of this job runs on this
 * host already. */
int er_statedir_lock(struct er_statedir *ret, const char *name, struct er_error *err);
/* Makes the folder; what an agent that crashed left there is removed. */
int er_statedir_make(struct er_statedir *dir, struct er_error *err);
/* Removes the folder and lets go of the lock; `shared`: somebody else holds it as well and calls
 * er_statedir_remove(). */
void er_statedir_close(struct er_statedir *dir, bool shared);
/* Removes the folder at `path` and its lock's file, for who holds the lock; with the folder of all
 * jobs in /tmp, when that is empty. */
void er_statedir_remove(const char *path);
/* `<folder>/<file>`, at most 107 bytes as sockets want it; -ENAMETOOLONG. */
int er_statedir_socket(const struct er_statedir *dir, const char *file,
                       char ret_path[ER_STATE_PATH_MAX], struct er_error *err);
