/* The rendezvous itself on a real etcd: three nodes of one job, each with a driver and a client of
 * its own, in one process. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/codec.h"
#include "tests/contract/etcd_lib.h"
#include "tests/lib/driver_opts.h"
#include "tests/lib/tap.h"

#define NODES 3

struct node {
    struct er_store *store;
    struct er_driver *driver;     /* NULL: gone */
    struct er_assignment running; /* generation 0: none */
    unsigned starts;
    bool ended;
    struct er_verdict verdict;
    bool kv_done;
    int kv_rc;
    char kv_value[64];
    char overrides[128];
};

static struct node nodes[NODES];

static void on_start(void *user, const struct er_assignment *a)
{
    struct node *n = user;

    er_tap_check(n->running.generation == 0);
    n->running = *a;
    n->starts++;
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct node *n = user;

    n->running.generation = 0;
    er_driver_left(n->driver, generation);
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    struct node *n = user;

    n->ended = true;
    n->verdict = *v;
}

static void on_note(void *user, const struct er_note *note) {}

static void on_overrides(void *user, const struct er_overrides *now)
{
    struct node *n = user;

    snprintf(n->overrides, sizeof(n->overrides), "%.100s", now ? now->text : "");
}

static const struct er_driver_callbacks callbacks = {.start = on_start,
                                                     .stop = on_stop,
                                                     .verdict = on_verdict,
                                                     .note = on_note,
                                                     .overrides = on_overrides};

static void node_open(const struct etcd_cluster *e, int i, uint64_t incarnation)
{
    struct er_driver_opts o = er_test_driver_opts();
    struct er_error err = ER_ERROR_INIT;
    struct node *n = &nodes[i];

    memset(n, 0, sizeof(*n));
    o.min_nodes = 2;
    o.max_nodes = NODES;
    o.lease_ttl_us = 2 * ER_US_PER_S;
    o.death_grace_us = ER_US_PER_S / 2;
    o.spec = "command=train\nnnodes=2:3\n";
    o.incarnation = o.seed = incarnation;
    o.boot_id_hash = 100 + (uint64_t)i;
    o.now_us = er_now_us();
    snprintf(o.node_id, sizeof(o.node_id), "n%d", i);
    n->store = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e->endpoints, .prefix = "/elastic-run/job/", .seed = incarnation});
    if (er_driver_new(&n->driver, n->store, &o, &callbacks, n, &err) < 0)
        er_tap_note("%s", err.text);
    er_tap_require(n->driver != NULL);
}

/* As a node that lost its power: says nothing, renews nothing. */
static void node_die(int i)
{
    er_driver_free(nodes[i].driver);
    if (nodes[i].store)
        nodes[i].store->ops->free(nodes[i].store);
    nodes[i].driver = NULL;
    nodes[i].store = NULL;
}

/* Let the drivers work until the condition holds. */
static bool run(bool (*cond)(void))
{
    uint64_t until = er_deadline_in(er_now_us(), ETCD_DEADLINE_MS * ER_US_PER_MS);

    while (!cond()) {
        struct pollfd fds[NODES];
        uint64_t wake = until;
        nfds_t n = 0;

        if (er_now_us() >= until)
            return false;
        for (int i = 0; i < NODES; i++) {
            uint64_t at;

            if (!nodes[i].driver)
                continue;
            at = er_driver_pending(nodes[i].driver) ? 0 : er_driver_deadline(nodes[i].driver);
            wake = at < wake ? at : wake;
            fds[n++] = (struct pollfd){.fd = er_driver_fd(nodes[i].driver), .events = POLLIN};
        }
        poll(fds, n, er_poll_ms(er_now_us(), wake));
        for (int i = 0; i < NODES; i++) {
            if (nodes[i].driver)
                er_driver_dispatch(nodes[i].driver, er_now_us());
        }
    }
    return true;
}

/* All live nodes run one generation of `want` nodes. */
static bool formed(int want)
{
    uint64_t generation = 0;
    int have = 0;

    for (int i = 0; i < NODES; i++) {
        if (!nodes[i].driver)
            continue;
        have++;
        if (nodes[i].running.generation == 0 || nodes[i].running.nnodes != want ||
            (generation && nodes[i].running.generation != generation))
            return false;
        generation = nodes[i].running.generation;
    }
    return have == want;
}

static bool formed_of_three(void)
{
    return formed(3);
}

static bool formed_of_two(void)
{
    return formed(2);
}

static bool all_ended(void)
{
    for (int i = 0; i < NODES; i++) {
        if (nodes[i].driver && !nodes[i].ended)
            return false;
    }
    return true;
}

static void check_ranks(int nnodes)
{
    unsigned seen = 0;

    for (int i = 0; i < NODES; i++) {
        if (!nodes[i].driver)
            continue;
        seen |= 1u << nodes[i].running.node_rank;
        er_tap_check(nodes[i].running.world_size == 2 * nnodes);
        er_tap_check(nodes[i].running.first_rank == 2 * nodes[i].running.node_rank);
    }
    er_tap_check(seen == (1u << nnodes) - 1);
}

static void succeed(void)
{
    for (int i = 0; i < NODES; i++) {
        if (nodes[i].driver) {
            er_driver_result(nodes[i].driver, nodes[i].running.generation, NULL);
            er_driver_left(nodes[i].driver, nodes[i].running.generation);
        }
    }
    er_tap_check(run(all_ended));
    for (int i = 0; i < NODES; i++)
        er_tap_check(!nodes[i].driver || nodes[i].verdict.kind == ER_VERDICT_SUCCEEDED);
}

