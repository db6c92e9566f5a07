/* What the rendezvous does while nodes and etcd come and go. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/bench_rendezvous.h"

enum { PATIENCE_MS = 60000 };

static bool never(struct sim *s, void *user)
{
    return false;
}

static void idle(struct sim *s, uint32_t ms)
{
    sim_run(s, never, NULL, ms);
}

/* ---- nodes that are cut off ---- */

enum { JOBS = 20, JOB_NODES = 3 };

struct cuts {
    uint64_t cut_us[JOBS], generation[JOBS];
};

/* When the survivors of a job have started their new generation; 0: not yet. */
static uint64_t healed_us(const struct sim *s, const struct cuts *c, size_t job)
{
    uint64_t at = 0;

    for (size_t i = job * JOB_NODES; i < (job + 1) * JOB_NODES; i++) {
        const struct sim_node *n = &s->nodes[i];

        if (!n->driver)
            continue;
        if (n->running.generation <= c->generation[job])
            return 0;
        at = n->started_us > at ? n->started_us : at;
    }
    return at;
}

static bool all_healed(struct sim *s, void *user)
{
    for (size_t job = 0; job < JOBS; job++) {
        if (healed_us(s, user, job) == 0)
            return false;
    }
    return true;
}

/* A node of each job, a leader among them too, at moments that lie evenly between two renewals.
 * `tell`: its guard tells the store at once. */
static void cut_each(struct bench_etcd *e, const char *job, bool tell, struct bench_series *ret)
{
    const struct sim_opts opts = {.endpoints = e->endpoints,
                                  .job = job,
                                  .channels = 8,
                                  .jobs = JOBS,
                                  .nodes = JOB_NODES,
                                  .ttl_us = 3 * ER_US_PER_S,
                                  .death_grace_us = ER_US_PER_S,
                                  .min_nodes = JOB_NODES - 1};
    struct er_store *client;
    struct cuts c;
    struct sim s;

    sim_open(&s, &opts);
    if (er_etcd_pool_store(s.pool, NULL, &client, NULL) < 0)
        bench_fail("out of memory");
    sim_start(&s);
    sim_wait_all(&s, 1, PATIENCE_MS);
    idle(&s, 1100); /* everybody has renewed once */
    for (size_t k = 0; k < JOBS; k++) {
        struct sim_node *n = &s.nodes[k * JOB_NODES + k % JOB_NODES];

        c.generation[k] = n->running.generation;
        c.cut_us[k] = er_now_us();
        sim_cut(&s, n);
        if (tell)
            sim_tell(&s, client, n);
        idle(&s, 1000 / JOBS);
    }
    if (!sim_run(&s, all_healed, &c, PATIENCE_MS))
        bench_fail("survivors do not form");
    for (size_t k = 0; k < JOBS; k++)
        bench_add(ret, (double)(healed_us(&s, &c, k) - c.cut_us[k]) / 1e3);
    client->ops->free(client);
    sim_close(&s);
}

void bench_node_cut(void)
{
    static struct bench_series lost, told;
    struct bench_etcd e;
    char job[32];

    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    for (size_t i = 0; i < bench_runs(5, 1); i++) {
        snprintf(job, sizeof(job), "cut%zu", i);
        cut_each(&e, job, false, &lost);
        snprintf(job, sizeof(job), "told%zu", i);
        cut_each(&e, job, true, &told);
    }
    bench_etcd_stop(&e);
    bench_emit("node_cut_to_sealed_ms", &lost);
    bench_emit_value("node_cut_to_sealed_max_ms", bench_quantile(&lost, 1), 0, lost.n);
    bench_emit("agent_killed_to_sealed_ms", &told);
}

/* ---- etcd ---- */

static void open_job(struct sim *s, const struct bench_etcd *e, const char *job, uint64_t ttl_us)
{
    const struct sim_opts opts = {.endpoints = e->endpoints,
                                  .job = job,
                                  .channels = 8,
                                  .nodes = 8,
                                  .ttl_us = ttl_us,
                                  .death_grace_us = ER_US_PER_S,
                                  .min_nodes = 4};

    sim_open(s, &opts);
    sim_start(s);
    sim_wait_all(s, 1, PATIENCE_MS);
}

/* Starts of workers beyond the first. */
static unsigned restarts(const struct sim *s)
{
    unsigned n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += s->nodes[i].starts - 1;
    return n;
}

