#pragma once
/* Shared by the parts of the library that is preloaded: chaos_shim.c, chaos_time.c. */
#include "tests/fault/chaos_orders.h"

#define EXPORT __attribute__((visibility("default")))

/* What this process is told, as a process of which node; NULL: nothing. Also before main(). */
struct chaos_orders *chaos_orders_of(uint32_t *ret_node);

/* Once, before anything is told. */
void chaos_time_init(void);