static void open_all(struct etcd_cluster *e, int members)
{
    etcd_start(e, members);
    for (int i = 0; i < NODES; i++)
        node_open(e, i, 10 + (uint64_t)i);
    er_tap_require(run(formed_of_three));
    check_ranks(3);
}

static void close_all(struct etcd_cluster *e)
{
    for (int i = 0; i < NODES; i++)
        node_die(i);
    etcd_stop(e);
}

static void on_kv(void *user, int rc, const void *value, size_t n)
{
    struct node *node = user;

    node->kv_done = true;
    node->kv_rc = rc;
    snprintf(node->kv_value, sizeof(node->kv_value), "%.*s", (int)n, n ? (const char *)value : "");
}

static bool kv_done(void)
{
    return nodes[0].kv_done && nodes[1].kv_done;
}

static void three_nodes_form_share_keys_and_succeed(void)
{
    struct etcd_cluster e;

    open_all(&e, 1);
    er_driver_kv_get(nodes[1].driver, nodes[1].running.generation, "id",
                     er_now_us() + 20 * ER_US_PER_S, on_kv, &nodes[1]);
    er_driver_kv_put(nodes[0].driver, nodes[0].running.generation, "id", "abc", 3, on_kv,
                     &nodes[0]);
    er_tap_check(run(kv_done));
    er_tap_check(nodes[0].kv_rc == 0 && nodes[1].kv_rc == 0);
    er_tap_check(strcmp(nodes[1].kv_value, "abc") == 0);
    succeed();
    close_all(&e);
}

static void a_node_that_falls_silent_is_left_out(void)
{
    for (int dead = 0; dead < NODES; dead++) { /* one of them leads */
        struct etcd_cluster e;

        open_all(&e, 1);
        node_die(dead);
        er_tap_check(run(formed_of_two));
        check_ranks(2);
        succeed();
        close_all(&e);
    }
}

static uint64_t calm_until;

static bool calm(void)
{
    return er_now_us() >= calm_until;
}

static int merge(void *user, const struct er_overrides *now, struct er_overrides *next)
{
    struct node *n = user;

    snprintf(next->id, sizeof(next->id), "set-by-%d", (int)(n - nodes));
    snprintf(next->text, sizeof(next->text), "%.100s%d=1\n", now->text, (int)(n - nodes));
    return 0;
}

static bool all_see_both(void)
{
    for (int i = 0; i < NODES; i++) {
        if (nodes[i].driver &&
            (!strstr(nodes[i].overrides, "0=1\n") || !strstr(nodes[i].overrides, "1=1\n")))
            return false;
    }
    return kv_done();
}

/* Two at once: neither is lost, and all see the same, the one that comes later too. */
static void what_is_set_is_seen_by_all(void)
{
    struct etcd_cluster e;

    open_all(&e, 1);
    for (int i = 0; i < 2; i++) {
        nodes[i].kv_done = false;
        er_driver_override(nodes[i].driver, er_deadline_in(er_now_us(), 30 * ER_US_PER_S), merge,
                           on_kv, &nodes[i]);
    }
    er_tap_check(run(all_see_both));
    er_tap_check(nodes[0].kv_rc == 0 && nodes[1].kv_rc == 0);
    er_tap_check(er_driver_overrides(nodes[2].driver)->seq == 2);
    node_die(2);
    node_open(&e, 2, 99);
    er_tap_check(run(all_see_both));
    er_tap_check(run(formed_of_three));
    succeed();
    close_all(&e);
}

static void an_etcd_that_restarts_restarts_no_worker(void)
{
    struct etcd_cluster e;

    open_all(&e, 1);
    etcd_member_kill(&e, 0);
    calm_until = er_now_us() + ER_US_PER_S;
    er_tap_check(run(calm));
    etcd_member_start(&e, 0);
    calm_until = er_now_us() + 4 * ER_US_PER_S; /* longer than leases and graces */
    er_tap_check(run(calm));
    er_tap_check(formed(3));
    for (int i = 0; i < NODES; i++)
        er_tap_check(nodes[i].starts == 1);
    succeed();
    close_all(&e);
}

static void the_loss_of_etcd_s_leader_restarts_no_worker(void)
{
    struct etcd_cluster e;
    int leader;

    open_all(&e, 3);
    leader = etcd_leader(&e);
    er_tap_require(leader >= 0);
    etcd_member_kill(&e, leader);
    calm_until = er_now_us() + 5 * ER_US_PER_S;
    er_tap_check(run(calm));
    er_tap_check(formed(3));
    for (int i = 0; i < NODES; i++)
        er_tap_check(nodes[i].starts == 1);
    succeed();
    close_all(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"three_nodes_form_share_keys_and_succeed", three_nodes_form_share_keys_and_succeed, 0},
        {"a_node_that_falls_silent_is_left_out", a_node_that_falls_silent_is_left_out, 120},
        {"what_is_set_is_seen_by_all", what_is_set_is_seen_by_all, 0},
        {"an_etcd_that_restarts_restarts_no_worker", an_etcd_that_restarts_restarts_no_worker, 0},
        {"the_loss_of_etcd_s_leader_restarts_no_worker",
         the_loss_of_etcd_s_leader_restarts_no_worker, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
