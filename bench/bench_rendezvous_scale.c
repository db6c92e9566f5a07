/* How the rendezvous grows with the number of nodes. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/bench_rendezvous.h"

enum { CHANNELS = 8, PATIENCE_MS = 120000 };

static const uint64_t GRACE_US = ER_US_PER_S;

/* As reference.md's auto. */
static uint64_t ttl_us(size_t nodes)
{
    return (nodes > 5000 ? 15 : nodes >= 1000 ? 10 : 5) * ER_US_PER_S;
}

/* bound: N times one put and its watch event, one after the other; parallel: the same by N clients
 * at once. */
struct formed {
    double open_ms, ms, bound_ms, parallel_ms, cpu_ms;
};

/* A job of its own in `e`; it runs when this returns. */
static struct formed form(struct sim *s, struct bench_etcd *e, size_t n, size_t channels)
{
    static unsigned jobs;
    struct sim_opts opts = {.endpoints = e->endpoints,
                            .channels = channels,
                            .nodes = n,
                            .ttl_us = ttl_us(n),
                            .death_grace_us = GRACE_US,
                            .min_nodes = n > 10 ? (uint32_t)n - 10 : (uint32_t)n};
    struct formed f;
    char job[32];
    double start;

    snprintf(job, sizeof(job), "job%u", ++jobs);
    opts.job = job;
    start = bench_now_ms();
    sim_open(s, &opts);
    f.open_ms = bench_now_ms() - start;
    f.bound_ms = sim_bound_ms(s, n);
    f.parallel_ms = sim_parallel_ms(s, n);
    f.cpu_ms = bench_etcd_cpu_ms(e, 0);
    start = bench_now_ms();
    sim_start(s);
    sim_wait_all(s, 1, PATIENCE_MS);
    f.ms = bench_now_ms() - start;
    f.cpu_ms = bench_etcd_cpu_ms(e, 0) - f.cpu_ms;
    return f;
}

/* One worker of one node fails; every node starts the next generation. */
static double reform_ms(struct sim *s, size_t which)
{
    struct sim_node *n = &s->nodes[which % s->n];
    uint64_t next = n->running.generation + 1;
    double start = bench_now_ms();

    s->now_us = er_now_us();
    sim_fail_worker(s, n);
    sim_wait_all(s, next, PATIENCE_MS);
    return bench_now_ms() - start;
}

/* The leader's agent is gone and its lease revoked (as its guard does); another one has read the
 * whole job and may seal. Then the survivors form without it. */
static double takeover_ms(struct sim *s)
{
    struct sim_node *leader = sim_wait_leader(s, PATIENCE_MS);
    uint64_t lease, next;
    struct er_store *client;
    double start, ms;

    if (er_etcd_pool_store(s->pool, NULL, &client, NULL) < 0)
        bench_fail("out of memory");
    lease = sim_lease(leader);
    next = leader->running.generation + 1;
    sim_cut(s, leader);
    start = bench_now_ms();
    sim_revoke(s, client, lease);
    sim_wait_leader(s, PATIENCE_MS);
    ms = bench_now_ms() - start;
    client->ops->free(client);
    sim_wait_all(s, next, PATIENCE_MS);
    return ms;
}

static void emit(const char *head, size_t n, const char *tail, const struct bench_series *series)
{
    char figure[64];

    snprintf(figure, sizeof(figure), "%s_n%zu_%s", head, n, tail);
    bench_emit(figure, series);
}

static const struct size {
    size_t n, runs, quick_runs, reforms, takeovers;
    bool told; /* has figures of its own; else for the slopes only */
} sizes[] = {
    {.n = 100, .runs = 5, .quick_runs = 3, .told = true},
    {.n = 300, .runs = 5, .quick_runs = 1},
    {.n = 1000, .runs = 5, .quick_runs = 2, .reforms = 3, .told = true},
    {.n = 3000, .runs = 5},
    {.n = 10000, .runs = 5, .reforms = 1, .takeovers = 1, .told = true},
};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* Of one size; all but the first two are empty where nothing was measured. */
struct measured {
    struct bench_series ms, cpu, bound, over, parallel, over_parallel, reform, takeover;
};

static void measure_size(const struct size *z, struct measured *m)
{
    struct bench_etcd e;

    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    for (size_t i = 0; i < bench_runs(z->runs, z->quick_runs); i++) {
        struct sim s;
        struct formed f = form(&s, &e, z->n, CHANNELS);

        bench_add(&m->ms, f.ms);
        bench_add(&m->cpu, f.cpu_ms);
        bench_add(&m->bound, f.bound_ms);
        bench_add(&m->over, f.ms / f.bound_ms);
        bench_add(&m->parallel, f.parallel_ms);
        bench_add(&m->over_parallel, f.ms / f.parallel_ms);
        for (size_t k = 0; k < z->reforms; k++)
            bench_add(&m->reform, reform_ms(&s, 7 * k + i));
        for (size_t k = 0; k < z->takeovers; k++)
            bench_add(&m->takeover, takeover_ms(&s));
        sim_close(&s);
    }
    bench_etcd_stop(&e);
}

