/*
 * Seeded simulation of the rendezvous: 1 to 5 agents on one embedded store and one virtual clock,
 * in one process, with worker failures, lost and late transactions, lost leases, cut connections,
 * agents that crash, come back or leave. After every dispatch an observer, which sees every change
 * of the store in order, checks the rules of the protocol; when the faults have stopped the job
 * must run with every node it can take, quietly, and then end.
 *
 *   sim_rendezvous [COUNT [FIRST_SEED]]     a failing seed is printed; run it alone with `1 SEED`
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "rendezvous/driver.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/store_mem.h"

#define NODES_MAX    5
#define GENS_MAX     4096
#define CALM_US      (1800 * ER_US_PER_S) /* after the faults: time to come to rest */
#define QUIET_US     (600 * ER_US_PER_S)  /* then: nothing may happen */
#define DISPATCHES   20000u               /* of one seed */
#define ROOT         "/elastic-run/sim/"
#define DEFAULT_RUNS 4000

#define require(x, ...)                                                                            \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            printf("# seed %llu, %llu us: ", (unsigned long long)sim->seed,                        \
                   (unsigned long long)sim->now_us);                                               \
            printf(__VA_ARGS__);                                                                   \
            printf("  [%s]\n", #x);                                                                \
            sim->broken = true;                                                                    \
        }                                                                                          \
    } while (0)

struct sim;

struct node {
    struct sim *sim;
    int index;
    char id[16];
    struct er_store *client;
    struct er_driver *driver; /* NULL: down */
    uint64_t incarnation, boot, restart_us;
    bool over; /* its verdict was given */
    bool leaving;
    struct er_verdict verdict;
    /* its workers */
    uint64_t running; /* generation; 0 none */
    uint64_t last_started;
    uint64_t left_us, fail_us, ok_us, uncut_us; /* due then; 0 none */
    bool reported;
};

struct sealed {
    bool known;
    uint64_t nonce;
    uint32_t nnodes, world_size, restarts;
    int rank[NODES_MAX], first[NODES_MAX];
    uint64_t incarnation[NODES_MAX]; /* 0: not a member */
    bool genuine;                    /* a worker failed by itself */
    char master[ER_HOST_TEXT_MAX];
};

struct sim {
    uint64_t seed, now_us;
    struct er_rand rand;
    int n, min, max, slots[NODES_MAX];
    uint32_t restart_max;
    uint64_t window_us;
    bool faults, finishing, broken;
    uint64_t next_fault_us;
    unsigned dispatches, commits;
    uint64_t incarnations;
    struct node nodes[NODES_MAX];
    struct er_store *observer;
    /* what the observer has seen */
    struct er_assign assign[NODES_MAX];
    uint64_t assign_seen[NODES_MAX];
    char fence[ER_FENCE_MAX];
    struct er_world world;
    bool has_world;
    uint64_t commit_step;
    struct sealed gens[GENS_MAX];
};

static uint64_t below(struct sim *sim, uint64_t n)
{
    return er_rand_below(&sim->rand, n);
}

static bool chance(struct sim *sim, unsigned percent)
{
    return below(sim, 100) < percent;
}

static struct er_bytes bytes(const char *text)
{
    return (struct er_bytes){text, strlen(text)};
}

static bool job_over(const struct er_world *w)
{
    return w->phase == ER_WORLD_DONE || w->phase == ER_WORLD_FAILED;
}

/* ---- the observer ---- */

static int index_of(const char *name)
{
    return name[0] == 'n' && name[1] >= '0' && name[1] < '0' + NODES_MAX ? name[1] - '0' : -1;
}

