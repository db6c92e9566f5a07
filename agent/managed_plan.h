#pragma once
/*
 * Managed etcd, the decisions: which hosts run a member, on which ports, and whether this host is
 * one of them. Pure.
 *
 *     rendezvous: {backend: managed, endpoints: [node1, node2, "node3:2399"]}
 *
 * One member (simple; its host is a single point of failure) or three (any one may be lost). The
 * order of the endpoints numbers the members, so it must be the same on all nodes.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "rendezvous/etcd_endpoint.h"

#define ER_MANAGED_MAX         3
#define ER_MANAGED_ADDRESS_MAX 46 /* an address as text, without brackets */
#define ER_MANAGED_LISTEN_MAX  4
#define ER_MANAGED_NAME_MAX    64 /* of a job */
#define ER_MANAGED_TEXT_MAX    (ER_MANAGED_MAX * (ER_ETCD_ENDPOINT_TEXT_MAX + 16))

/* What agents expect in a member's certificate, whatever its host is called. */
#define ER_MANAGED_SERVER_NAME "etcd.elastic-run.internal"

struct er_managed_member {
    struct er_etcd_endpoint at; /* where clients connect; TCP, no scheme */
    uint16_t peer_port;         /* where the other members do; unused with one member */
};

struct er_managed_plan {
    struct er_managed_member members[ER_MANAGED_MAX];
    size_t n;
};

/* `peer_port`: of the first member on a host; a second one there takes the next. ER_E_CONFIG: not
 * one or three, given twice, ports that collide, or a form that names no host. */
int er_managed_plan_make(struct er_managed_plan *ret, const char *const *endpoints, size_t n,
                         uint16_t peer_port, struct er_error *err);
/* `host:port,host:port`, as etcd's clients want them. */
void er_managed_plan_endpoints(const struct er_managed_plan *plan, char ret[ER_MANAGED_TEXT_MAX]);

/* This host. */
struct er_managed_host {
    char name[ER_ETCD_HOST_MAX];
    const char (*addresses)[ER_MANAGED_ADDRESS_MAX]; /* of its interfaces, loopback included */
    size_t n;
};

/* Where a member of this host listens. */
struct er_managed_listen {
    bool all; /* on every address: its name leads to the loopback interface alone, as Debian's
                 127.0.1.1 for the own name */
    char addresses[ER_MANAGED_LISTEN_MAX][ER_MANAGED_ADDRESS_MAX];
    size_t n;
};

/* Is the member's host this one? `resolved`: what its name leads to, empty when nothing. */
bool er_managed_is_here(const struct er_managed_member *member, const struct er_managed_host *host,
                        const char (*resolved)[ER_MANAGED_ADDRESS_MAX], size_t resolved_n,
                        struct er_managed_listen *ret);
