/*
 * Membership changes of a job on three agents of this host with a worker each, through etcd: how
 * long the training stands still, and what is lost.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "bench/lib/agents.h"
#include "bench/lib/bench.h"
#include "bench/lib/elastic_job.h"
#include "bench/lib/etcd_server.h"
#include "trainer/catchup.h"

enum {
    AGENTS = 3,
    PIDS_MAX = 16,
    PATIENCE_MS = 30000,
    END_MS = 10000,
    AFTER_STEPS = 5,
    SLICES = ER_CATCHUP_SLICES + 1 /* steps until a newcomer has the state */
};

/* HANG_MS: hang.floor of a job; ten times the 99th percentile of its steps is less. */
static const double HANG_MS = 2000, NAMED_MS = 1000;
static const double PLANNED_MS = 100, KILLED_MS = 300, CATCH_UP_MS = 60;
/* Of a node that is cut off (with the lease of 3 s and the grace of 1 s that it is measured with).
 */
static const double CUT_MS = 4700;

#define LEASE       "--set=rendezvous.lease_ttl=auto"
#define SHORT_LEASE "--set=rendezvous.lease_ttl=3s"

/* A worker, since the last mark. */
struct seen {
    int pid, steps; /* steps: in the newest generation */
    uint64_t step, generation;
    double at_ms, first_ms, gap_ms; /* last step; first one of its generation; longest pause */
    int odd;                        /* steps that do not follow the one before */
};

struct job {
    struct bench_etcd etcd;
    const char *nnodes, *program, *lease;
    struct bench_fifo fifo;
    pid_t guards[AGENTS];
    struct seen seen[PIDS_MAX];
    uint64_t generation;
    int after; /* steps of a generation that are waited for */
};

static struct bench_series step_ms;
static bool own_networks;
static const char *newcomers = "copy"; /* how they get the state, in jobs to be opened */
static struct bench_series *meanwhile; /* steps until newcomers have the state; NULL: nobody asks */

static void start_agent(struct job *j, int i)
{
    char endpoint[300], id[32], name[48];
    const char *argv[] = {bench_bin(j->program),
                          j->nnodes,
                          "--rdzv-backend=etcd",
                          endpoint,
                          name,
                          id,
                          j->lease,
                          "--max-restarts=100000",
                          "--set=resize.settle=0s",
                          "--set=resize.min_interval=0s",
                          "--set=rendezvous.replacement_wait=0s",
                          "--set=restart.node_strikes.max=1000000",
                          "--no-python",
                          bench_bin("bench/bench_elastic"),
                          "worker",
                          j->fifo.path,
                          newcomers,
                          NULL};

    snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s", j->etcd.endpoints);
    snprintf(id, sizeof(id), "--node-id=n%d", i);
    snprintf(name, sizeof(name), "--rdzv-id=bench-elastic-%d", (int)getpid());
    j->guards[i] = bench_agents_spawn(i, argv);
}

static struct seen *seen_of(struct job *j, int pid)
{
    struct seen *oldest = &j->seen[0];

    for (int i = 0; i < PIDS_MAX; i++) {
        if (j->seen[i].pid == pid)
            return &j->seen[i];
        if (j->seen[i].at_ms < oldest->at_ms)
            oldest = &j->seen[i];
    }
    *oldest = (struct seen){.pid = pid};
    return oldest;
}

/* One that is not the first of its generation. */
static void note_step(const struct seen *s, double pause)
{
    struct bench_series *series = meanwhile && s->steps <= SLICES ? meanwhile : &step_ms;

    if (series->n < BENCH_RUNS_MAX)
        bench_add(series, pause);
}

static void take(struct job *j, const struct elastic_job_step *said)
{
    struct seen *s = seen_of(j, said->pid);
    double pause = said->at_ms - s->at_ms;

    if (s->step && said->step != s->step + 1)
        s->odd++;
    if (s->step && pause > s->gap_ms)
        s->gap_ms = pause;
    if (s->step && said->generation == s->generation)
        note_step(s, pause);
    if (said->generation != s->generation) {
        s->first_ms = said->at_ms;
        s->steps = 0;
    }
    s->steps++;
    s->step = said->step;
    s->generation = said->generation;
    s->at_ms = said->at_ms;
}

/* From now on gaps and odd steps count. */
static void mark(struct job *j)
{
    for (int i = 0; i < PIDS_MAX; i++) {
        j->seen[i].gap_ms = 0;
        j->seen[i].odd = 0;
    }
}

