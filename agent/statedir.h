#pragma once
/*
 * The folder of a running job on this host: sockets, error files. /run/elastic-run/<name>/ as root,
 * else $XDG_RUNTIME_DIR/elastic-run/<name>/, else /tmp/elastic-run-<uid>/<name>/; 0700 throughout.
 * A lock in it belongs to the one agent that uses it.
 */
#include <stddef.h>

#include "base/error.h"

#define ER_STATE_PATH_MAX 256
#define ER_STATE_BASES    3

struct er_statedir {
    char path[ER_STATE_PATH_MAX]; /* "" until opened */
    int lock_fd;
};

/* Where jobs' folders may lie, best first; returns how many. */
size_t er_statedir_bases(char ret_paths[ER_STATE_BASES][ER_STATE_PATH_MAX]);
/* Makes the folder and takes its lock; what an agent that crashed left there is removed. -EBUSY: an
 * agent of this job runs on this host already. */
int er_statedir_open(struct er_statedir *ret, const char *name, struct er_error *err);
/* Removes it. */
void er_statedir_close(struct er_statedir *dir);
/* What er_statedir_close() does, for the guard: with its folder in /tmp, when that is empty. */
void er_statedir_remove(const char *path);
/* `<folder>/<file>`, at most 107 bytes as sockets want it; -ENAMETOOLONG. */
int er_statedir_socket(const struct er_statedir *dir, const char *file,
                       char ret_path[ER_STATE_PATH_MAX], struct er_error *err);
