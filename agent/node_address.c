#include "agent/node_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "rendezvous/etcd_endpoint.h"

#define ANY_PORT 2379 /* nothing is sent: only the route is asked for */

/* Link-local addresses mean nothing without their interface. */
static bool is_usable(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET)
        return true;
    return at->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
}

static bool format(const struct sockaddr *at, char ret[ER_ADDRESS_MAX])
{
    socklen_t n =
        at->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    return getnameinfo(at, n, ret, ER_ADDRESS_MAX, NULL, 0, NI_NUMERICHOST) == 0;
}

/* Connecting a datagram socket sends nothing; the kernel chooses route and source address. */
static bool source_address(const struct sockaddr *to, socklen_t n, char ret[ER_ADDRESS_MAX])
{
    ER_CLEANUP(er_cleanup_fd) int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage own = {0};
    socklen_t own_n = sizeof(own);
    struct sockaddr *at = (struct sockaddr *)&own;

    return fd >= 0 && connect(fd, to, n) == 0 && getsockname(fd, at, &own_n) == 0 &&
           is_usable(at) && format(at, ret);
}

static bool route_to(const struct sockaddr *to, socklen_t n, char ret[ER_ADDRESS_MAX],
                     struct er_node_route *ret_route)
{
    if (!source_address(to, n, ret))
        return false;
    memcpy(&ret_route->to, to, n);
    ret_route->to_n = n;
    return true;
}

static bool route_to_host(const char *host, char ret[ER_ADDRESS_MAX],
                          struct er_node_route *ret_route)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[8];
    bool found = false;

    snprintf(port, sizeof(port), "%d", ANY_PORT);
    if (getaddrinfo(host, port, &hints, &list) != 0)
        return false;
    for (struct addrinfo *at = list; at && !found; at = at->ai_next)
        found = route_to(at->ai_addr, at->ai_addrlen, ret, ret_route);
    freeaddrinfo(list);
    return found;
}

/* Where the world outside would be reached from: addresses for documentation (RFC 5737, 3849). */
static bool default_route(char ret[ER_ADDRESS_MAX], struct er_node_route *ret_route)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(ANY_PORT)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(ANY_PORT)};

    inet_pton(AF_INET, "192.0.2.1", &v4.sin_addr);
    inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
    return route_to((struct sockaddr *)&v4, sizeof(v4), ret, ret_route) ||
           route_to((struct sockaddr *)&v6, sizeof(v6), ret, ret_route);
}

/* The first usable address of an interface, IPv4 before IPv6. */
static bool interface_address(const char *name, char ret[ER_ADDRESS_MAX])
{
    static const int FAMILIES[] = {AF_INET, AF_INET6};
    struct ifaddrs *list = NULL;
    bool found = false;

    if (getifaddrs(&list) < 0)
        return false;
    for (size_t i = 0; i < ER_ARRAY_N(FAMILIES) && !found; i++) {
        for (struct ifaddrs *at = list; at && !found; at = at->ifa_next)
            found = at->ifa_addr && at->ifa_addr->sa_family == FAMILIES[i] &&
                    strcmp(at->ifa_name, name) == 0 && is_usable(at->ifa_addr) &&
                    format(at->ifa_addr, ret);
    }
    freeifaddrs(list);
    return found;
}

static int automatic(const char *const *endpoints, size_t n, char ret[ER_ADDRESS_MAX],
                     struct er_node_route *ret_route, struct er_error *err)
{
    struct er_etcd_endpoint e;
    bool local = n == 0;

    for (size_t i = 0; i < n; i++) {
        if (er_etcd_endpoint_parse(endpoints[i], &e, NULL))
            continue;
        if (e.kind == ER_ETCD_TCP && route_to_host(e.host, ret, ret_route))
            return 0;
        local |= e.kind == ER_ETCD_UNIX;
    }
    if (local) {
        snprintf(ret, ER_ADDRESS_MAX, "127.0.0.1");
        return 0;
    }
    if (default_route(ret, ret_route))
        return 0;
    return er_error_set(err, ER_E_CONFIG,
                        "node.address: auto finds no route to '%s' and no default route; give an "
                        "address, an interface or a host name",
                        endpoints[0]);
}

/* It stays the name that was given, if that means something here. */
static int host_address(const char *text, char ret[ER_ADDRESS_MAX], struct er_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(text, NULL, &hints, &list);

    if (rc)
        return er_error_set(err, ER_E_CONFIG,
                            "node.address: '%s' is neither an interface of this host, nor an "
                            "address, nor a host name that resolves (%s); give one of these, or "
                            "auto",
                            text, gai_strerror(rc));
    freeaddrinfo(list);
    snprintf(ret, ER_ADDRESS_MAX, "%s", text);
    return 0;
}

