/*
 * Start and end of a job (here), restarts, memory, idling and logs (lib/launch_*.c). Here:
 * `elastic-run --nproc-per-node N true` against a bare loop that spawns N times `true` and waits
 * for them, turn by turn in one run. The limit is 1.3 times the bare loop plus 8 ms.
 */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "bench/lib/bench.h"
#include "bench/lib/launch_parts.h"

static const double LIMIT_FACTOR = 1.3, LIMIT_PLUS_MS = 8;

enum { WORKERS_MAX = 64 };

struct turn {
    size_t workers;
    size_t runs, quick_runs;
    size_t peer_runs, quick_peer_runs; /* a peer takes seconds where we take milliseconds */
};

static const struct turn turns[] = {
    {.workers = 1, .runs = 60, .quick_runs = 20, .peer_runs = 5, .quick_peer_runs = 1},
    {.workers = 2, .runs = 60, .quick_runs = 20, .peer_runs = 5, .quick_peer_runs = 1},
    {.workers = 8, .runs = 40, .quick_runs = 15, .peer_runs = 3, .quick_peer_runs = 1},
    {.workers = 64, .runs = 25, .quick_runs = 8, .peer_runs = 2, .quick_peer_runs = 1},
};

static double bare_ms(size_t workers)
{
    extern char **environ;
    static char name[] = "true";
    char *argv[] = {name, NULL};
    pid_t pids[WORKERS_MAX];
    double start = bench_now_ms();

    for (size_t i = 0; i < workers; i++)
        if (posix_spawnp(&pids[i], name, NULL, NULL, argv, environ) != 0)
            bench_fail("cannot spawn 'true'");
    for (size_t i = 0; i < workers; i++)
        if (waitpid(pids[i], NULL, 0) != pids[i])
            bench_fail("cannot wait for 'true'");
    return bench_now_ms() - start;
}

static double elastic_ms(const char *workers)
{
    const char *argv[] = {bench_bin("elastic-run"), "--nproc-per-node", workers, "true", NULL};
    return bench_program_ms(argv);
}

static double torchrun_ms(const char *workers)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/bin/torchrun", bench_peers());
    const char *argv[] = {path, "--nproc-per-node", workers, "--no-python", "true", NULL};
    return bench_program_ms(argv);
}

static void measure(const struct turn *t)
{
    static struct bench_series elastic, bare, torchrun, over;
    size_t runs = bench_runs(t->runs, t->quick_runs);
    size_t peer_runs = bench_peers() ? bench_runs(t->peer_runs, t->quick_peer_runs) : 0;
    char workers[8], figure[64];

    elastic.n = bare.n = torchrun.n = over.n = 0;
    snprintf(workers, sizeof(workers), "%zu", t->workers);
    bare_ms(t->workers); /* once each unmeasured: the page cache is warm for all */
    elastic_ms(workers);
    if (peer_runs > 0)
        torchrun_ms(workers);
    for (size_t i = 0; i < runs; i++) {
        double a = elastic_ms(workers), b = bare_ms(t->workers);
        bench_add(&elastic, a);
        bench_add(&bare, b);
        bench_add(&over, a / (LIMIT_FACTOR * b + LIMIT_PLUS_MS));
        if (i < peer_runs)
            bench_add(&torchrun, torchrun_ms(workers));
    }
    snprintf(figure, sizeof(figure), "launch_n%s_ms", workers);
    if (peer_runs > 0)
        bench_emit_peer(figure, &elastic, "torchrun", &torchrun);
    else
        bench_emit(figure, &elastic);
    snprintf(figure, sizeof(figure), "bare_n%s_ms", workers);
    bench_emit(figure, &bare);
    snprintf(figure, sizeof(figure), "launch_n%s_over_limit", workers);
    bench_emit_value(figure,
                     bench_median(&elastic) / (LIMIT_FACTOR * bench_median(&bare) + LIMIT_PLUS_MS),
                     bench_spread(&over), runs);
}

int main(int argc, char **argv)
{
    int code = launch_role(argc, argv);

    if (code >= 0)
        return code;
    for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++)
        measure(&turns[i]);
    launch_restart();
    launch_idle();
    launch_tee();
    return 0;
}
