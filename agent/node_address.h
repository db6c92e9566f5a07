#pragma once
/*
 * What peers connect to (node.address). `auto` is the source address of the route to the store, so
 * that of several interfaces the one counts that reaches the others, and Debian's "127.0.1.1
 * hostname" never does. Loopback only where the store itself is reached over it.
 */
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

#define ER_ADDRESS_MAX 256

/* How an address was found, so that another one can be without asking the DNS. All zero: it was
 * given, and stays. */
struct er_node_route {
    char interface[IF_NAMESIZE]; /* its first address */
    struct sockaddr_storage to;  /* the source address of the route there; to_n 0: none */
    socklen_t to_n;
};

/* `text`: auto (or NULL), an interface's name, an address, or a host name that resolves (it stays a
 * name).
 * `endpoints` (n of them): of the store; none: the embedded one. May ask the DNS (seconds).
 * ER_E_CONFIG: an interface without an address, a name that means nothing here; the store's hosts
 * cannot be resolved and nothing else tells an address. */
int er_node_address(const char *text, const char *const *endpoints, size_t n,
                    char ret[ER_ADDRESS_MAX], struct er_error *err);
/* The same; `ret_route` too. */
int er_node_address_by(const char *text, const char *const *endpoints, size_t n,
                       char ret[ER_ADDRESS_MAX], struct er_node_route *ret_route,
                       struct er_error *err);
/* The address that is found that way now; false: none. Does not wait. */
bool er_node_address_again(const struct er_node_route *route, char ret[ER_ADDRESS_MAX]);
/* A numeric address that this host does not have (any more). Does not wait. */
bool er_node_address_gone(const char *address);
/* The interface that has a numeric address; "": none. Does not wait. */
void er_node_address_interface(const char *address, char ret[IF_NAMESIZE]);
/* Whether peers are to be sent from an address that has been gone for `gone_us` to one of `to`: at
 * once on the same interface; to another network when the old one had `patience_us` to come back,
 * as an interface does that is started anew. */
bool er_node_address_moves(const char *from, const char *to, uint64_t gone_us,
                           uint64_t patience_us);