int er_node_address_by(const char *text, const char *const *endpoints, size_t n,
                       char ret[ER_ADDRESS_MAX], struct er_node_route *ret_route,
                       struct er_error *err)
{
    *ret_route = (struct er_node_route){.to_n = 0};
    if (!text || strcmp(text, "auto") == 0)
        return automatic(endpoints, n, ret, ret_route, err);
    if (strlen(text) >= ER_ADDRESS_MAX)
        return er_error_set(err, ER_E_CONFIG, "node.address: '%.40s...' is too long", text);
    if (if_nametoindex(text) == 0)
        return host_address(text, ret, err);
    if (!interface_address(text, ret))
        return er_error_set(err, ER_E_CONFIG, "node.address: interface '%s' has no address", text);
    snprintf(ret_route->interface, sizeof(ret_route->interface), "%s", text);
    return 0;
}

int er_node_address(const char *text, const char *const *endpoints, size_t n,
                    char ret[ER_ADDRESS_MAX], struct er_error *err)
{
    struct er_node_route route;

    return er_node_address_by(text, endpoints, n, ret, &route, err);
}

bool er_node_address_again(const struct er_node_route *route, char ret[ER_ADDRESS_MAX])
{
    if (route->interface[0])
        return interface_address(route->interface, ret);
    return route->to_n > 0 && source_address((const struct sockaddr *)&route->to, route->to_n, ret);
}

static bool place_at(const struct ifaddrs *at, struct er_node_place *ret)
{
    if (!at->ifa_addr || !is_usable(at->ifa_addr) || !format(at->ifa_addr, ret->address))
        return false;
    snprintf(ret->interface, sizeof(ret->interface), "%s", at->ifa_name);
    return true;
}

void er_node_place_of(const char *address, struct er_node_place *ret)
{
    struct er_node_place place = {.address = ""};
    struct ifaddrs *list = NULL;
    bool found = false;

    if (getifaddrs(&list) < 0)
        list = NULL;
    for (struct ifaddrs *at = list; at && !found; at = at->ifa_next)
        found = place_at(at, &place) && strcmp(place.address, address) == 0;
    freeifaddrs(list);
    if (!found)
        place.interface[0] = '\0';
    snprintf(place.address, sizeof(place.address), "%s", address);
    *ret = place;
}

static bool may_be_taken(const struct er_node_route *route, const struct er_node_place *own,
                         const struct er_node_place *home, const char *interface)
{
    if (route->interface[0])
        return strcmp(interface, route->interface) == 0;
    return strcmp(interface, own->interface) == 0 || strcmp(interface, home->interface) == 0;
}

size_t er_node_places(const struct er_node_route *route, const struct er_node_place *own,
                      const struct er_node_place *home, struct er_node_place *ret_list)
{
    struct ifaddrs *list = NULL;
    char first[ER_ADDRESS_MAX] = "";
    size_t n = 1;

    (void)er_node_address_again(route, first);
    er_node_place_of(first, &ret_list[0]);
    if (getifaddrs(&list) < 0)
        list = NULL;
    for (struct ifaddrs *at = list; at && n < ER_NODE_PLACES_MAX; at = at->ifa_next) {
        if (may_be_taken(route, own, home, at->ifa_name))
            n += place_at(at, &ret_list[n]);
    }
    freeifaddrs(list);
    return n;
}

enum kind { KIND_V4, KIND_V4_LINK, KIND_V6 };

/* Where DHCP stands still, an IPv6 address may be left, and one that the host gave itself come. */
static enum kind kind_of(const char *address)
{
    if (strchr(address, ':'))
        return KIND_V6;
    return strncmp(address, "169.254.", 8) == 0 ? KIND_V4_LINK : KIND_V4;
}

static const struct er_node_place *find_near(const struct er_node_place *place,
                                             const struct er_node_place *list, size_t n)
{
    for (size_t i = 0; place->interface[0] && i < n; i++) {
        if (list[i].address[0] && strcmp(list[i].interface, place->interface) == 0 &&
            kind_of(list[i].address) == kind_of(place->address))
            return &list[i];
    }
    return NULL;
}

const struct er_node_place *er_node_address_next(const struct er_node_place *own,
                                                 const struct er_node_place *home,
                                                 const struct er_node_place *list, size_t n,
                                                 uint64_t gone_us, uint64_t patience_us)
{
    const struct er_node_place *near = find_near(own, list, n);

    if (near || gone_us < patience_us)
        return near;
    near = find_near(home, list, n);
    if (near)
        return near;
    return n > 0 && list[0].address[0] ? &list[0] : NULL;
}

bool er_node_address_gone(const char *address)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
    bool is_v6 = !is_v4 && inet_pton(AF_INET6, address, &v6.sin6_addr) == 1;
    const struct sockaddr *at = is_v4 ? (const struct sockaddr *)&v4 : (const struct sockaddr *)&v6;
    ER_CLEANUP(er_cleanup_fd)
    int fd = is_v4 || is_v6 ? socket(at->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;

    return fd >= 0 && bind(fd, at, is_v4 ? sizeof(v4) : sizeof(v6)) < 0 && errno == EADDRNOTAVAIL;
}
