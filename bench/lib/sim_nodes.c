#include "bench/lib/sim_nodes.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "bench/lib/bench.h"

#define CONNECT_MS 30000
#define REQUEST_US (30 * ER_US_PER_S)

/* ---- timers: a heap of nodes by wake_us ---- */

static void place(struct sim *s, size_t at, struct sim_node *n)
{
    s->heap[at] = n;
    n->heap_at = at;
}

static void sift_up(struct sim *s, size_t at)
{
    struct sim_node *n = s->heap[at];

    while (at && s->heap[(at - 1) / 2]->wake_us > n->wake_us) {
        place(s, at, s->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(s, at, n);
}

static void sift_down(struct sim *s, size_t at)
{
    struct sim_node *n = s->heap[at];

    for (size_t child = 2 * at + 1; child < s->heap_n; child = 2 * at + 1) {
        if (child + 1 < s->heap_n && s->heap[child + 1]->wake_us < s->heap[child]->wake_us)
            child++;
        if (s->heap[child]->wake_us >= n->wake_us)
            break;
        place(s, at, s->heap[child]);
        at = child;
    }
    place(s, at, n);
}

static void set_wake(struct sim *s, struct sim_node *n, uint64_t at_us)
{
    n->wake_us = at_us;
    sift_up(s, n->heap_at);
    sift_down(s, n->heap_at);
}

/* ---- a node ---- */

static void on_start(void *user, const struct er_assignment *a)
{
    struct sim_node *n = user;
    struct sim *s = n->sim;

    s->reached += a->generation >= s->target &&
                  (n->running.generation == 0 || n->running.generation < s->target);
    n->running = *a;
    n->started_us = er_now_us();
    n->starts++;
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct sim_node *n = user;

    n->sim->reached -= n->running.generation && n->running.generation >= n->sim->target;
    n->running.generation = 0;
    er_driver_left(n->driver, generation);
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    struct sim_node *n = user;

    n->ended = true;
    fprintf(stderr, "bench: node %s/%llu ends: %s\n", n->job, (unsigned long long)n->id, v->reason);
}

static void on_note(void *user, const struct er_note *note) {}

static void node_open(struct sim_node *n, const struct sim_opts *opts)
{
    static const struct er_driver_callbacks callbacks = {
        .start = on_start, .stop = on_stop, .verdict = on_verdict, .note = on_note};
    struct er_driver_opts o = {
        .host = "host",
        .prefix = "/elastic-run",
        .address = "10.0.0.1",
        .slots = 8,
        .preferred_rank = -1,
        .min_nodes = opts->min_nodes ? opts->min_nodes : (uint32_t)opts->nodes,
        .max_nodes = (uint32_t)opts->nodes,
        .restart_max = UINT32_MAX,
        .restart_window_us = 3600 * ER_US_PER_S,
        .join_timeout_us = 600 * ER_US_PER_S,
        .last_call_us = 30 * ER_US_PER_S,
        .exit_timeout_us = 300 * ER_US_PER_S,
        .lease_ttl_us = opts->ttl_us,
        .death_grace_us = opts->death_grace_us,
        .stop_grace_us = 30 * ER_US_PER_S,
        .spec = "command=train\n",
        .incarnation = n->incarnation,
        .boot_id_hash = n->incarnation,
        .seed = n->incarnation,
        .now_us = er_now_us(),
    };
    struct er_error err = ER_ERROR_INIT;

    snprintf(o.job, sizeof(o.job), "%s", n->job);
    snprintf(o.node_id, sizeof(o.node_id), "node-%05llu", (unsigned long long)n->id);
    if (er_etcd_pool_store(n->sim->pool, n, &n->store, &err) < 0 ||
        er_driver_new(&n->driver, n->store, &o, &callbacks, n, &err) < 0)
        bench_fail("%s", err.text);
}

void sim_cut(struct sim *s, struct sim_node *n)
{
    s->live -= n->driver != NULL;
    s->reached -= n->driver && n->running.generation && n->running.generation >= s->target;
    s->leader = s->leader == n ? NULL : s->leader;
    er_driver_free(n->driver);
    if (n->store)
        n->store->ops->free(n->store);
    n->driver = NULL;
    n->store = NULL;
    set_wake(s, n, ER_FOREVER);
}

/* ... and has read the whole job. */
static bool leads(const struct sim_node *n)
{
    struct er_look look = {.leads = false};

    if (n->driver)
        er_driver_look(n->driver, &look);
    return look.leads;
}

static void dispatch(struct sim *s, struct sim_node *n)
{
    if (!n->driver)
        return;
    er_driver_dispatch(n->driver, s->now_us);
    if (s->seeking && leads(n))
        s->leader = n;
    set_wake(s, n, er_driver_pending(n->driver) ? 0 : er_driver_deadline(n->driver));
}

void sim_fail_worker(struct sim *s, struct sim_node *n)
{
    struct er_cause cause = {.generation = n->running.generation,
                             .kind = ER_EXIT_SIGNALED,
                             .signal = 9,
                             .rank = n->running.first_rank};

    snprintf(cause.node_id, sizeof(cause.node_id), "node-%05llu", (unsigned long long)n->id);
    snprintf(cause.host, sizeof(cause.host), "host");
    er_driver_result(n->driver, n->running.generation, &cause);
    er_driver_left(n->driver, n->running.generation);
    dispatch(s, n);
}

uint64_t sim_lease(const struct sim_node *n)
{
    struct er_look look;

    er_driver_look(n->driver, &look);
    return look.lease;
}

static bool has_leader(struct sim *s, void *user)
{
    return s->leader != NULL;
}

struct sim_node *sim_wait_leader(struct sim *s, uint32_t ms)
{
    s->leader = NULL;
    for (size_t i = 0; i < s->n && !s->leader; i++)
        s->leader = leads(&s->nodes[i]) ? &s->nodes[i] : NULL;
    s->seeking = true;
    if (!sim_run(s, has_leader, NULL, ms))
        bench_fail("nobody leads after %u ms", ms);
    s->seeking = false;
    return s->leader;
}

/* ---- all of them ---- */

static void wait_connected(struct sim *s)
{
    uint64_t until = er_deadline_in(er_now_us(), CONNECT_MS * ER_US_PER_MS);
    struct er_etcd_status status;

    while (!er_etcd_pool_connected(s->pool)) {
        struct pollfd fd = {.fd = er_etcd_pool_fd(s->pool), .events = POLLIN};
        uint64_t at = er_etcd_pool_deadline(s->pool);

        if (er_now_us() >= until) {
            er_etcd_pool_status(s->pool, &status);
            bench_fail("%s", status.text);
        }
        poll(&fd, 1, er_poll_ms(er_now_us(), at < until ? at : until));
        er_etcd_pool_dispatch(s->pool);
    }
}

void sim_open(struct sim *s, const struct sim_opts *opts)
{
    struct er_etcd_opts o = {
        .endpoints = opts->endpoints,
        .prefix = "/elastic-run/",
        .request_timeout_us = REQUEST_US, /* they queue for the connections here */
        .seed = er_now_us(),
    };
    size_t jobs = opts->jobs ? opts->jobs : 1;
    struct er_error err = ER_ERROR_INIT;

    memset(s, 0, sizeof(*s));
    s->n = jobs * opts->nodes;
    s->nodes = calloc(s->n, sizeof(*s->nodes));
    s->heap = calloc(s->n, sizeof(struct sim_node *));
    if (!s->nodes || !s->heap)
        bench_fail("out of memory");
    if (er_etcd_pool_open(&s->pool, &o, opts->channels, &err) < 0)
        bench_fail("%s", err.text);
    wait_connected(s);
    for (size_t i = 0; i < s->n; i++) {
        struct sim_node *n = &s->nodes[i];

        n->sim = s;
        n->id = i % opts->nodes;
        n->incarnation = er_rand_mix(er_now_us() + i) | 1;
        if (jobs > 1)
            snprintf(n->job, sizeof(n->job), "%.20s-%zu", opts->job, i / opts->nodes);
        else
            snprintf(n->job, sizeof(n->job), "%.30s", opts->job);
        node_open(n, opts);
        s->live++;
        n->wake_us = ER_FOREVER;
        place(s, s->heap_n++, n);
    }
}

void sim_start(struct sim *s)
{
    s->now_us = er_now_us();
    for (size_t i = 0; i < s->n; i++)
        dispatch(s, &s->nodes[i]);
}

static void run_due(struct sim *s)
{
    for (size_t i = 0; i < s->heap_n && s->heap[0]->wake_us <= s->now_us; i++)
        dispatch(s, s->heap[0]);
}

static void one_round(struct sim *s, uint64_t until_us)
{
    struct pollfd fd = {.fd = er_etcd_pool_fd(s->pool), .events = POLLIN};
    uint64_t at = er_etcd_pool_deadline(s->pool);
    struct er_store *store;

    if (s->heap_n && s->heap[0]->wake_us < at)
        at = s->heap[0]->wake_us;
    poll(&fd, 1, er_poll_ms(er_now_us(), at < until_us ? at : until_us));
    er_etcd_pool_dispatch(s->pool);
    s->now_us = er_now_us();
    while ((store = er_etcd_pool_next(s->pool))) {
        if (er_etcd_pool_user(store))
            dispatch(s, er_etcd_pool_user(store));
        else /* a plain client */
            store->ops->dispatch(store, s->now_us);
    }
    run_due(s);
}

bool sim_run(struct sim *s, sim_cond cond, void *user, uint32_t ms)
{
    uint64_t until = er_deadline_in(er_now_us(), ms * ER_US_PER_MS);

    while (!cond(s, user)) {
        if (er_now_us() >= until)
            return false;
        one_round(s, until);
    }
    return true;
}

static bool all_reached(struct sim *s, void *user)
{
    return s->reached == s->live;
}

void sim_wait_all(struct sim *s, uint64_t generation, uint32_t ms)
{
    s->target = generation ? generation : 1;
    s->reached = 0;
    for (size_t i = 0; i < s->n; i++)
        s->reached += s->nodes[i].driver && s->nodes[i].running.generation >= s->target;
    if (!sim_run(s, all_reached, NULL, ms))
        bench_fail("%zu of %zu nodes run generation %llu after %u ms", s->reached, s->live,
                   (unsigned long long)generation, ms);
}

void sim_close(struct sim *s)
{
    for (size_t i = 0; i < s->n; i++)
        sim_cut(s, &s->nodes[i]);
    er_etcd_pool_free(s->pool);
    free(s->nodes);
    free(s->heap);
}
