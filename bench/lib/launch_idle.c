/* Agent and guard of a job with 8 workers that sleep: their memory (PSS) and processor time; the
 * memory with an etcd store too, and the peer's launcher's. */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/etcd_server.h"
#include "bench/lib/launch_parts.h"
#include "bench/lib/proc.h"

extern char **environ;

/* How often both were woken so far. */
static double wakeups(pid_t guard, pid_t agent)
{
    return bench_proc_number(guard, "status", "voluntary_ctxt_switches:") +
           bench_proc_number(agent, "status", "voluntary_ctxt_switches:");
}

enum { WORKERS = 8, START_MAX_MS = 60000 };

static void wait_for(pid_t parent, int children, pid_t *ret_first)
{
    for (int ms = 0; bench_proc_children(parent, ret_first) < children; ms++) {
        if (ms > START_MAX_MS)
            bench_fail("the workers do not come up");
        usleep(1000);
    }
}

/* `launcher OPTIONS... sleep 1000` with WORKERS workers. */
static pid_t start_sleepers(const char *launcher, const char *const options[])
{
    char *argv[16] = {(char *)launcher, (char *)"--nproc-per-node", (char *)"8"};
    posix_spawn_file_actions_t actions;
    int n = 3;
    pid_t pid;

    while (*options)
        argv[n++] = (char *)*options++;
    argv[n++] = (char *)"--no-python";
    argv[n++] = (char *)"sleep";
    argv[n] = (char *)"1000";
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0)
        bench_fail("cannot start '%s'", launcher);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void stop(pid_t pid)
{
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

static double pss_mib(pid_t pid)
{
    return bench_proc_number(pid, "smaps_rollup", "Pss:") / 1024;
}

/* The job is up; both their memory. */
static double settled_mib(pid_t guard, pid_t *ret_agent)
{
    pid_t worker;

    wait_for(guard, 1, ret_agent);
    wait_for(*ret_agent, WORKERS, &worker);
    usleep(200 * 1000); /* the last exec, and what the start leaves to do */
    return pss_mib(guard) + pss_mib(*ret_agent);
}

static double peer_mib(void)
{
    const char *const none[] = {NULL};
    char path[4096];
    pid_t launcher, worker;
    double mib;

    snprintf(path, sizeof(path), "%s/bin/torchrun", bench_peers());
    launcher = start_sleepers(path, none);
    wait_for(launcher, WORKERS, &worker);
    usleep(200 * 1000);
    mib = pss_mib(launcher);
    stop(launcher);
    return mib;
}

static void measure_with_etcd(void)
{
    static struct bench_etcd etcd;
    const char *options[] = {
        "--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoints, "--rdzv-id",
        "bench-memory",   NULL};
    pid_t guard, agent;

    bench_etcd_start(&etcd, 1, BENCH_ETCD_MEMORY);
    guard = start_sleepers(bench_bin("elastic-run"), options);
    bench_emit_value("memory_etcd_mib", settled_mib(guard, &agent), 0, 1);
    stop(guard);
    bench_etcd_stop(&etcd);
}

void launch_idle(void)
{
    const char *const none[] = {NULL};
    const double window_s = (double)bench_runs(10, 3);
    pid_t guard = start_sleepers(bench_bin("elastic-run"), none), agent;
    double mib = settled_mib(guard, &agent), start_ms = bench_now_ms();
    double before_ns = bench_proc_cpu_ns(guard) + bench_proc_cpu_ns(agent),
           before_wakeups = wakeups(guard, agent);

    usleep((useconds_t)(window_s * 1e6));
    bench_emit_value("idle_cpu_percent",
                     (bench_proc_cpu_ns(guard) + bench_proc_cpu_ns(agent) - before_ns) / 1e4 /
                         (bench_now_ms() - start_ms),
                     0, 1);
    bench_emit_value("idle_wakeups_per_s", (wakeups(guard, agent) - before_wakeups) / window_s, 0,
                     1);
    stop(guard);
    if (bench_peers())
        bench_emit_beside("memory_mib", mib, 0, 1, "torchrun", peer_mib());
    else
        bench_emit_value("memory_mib", mib, 0, 1);
    measure_with_etcd();
}
