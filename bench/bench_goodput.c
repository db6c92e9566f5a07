/*
 * The share of useful time of a job that fails all the time: three nodes with a worker each, a
 * failure every 20 s. Steps that count, times the median step (few are disturbed), over the time
 * that has passed; and the same of a stretch without failures, which says what the host itself
 * costs. The same programs of failure for elastic-run through etcd and, with PEERS=1, for
 * torchrun (c10d) with a checkpoint every 50 steps.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "bench/lib/agents.h"
#include "bench/lib/bench.h"
#include "bench/lib/elastic_job.h"
#include "bench/lib/etcd_server.h"

enum {
    NODES = 3,
    WORKERS_MAX = 256,
    SAMPLED = 32,
    TICK_MS = 20,
    PATIENCE_MS = 180000,
    END_MS = 15000
};

static const double EVERY_MS = 20000, RECENT_MS = 1000;

/* What goes wrong. */
enum fault {
    WORKER_KILLED,
    WORKER_FAILS, /* exits with 1 */
    AGENT_KILLED, /* and with it its worker, as when a host goes down; it comes back */
    NODE_DRAINED, /* TERM; it comes back when it has left */
};

/* Of ten failures. */
static const enum fault MIXED[] = {WORKER_KILLED, WORKER_FAILS, WORKER_KILLED, AGENT_KILLED,
                                   WORKER_KILLED, NODE_DRAINED, WORKER_KILLED, WORKER_FAILS,
                                   WORKER_KILLED, WORKER_KILLED};
static const enum fault MIXED_QUICK[] = {WORKER_KILLED, AGENT_KILLED, NODE_DRAINED};
static const enum fault KILLS[] = {WORKER_KILLED};

struct run;

/* Who keeps the job going. */
struct contender {
    const char *name;
    pid_t (*start)(struct run *r, int i);
    void (*kill_agent)(struct run *r, int i);
};

struct worker {
    pid_t pid;
    double at_ms; /* its last word */
    uint64_t step;
};

struct run {
    const struct contender *by;
    struct bench_etcd etcd;
    struct bench_fifo fifo;
    int port; /* c10d's store */
    pid_t agents[NODES];
    struct worker workers[WORKERS_MAX]; /* all that ever were */
    int workers_n;
    uint64_t step;               /* newest one of the lineage that is being trained */
    struct bench_series *pauses; /* from one step to the next, of one in SAMPLED */
};

/* ---- contenders ---- */

static pid_t start_elastic(struct run *r, int i)
{
    char endpoint[300], id[32], name[48], address[32];
    const char *argv[] = {bench_bin("elastic-run"),
                          "--nnodes=2:3",
                          "--rdzv-backend=etcd",
                          endpoint,
                          name,
                          id,
                          address,
                          "--max-restarts=100000",
                          "--set=resize.settle=0s",
                          "--set=resize.min_interval=0s",
                          "--set=restart.node_strikes.max=1000000",
                          "--no-python",
                          bench_bin("bench/bench_goodput"),
                          "worker",
                          r->fifo.path,
                          NULL};

    snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s", r->etcd.endpoints);
    snprintf(id, sizeof(id), "--node-id=n%d", i);
    snprintf(name, sizeof(name), "--rdzv-id=bench-goodput-%d", (int)getpid());
    snprintf(address, sizeof(address), "--local-addr=%s", bench_agents_address(i));
    return bench_agents_spawn(i, argv);
}

/* Its guard ends the worker, and tells. */
static void kill_elastic(struct run *r, int i)
{
    kill(bench_agents_child(r->agents[i]), SIGKILL);
}

static pid_t start_torchrun(struct run *r, int i)
{
    char program[4096], endpoint[64], name[48], address[48], script[4096], host[48];
    const char *argv[] = {"env",
                          host,
                          "OMP_NUM_THREADS=1",
                          program,
                          "--nnodes=2:3",
                          "--nproc-per-node=1",
                          "--rdzv-backend=c10d",
                          endpoint,
                          i == 0 ? "--rdzv-conf=is_host=1" : "--rdzv-conf=is_host=0",
                          name,
                          address,
                          "--max-restarts=100000",
                          script,
                          r->fifo.path,
                          r->fifo.dir,
                          NULL};

    snprintf(host, sizeof(host), "GLOO_SOCKET_IFNAME=%s", bench_agents_interface());
    snprintf(program, sizeof(program), "%s/bin/torchrun", bench_peers());
    snprintf(script, sizeof(script), "%s/peers_goodput.py", ER_BENCH_SOURCE);
    snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s:%d", bench_agents_address(0), r->port);
    snprintf(name, sizeof(name), "--rdzv-id=bench-goodput-%d", (int)getpid());
    snprintf(address, sizeof(address), "--local-addr=%s", bench_agents_address(i));
    return bench_agents_spawn(i, argv);
}

