/* The node's address while the job runs: another lease of DHCP, another network, a machine that was
 * moved. Connections from the old one die, and nobody is told: not here, for nothing can be sent
 * from it, and not at the other ends, for nothing comes any more. */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define SETTLE_US (500 * ER_US_PER_MS) /* one address goes, the other comes: a few at a time */
#define AGAIN_US  ER_US_PER_S          /* while there is none: its route may come after it */

/* What was said does not matter: what is so is looked at, when it has settled. Not later, however
 * often something changes: of a host with many containers, something always does. */
static void on_changed(void *user, uint32_t events)
{
    struct er_agent *agent = user;
    uint64_t settled_us = er_now_us() + SETTLE_US;
    char message[8192];

    (void)events;
    while (recv(agent->own.fd, message, sizeof(message), MSG_DONTWAIT) >= 0 || errno == EINTR ||
           errno == ENOBUFS)
        ;
    if (settled_us < agent->own.check_us)
        agent->own.check_us = settled_us;
}

static int watch(struct er_agent *agent, struct er_error *err)
{
    struct sockaddr_nl who = {.nl_family = AF_NETLINK,
                              .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};

    agent->own.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (agent->own.fd < 0 || bind(agent->own.fd, (struct sockaddr *)&who, sizeof(who)) < 0)
        return er_error_errno(err, "netlink");
    return er_loop_io(agent->loop, agent->own.fd, EPOLLIN, ER_PRIORITY_IO, on_changed, agent,
                      &agent->own.source, err);
}

void er_agent_address_open(struct er_agent *agent)
{
    struct er_error err = ER_ERROR_INIT;

    agent->own.gone_us = ER_FOREVER;
    if (agent->config->nnodes_max == 1)
        return;
    er_node_place_of(agent->address, &agent->own.at);
    agent->own.home = agent->own.at;
    if (watch(agent, &err))
        er_log(ER_LOG_WARNING, "changes of this node's address will not be noticed",
               ER_STR("reason", err.text));
}

void er_agent_address_close(struct er_agent *agent)
{
    er_loop_source_free(agent->own.source);
    er_cleanup_fd(&agent->own.fd);
}

static void move(struct er_agent *agent, const struct er_node_place *place, uint64_t now_us)
{
    const char *to = place->address;

    er_agent_say(agent, "this node's address is %s now, and %s is gone", to, agent->address);
    er_log(ER_LOG_WARNING, "this node's address has changed", ER_STR("from", agent->address),
           ER_STR("to", to));
    snprintf(agent->address, sizeof(agent->address), "%s", to);
    agent->own.at = *place;
    agent->own.moved = true;
    er_driver_address(agent->driver, agent->address);
    if (agent->group && er_group_assignment(agent->group)->nnodes > 1)
        er_agent_cut_off(agent, now_us);
}

void er_agent_address_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_own_address *own = &agent->own;
    struct er_node_place list[ER_NODE_PLACES_MAX];
    const struct er_node_place *next;
    size_t n;

    if (now_us < own->check_us || agent->done)
        return;
    own->check_us = ER_FOREVER;
    if (!er_node_address_gone(agent->address)) {
        own->gone_us = ER_FOREVER;
        return;
    }
    if (own->route.to_n == 0 && !own->route.interface[0])
        return; /* it was given, and stays */
    n = er_node_places(&own->route, &own->at, &own->home, list);
    next = er_node_address_next(&own->at, &own->home, list, n,
                                own->gone_us == ER_FOREVER ? 0 : now_us - own->gone_us,
                                er_config_lease_ttl(agent->config));
    if (next) {
        move(agent, next, now_us);
        own->gone_us = ER_FOREVER;
        return;
    }
    if (own->gone_us == ER_FOREVER) {
        own->gone_us = now_us;
        er_agent_say(agent, "this node's address %s is gone", agent->address);
    }
    own->check_us = now_us + AGAIN_US;
}

/* The seal took rank 0's address from a record that was older than the change. */
void er_agent_address_started(struct er_agent *agent, const struct er_assignment *a)
{
    if (agent->own.moved && a->nnodes > 1 && a->node_rank == 0 &&
        strcmp(a->master_addr, agent->address) != 0)
        er_agent_cut_off(agent, er_now_us());
}
