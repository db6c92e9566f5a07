/* Nodes with networks of their own: network namespaces, joined by a bridge where etcd listens.
 * Needs root; nothing of the host's network is touched. */
#include <net/if.h>
#include <sched.h>

#include "tests/integration/nodes_case.h"

struct net {
    struct er_test_proc holders[NODES_MAX];
    int n;
};

static void shell(const char *script)
{
    struct er_test_proc p;

    if (!er_tap_check(er_test_run(&p, ARGS("sh", "-ec", script), NULL, NODES_WAIT) == 0))
        case_note(er_test_err(&p));
    er_test_done(&p);
}

/* Of this case's process and of everything that it starts. */
static void need_namespaces(void)
{
    struct er_test_proc p;
    int rc = er_test_run(
        &p, ARGS("unshare", "-n", "sh", "-ec", "ip link add br0 type bridge; command -v nsenter"),
        NULL, NODES_WAIT);

    er_test_done(&p);
    if (rc != 0 || unshare(CLONE_NEWNET) < 0)
        er_tap_skip("no network namespaces (root, iproute2 and util-linux needed)");
    shell("ip link set lo up; ip link add br0 type bridge; ip addr add 10.99.0.1/24 dev br0; "
          "ip addr add fd99::1/64 dev br0 nodad; ip link set br0 up");
}

/* Node `i` has the addresses 10.99.0.1<i> and fd99::1<i>; the namespace lives as long as its
 * holder. */
static void add_node(struct net *net, struct nodes_case *n, int i)
{
    char script[1024];

    er_test_start(&net->holders[i],
                  ARGS("unshare", "-n", "sh", "-ec", "ip link set lo up; echo ready; sleep 1000"),
                  NULL);
    er_tap_require(er_test_wait_out(&net->holders[i], "ready", NODES_WAIT));
    net->n = i + 1;
    snprintf(n->enter[i], sizeof(n->enter[i]), "%d", net->holders[i].pid);
    snprintf(script, sizeof(script),
             "ip link add v%d type veth peer name eth0 netns %s; ip link set v%d master br0 up; "
             "nsenter -t %s -n ip addr add 10.99.0.1%d/24 dev eth0; "
             "nsenter -t %s -n ip addr add fd99::1%d/64 dev eth0 nodad; "
             "nsenter -t %s -n ip link set eth0 up",
             i, n->enter[i], i, n->enter[i], i, n->enter[i], i, n->enter[i]);
    shell(script);
}

static void net_begin(struct net *net, struct nodes_case *n, const char *nnodes, int nodes,
                      const char *endpoint)
{
    need_namespaces();
    memset(net, 0, sizeof(*net));
    nodes_begin_listening(n, nnodes, ",http://10.99.0.1:2379,http://[fd99::1]:2379");
    snprintf(n->etcd.endpoints, sizeof(n->etcd.endpoints), "%s", endpoint);
    for (int i = 0; i < nodes; i++)
        add_node(net, n, i);
}

static void net_end(struct net *net, struct nodes_case *n)
{
    nodes_end(n);
    for (int i = 0; i < net->n; i++)
        er_test_done(&net->holders[i]);
}

static void meet_at(const char *endpoint, const char *address)
{
    struct nodes_case n;
    struct nodes_said said;
    struct net net;
    int g;

    net_begin(&net, &n, "2", 2, endpoint);
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS(i == 0 ? "--node-rank=0" : "--node-rank=1", SH(NODES_WORKER)));
    g = nodes_next(&n, 0, 2, 2);
    er_tap_require(g && nodes_said(&n, g, 1, &said));
    if (!er_tap_check(strncmp(said.master, address, strlen(address)) == 0))
        er_tap_note("%s", said.master);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    net_end(&net, &n);
}

/* What peers connect to is the address of the route to the store. */
static void ipv4_address_is_that_of_the_route_to_the_store(void)
{
    meet_at("10.99.0.1:2379", "10.99.0.10:");
}

static void ipv6_address_is_that_of_the_route_to_the_store(void)
{
    meet_at("[fd99::1]:2379", "fd99::10:");
}

/* The others go on without a node that is cut off; when it is back it stops what it ran, and joins
 * again. */
