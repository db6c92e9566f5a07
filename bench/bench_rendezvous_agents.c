/*
 * Three real agents on one host with a worker each that ends at once on TERM. Workers say when they
 * run, to a FIFO; a change is over when every worker of the new generation runs.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_rendezvous.h"
#include "bench/lib/agents.h"

static const double LIMIT_FACTOR = 1.3, LIMIT_PLUS_MS = 80;

enum { AGENTS = 3, PATIENCE_MS = 30000, END_MS = 10000 };

/* What a worker says when it runs: one write to a pipe, never torn. */
struct hello {
    double at_ms;
    int pid, rank, world;
    long generation;
};

static long number(const char *name)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : 0;
}

int bench_agents_worker(const char *fifo)
{
    struct hello hello = {.at_ms = bench_now_ms(),
                          .pid = getpid(),
                          .rank = (int)number("RANK"),
                          .world = (int)number("WORLD_SIZE"),
                          .generation = number("ELASTIC_GENERATION")};
    int fd = open(fifo, O_WRONLY | O_CLOEXEC);

    if (fd < 0 || write(fd, &hello, sizeof(hello)) != (ssize_t)sizeof(hello))
        return 1;
    close(fd);
    for (;;)
        pause();
}

/* ---- the job ---- */

struct agents {
    struct bench_etcd etcd;
    struct bench_fifo fifo;
    pid_t guards[AGENTS];
    pid_t workers[AGENTS]; /* by rank */
    long generation;       /* the one that runs */
};

static void start_agent(struct agents *a, int i)
{
    char endpoint[300], id[32], job[48];
    const char *argv[] = {bench_bin("elastic-run"), "--nnodes=2:3", "--rdzv-backend=etcd", endpoint,
                          job, id, "--max-restarts=100000",
                          /* nodes go and come in turn here, without the pauses of real life */
                          "--set=resize.settle=0s", "--set=resize.min_interval=0s",
                          "--set=rendezvous.replacement_wait=0s",
                          "--set=restart.node_strikes.max=1000000", "--no-python",
                          bench_bin("bench/bench_rendezvous"), "worker", a->fifo.path, NULL};

    snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s", a->etcd.endpoints);
    snprintf(id, sizeof(id), "--node-id=n%d", i);
    snprintf(job, sizeof(job), "--rdzv-id=bench-%d", (int)getpid());
    a->guards[i] = bench_agents_spawn(i, argv);
}

/* Until a newer generation of `world` workers runs; when its last one began to. */
static double wait_world(struct agents *a, int world)
{
    double until = bench_now_ms() + PATIENCE_MS, last = 0;
    long generation = a->generation;
    int n = 0;
    struct hello h;

    while (n < world) {
        if (!bench_fifo_read(&a->fifo, &h, sizeof(h), until))
            bench_fail("no generation of %d nodes after %ld", world, a->generation);
        if (h.world != world || h.generation <= a->generation || h.generation < generation)
            continue;
        if (h.generation > generation) {
            generation = h.generation;
            last = 0;
            n = 0;
        }
        a->workers[h.rank] = h.pid;
        last = h.at_ms > last ? h.at_ms : last;
        n++;
    }
    a->generation = generation;
    return last;
}

static void open_agents(struct agents *a)
{
    memset(a, 0, sizeof(*a));
    bench_etcd_start(&a->etcd, 1, BENCH_ETCD_MEMORY);
    bench_fifo_open(&a->fifo, "agents");
    for (int i = 0; i < AGENTS; i++)
        start_agent(a, i);
    wait_world(a, AGENTS);
}

static void close_agents(struct agents *a)
{
    for (int i = 0; i < AGENTS; i++)
        kill(a->guards[i], SIGINT);
    for (int i = 0; i < AGENTS; i++) {
        if (!bench_agents_reaped(a->guards[i], END_MS))
            bench_fail("an agent does not end");
    }
    bench_fifo_close(&a->fifo);
    bench_etcd_stop(&a->etcd);
}

/* ---- what is measured ---- */

static double worker_killed_ms(struct agents *a, size_t which)
{
    double start = bench_now_ms();

    kill(a->workers[which % AGENTS], SIGKILL);
    return wait_world(a, AGENTS) - start;
}

/* The same programs, started by nobody but us. */
static double bare_ms(const struct agents *a)
{
    const char *argv[] = {bench_bin("bench/bench_rendezvous"), "worker", a->fifo.path, NULL};
    double start = bench_now_ms(), last = 0;
    pid_t pids[AGENTS];

    for (int i = 0; i < AGENTS; i++)
        pids[i] = bench_agents_spawn(i, argv);
    for (int i = 0; i < AGENTS; i++) {
        struct hello h;

        if (!bench_fifo_read(&a->fifo, &h, sizeof(h), start + PATIENCE_MS))
            bench_fail("a worker did not come up");
        last = h.at_ms > last ? h.at_ms : last;
    }
    for (int i = 0; i < AGENTS; i++) {
        kill(pids[i], SIGKILL);
        if (!bench_agents_reaped(pids[i], END_MS))
            bench_fail("a worker does not end");
    }
    return last - start;
}

/* One agent goes, in turn each (the leader too); `sig` to the guard, KILL to the agent itself. Then
 * it comes back. */
static double agent_gone_ms(struct agents *a, size_t which, int sig)
{
    int i = (int)(which % AGENTS);
    pid_t target = sig == SIGKILL ? bench_agents_child(a->guards[i]) : a->guards[i];
    double start = bench_now_ms(), ms;

    kill(target, sig);
    ms = wait_world(a, AGENTS - 1) - start;
    if (!bench_agents_reaped(a->guards[i], END_MS))
        bench_fail("a guard does not end");
    start_agent(a, i);
    wait_world(a, AGENTS);
    return ms;
}

void bench_agents(void)
{
    static struct bench_series failed, bare, over, killed, stopped;
    struct agents a;

    open_agents(&a);
    bare_ms(&a); /* once each unmeasured: the page cache is warm for all */
    worker_killed_ms(&a, 0);
    for (size_t i = 0; i < bench_runs(60, 12); i++) {
        double ms = worker_killed_ms(&a, i), least = bare_ms(&a);

        bench_add(&failed, ms);
        bench_add(&bare, least);
        bench_add(&over, ms / (LIMIT_FACTOR * least + LIMIT_PLUS_MS));
    }
    for (size_t i = 0; i < bench_runs(30, 6); i++) {
        bench_add(&killed, agent_gone_ms(&a, i, SIGKILL));
        bench_add(&stopped, agent_gone_ms(&a, i, SIGTERM));
    }
    close_agents(&a);
    bench_emit("agents_worker_killed_ms", &failed);
    bench_emit("agents_bare_spawn_ms", &bare);
    bench_emit_value("agents_worker_killed_over_limit",
                     bench_median(&failed) / (LIMIT_FACTOR * bench_median(&bare) + LIMIT_PLUS_MS),
                     bench_spread(&over), over.n);
    bench_emit("agent_killed_to_survivors_ms", &killed);
    bench_emit("agent_stopped_to_survivors_ms", &stopped);
}
