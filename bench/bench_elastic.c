/*
 * Membership changes of a job on three agents of this host with a worker each, through etcd: how
 * long the training stands still, and what is lost.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"
#include "bench/lib/bench.h"
#include "bench/lib/elastic_job.h"
#include "bench/lib/etcd_server.h"

enum { AGENTS = 3, PIDS_MAX = 16, PATIENCE_MS = 30000, END_MS = 10000, AFTER_STEPS = 5 };

static const double PLANNED_MS = 100, KILLED_MS = 300;

extern char **environ;

/* A worker, since the last mark. */
struct seen {
    int pid, steps; /* steps: in the newest generation */
    uint64_t step, generation;
    double at_ms, first_ms, gap_ms; /* last step; first one of its generation; longest pause */
    int odd;                        /* steps that do not follow the one before */
};

struct job {
    struct bench_etcd etcd;
    char dir[32], fifo[64];
    int fd;
    pid_t guards[AGENTS];
    struct seen seen[PIDS_MAX];
    uint64_t generation;
};

static struct bench_series step_ms;

static void start_agent(struct job *j, int i)
{
    posix_spawn_file_actions_t quiet;
    char endpoint[300], id[32], name[48];
    const char *argv[] = {bench_bin("elastic-run"),
                          "--nnodes=2:3",
                          "--rdzv-backend=etcd",
                          endpoint,
                          name,
                          id,
                          "--max-restarts=100000",
                          "--set=resize.settle=0s",
                          "--set=resize.min_interval=0s",
                          "--set=rendezvous.replacement_wait=0s",
                          "--set=restart.node_strikes.max=1000000",
                          "--no-python",
                          bench_bin("bench/bench_elastic"),
                          "worker",
                          j->fifo,
                          NULL};

    snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s", j->etcd.endpoints);
    snprintf(id, sizeof(id), "--node-id=n%d", i);
    snprintf(name, sizeof(name), "--rdzv-id=bench-elastic-%d", (int)getpid());
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&j->guards[i], argv[0], &quiet, NULL, (char *const *)(uintptr_t)argv,
                     environ) != 0)
        bench_fail("cannot start '%s'", argv[0]);
    posix_spawn_file_actions_destroy(&quiet);
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

static void take(struct job *j, const struct elastic_job_step *said)
{
    struct seen *s = seen_of(j, said->pid);
    double pause = said->at_ms - s->at_ms;

    if (s->step && said->step != s->step + 1)
        s->odd++;
    if (s->step && pause > s->gap_ms)
        s->gap_ms = pause;
    if (s->step && said->generation == s->generation && step_ms.n < BENCH_RUNS_MAX)
        bench_add(&step_ms, pause);
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
        n += j->seen[i].generation == said->generation && j->seen[i].steps >= AFTER_STEPS;
    return n == size;
}

static void wait_world(struct job *j, int size)
{
    double until = bench_now_ms() + PATIENCE_MS;
    struct elastic_job_step said;

    for (;;) {
        struct pollfd p = {.fd = j->fd, .events = POLLIN};
        double left = until - bench_now_ms();

        if (left <= 0 || poll(&p, 1, (int)left + 1) != 1 ||
            read(j->fd, &said, sizeof(said)) != (ssize_t)sizeof(said))
            bench_fail("no world of %d ranks after generation %llu", size,
                       (unsigned long long)j->generation);
        take(j, &said);
        if (is_there(j, size, &said))
            break;
    }
    j->generation = said.generation;
}

static pid_t agent_of(pid_t guard)
{
    char path[64], text[32] = "";
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", guard, guard);
    f = fopen(path, "re");
    if (!f || !fgets(text, sizeof(text), f))
        bench_fail("a guard has no agent");
    fclose(f);
    return (pid_t)strtol(text, NULL, 10);
}

static void reap(pid_t pid)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    double until = bench_now_ms() + END_MS;

    while (waitpid(pid, NULL, WNOHANG) != pid) {
        if (bench_now_ms() > until)
            bench_fail("an agent does not end");
        nanosleep(&pause, NULL);
    }
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

/* Through TCP on this host, from memory to memory. */
static double link_ms(void)
{
    static char buf[1 << 20];
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, to;
    size_t got = 0;
    double start;
    pid_t pid;

    if (server < 0 || bind(server, (struct sockaddr *)&addr, len) < 0 || listen(server, 1) < 0 ||
        getsockname(server, (struct sockaddr *)&addr, &len) < 0 || (pid = fork()) < 0)
        bench_fail("no connection on loopback");
    if (pid == 0) {
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
            bench_fail("the other end of loopback has gone");
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

static void open_job(struct job *j)
{
    memset(j, 0, sizeof(*j));
    bench_etcd_start(&j->etcd, 1, BENCH_ETCD_MEMORY);
    snprintf(j->dir, sizeof(j->dir), "/tmp/bench-elastic-XXXXXX");
    if (!mkdtemp(j->dir))
        bench_fail("cannot make a folder");
    snprintf(j->fifo, sizeof(j->fifo), "%s/steps", j->dir);
    if (mkfifo(j->fifo, 0600) < 0 || (j->fd = open(j->fifo, O_RDWR | O_CLOEXEC)) < 0)
        bench_fail("cannot make '%s'", j->fifo);
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
    close(j->fd);
    unlink(j->fifo);
    rmdir(j->dir);
    bench_etcd_stop(&j->etcd);
}

static struct bench_series transfer, fresh, grow_over;
static struct bench_series grow, shrink, worker_killed, agent_killed, planned_odd, killed_odd;

/* An agent leaves (each in turn, the leader too) and comes back; `sig` to its guard, or KILL to the
 * agent itself. */
static void leave_and_join(struct job *j, size_t which, int sig)
{
    int i = (int)(which % AGENTS);
    double start = bench_now_ms();

    mark(j);
    kill(sig == SIGKILL ? agent_of(j->guards[i]) : j->guards[i], sig);
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

static double sum(const struct bench_series *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++)
        sum += s->values[i];
    return sum;
}

static void over_limit(const char *figure, const struct bench_series *s, double limit_ms)
{
    bench_emit_value(figure, bench_median(s) / limit_ms, bench_spread(s), s->n);
}

int main(int argc, char **argv)
{
    static struct job j;
    double step;

    if (argc == 3 && strcmp(argv[1], "worker") == 0)
        return elastic_job_worker(argv[2]);
    open_job(&j);
    for (size_t i = 0; i < bench_runs(20, 4); i++) {
        leave_and_join(&j, i, SIGTERM);
        kill_worker(&j, i);
    }
    for (size_t i = 0; i < bench_runs(10, 2); i++)
        leave_and_join(&j, i, SIGKILL);
    close_job(&j);
    step = bench_median(&step_ms);
    bench_emit("step_ms", &step_ms);
    bench_emit("state_transfer_ms", &transfer);
    bench_emit("state_memset_ms", &fresh);
    bench_emit("grow_gap_ms", &grow);
    bench_emit("grow_gap_over_limit", &grow_over);
    bench_emit("shrink_gap_ms", &shrink);
    over_limit("shrink_gap_over_limit", &shrink, step + PLANNED_MS);
    bench_emit_value("planned_steps_lost_or_repeated", sum(&planned_odd), 0, planned_odd.n);
    bench_emit("worker_killed_ms", &worker_killed);
    over_limit("worker_killed_over_limit", &worker_killed, step + KILLED_MS);
    bench_emit("agent_killed_ms", &agent_killed);
    bench_emit_value("unplanned_steps_lost", sum(&killed_odd), 0, killed_odd.n);
    return 0;
}