/* All `size` ranks have done some steps in a generation after the last one. */
static bool is_there(const struct job *j, int size, const struct elastic_job_step *said)
{
    int n = 0;

    if (said->size != size || said->generation <= j->generation)
        return false;
    for (int i = 0; i < PIDS_MAX; i++)
        n += j->seen[i].generation == said->generation && j->seen[i].steps >= j->after;
    return n == size;
}

static void wait_world(struct job *j, int size)
{
    double until = bench_now_ms() + PATIENCE_MS;
    struct elastic_job_step said;

    for (;;) {
        if (!bench_fifo_read(&j->fifo, &said, sizeof(said), until))
            bench_fail("no world of %d ranks after generation %llu", size,
                       (unsigned long long)j->generation);
        take(j, &said);
        if (is_there(j, size, &said))
            break;
    }
    j->generation = said.generation;
}

static void reap(pid_t pid)
{
    if (!bench_agents_reaped(pid, END_MS))
        bench_fail("an agent does not end");
}

/* ---- what is measured ---- */

/* Longest pause of those who were there before and are after. */
static double longest_gap(const struct job *j)
{
    double gap = 0;

    for (int i = 0; i < PIDS_MAX; i++) {
        if (j->seen[i].generation == j->generation && j->seen[i].gap_ms > gap)
            gap = j->seen[i].gap_ms;
    }
    return gap;
}

static int odd_steps(const struct job *j)
{
    int odd = 0;

    for (int i = 0; i < PIDS_MAX; i++)
        odd += j->seen[i].generation == j->generation ? j->seen[i].odd : 0;
    return odd;
}

/* When the last rank had finished its first step. */
static double all_stepped_ms(const struct job *j)
{
    double last = 0;

    for (int i = 0; i < PIDS_MAX; i++) {
        if (j->seen[i].generation == j->generation && j->seen[i].first_ms > last)
            last = j->seen[i].first_ms;
    }
    return last;
}

static int some_pid(const struct job *j, size_t which)
{
    int pids[PIDS_MAX], n = 0;

    for (int i = 0; i < PIDS_MAX; i++) {
        if (j->seen[i].generation == j->generation)
            pids[n++] = j->seen[i].pid;
    }
    return pids[which % (size_t)n];
}

/* Through TCP between this process and where an agent is, from memory to memory. */
static double link_ms(void)
{
    static char buf[1 << 20];
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = inet_addr(bench_agents_hub())};
    socklen_t len = sizeof(addr);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, to;
    size_t got = 0;
    double start;
    pid_t pid;

    if (server < 0 || bind(server, (struct sockaddr *)&addr, len) < 0 || listen(server, 1) < 0 ||
        getsockname(server, (struct sockaddr *)&addr, &len) < 0 || (pid = fork()) < 0)
        bench_fail("no connection on this host");
    if (pid == 0) {
        bench_agents_enter(0);
        to = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(to, (struct sockaddr *)&addr, len) < 0)
            _exit(1);
        for (size_t at = 0; at < ELASTIC_JOB_STATE_BYTES;) {
            ssize_t n = write(to, buf, sizeof(buf));

            if (n < 0)
                _exit(1);
            at += (size_t)n;
        }
        _exit(0);
    }
    fd = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    start = bench_now_ms();
    while (got < ELASTIC_JOB_STATE_BYTES) {
        ssize_t n = read(fd, buf, sizeof(buf));

        if (n <= 0)
            bench_fail("the other end has gone");
        got += (size_t)n;
    }
    start = bench_now_ms() - start;
    close(fd);
    close(server);
    waitpid(pid, NULL, 0);
    return start;
}

/* Fresh memory for such a state, as a newcomer gets it. */
static double memset_ms(void)
{
    double start = bench_now_ms();
    struct er_pool *pool = NULL;

    if (er_pool_new(&pool, ELASTIC_JOB_STATE_BYTES, NULL) < 0)
        bench_fail("no memory");
    memset(er_pool_alloc(pool, ELASTIC_JOB_STATE_BYTES, 4096), 1, ELASTIC_JOB_STATE_BYTES);
    start = bench_now_ms() - start;
    er_pool_free(pool);
    return start;
}

static void open_job(struct job *j, const char *nnodes, const char *lease)
{
    memset(j, 0, sizeof(*j));
    j->nnodes = nnodes;
    j->after = AFTER_STEPS;
    j->program = "elastic-run";
    j->lease = lease;
    bench_etcd_start_at(&j->etcd, 1, BENCH_ETCD_MEMORY, bench_agents_hub());
    bench_fifo_open(&j->fifo, "elastic");
    for (int i = 0; i < AGENTS; i++)
        start_agent(j, i);
    wait_world(j, AGENTS);
}

