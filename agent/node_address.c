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

static bool route_to_host(const char *host, char ret[ER_ADDRESS_MAX])
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[8];
    bool found = false;

    snprintf(port, sizeof(port), "%d", ANY_PORT);
    if (getaddrinfo(host, port, &hints, &list) != 0)
        return false;
    for (struct addrinfo *at = list; at && !found; at = at->ai_next)
        found = source_address(at->ai_addr, at->ai_addrlen, ret);
    freeaddrinfo(list);
    return found;
}

/* Where the world outside would be reached from: addresses for documentation (RFC 5737, 3849). */
static bool default_route(char ret[ER_ADDRESS_MAX])
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(ANY_PORT)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(ANY_PORT)};

    inet_pton(AF_INET, "192.0.2.1", &v4.sin_addr);
    inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
    return source_address((struct sockaddr *)&v4, sizeof(v4), ret) ||
           source_address((struct sockaddr *)&v6, sizeof(v6), ret);
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
                     struct er_error *err)
{
    struct er_etcd_endpoint e;
    bool local = n == 0;

    for (size_t i = 0; i < n; i++) {
        if (er_etcd_endpoint_parse(endpoints[i], &e, NULL))
            continue;
        if (e.kind == ER_ETCD_TCP && route_to_host(e.host, ret))
            return 0;
        local |= e.kind == ER_ETCD_UNIX;
    }
    if (local) {
        snprintf(ret, ER_ADDRESS_MAX, "127.0.0.1");
        return 0;
    }
    if (default_route(ret))
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

int er_node_address(const char *text, const char *const *endpoints, size_t n,
                    char ret[ER_ADDRESS_MAX], struct er_error *err)
{
    if (!text || strcmp(text, "auto") == 0)
        return automatic(endpoints, n, ret, err);
    if (strlen(text) >= ER_ADDRESS_MAX)
        return er_error_set(err, ER_E_CONFIG, "node.address: '%.40s...' is too long", text);
    if (if_nametoindex(text) == 0)
        return host_address(text, ret, err);
    if (!interface_address(text, ret))
        return er_error_set(err, ER_E_CONFIG, "node.address: interface '%s' has no address", text);
    return 0;
}
