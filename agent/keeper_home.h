#pragma once
/*
 * A member's folder on this host: lock, socket, certificates, etcd's log, and its data unless those
 * lie elsewhere. The lock is on the folder itself, so that systemd-tmpfiles leaves it alone.
 */
#include "agent/keeper_opts.h"

struct er_keeper_home {
    char path[ER_KEEPER_HOME_MAX]; /* "" until opened */
    int fd;                        /* of the folder: holds the lock */
};

/* -EBUSY: another keeper has it. What one that was killed left there is removed, `fresh` data too.
 */
int er_keeper_home_open(struct er_keeper_home *ret, const struct er_keeper_opts *opts,
                        struct er_error *err);
/* Removes the folder, and the data unless they are to stay, then lets go of the lock. */
void er_keeper_home_close(struct er_keeper_home *home, const struct er_keeper_opts *opts);
/* Who runs here, one `key value` a line, in the file "member". */
int er_keeper_home_tell(const struct er_keeper_home *home, const struct er_keeper_opts *opts,
                        int keeper_pid, int etcd_pid, struct er_error *err);