/* A killed torchrun leaves its worker behind; a host that goes down does not. */
static void kill_torchrun(struct run *r, int i)
{
    char path[64];
    long child;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", r->agents[i], r->agents[i]);
    f = fopen(path, "re");
    kill(r->agents[i], SIGKILL);
    while (f && fscanf(f, "%ld", &child) == 1)
        kill((pid_t)child, SIGKILL);
    if (f)
        fclose(f);
}

static const struct contender ELASTIC = {"elastic-run", start_elastic, kill_elastic};
static const struct contender TORCHRUN = {"torchrun", start_torchrun, kill_torchrun};

/* ---- the job ---- */

static struct worker *worker_of(struct run *r, pid_t pid)
{
    for (int i = r->workers_n - 1; i >= 0; i--) {
        if (r->workers[i].pid == pid)
            return &r->workers[i];
    }
    if (r->workers_n == WORKERS_MAX)
        bench_fail("more than %d workers", WORKERS_MAX);
    r->workers[r->workers_n] = (struct worker){.pid = pid};
    return &r->workers[r->workers_n++];
}

static void take(struct run *r, const struct elastic_job_step *said)
{
    struct worker *w = worker_of(r, said->pid);

    if (r->pauses && w->step && said->step == w->step + 1 && said->step % SAMPLED == 0)
        bench_add(r->pauses, said->at_ms - w->at_ms);
    w->step = said->step;
    w->at_ms = said->at_ms;
    r->step = said->step;
}

/* What was said until then; agents that have ended are started again, as a service manager would.
 */
static void pump(struct run *r, double until_ms)
{
    while (bench_now_ms() < until_ms) {
        double tick = bench_now_ms() + TICK_MS;
        struct elastic_job_step said;

        while (bench_fifo_read(&r->fifo, &said, sizeof(said), tick))
            take(r, &said);
        for (int i = 0; i < NODES; i++) {
            if (bench_agents_reaped(r->agents[i], 0))
                r->agents[i] = r->by->start(r, i);
        }
    }
}

/* Workers that have said something lately; *ret (room for NODES) names some. */
static int running(const struct run *r, pid_t *ret)
{
    double now = bench_now_ms();
    int n = 0;

    for (int i = r->workers_n - 1; i >= 0 && n < NODES; i--) {
        if (now - r->workers[i].at_ms < RECENT_MS && kill(r->workers[i].pid, 0) == 0)
            ret[n++] = r->workers[i].pid;
    }
    return n;
}

static void wait_all(struct run *r)
{
    double until = bench_now_ms() + PATIENCE_MS;
    pid_t pids[NODES];

    while (running(r, pids) < NODES) {
        if (bench_now_ms() > until)
            bench_fail("%s: no job of %d nodes", r->by->name, NODES);
        pump(r, bench_now_ms() + TICK_MS);
    }
}

/* Who is still recovering from the last one has no worker that could be hit: the failure is lost.
 */
static void fail(struct run *r, enum fault fault, unsigned which)
{
    int node = 1 + (int)(which % (NODES - 1)); /* not the first one, which has c10d's store */
    pid_t pids[NODES];
    int n = running(r, pids);

    switch (fault) {
    case WORKER_KILLED:
    case WORKER_FAILS:
        if (n)
            kill(pids[which % (unsigned)n], fault == WORKER_KILLED ? SIGKILL : SIGUSR2);
        return;
    case AGENT_KILLED:
        r->by->kill_agent(r, node);
        return;
    case NODE_DRAINED:
        kill(r->agents[node], SIGTERM);
        return;
    }
}

static void open_run(struct run *r, const struct contender *by)
{
    memset(r, 0, sizeof(*r));
    r->by = by;
    r->port = bench_free_port();
    bench_etcd_start_at(&r->etcd, 1, BENCH_ETCD_MEMORY, bench_agents_hub());
    bench_fifo_open(&r->fifo, "goodput");
    for (int i = 0; i < NODES; i++)
        r->agents[i] = by->start(r, i);
    wait_all(r);
}