static void tell_size(const struct size *z, const struct measured *m)
{
    emit("form", z->n, "ms", &m->ms);
    emit("form", z->n, "over_bound", &m->over);
    emit("bound", z->n, "ms", &m->bound);
    emit("form", z->n, "over_parallel", &m->over_parallel);
    emit("parallel", z->n, "ms", &m->parallel);
    emit("form", z->n, "etcd_cpu_ms", &m->cpu);
    if (z->reforms)
        emit("reform", z->n, "ms", &m->reform);
    if (z->takeovers)
        emit("takeover", z->n, "ms", &m->takeover);
}

/* Of the line through (log x, log y), by least squares. */
static double slope(const double *x, const double *y, size_t n)
{
    double sx = 0, sy = 0, sxx = 0, sxy = 0;

    for (size_t i = 0; i < n; i++) {
        double lx = log(x[i]), ly = log(y[i]);

        sx += lx;
        sy += ly;
        sxx += lx * lx;
        sxy += lx * ly;
    }
    return ((double)n * sxy - sx * sy) / ((double)n * sxx - sx * sx);
}

void bench_formation(void)
{
    static struct measured m;
    double n[SIZES], ms[SIZES], cpu[SIZES];
    size_t measured_n = 0;

    for (size_t i = 0; i < SIZES; i++) {
        const struct size *z = &sizes[i];

        if (bench_runs(z->runs, z->quick_runs) == 0)
            continue;
        memset(&m, 0, sizeof(m));
        measure_size(z, &m);
        if (z->told)
            tell_size(z, &m);
        n[measured_n] = (double)z->n;
        ms[measured_n] = bench_median(&m.ms);
        cpu[measured_n++] = bench_median(&m.cpu);
    }
    bench_emit_value("form_time_slope", slope(n, ms, measured_n), 0, measured_n);
    bench_emit_value("form_etcd_cpu_slope", slope(n, cpu, measured_n), 0, measured_n);
}

void bench_connections(void)
{
    static struct bench_series ms, connect;
    struct bench_etcd e;

    if (bench_runs(3, 0) == 0)
        return;
    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    for (size_t i = 0; i < bench_runs(3, 0); i++) {
        struct sim s;
        struct formed f = form(&s, &e, 1000, 1000);

        bench_add(&ms, f.ms);
        bench_add(&connect, f.open_ms);
        sim_close(&s);
    }
    bench_etcd_stop(&e);
    bench_emit("form_n1000_connection_each_ms", &ms);
    bench_emit("connect_n1000_ms", &connect);
}

void bench_disk(void)
{
    static const struct {
        size_t n, runs, quick_runs;
    } rows[] = {{100, 5, 1}, {1000, 5, 1}};
    static struct bench_series ms;
    struct bench_etcd e;

    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        ms.n = 0;
        bench_etcd_start(&e, 1, BENCH_ETCD_DISK);
        for (size_t i = 0; i < bench_runs(rows[k].runs, rows[k].quick_runs); i++) {
            struct sim s;

            bench_add(&ms, form(&s, &e, rows[k].n, CHANNELS).ms);
            sim_close(&s);
        }
        bench_etcd_stop(&e);
        emit("form", rows[k].n, "disk_ms", &ms);
    }
}

static bool never(struct sim *s, void *user)
{
    return false;
}

void bench_steady(void)
{
    const char *const received = "grpc_server_msg_received_total";
    const char *const keep = "grpc_method=\"LeaseKeepAlive\"";
    /* The leader clears up 5 s after the seal. */
    enum { NODES = 1000, SETTLE_MS = 12000, QUICK_SETTLE_MS = 6000 };
    size_t ms = bench_runs(30000, 4000); /* the window */
    double per = NODES * (double)ms / 60000, all, kept;
    struct bench_etcd e;
    struct sim s;

    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    form(&s, &e, NODES, CHANNELS);
    sim_run(&s, never, NULL, (uint32_t)bench_runs(SETTLE_MS, QUICK_SETTLE_MS));
    all = bench_etcd_metric(&e, 0, received, NULL);
    kept = bench_etcd_metric(&e, 0, received, keep);
    sim_run(&s, never, NULL, (uint32_t)ms);
    kept = bench_etcd_metric(&e, 0, received, keep) - kept;
    all = bench_etcd_metric(&e, 0, received, NULL) - all;
    sim_close(&s);
    bench_etcd_stop(&e);
    bench_emit_value("steady_keepalives_per_agent_minute", kept / per, 0, 1);
    bench_emit_value("steady_other_requests_per_agent_minute", (all - kept) / per, 0, 1);
}