static void node_that_is_cut_off_is_lost_and_comes_back(void)
{
    struct nodes_case n;
    struct nodes_said cut, said;
    struct net net;
    int first, second, third;

    net_begin(&net, &n, "1:2", 2, "10.99.0.1:2379");
    for (int i = 0; i < 2; i++)
        node_start(&n, i,
                   ARGS(SHORT_LEASE, i == 0 ? "--node-rank=0" : "--node-rank=1", SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first && nodes_said(&n, first, 1, &cut) && strcmp(cut.node, "n1") == 0);
    shell("ip link set v1 down");
    second = nodes_next(&n, first, 1, 1);
    er_tap_check(second && nodes_said(&n, second, 0, &said) && strcmp(said.node, "n0") == 0);
    er_tap_check(kill(cut.pid, 0) == 0); /* store_loss.policy: ride */
    shell("ip link set v1 up");
    er_tap_check(er_test_wait_until(process_gone, &cut.pid, NODES_WAIT));
    third = nodes_next(&n, second, 2, 2);
    er_tap_check(third && nodes_said(&n, third, 1, &said) && strcmp(said.node, "n1") == 0);
    er_tap_check(said.restarts == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    net_end(&net, &n);
}

/* Node 1 reaches the store over a second network, too, once its own is gone: 10.98.0.11. */
static void begin_with_two_networks(struct net *net, struct nodes_case *n)
{
    char script[512];

    net_begin(net, n, "1:2", 2, "10.99.0.1:2379");
    snprintf(script, sizeof(script),
             "ip link add w1 type veth peer name eth1 netns %s; ip addr add 10.98.0.1/24 dev w1; "
             "ip link set w1 up; nsenter -t %s -n sh -ec '"
             "ip addr add 10.98.0.11/24 dev eth1; ip link set eth1 up; "
             "ip route add default via 10.98.0.1'",
             n->enter[1], n->enter[1]);
    shell(script);
    for (int i = 0; i < 2; i++)
        node_start(n, i, ARGS(SHORT_LEASE, SH(NODES_WORKER)));
}

/* That of IPv6 stays, as it does where DHCP fails. */
static void lose_address(struct nodes_case *n)
{
    char script[128];

    snprintf(script, sizeof(script), "nsenter -t %s -n ip -4 addr flush dev eth0", n->enter[1]);
    shell(script);
    er_tap_check(er_test_wait_err(&n->p[1], "this node's address 10.99.0.11 is gone", NODES_WAIT));
}

/* As an interface does that is started anew. */
static void address_that_comes_back_soon_is_kept(void)
{
    struct nodes_case n;
    struct net net;
    char script[128];

    begin_with_two_networks(&net, &n);
    er_tap_require(nodes_next(&n, 0, 2, 2));
    lose_address(&n);
    snprintf(script, sizeof(script), "nsenter -t %s -n ip addr add 10.99.0.11/24 dev eth0",
             n.enter[1]);
    shell(script);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(!strstr(er_test_err(&n.p[1]), "this node's address is"));
    net_end(&net, &n);
}

/* The route to the store leads over the other network by then. */
static void another_address_of_the_interface_is_taken(void)
{
    struct nodes_case n;
    struct net net;
    char script[256];
    int first;

    begin_with_two_networks(&net, &n);
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first);
    snprintf(script, sizeof(script),
             "nsenter -t %s -n sh -ec 'ip -4 addr flush dev eth0; ip addr add 10.97.0.11/24 dev "
             "eth0'",
             n.enter[1]);
    shell(script);
    er_tap_check(er_test_wait_err(&n.p[1], "this node's address is 10.97.0.11 now", NODES_WAIT));
    er_tap_check(nodes_next(&n, first, 2, 2));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    net_end(&net, &n);
}

static void node_moves_to_another_network_when_its_own_stays_away(void)
{
    struct nodes_case n;
    struct net net;
    int first;

    begin_with_two_networks(&net, &n);
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first);
    lose_address(&n);
    er_tap_check(er_test_wait_err(&n.p[1], "this node's address is 10.98.0.11 now", NODES_WAIT));
    er_tap_check(nodes_next(&n, first, 2, 2));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    net_end(&net, &n);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(ipv4_address_is_that_of_the_route_to_the_store),
        CASE(ipv6_address_is_that_of_the_route_to_the_store),
        CASE(node_that_is_cut_off_is_lost_and_comes_back),
        CASE(address_that_comes_back_soon_is_kept),
        CASE(another_address_of_the_interface_is_taken),
        CASE(node_moves_to_another_network_when_its_own_stays_away),
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