static void close_job(struct job *j)
{
    for (int i = 0; i < AGENTS; i++)
        kill(j->guards[i], SIGINT);
    for (int i = 0; i < AGENTS; i++)
        reap(j->guards[i]);
    bench_fifo_close(&j->fifo);
    bench_etcd_stop(&j->etcd);
}

static struct bench_series transfer, fresh, grow_over;
static struct bench_series grow, shrink, worker_killed, agent_killed, planned_odd, killed_odd;
static struct bench_series upgraded, upgrade_odd, cut, hung;
static struct bench_series catch_up, catch_up_step, catch_up_odd;

/* An agent leaves (each in turn, the leader too) and comes back; `sig` to its guard, or KILL to the
 * agent itself. */
static void leave_and_join(struct job *j, size_t which, int sig)
{
    int i = (int)(which % AGENTS);
    double start = bench_now_ms();

    mark(j);
    kill(sig == SIGKILL ? bench_agents_child(j->guards[i]) : j->guards[i], sig);
    wait_world(j, AGENTS - 1);
    if (sig == SIGKILL) {
        bench_add(&agent_killed, all_stepped_ms(j) - start);
        bench_add(&killed_odd, odd_steps(j));
    } else {
        bench_add(&shrink, longest_gap(j));
        bench_add(&planned_odd, odd_steps(j));
    }
    reap(j->guards[i]);
    bench_add(&transfer, link_ms());
    bench_add(&fresh, memset_ms());
    mark(j);
    start_agent(j, i);
    wait_world(j, AGENTS);
    bench_add(&grow, longest_gap(j));
    bench_add(&grow_over, longest_gap(j) / (bench_median(&step_ms) + PLANNED_MS +
                                            transfer.values[transfer.n - 1]));
    bench_add(&planned_odd, odd_steps(j));
}

static void kill_worker(struct job *j, size_t which)
{
    double start = bench_now_ms();

    mark(j);
    kill(some_pid(j, which), SIGKILL);
    wait_world(j, AGENTS);
    bench_add(&worker_killed, all_stepped_ms(j) - start);
    bench_add(&killed_odd, odd_steps(j));
}

/* A worker of a job is stopped: until it was found, killed and started anew, and all ranks have
 * stepped with it. */
static void stop_workers(struct job *j)
{
    open_job(j, "--nnodes=3", "--set=hang.floor=2s");
    for (size_t run = 0; run < bench_runs(5, 2); run++) {
        double start = bench_now_ms();

        mark(j);
        kill(some_pid(j, run), SIGSTOP);
        wait_world(j, AGENTS);
        bench_add(&hung, all_stepped_ms(j) - start);
        bench_add(&killed_odd, odd_steps(j));
    }
    close_job(j);
}

/* Nothing comes from agent `i` and its worker any more, and nobody says that they are gone: the
 * cable, or where all share loopback, SIGSTOP. */
static void cut_off(struct job *j, int i, pid_t agent)
{
    if (own_networks) {
        bench_agents_cable(i, false);
        return;
    }
    kill(bench_agents_child(agent), SIGSTOP);
    kill(agent, SIGSTOP);
    kill(j->guards[i], SIGSTOP);
}

/* A node that comes back after the others went on without it starts anew. */
static void bring_back(struct job *j, int i, pid_t agent)
{
    kill(agent, SIGKILL);
    if (own_networks)
        bench_agents_cable(i, true);
    else
        kill(j->guards[i], SIGCONT);
    reap(j->guards[i]);
    start_agent(j, i);
    wait_world(j, AGENTS);
}

static void cut_nodes(struct job *j)
{
    open_job(j, "--nnodes=2:3", SHORT_LEASE);
    for (size_t run = 0; run < bench_runs(12, 2); run++) {
        int i = (int)(run % AGENTS);
        pid_t agent = bench_agents_child(j->guards[i]);
        double start = bench_now_ms();

        mark(j);
        cut_off(j, i, agent);
        wait_world(j, AGENTS - 1);
        bench_add(&cut, all_stepped_ms(j) - start);
        bench_add(&killed_odd, odd_steps(j));
        bring_back(j, i, agent);
    }
    close_job(j);
}