/* One put after another, and the longest time between two that were acknowledged. */
struct writer {
    struct er_store *store;
    uint64_t last_us, gap_us;
    bool stop, under_way;
};

static void write_next(struct writer *w);

static void on_written(void *user, int rc, const struct er_store_reply *reply)
{
    struct writer *w = user;
    uint64_t now = er_now_us();

    w->under_way = false;
    if (rc == 0) {
        w->gap_us = now - w->last_us > w->gap_us ? now - w->last_us : w->gap_us;
        w->last_us = now;
    }
    if (!w->stop)
        write_next(w);
}

static void write_next(struct writer *w)
{
    static const char key[] = "/bench/writer";
    const struct er_store_op op = {
        .kind = ER_OP_PUT, .key = {key, sizeof(key) - 1}, .value = {"x", 1}};

    if (w->store->ops->txn(w->store, &(struct er_store_txn){.then_ops = &op, .then_n = 1},
                           on_written, w) < 0)
        bench_fail("out of memory");
    w->under_way = true;
}

static bool written(struct sim *s, void *user)
{
    return !((struct writer *)user)->under_way;
}

static double longest_gap_ms(struct sim *s, struct bench_etcd *e)
{
    struct writer w = {.last_us = er_now_us()};
    int leader = bench_etcd_leader(e);

    if (leader < 0 || er_etcd_pool_store(s->pool, NULL, &w.store, NULL) < 0)
        bench_fail("etcd has no leader");
    write_next(&w);
    idle(s, 500);
    bench_etcd_kill(e, leader);
    idle(s, 3000);
    w.stop = true;
    if (!sim_run(s, written, &w, PATIENCE_MS))
        bench_fail("a put was not answered");
    w.store->ops->free(w.store);
    bench_etcd_restart(e, leader);
    idle(s, 1500);
    return (double)w.gap_us / 1e3;
}

void bench_etcd_killed(void)
{
    static struct bench_series gap;
    struct bench_etcd e;
    struct sim s;

    bench_etcd_start(&e, 3, BENCH_ETCD_MEMORY);
    open_job(&s, &e, "killed", 5 * ER_US_PER_S);
    for (size_t i = 0; i < bench_runs(7, 1); i++)
        bench_add(&gap, longest_gap_ms(&s, &e));
    bench_emit("etcd_leader_killed_gap_ms", &gap);
    bench_emit_value("etcd_leader_killed_restarts", restarts(&s), 0, gap.n);
    sim_close(&s);
    bench_etcd_stop(&e);
}

void bench_etcd_stopped(void)
{
    uint32_t ms = (uint32_t)bench_runs(30000, 3500), after_ms = (uint32_t)bench_runs(8000, 4000);
    uint64_t ttl_us = bench_runs(5, 2) * ER_US_PER_S;
    struct bench_etcd e;
    struct sim s;
    uint64_t generation;

    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    open_job(&s, &e, "stopped", ttl_us);
    generation = s.nodes[0].running.generation;
    bench_etcd_signal(&e, 0, SIGSTOP);
    idle(&s, ms);
    bench_etcd_signal(&e, 0, SIGCONT);
    idle(&s, after_ms); /* longer than a lease and the grace: whatever comes of it has come */
    bench_emit_value("etcd_stopped_restarts", restarts(&s), 0, 1);
    bench_emit_value("etcd_stopped_lost_generations",
                     (double)(er_driver_generation(s.nodes[0].driver) - generation), 0, 1);
    sim_close(&s);
    bench_etcd_stop(&e);
}

/* ---- one agent ---- */

void bench_first_write(void)
{
    static struct bench_series ms;
    char module[4096], job[32];
    struct bench_etcd e;

    snprintf(module, sizeof(module), "%s", bench_bin("er_store_etcd.so"));
    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    for (size_t i = 0; i <= bench_runs(40, 10); i++) {
        const char *argv[] = {bench_bin("bench/first_write"), module, e.endpoints, job, NULL};
        double took;

        snprintf(job, sizeof(job), "first%zu", i);
        took = bench_program_ms(argv);
        if (i) /* once unmeasured: the page cache is warm */
            bench_add(&ms, took);
    }
    bench_etcd_stop(&e);
    bench_emit("first_write_ms", &ms);
}
