#include "agent/managed_local.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ADDRESSES_MAX 128 /* of this host; a member behind a later one is not found */
#define RESOLVED_MAX  16

/* An IPv4 address in IPv6 clothes is the IPv4 address. */
static bool address_text(const struct sockaddr *at, char ret[ER_MANAGED_ADDRESS_MAX])
{
    const struct sockaddr_in6 *v6 = (const void *)at;

    if (!at || (at->sa_family != AF_INET && at->sa_family != AF_INET6))
        return false;
    if (at->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)at)->sin_addr, ret,
                         ER_MANAGED_ADDRESS_MAX) != NULL;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        return inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, ret, ER_MANAGED_ADDRESS_MAX) != NULL;
    return inet_ntop(AF_INET6, &v6->sin6_addr, ret, ER_MANAGED_ADDRESS_MAX) != NULL;
}

static int own_addresses(char ret[ADDRESSES_MAX][ER_MANAGED_ADDRESS_MAX], size_t *ret_n,
                         struct er_error *err)
{
    struct ifaddrs *list = NULL;
    size_t n = 0;

    if (getifaddrs(&list) < 0)
        return er_error_errno(err, "list this host's addresses");
    for (struct ifaddrs *i = list; i && n < ADDRESSES_MAX; i = i->ifa_next) {
        if (address_text(i->ifa_addr, ret[n]))
            n++;
    }
    freeifaddrs(list);
    *ret_n = n;
    return 0;
}

static size_t resolve(const char *host, char ret[RESOLVED_MAX][ER_MANAGED_ADDRESS_MAX])
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    size_t n = 0;

    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return 0;
    for (struct addrinfo *i = list; i && n < RESOLVED_MAX; i = i->ai_next) {
        if (address_text(i->ai_addr, ret[n]))
            n++;
    }
    freeaddrinfo(list);
    return n;
}

int er_managed_local_find(const struct er_managed_plan *plan, struct er_managed_local *ret,
                          struct er_error *err)
{
    char addresses[ADDRESSES_MAX][ER_MANAGED_ADDRESS_MAX];
    char resolved[RESOLVED_MAX][ER_MANAGED_ADDRESS_MAX];
    struct er_managed_host host = {.addresses = addresses};
    struct er_managed_local local = {.here = {false}};
    int rc = own_addresses(addresses, &host.n, err);

    if (rc)
        return rc;
    if (gethostname(host.name, sizeof(host.name) - 1) < 0)
        host.name[0] = '\0';
    for (size_t i = 0; i < plan->n; i++) {
        size_t n = resolve(plan->members[i].at.host, resolved);

        local.here[i] = er_managed_is_here(&plan->members[i], &host, resolved, n, &local.listen[i]);
    }
    *ret = local;
    return 0;
}