/* Each agent in turn is replaced by the next release's; no node can be spared meanwhile. */
static void upgrade(struct job *j)
{
    for (size_t run = 0; run < bench_runs(5, 1); run++) {
        open_job(j, "--nnodes=3", LEASE);
        j->program = "elastic-run-next";
        for (int i = 0; i < AGENTS; i++) {
            mark(j);
            kill(j->guards[i], SIGTERM);
            reap(j->guards[i]);
            start_agent(j, i);
            wait_world(j, AGENTS);
            bench_add(&upgraded, longest_gap(j));
            bench_add(&upgrade_odd, odd_steps(j));
        }
        close_job(j);
    }
}

/* A node comes back, and the others step on while it gets the state. */
static void join_in_slices(struct job *j, size_t which)
{
    int i = (int)(which % AGENTS);

    kill(j->guards[i], SIGTERM);
    wait_world(j, AGENTS - 1);
    reap(j->guards[i]);
    mark(j);
    start_agent(j, i);
    meanwhile = &catch_up_step;
    j->after = SLICES + 2;
    wait_world(j, AGENTS);
    meanwhile = NULL;
    j->after = AFTER_STEPS;
    bench_add(&catch_up, longest_gap(j));
    bench_add(&catch_up_odd, odd_steps(j));
}

static double sum(const struct bench_series *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++)
        sum += s->values[i];
    return sum;
}

static double mean(const struct bench_series *s)
{
    return s->n ? sum(s) / (double)s->n : 0;
}

static void over_limit(const char *figure, const struct bench_series *s, double limit_ms)
{
    bench_emit_value(figure, bench_median(s) / limit_ms, bench_spread(s), s->n);
}

int main(int argc, char **argv)
{
    static struct job j;
    double step;

    if (argc == 4 && strcmp(argv[1], "worker") == 0)
        return elastic_job_worker(argv[2], argv[3]);
    own_networks = bench_agents_isolate(AGENTS);
    open_job(&j, "--nnodes=2:3", LEASE);
    for (size_t i = 0; i < bench_runs(20, 4); i++) {
        leave_and_join(&j, i, SIGTERM);
        kill_worker(&j, i);
    }
    for (size_t i = 0; i < bench_runs(10, 2); i++)
        leave_and_join(&j, i, SIGKILL);
    close_job(&j);
    upgrade(&j);
    cut_nodes(&j);
    stop_workers(&j);
    step = bench_median(&step_ms);
    newcomers = "slices";
    open_job(&j, "--nnodes=2:3", LEASE);
    for (size_t i = 0; i < bench_runs(12, 3); i++)
        join_in_slices(&j, i);
    close_job(&j);
    bench_emit_value("agents_with_own_network", own_networks ? AGENTS : 0, 0, 1);
    bench_emit("step_ms", &step_ms);
    bench_emit("state_transfer_ms", &transfer);
    bench_emit("state_memset_ms", &fresh);
    bench_emit("grow_gap_ms", &grow);
    bench_emit("grow_gap_over_limit", &grow_over);
    bench_emit("catch_up_gap_ms", &catch_up);
    over_limit("catch_up_gap_over_limit", &catch_up, step + CATCH_UP_MS);
    bench_emit("catch_up_step_ms", &catch_up_step);
    bench_emit_value("catch_up_step_over_plain", mean(&catch_up_step) / step,
                     bench_spread(&catch_up_step), catch_up_step.n);
    bench_emit("shrink_gap_ms", &shrink);
    over_limit("shrink_gap_over_limit", &shrink, step + PLANNED_MS);
    bench_emit_value("planned_steps_lost_or_repeated", sum(&planned_odd) + sum(&catch_up_odd), 0,
                     planned_odd.n + catch_up_odd.n);
    bench_emit("upgrade_gap_ms", &upgraded);
    bench_emit_value("upgrade_steps_lost", sum(&upgrade_odd), 0, upgrade_odd.n);
    bench_emit("worker_killed_ms", &worker_killed);
    over_limit("worker_killed_over_limit", &worker_killed, step + KILLED_MS);
    bench_emit("agent_killed_ms", &agent_killed);
    bench_emit("hang_ms", &hung);
    over_limit("hang_over_limit", &hung, HANG_MS + NAMED_MS);
    bench_emit("node_cut_ms", &cut);
    bench_emit_value("node_cut_max_over_limit",
                     bench_quantile(&cut, 1) / (CUT_MS + KILLED_MS + step), 0, cut.n);
    bench_emit_value("unplanned_steps_lost", sum(&killed_odd), 0, killed_odd.n);
    return 0;
}