static void check_members(struct sim *sim, const struct er_world *w, struct sealed *g)
{
    bool taken[NODES_MAX] = {false};
    int first[NODES_MAX + 1] = {0}, slots[NODES_MAX] = {0};
    uint32_t n = 0;

    for (int i = 0; i < sim->n; i++) {
        const struct er_assign *a = &sim->assign[i];

        if (!sim->assign_seen[i] || a->generation != w->generation || a->nonce != w->nonce)
            continue;
        require(a->group_rank >= 0 && a->group_rank < (int)w->nnodes && !taken[a->group_rank],
                "rank %d of n%d twice or out of range", a->group_rank, i);
        if (sim->broken)
            return;
        taken[a->group_rank] = true;
        slots[a->group_rank] = sim->slots[i];
        g->rank[i] = a->group_rank;
        g->first[i] = a->first_rank;
        g->incarnation[i] = a->incarnation;
        n++;
        require(!sim->nodes[i].driver || sim->nodes[i].incarnation != a->incarnation ||
                    sim->nodes[i].running == 0 || sim->nodes[i].running == w->generation,
                "n%d is in %llu and still runs %llu", i, (unsigned long long)w->generation,
                (unsigned long long)sim->nodes[i].running);
    }
    require(n == w->nnodes && n >= w->min_nodes && n <= w->max_nodes, "%u assignments for %u nodes",
            n, w->nnodes);
    for (uint32_t i = 0; i < n; i++)
        first[i + 1] = first[i] + slots[i];
    require(first[n] == (int)w->world_size, "world size %u, slots %d", w->world_size, first[n]);
    for (int i = 0; i < sim->n; i++)
        require(!g->incarnation[i] || g->first[i] == first[g->rank[i]], "n%d's first rank", i);
}

static void check_charge(struct sim *sim, const struct er_world *w)
{
    const struct sealed *last = &sim->gens[sim->world.last_sealed];

    require(w->restarts - sim->world.restarts <= 1, "%u charges at once",
            w->restarts - sim->world.restarts);
    if (w->restarts > sim->world.restarts) {
        require(w->phase == ER_WORLD_SEALED, "charged outside a seal");
        require(last->known && last->genuine,
                "generation %llu charged without a failure of its own",
                (unsigned long long)sim->world.last_sealed);
    }
}

static void see_world(struct sim *sim, const struct er_store_kv *kv)
{
    struct er_world w;
    struct sealed *g;

    require(er_world_parse(kv->value, &w, NULL) == 0, "world is malformed");
    if (sim->broken)
        return;
    require(!sim->has_world || !job_over(&sim->world), "a finished job changed");
    require(!sim->has_world || w.generation >= sim->world.generation, "generation went back");
    require(w.generation < GENS_MAX, "generations run away");
    if (sim->broken)
        return;
    if (sim->has_world)
        check_charge(sim, &w);
    if (w.phase == ER_WORLD_SEALED) {
        g = &sim->gens[w.generation];
        require(!g->known, "generation %llu sealed twice", (unsigned long long)w.generation);
        g->known = true;
        g->nonce = w.nonce;
        g->nnodes = w.nnodes;
        g->world_size = w.world_size;
        g->restarts = w.restarts;
        memcpy(g->master, w.master_addr, sizeof(g->master));
        check_members(sim, &w, g);
    }
    sim->world = w;
    sim->has_world = true;
}

static void see_commit(struct sim *sim, const struct er_store_kv *kv)
{
    char fence[ER_FENCE_MAX];
    struct er_ckpt c;

    require(er_ckpt_parse(kv->value, &c, NULL) == 0, "checkpoint record is malformed");
    require(c.step > sim->commit_step, "commit of step %llu after %llu", (unsigned long long)c.step,
            (unsigned long long)sim->commit_step);
    er_fence_format(c.generation, sim->gens[c.generation % GENS_MAX].nonce, fence);
    require(strcmp(fence, sim->fence) == 0, "stale commit: %s under fence %s", fence, sim->fence);
    sim->commit_step = c.step;
    sim->commits++;
}

static void observe(void *user, int rc, const struct er_store_event *events, size_t n,
                    uint64_t revision)
{
    struct sim *sim = user;

    require(rc == 0, "the observer lost history");
    /* The assignments and the fence of a revision before its world. */
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            const struct er_store_kv *kv = &events[i].kv;
            bool put = events[i].kind == ER_STORE_PUT;
            struct er_key key;
            int node;

            er_key_parse(ROOT, kv->key, &key);
            node = index_of(key.name);
            if (pass == 0 && key.kind == ER_KEY_ASSIGN && put && node >= 0) {
                require(er_assign_parse(kv->value, &sim->assign[node], NULL) == 0, "assignment");
                sim->assign_seen[node] = revision;
            } else if (pass == 0 && key.kind == ER_KEY_FENCE) {
                snprintf(sim->fence, sizeof(sim->fence), "%.*s", put ? (int)kv->value.len : 0,
                         put ? (const char *)kv->value.data : "");
            } else if (pass == 1 && key.kind == ER_KEY_WORLD && put) {
                see_world(sim, kv);
            } else if (pass == 1 && key.kind == ER_KEY_CKPT && put) {
                see_commit(sim, kv);
            }
        }
    }
}

