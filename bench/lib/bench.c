#include "bench/lib/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATHS_N = 8 };

void bench_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "bench: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

void bench_add(struct bench_series *s, double value)
{
    if (s->n == BENCH_RUNS_MAX)
        bench_fail("more than %d repetitions", BENCH_RUNS_MAX);
    s->values[s->n++] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(const struct bench_series *s, double q)
{
    struct bench_series sorted = *s;
    if (s->n == 0)
        bench_fail("no repetition was measured");
    qsort(sorted.values, sorted.n, sizeof(double), by_value);
    double at = q * (double)(sorted.n - 1);
    size_t low = (size_t)at;
    size_t high = low + 1 < sorted.n ? low + 1 : low;
    return sorted.values[low] + (at - (double)low) * (sorted.values[high] - sorted.values[low]);
}

double bench_median(const struct bench_series *s)
{
    return bench_quantile(s, 0.5);
}

double bench_spread(const struct bench_series *s)
{
    double median = bench_median(s);
    return median > 0 ? (bench_quantile(s, 0.75) - bench_quantile(s, 0.25)) / median : 0;
}

void bench_emit_value(const char *figure, double value, double spread, size_t runs)
{
    printf("{\"figure\": \"%s\", \"value\": %.6g, \"spread\": %.3g, \"runs\": %zu}\n", figure,
           value, spread, runs);
    fflush(stdout);
}

void bench_emit(const char *figure, const struct bench_series *s)
{
    bench_emit_value(figure, bench_median(s), bench_spread(s), s->n);
}

void bench_emit_beside(const char *figure, double value, double spread, size_t runs,
                       const char *peer, double peer_value)
{
    if (!peer) {
        bench_emit_value(figure, value, spread, runs);
        return;
    }
    printf("{\"figure\": \"%s\", \"value\": %.6g, \"spread\": %.3g, \"runs\": %zu, \"peer\": "
           "\"%s\", \"peer_value\": %.6g}\n",
           figure, value, spread, runs, peer, peer_value);
    fflush(stdout);
}

void bench_emit_peer(const char *figure, const struct bench_series *s, const char *peer,
                     const struct bench_series *peer_s)
{
    bench_emit_beside(figure, bench_median(s), bench_spread(s), s->n, peer, bench_median(peer_s));
}

size_t bench_runs(size_t full, size_t quick)
{
    return getenv("ER_BENCH_QUICK") ? quick : full;
}

const char *bench_peers(void)
{
    return getenv("ER_BENCH_PEERS");
}

const char *bench_bin(const char *relative)
{
    static char paths[PATHS_N][PATH_MAX];
    static size_t next;
    const char *build = getenv("ER_BENCH_BUILD");
    char *path = paths[next++ % PATHS_N];
    snprintf(path, PATH_MAX, "%s/%s", build ? build : "build", relative);
    return path;
}

double bench_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

double bench_program_ms(const char *const argv[])
{
    extern char **environ;
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    double start = bench_now_ms();
    int rc = posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    if (rc != 0)
        bench_fail("spawn '%s': %s", argv[0], strerror(rc));
    if (waitpid(pid, &status, 0) != pid)
        bench_fail("wait for '%s': %s", argv[0], strerror(errno));
    double took = bench_now_ms() - start;
    posix_spawn_file_actions_destroy(&actions);
    if (status != 0)
        bench_fail("'%s' failed: wait status %#x", argv[0], (unsigned)status);
    return took;
}
