#pragma once
/* etcd's command line for one member of a plan. Works with etcd 3.4 and newer; flags that 3.6
 * removed are not used. Pure. */
#include "agent/keeper_opts.h"

#define ER_KEEPER_ETCD_ARGS 64
#define ER_KEEPER_ETCD_TEXT 16384

struct er_keeper_argv {
    char text[ER_KEEPER_ETCD_TEXT]; /* what argv points into */
    size_t used;
    char *argv[ER_KEEPER_ETCD_ARGS + 1]; /* NULL-terminated */
    size_t n;
    bool full;
};

/* Paths are as etcd finds them when its working directory is `home`. ER_E_LIMIT: they are too long.
 */
int er_keeper_argv_make(struct er_keeper_argv *ret, const struct er_keeper_opts *opts,
                        const struct er_managed_plan *plan, const struct er_managed_listen *listen,
                        struct er_error *err);
