/*
 * What training reaches: the Fashion-MNIST example (784-256-128-10, AdamW, batch 256) after 10
 * epochs on two workers, as a user runs it; accuracy on the 10,000 test images, for several seeds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench.h"

enum { LINE_MAX_BYTES = 1024 };

struct outcome {
    double accuracy, seconds;
};

static struct outcome train(unsigned seed)
{
    struct outcome out = {.accuracy = -1};
    char command[8192], line[LINE_MAX_BYTES];
    double began = bench_now_ms();
    FILE *from;

    snprintf(command, sizeof(command),
             "exec '%s' --nproc-per-node 2 '%s' --epochs 10 --log-steps 0 --seed %u",
             bench_bin("elastic-run"), bench_bin("examples/fashion_mnist"), seed);
    from = popen(command, "r");
    if (!from)
        bench_fail("cannot run %s", command);
    while (fgets(line, sizeof(line), from)) {
        if (strncmp(line, "accuracy=", 9) == 0)
            out.accuracy = strtod(line + 9, NULL);
    }
    if (pclose(from) != 0 || out.accuracy < 0)
        bench_fail("the example failed or printed no accuracy: %s", command);
    out.seconds = (bench_now_ms() - began) / 1e3;
    return out;
}

int main(void)
{
    static struct bench_series accuracy, seconds;

    unsetenv("ELASTIC_CHECKPOINT_DIR");
    for (unsigned seed = 1; seed <= bench_runs(5, 1); seed++) {
        struct outcome out = train(seed);

        bench_add(&accuracy, out.accuracy);
        bench_add(&seconds, out.seconds);
    }
    bench_emit("fashion_mnist_accuracy", &accuracy);
    bench_emit_value("fashion_mnist_accuracy_worst", bench_quantile(&accuracy, 0), 0, accuracy.n);
    bench_emit("fashion_mnist_s", &seconds);
    return 0;
}
