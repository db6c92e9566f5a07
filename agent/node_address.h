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

enum { ER_NODE_PLACES_MAX = 16 };

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

/* A numeric address and the interface that has it, or had it; "": none, not known. */
struct er_node_place {
    char address[ER_ADDRESS_MAX], interface[IF_NAMESIZE];
};

/* The place of an address that this host has. Does not wait. */
void er_node_place_of(const char *address, struct er_node_place *ret);
/* Where the node could go from `own`, having begun at `home`: first what er_node_address_again()
 * finds, its address "" when there is none; then the other addresses of these two interfaces, or
 * of the one that was given. Returns how many, at least 1 and at most ER_NODE_PLACES_MAX; does not
 * wait. */
size_t er_node_places(const struct er_node_route *route, const struct er_node_place *own,
                      const struct er_node_place *home, struct er_node_place *ret_list);
/* Where peers are to be sent from `own`, gone for `gone_us`: at once to another address of the same
 * kind on its interface; to another network when the own one had `patience_us` to come back, as an
 * interface does that is started anew, and then rather to that of `home`. NULL: not yet, or
 * nowhere. */
const struct er_node_place *er_node_address_next(const struct er_node_place *own,
                                                 const struct er_node_place *home,
                                                 const struct er_node_place *list, size_t n,
                                                 uint64_t gone_us, uint64_t patience_us);