static void close_run(struct run *r)
{
    pid_t pids[NODES];
    int n;

    for (int i = 0; i < NODES; i++)
        kill(r->agents[i], SIGINT);
    for (int i = 0; i < NODES; i++) {
        if (!bench_agents_reaped(r->agents[i], END_MS)) {
            r->by->kill_agent(r, i);
            bench_agents_reaped(r->agents[i], END_MS);
        }
    }
    n = running(r, pids); /* whoever outlived its agent */
    while (n > 0)
        kill(pids[--n], SIGKILL);
    close(r->fifo.fd);
    er_remove_all(r->fifo.dir, NULL);
    for (int i = 0; i < NODES; i++) { /* of a node that went down whole: nobody was left to do it */
        char left[96];

        snprintf(left, sizeof(left), "/run/elastic-run/bench-goodput-%d@n%d", (int)getpid(), i);
        er_remove_all(left, NULL);
    }
    bench_etcd_stop(&r->etcd);
}

/* ---- what is measured ---- */

struct program {
    const enum fault *faults;
    size_t n;
    double ms;
};

static double share_of(struct run *r, const struct program *p, struct bench_series *pauses)
{
    double start = bench_now_ms();
    uint64_t first = r->step;
    unsigned n = 0;

    r->pauses = pauses;
    while (p->n > 0 && EVERY_MS * (n + 0.5) < p->ms) {
        pump(r, start + EVERY_MS * (n + 0.5));
        fail(r, p->faults[n % p->n], n);
        n++;
    }
    pump(r, start + p->ms);
    return (r->step > first ? (double)(r->step - first) : 0) * bench_median(pauses) /
           (bench_now_ms() - start);
}

struct shares {
    struct bench_series step; /* without failures */
    double undisturbed, mixed, kills;
};

static void measure(const struct contender *by, struct shares *ret)
{
    const struct program mixed = {
        bench_runs(1, 0) ? MIXED : MIXED_QUICK,
        bench_runs(ER_ARRAY_N(MIXED), ER_ARRAY_N(MIXED_QUICK)),
        (double)bench_runs(600000, 60000),
    };
    const struct program kills = {KILLS, ER_ARRAY_N(KILLS), (double)bench_runs(600000, 40000)};
    const struct program quiet = {.ms = (double)bench_runs(30000, 8000)};
    static struct bench_series mixed_steps, kills_steps;
    static struct run r;

    mixed_steps.n = kills_steps.n = 0;
    open_run(&r, by);
    ret->undisturbed = share_of(&r, &quiet, &ret->step);
    ret->mixed = share_of(&r, &mixed, &mixed_steps);
    wait_all(&r);
    ret->kills = share_of(&r, &kills, &kills_steps);
    close_run(&r);
}

static void emit(const struct shares *ours, const struct shares *theirs)
{
    const char *peer = theirs ? TORCHRUN.name : NULL;

    bench_emit_beside("step_ms", bench_median(&ours->step), bench_spread(&ours->step), ours->step.n,
                      peer, theirs ? bench_median(&theirs->step) : 0);
    bench_emit_beside("undisturbed_share", ours->undisturbed, 0, 1, peer,
                      theirs ? theirs->undisturbed : 0);
    bench_emit_beside("useful_share", ours->mixed, 0, 1, peer, theirs ? theirs->mixed : 0);
    bench_emit_beside("useful_share_worker_kills", ours->kills, 0, 1, peer,
                      theirs ? theirs->kills : 0);
}

static void on_usr2(int sig)
{
    _exit(1);
}

int main(int argc, char **argv)
{
    static struct shares ours, theirs;
    bool isolated;

    if (argc == 3 && strcmp(argv[1], "worker") == 0) {
        signal(SIGUSR2, on_usr2);
        return elastic_job_worker(argv[2], "auto");
    }
    isolated = bench_agents_isolate(NODES);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* of what a killed torchrun leaves behind */
    measure(&ELASTIC, &ours);
    if (bench_peers())
        measure(&TORCHRUN, &theirs);
    bench_emit_value("agents_with_own_network", isolated ? NODES : 0, 0, 1);
    emit(&ours, bench_peers() ? &theirs : NULL);
    return 0;
}