/* ---- agents ---- */

static uint64_t soon(struct sim *sim, uint64_t max_us)
{
    return sim->now_us + 1 + below(sim, max_us);
}

static void on_start(void *user, const struct er_assignment *a)
{
    struct node *node = user;
    struct sim *sim = node->sim;
    const struct sealed *g = &sim->gens[a->generation % GENS_MAX];

    /* The seal was seen by the observer before, or comes with this very dispatch. */
    sim->observer->ops->dispatch(sim->observer, sim->now_us);
    require(node->running == 0, "n%d started %llu while %llu runs", node->index,
            (unsigned long long)a->generation, (unsigned long long)node->running);
    require(a->generation > node->last_started, "n%d went back", node->index);
    require(g->known && g->nonce == a->nonce, "n%d started an unsealed generation", node->index);
    require(g->incarnation[node->index] == node->incarnation, "n%d started another's assignment",
            node->index);
    require(g->rank[node->index] == a->node_rank && g->first[node->index] == a->first_rank &&
                g->nnodes == (uint32_t)a->nnodes && g->world_size == (uint32_t)a->world_size &&
                g->restarts == a->restarts && strcmp(g->master, a->master_addr) == 0,
            "n%d has other ranks than the sealed ones", node->index);
    node->running = node->last_started = a->generation;
    node->reported = false;
    node->fail_us = node->ok_us = node->left_us = 0;
    if (sim->finishing)
        node->ok_us = soon(sim, 10 * ER_US_PER_S);
    if (chance(sim, 50))
        er_driver_progress(node->driver, a->generation);
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct node *node = user;
    struct sim *sim = node->sim;

    require(node->running == generation, "n%d told to stop %llu, runs %llu", node->index,
            (unsigned long long)generation, (unsigned long long)node->running);
    node->left_us = chance(sim, 30) ? sim->now_us : soon(sim, 40 * ER_US_PER_S);
    node->fail_us = node->ok_us = 0;
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    struct node *node = user;
    struct sim *sim = node->sim;

    require(node->running == 0, "verdict while workers run");
    node->over = true;
    node->verdict = *v;
}

static void on_commit(void *user, int rc, const void *value, size_t n) {}

static void down(struct node *node)
{
    er_driver_free(node->driver);
    if (node->client)
        node->client->ops->free(node->client);
    node->driver = NULL;
    node->client = NULL;
    node->running = 0; /* the guard leaves nothing behind */
    node->left_us = node->fail_us = node->ok_us = node->uncut_us = 0;
}

static void up(struct node *node)
{
    static const struct er_driver_callbacks callbacks = {on_start, on_stop, on_verdict, NULL};
    struct sim *sim = node->sim;
    struct er_driver_opts o = {
        .job = "sim",
        .host = "host",
        .prefix = "/elastic-run",
        .slots = sim->slots[node->index],
        .preferred_rank = -1,
        .min_nodes = (uint32_t)sim->min,
        .max_nodes = (uint32_t)sim->max,
        .restart_max = sim->restart_max,
        .restart_window_us = sim->window_us,
        .backoff_initial_us = 100000,
        .backoff_max_us = 10 * ER_US_PER_S,
        .join_timeout_us = 600 * ER_US_PER_S,
        .last_call_us = 30 * ER_US_PER_S,
        .exit_timeout_us = 300 * ER_US_PER_S,
        .lease_ttl_us = 5 * ER_US_PER_S,
        .death_grace_us = ER_US_PER_S,
        .replacement_wait_us = chance(sim, 50) ? 0 : 3 * ER_US_PER_S,
        .stop_grace_us = 30 * ER_US_PER_S,
        .spec = "command=train",
        .incarnation = ++sim->incarnations,
        .boot_id_hash = node->boot,
        .seed = er_rand_next(&sim->rand),
        .now_us = sim->now_us,
    };

    snprintf(o.node_id, sizeof(o.node_id), "%s", node->id);
    snprintf(o.address, sizeof(o.address), "10.0.0.%d", node->index);
    node->incarnation = o.incarnation;
    node->over = node->leaving = node->reported = false;
    node->restart_us = 0;
    node->last_started = 0;
    if (er_store_mem_client(sim->observer, &node->client, NULL) ||
        er_driver_new(&node->driver, node->client, &o, &callbacks, node, NULL))
        abort();
    er_driver_port(node->driver, 1000 + node->index);
}

