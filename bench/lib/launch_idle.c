/* Agent and guard of a job with 8 workers that sleep: their memory (PSS) and processor time. */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/launch_parts.h"

extern char **environ;

static double number_in(pid_t pid, const char *file, const char *name)
{
    char path[64], line[256];
    double number = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            number = strtod(line + strlen(name), NULL);
            break;
        }
    }
    if (f)
        fclose(f);
    return number;
}

/* Children of a process; how many there are. */
static int children_of(pid_t pid, pid_t *ret_first)
{
    char path[64];
    int n = 0, child;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    f = fopen(path, "r");
    while (f && fscanf(f, "%d", &child) == 1) {
        if (n++ == 0)
            *ret_first = child;
    }
    if (f)
        fclose(f);
    return n;
}

/* How often both were woken so far. */
static double wakeups(pid_t guard, pid_t agent)
{
    return number_in(guard, "status", "voluntary_ctxt_switches:") +
           number_in(agent, "status", "voluntary_ctxt_switches:");
}

/* Nanoseconds on a processor: the first number of schedstat. Some virtual machines count in ticks
 * only, so wake-ups are told as well. */
static double cpu_ns(pid_t pid)
{
    return number_in(pid, "schedstat", "");
}

void launch_idle(void)
{
    char *argv[] = {(char *)bench_bin("elastic-run"),
                    (char *)"--nproc-per-node",
                    (char *)"8",
                    (char *)"sleep",
                    (char *)"1000",
                    NULL};
    const double window_s = (double)bench_runs(10, 3);
    pid_t guard, agent = 0;
    double before_ns, before_wakeups, start_ms, pss_kib;
    posix_spawn_file_actions_t actions;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&guard, argv[0], &actions, NULL, argv, environ) != 0)
        bench_fail("cannot start elastic-run");
    posix_spawn_file_actions_destroy(&actions);
    for (int i = 0;
         i < 10000 && (children_of(guard, &agent) < 1 || children_of(agent, &(pid_t){0}) < 8); i++)
        usleep(1000);
    usleep(200 * 1000); /* the last exec, and what the start leaves to do */
    before_ns = cpu_ns(guard) + cpu_ns(agent);
    before_wakeups = wakeups(guard, agent);
    start_ms = bench_now_ms();
    usleep((useconds_t)(window_s * 1e6));
    bench_emit_value(
        "idle_cpu_percent",
        (cpu_ns(guard) + cpu_ns(agent) - before_ns) / 1e4 / (bench_now_ms() - start_ms), 0, 1);
    bench_emit_value("idle_wakeups_per_s", (wakeups(guard, agent) - before_wakeups) / window_s, 0,
                     1);
    pss_kib = number_in(guard, "smaps_rollup", "Pss:") + number_in(agent, "smaps_rollup", "Pss:");
    bench_emit_value("memory_mib", pss_kib / 1024, 0, 1);
    kill(guard, SIGTERM);
    waitpid(guard, NULL, 0);
}
