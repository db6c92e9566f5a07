#pragma once
/*
 * A thread that ends the process when its owner is not back in time from a call that nobody can
 * interrupt (aborting a communicator on a device that hangs). It makes no other call: a process in
 * that state can't be mended from within. Internal to runtime/.
 */
#include <stdint.h>

#include "base/error.h"

struct er_watchdog; /* opaque */

int er_watchdog_new(struct er_watchdog **ret, struct er_error *err);
void er_watchdog_free(struct er_watchdog *dog); /* NULL is fine */
/* Unless disarmed within `timeout_us`: write "elastic: `what`" to stderr and _exit(code). `what`
 * is borrowed until then. */
void er_watchdog_arm(struct er_watchdog *dog, uint64_t timeout_us, int code, const char *what);
void er_watchdog_disarm(struct er_watchdog *dog);
