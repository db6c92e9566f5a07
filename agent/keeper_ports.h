#pragma once
/* A managed etcd's ports on this host. */
#include <stdint.h>

#include "agent/managed_plan.h"

/* Can the member's ports be bound? -EADDRINUSE and others, with a text that names address and port;
 * one that is in use is tried again for `wait_us`: its owner may just be ending. */
int er_keeper_ports_free(const struct er_managed_plan *plan, uint32_t index,
                         const struct er_managed_listen *listen, uint64_t wait_us,
                         struct er_error *err);
