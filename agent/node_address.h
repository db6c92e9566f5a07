#pragma once
/*
 * What peers connect to (node.address). `auto` is the source address of the route to the store, so
 * that of several interfaces the one counts that reaches the others, and Debian's "127.0.1.1
 * hostname" never does. Loopback only where the store itself is reached over it.
 */
#include <stddef.h>

#include "base/error.h"

#define ER_ADDRESS_MAX 256

/* `text`: auto (or NULL), an interface's name, an address, or a host name that resolves (it stays a
 * name).
 * `endpoints` (n of them): of the store; none: the embedded one. May ask the DNS (seconds).
 * ER_E_CONFIG: an interface without an address, a name that means nothing here; the store's hosts
 * cannot be resolved and nothing else tells an address. */
int er_node_address(const char *text, const char *const *endpoints, size_t n,
                    char ret[ER_ADDRESS_MAX], struct er_error *err);
