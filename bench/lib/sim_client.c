#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/lib/bench.h"
#include "bench/lib/sim_nodes.h"
#include "rendezvous/farewell.h"

#define PATIENCE_MS 120000

struct count {
    size_t want, acknowledged, seen;
};

static bool complete(struct sim *s, void *user)
{
    const struct count *c = user;

    return c->acknowledged == c->want && c->seen == c->want;
}

static void on_put(void *user, int rc, const struct er_store_reply *reply)
{
    struct count *c = user;

    if (rc)
        bench_fail("a put failed: %s", er_error_name(rc));
    c->acknowledged++;
}

static void on_lease(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    on_put(user, rc, NULL);
}

static void on_event(void *user, int rc, const struct er_store_event *events, size_t n,
                     uint64_t revision)
{
    struct count *c = user;

    if (rc)
        bench_fail("a watch ended: %s", er_error_name(rc));
    c->seen += n;
}

static void put(struct er_store *client, const char *key, struct count *c)
{
    struct er_store_op op = {
        .kind = ER_OP_PUT, .key = {key, strlen(key)}, .value = {"0123456789abcdef", 16}};

    if (client->ops->txn(client, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, on_put, c) <
        0)
        bench_fail("out of memory");
}

double sim_put(struct sim *s, struct er_store *client, const char *key)
{
    struct count c = {.want = 1, .seen = 1};
    double start = bench_now_ms();

    put(client, key, &c);
    if (!sim_run(s, complete, &c, PATIENCE_MS))
        bench_fail("a put was not answered");
    return bench_now_ms() - start;
}

void sim_revoke(struct sim *s, struct er_store *client, uint64_t lease)
{
    struct count c = {.want = 1, .seen = 1};

    client->ops->lease_revoke(client, lease, on_lease, &c);
    if (!sim_run(s, complete, &c, PATIENCE_MS))
        bench_fail("a revoke was not answered");
}

static void on_told(void *user, int rc)
{
    on_put(user, rc, NULL);
}

void sim_tell(struct sim *s, struct er_store *client, const struct sim_node *node)
{
    struct count c = {.want = 1, .seen = 1};
    char id[32];
    struct er_farewell f = {.store = client,
                            .prefix = "/elastic-run",
                            .job = node->job,
                            .node_id = id,
                            .incarnation = node->incarnation,
                            .generation = node->running.generation,
                            .seed = er_now_us(),
                            .done = on_told,
                            .user = &c};

    snprintf(id, sizeof(id), "node-%05llu", (unsigned long long)node->id);
    if (er_farewell_begin(&f) < 0 || !sim_run(s, complete, &c, PATIENCE_MS))
        bench_fail("a farewell was not answered");
}

double sim_bound_ms(struct sim *s, size_t n)
{
    enum { WARM = 20, PUTS = 200 };
    static struct bench_series ms;
    static const char key[] = "/bench/bound";
    struct er_store *client;
    struct count c;
    uint64_t id;

    ms.n = 0;
    if (er_etcd_pool_store(s->pool, NULL, &client, NULL) < 0 ||
        client->ops->watch(client, (struct er_bytes){key, sizeof(key) - 1}, false, 0, on_event, &c,
                           &id) < 0)
        bench_fail("out of memory");
    for (size_t i = 0; i < WARM + PUTS; i++) {
        double start = bench_now_ms();

        c = (struct count){.want = 1};
        put(client, key, &c);
        if (!sim_run(s, complete, &c, PATIENCE_MS))
            bench_fail("a put was not answered");
        if (i >= WARM)
            bench_add(&ms, bench_now_ms() - start);
    }
    client->ops->free(client);
    return (double)n * bench_median(&ms);
}

double sim_parallel_ms(struct sim *s, size_t n)
{
    struct er_store **clients = calloc(n, sizeof(struct er_store *));
    struct count c = {.want = 1, .seen = 1};
    char key[64];
    double start;

    if (!clients)
        bench_fail("out of memory");
    for (size_t i = 0; i < n; i++) {
        uint64_t id;

        snprintf(key, sizeof(key), "/bench/%zu", i);
        if (er_etcd_pool_store(s->pool, NULL, &clients[i], NULL) < 0 ||
            clients[i]->ops->watch(clients[i], (struct er_bytes){key, strlen(key)}, false, 0,
                                   on_event, &c, &id) < 0)
            bench_fail("out of memory");
    }
    /* One watch that has shown something after the others were asked for: they are open. */
    for (size_t i = 0; i < 8 && i < n; i++) {
        snprintf(key, sizeof(key), "/bench/%zu", n - 1 - i);
        put(clients[n - 1 - i], key, &c);
    }
    c.want = n < 8 ? n : 8;
    c.seen = 0;
    if (!sim_run(s, complete, &c, PATIENCE_MS))
        bench_fail("watches do not open");
    c = (struct count){.want = n};
    start = bench_now_ms();
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "/bench/%zu", i);
        put(clients[i], key, &c);
    }
    if (!sim_run(s, complete, &c, PATIENCE_MS))
        bench_fail("%zu puts: %zu acknowledged, %zu seen", n, c.acknowledged, c.seen);
    start = bench_now_ms() - start;
    for (size_t i = 0; i < n; i++)
        clients[i]->ops->free(clients[i]);
    free(clients);
    return start;
}
