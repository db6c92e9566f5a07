#include "agent/keeper_ports.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define PORT_LOOK_NS  (50 * 1000 * 1000)
#define CLIENT_REMEDY "give the endpoint another port"
#define PEER_REMEDY   "set rendezvous.managed.peer_port to another one on all nodes"

static int bind_once(const char *host, uint16_t port, const char *remedy, struct er_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    struct addrinfo *at = NULL;
    char service[8];
    int rc = 0;

    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &at) != 0)
        return er_error_set(err, -EINVAL, "'%s' is no address", host);
    fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
        bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, 1) < 0)
        rc = errno == EADDRINUSE
                 ? er_error_set(err, -EADDRINUSE,
                                "port %u of %s is in use by another program (`ss -ltnp 'sport = "
                                ":%u'` names it); stop that, or %s",
                                port, host, port, remedy)
                 : er_error_errno(err, "listen on port %u of %s", port, host);
    freeaddrinfo(at);
    return rc;
}

static int bind_patiently(const char *host, uint16_t port, const char *remedy, uint64_t until_us,
                          struct er_error *err)
{
    int rc;

    while ((rc = bind_once(host, port, remedy, err)) == -EADDRINUSE && er_now_us() < until_us)
        nanosleep(&(struct timespec){.tv_nsec = PORT_LOOK_NS}, NULL);
    return rc;
}

int er_keeper_ports_free(const struct er_managed_plan *plan, uint32_t index,
                         const struct er_managed_listen *listen, uint64_t wait_us,
                         struct er_error *err)
{
    const struct er_managed_member *m = &plan->members[index];
    uint64_t until_us = er_deadline_in(er_now_us(), wait_us);
    int rc = 0;

    if (listen->all) {
        rc = bind_patiently("0.0.0.0", m->at.port, CLIENT_REMEDY, until_us, err);
        if (!rc && plan->n > 1)
            rc = bind_patiently("0.0.0.0", m->peer_port, PEER_REMEDY, until_us, err);
    }
    for (size_t i = 0; !rc && i < listen->n; i++) {
        rc = bind_patiently(listen->addresses[i], m->at.port, CLIENT_REMEDY, until_us, err);
        if (!rc && plan->n > 1)
            rc = bind_patiently(listen->addresses[i], m->peer_port, PEER_REMEDY, until_us, err);
    }
    return rc;
}