/* ---- faults ---- */

static void report(struct node *node, bool ok)
{
    struct er_cause c = {.rank = 1, .kind = ER_EXIT_EXITED, .code = 3};

    if (!node->running || node->reported)
        return;
    node->reported = true;
    c.uncounted = chance(node->sim, 10);
    er_driver_result(node->driver, node->running, ok ? NULL : &c);
}

/* A dead peer makes the others' workers fail soon after. */
static void make_victims(struct sim *sim, uint64_t generation)
{
    for (int i = 0; i < sim->n; i++) {
        struct node *other = &sim->nodes[i];

        if (other->driver && other->running == generation && generation && !other->left_us &&
            chance(sim, 80))
            other->fail_us = soon(sim, 200000);
    }
}

static void fault_failure(struct sim *sim, struct node *node)
{
    if (!node->running || node->left_us || node->reported)
        return;
    sim->gens[node->running].genuine = true;
    report(node, false);
    make_victims(sim, node->running);
}

static void fault_crash(struct sim *sim, struct node *node)
{
    uint64_t generation = node->running;

    down(node);
    node->restart_us = soon(sim, chance(sim, 50) ? 2 * ER_US_PER_S : 60 * ER_US_PER_S);
    if (chance(sim, 20))
        node->boot++;
    make_victims(sim, generation);
}

static void fault_txn(struct sim *sim, struct node *node)
{
    enum er_store_mem_fault fault = (enum er_store_mem_fault)(1 + below(sim, 4));

    er_store_mem_fault(node->client, fault, below(sim, 5 * ER_US_PER_S));
}

static void fault_lease(struct sim *sim, struct node *node)
{
    char key[64];
    const struct er_store_kv *kv;

    snprintf(key, sizeof(key), ROOT "j/n/%s", node->id);
    kv = er_store_mem_peek(sim->observer, bytes(key));
    if (kv)
        er_store_mem_drop_lease(sim->observer, kv->lease);
}

static void fault_cut(struct sim *sim, struct node *node)
{
    er_store_mem_cut(node->client, true);
    node->uncut_us = soon(sim, 15 * ER_US_PER_S);
}

static void fault_leave(struct sim *sim, struct node *node)
{
    node->leaving = true;
    er_driver_leave(node->driver, 75, "preempted");
}

static void fault_delay(struct sim *sim, struct node *node)
{
    er_store_mem_delay(node->client, below(sim, 50000), below(sim, 200000));
}

static void fault_compact(struct sim *sim, struct node *node)
{
    sim->observer->ops->dispatch(sim->observer, sim->now_us);
    er_store_mem_compact(sim->observer, er_store_mem_revision(sim->observer));
}

static void commit(struct sim *sim, struct node *node)
{
    uint64_t generation = node->last_started;

    if (generation)
        er_driver_commit(node->driver, generation, sim->commit_step + 1 + below(sim, 3), "digest",
                         "step", on_commit, NULL);
}

