#pragma once
/* Managed etcd: which of the plan's members run on this host. */
#include "agent/managed_plan.h"

struct er_managed_local {
    bool here[ER_MANAGED_MAX];
    struct er_managed_listen listen[ER_MANAGED_MAX]; /* where `here` */
};

/* Compares names and interface addresses; asks the resolver (seconds at worst). A name that leads
 * nowhere is another host's, unless it is our own. -errno: interfaces cannot be read. */
int er_managed_local_find(const struct er_managed_plan *plan, struct er_managed_local *ret,
                          struct er_error *err);
