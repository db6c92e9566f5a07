#include "agent/managed_plan.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static int check_count(size_t n, struct er_error *err)
{
    if (n == 1 || n == 3)
        return 0;
    if (n == 0)
        return er_error_set(
            err, ER_E_CONFIG,
            "managed: rendezvous.endpoints must name the one or three hosts that run "
            "etcd, as [node1] or [node1, node2, node3]");
    if (n == 2)
        return er_error_set(err, ER_E_CONFIG,
                            "managed: two members are worse than one: the "
                            "loss of either stops both; name one host or three");
    return er_error_set(err, ER_E_CONFIG,
                        "managed: %zu members; three survive the loss of any "
                        "one, more would only make each write slower: name one host or three",
                        n);
}

static int parse_member(const char *text, struct er_managed_member *ret, struct er_error *err)
{
    int rc = er_etcd_endpoint_parse(text, &ret->at, err);

    if (rc)
        return rc;
    if (ret->at.kind != ER_ETCD_TCP || ret->at.security != ER_ETCD_DEFAULT)
        return er_error_set(err, ER_E_CONFIG,
                            "managed: expected a host or HOST:PORT, got '%s' "
                            "(TLS comes from rendezvous.managed.secret_file)",
                            text);
    if (strcmp(ret->at.host, "0.0.0.0") == 0 || strcmp(ret->at.host, "::") == 0)
        return er_error_set(err, ER_E_CONFIG,
                            "managed: nobody can connect to '%s': name the "
                            "host",
                            text);
    return 0;
}

/* Clients of all members of a host, and their peers, need ports of their own. */
static int take_ports(struct er_managed_plan *plan, size_t i, uint16_t peer_port,
                      struct er_error *err)
{
    struct er_managed_member *m = &plan->members[i];

    for (size_t k = 0; k < i; k++) {
        if (strcasecmp(plan->members[k].at.host, m->at.host) != 0)
            continue;
        if (plan->members[k].at.port == m->at.port)
            return er_error_set(err, ER_E_CONFIG, "managed: '%s' port %u is given twice",
                                m->at.host, m->at.port);
        peer_port++;
    }
    m->peer_port = peer_port;
    if (plan->n > 1 && (peer_port == 0 || peer_port == m->at.port))
        return er_error_set(err, ER_E_CONFIG,
                            "managed: '%s' port %u is rendezvous.managed.peer_port as well: choose "
                            "another peer_port",
                            m->at.host, m->at.port);
    return 0;
}

int er_managed_plan_make(struct er_managed_plan *ret, const char *const *endpoints, size_t n,
                         uint16_t peer_port, struct er_error *err)
{
    struct er_managed_plan plan = {.n = n};
    int rc = check_count(n, err);

    for (size_t i = 0; !rc && i < n; i++) {
        rc = parse_member(endpoints[i], &plan.members[i], err);
        if (!rc)
            rc = take_ports(&plan, i, peer_port, err);
    }
    if (!rc)
        *ret = plan;
    return rc;
}

void er_managed_plan_endpoints(const struct er_managed_plan *plan, char ret[ER_MANAGED_TEXT_MAX])
{
    size_t used = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < plan->n; i++) {
        char text[ER_ETCD_ENDPOINT_TEXT_MAX];

        er_etcd_endpoint_format(&plan->members[i].at, text);
        used +=
            (size_t)snprintf(ret + used, ER_MANAGED_TEXT_MAX - used, "%s%s", i ? "," : "", text);
    }
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* All of 127/8 is this host. */
static bool is_own(const struct er_managed_host *host, const char *address)
{
    if (is_loopback(address))
        return true;
    for (size_t i = 0; i < host->n; i++) {
        if (strcasecmp(host->addresses[i], address) == 0)
            return true;
    }
    return false;
}

/* A short name is any qualified one that begins with it. */
static bool same_name(const char *a, const char *b)
{
    size_t a_n = strlen(a), b_n = strlen(b);
    size_t a_first = strcspn(a, "."), b_first = strcspn(b, ".");

    while (a_n && a[a_n - 1] == '.')
        a_n--;
    while (b_n && b[b_n - 1] == '.')
        b_n--;
    if (a_n == 0 || b_n == 0)
        return false;
    if (a_n == b_n)
        return strncasecmp(a, b, a_n) == 0;
    return a_first == b_first && strncasecmp(a, b, a_first) == 0 &&
           (a_first >= a_n || b_first >= b_n);
}

static bool is_localhost(const char *name)
{
    return strcasecmp(name, "localhost") == 0 || strcasecmp(name, "ip6-localhost") == 0 ||
           strcasecmp(name, "localhost.localdomain") == 0;
}

static void add_address(struct er_managed_listen *l, const char *address)
{
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(l->addresses[i], address) == 0)
            return;
    }
    if (l->n < ER_MANAGED_LISTEN_MAX)
        snprintf(l->addresses[l->n++], ER_MANAGED_ADDRESS_MAX, "%s", address);
}

bool er_managed_is_here(const struct er_managed_member *member, const struct er_managed_host *host,
                        const char (*resolved)[ER_MANAGED_ADDRESS_MAX], size_t resolved_n,
                        struct er_managed_listen *ret)
{
    struct er_managed_listen l = {.n = 0};
    bool outside = false, named = same_name(member->at.host, host->name);

    for (size_t i = 0; i < resolved_n; i++) {
        if (!is_own(host, resolved[i]))
            continue;
        add_address(&l, resolved[i]);
        outside = outside || !is_loopback(resolved[i]);
    }
    if (named && !outside && !is_localhost(member->at.host)) {
        l = (struct er_managed_listen){.all = true};
    } else if (l.n == 0) {
        return false;
    }
    *ret = l;
    return true;
}