static void inject(struct sim *sim)
{
    static const struct {
        unsigned weight;
        void (*run)(struct sim *, struct node *);
    } table[] = {
        {20, fault_failure}, {15, fault_crash},  {40, fault_txn},
        {12, fault_lease},   {8, fault_cut},     {4, fault_leave},
        {15, fault_delay},   {3, fault_compact}, {40, commit},
    };
    struct node *node = &sim->nodes[below(sim, (uint64_t)sim->n)];
    unsigned total = 0, pick;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        total += table[i].weight;
    pick = (unsigned)below(sim, total);
    sim->next_fault_us = soon(sim, chance(sim, 40) ? 300000 : 10 * ER_US_PER_S);
    if (!node->driver || node->over)
        return;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (pick < table[i].weight) {
            table[i].run(sim, node);
            return;
        }
        pick -= table[i].weight;
    }
}

/* ---- the clock ---- */

static bool due(const struct sim *sim, uint64_t *at)
{
    if (!*at || *at > sim->now_us)
        return false;
    *at = 0;
    return true;
}

static void run_workers(struct sim *sim, struct node *node)
{
    if (due(sim, &node->restart_us))
        up(node);
    if (!node->driver)
        return;
    if (due(sim, &node->fail_us) && !node->left_us)
        report(node, false);
    if (due(sim, &node->ok_us) && !node->left_us)
        report(node, true);
    if (due(sim, &node->uncut_us))
        er_store_mem_cut(node->client, false);
    if (due(sim, &node->left_us)) {
        uint64_t g = node->running;

        node->running = 0;
        er_driver_left(node->driver, g);
    }
    if (!node->over)
        return;
    down(node);
    /* A unit's restart: an agent without the job's verdict comes back. */
    if (!job_over(&sim->world))
        node->restart_us = soon(sim, 20 * ER_US_PER_S);
}

static uint64_t next_time(const struct sim *sim)
{
    uint64_t at = sim->faults ? sim->next_fault_us : ER_FOREVER;

    for (int i = 0; i < sim->n; i++) {
        const struct node *node = &sim->nodes[i];
        const uint64_t times[] = {node->restart_us, node->left_us, node->fail_us, node->ok_us,
                                  node->uncut_us};

        for (size_t k = 0; k < sizeof(times) / sizeof(times[0]); k++)
            at = times[k] && times[k] < at ? times[k] : at;
        if (node->driver && !node->over && er_driver_deadline(node->driver) < at)
            at = er_driver_deadline(node->driver);
        if (node->driver && node->over)
            at = sim->now_us;
    }
    return at;
}

static void dispatch(struct sim *sim, struct node *node)
{
    if (!node->driver || node->over)
        return;
    if (!er_driver_pending(node->driver) && er_driver_deadline(node->driver) > sim->now_us)
        return;
    er_driver_dispatch(node->driver, sim->now_us);
    sim->dispatches++;
    sim->observer->ops->dispatch(sim->observer, sim->now_us);
}

static void run_until(struct sim *sim, uint64_t end_us)
{
    while (!sim->broken) {
        uint64_t at;
        int start = (int)below(sim, (uint64_t)sim->n);

        if (sim->faults && sim->now_us >= sim->next_fault_us)
            inject(sim);
        for (int i = 0; i < sim->n; i++)
            run_workers(sim, &sim->nodes[i]);
        for (int i = 0; i < sim->n; i++)
            dispatch(sim, &sim->nodes[(start + i) % sim->n]);
        require(sim->dispatches < DISPATCHES, "a storm of events");
        at = next_time(sim);
        if (at > end_us)
            break;
        sim->now_us = at > sim->now_us ? at : sim->now_us;
    }
    sim->now_us = end_us > sim->now_us && end_us != ER_FOREVER ? end_us : sim->now_us;
}

/* ---- one seed ---- */

static void set_up(struct sim *sim, uint64_t seed)
{
    static const uint32_t budgets[] = {0, 1, 3, 10, UINT32_MAX, UINT32_MAX};

    memset(sim, 0, sizeof(*sim));
    sim->seed = seed;
    er_rand_init(&sim->rand, seed);
    sim->now_us = ER_US_PER_S;
    sim->n = 1 + (int)below(sim, NODES_MAX);
    sim->max = 1 + (int)below(sim, (uint64_t)sim->n);
    sim->min = 1 + (int)below(sim, (uint64_t)sim->max);
    sim->restart_max = budgets[below(sim, 6)];
    sim->window_us = chance(sim, 50) ? ER_FOREVER : 60 * ER_US_PER_S;
    if (er_store_mem_new(&sim->observer, NULL))
        abort();
    for (int i = 0; i < sim->n; i++) {
        struct node *node = &sim->nodes[i];

        node->sim = sim;
        node->index = i;
        node->boot = 100 + (uint64_t)i * 100;
        snprintf(node->id, sizeof(node->id), "n%d", i);
        sim->slots[i] = 1 + (int)below(sim, 3);
        node->restart_us = soon(sim, 3 * ER_US_PER_S);
    }
}

