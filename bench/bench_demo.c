/*
 * What a killed worker costs: `make demo` with several seeds. lost_ms is the time from the return
 * of kill(2) to the end of the first step that all ranks have finished in the new generation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench.h"

struct figures {
    struct bench_series lost, replayed, accuracy;
};

/* The last line that begins with "demo: accuracy=" on the program's output. */
static void run_demo(size_t seed, struct figures *figures)
{
    char command[8192], line[1024];
    double accuracy = 0, lost = -1, replayed = -1;
    snprintf(command, sizeof(command), "%s --quiet --seed %zu 2>&1", bench_bin("examples/demo"),
             seed);
    FILE *out = popen(command, "r"); /* NOLINT: no outside text in it */
    if (!out)
        bench_fail("cannot start the demonstration");
    while (fgets(line, sizeof(line), out)) {
        sscanf(line, "demo: accuracy=%lf restarts=1 lost_ms=%lf replayed_steps=%lf ok", &accuracy,
               &lost, &replayed);
        fputs(line, stderr);
    }
    if (pclose(out) != 0 || lost < 0)
        bench_fail("the demonstration with seed %zu failed", seed);
    bench_add(&figures->lost, lost);
    bench_add(&figures->replayed, replayed);
    bench_add(&figures->accuracy, accuracy);
}

int main(void)
{
    static struct figures figures;
    size_t runs = bench_runs(10, 3);
    for (size_t seed = 1; seed <= runs; seed++)
        run_demo(seed, &figures);
    bench_emit("demo_lost_ms", &figures.lost);
    bench_emit("demo_replayed_steps", &figures.replayed);
    bench_emit("demo_accuracy", &figures.accuracy);
    return 0;
}