static void check_running(struct sim *sim)
{
    int want = sim->n < sim->max ? sim->n : sim->max, have = 0;

    if (job_over(&sim->world))
        return;
    for (int i = 0; i < sim->n; i++)
        have += sim->nodes[i].running && sim->nodes[i].running == sim->world.last_sealed;
    require(sim->world.phase == ER_WORLD_SEALED && have == want,
            "after the faults %d of %d nodes run generation %llu (phase %d)", have, want,
            (unsigned long long)sim->world.last_sealed, (int)sim->world.phase);
}

static void check_verdicts(struct sim *sim)
{
    require(job_over(&sim->world), "the job has no end");
    for (int i = 0; i < sim->n; i++) {
        const struct node *node = &sim->nodes[i];

        require(!node->driver && !node->running, "n%d has no verdict", i);
        if (node->verdict.kind != ER_VERDICT_STOPPED)
            require(node->verdict.exit_code == sim->world.exit_code &&
                        (node->verdict.kind == ER_VERDICT_SUCCEEDED) ==
                            (sim->world.phase == ER_WORLD_DONE),
                    "n%d says %d, the job %d", i, node->verdict.exit_code, sim->world.exit_code);
    }
}

static void finish(struct sim *sim)
{
    sim->finishing = true;
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].running && !sim->nodes[i].left_us)
            sim->nodes[i].ok_us = soon(sim, 10 * ER_US_PER_S);
    }
}

static bool run_seed(uint64_t seed)
{
    static struct sim storage;
    struct sim *sim = &storage;
    uint64_t watch;
    unsigned before;

    set_up(sim, seed);
    sim->observer->ops->watch(sim->observer, bytes(ROOT), true, 1, observe, sim, &watch);
    sim->faults = true;
    sim->next_fault_us = soon(sim, 20 * ER_US_PER_S);
    run_until(sim, sim->now_us + (30 + below(sim, 400)) * ER_US_PER_S);
    sim->faults = false;
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].client) {
            er_store_mem_delay(sim->nodes[i].client, 0, 0);
            er_store_mem_fault(sim->nodes[i].client, ER_FAULT_NONE, 0);
        }
    }
    run_until(sim, sim->now_us + CALM_US);
    if (!sim->broken)
        check_running(sim);
    before = sim->dispatches;
    run_until(sim, sim->now_us + QUIET_US);
    require(sim->dispatches - before < 50, "%u dispatches while nothing happens",
            sim->dispatches - before);
    if (!sim->broken)
        finish(sim);
    run_until(sim, sim->now_us + CALM_US);
    if (!sim->broken)
        check_verdicts(sim);
    if (getenv("SIM_VERBOSE"))
        printf("# seed %llu: n %d (%d:%d) dispatches %u generations %llu commits %u phase %d\n",
               (unsigned long long)seed, sim->n, sim->min, sim->max, sim->dispatches,
               (unsigned long long)sim->world.generation, sim->commits, (int)sim->world.phase);
    for (int i = 0; i < sim->n; i++)
        down(&sim->nodes[i]);
    sim->observer->ops->free(sim->observer);
    return !sim->broken;
}

int main(int argc, char **argv)
{
    unsigned long long count = argc > 1 ? strtoull(argv[1], NULL, 10) : DEFAULT_RUNS;
    unsigned long long first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (unsigned long long i = 0; i < count; i++) {
        if (!run_seed(first + i) && ++failed == 5)
            break;
    }
    printf("%llu seeds from %llu, %llu failed\n", count, first, failed);
    return failed ? 1 : 0;
}
