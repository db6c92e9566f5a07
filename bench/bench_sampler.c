/*
 * The order of samples: nanoseconds for the next one, in sequence, in data sets of many sizes
 * (small ones have a table, larger ones a Feistel network, of which sizes just above a power of two
 * and a square are the worst cases), and what an order takes in memory, whatever the size.
 */
#include <stdio.h>

#include "bench/lib/bench.h"
#include "trainer/sampler.h"

enum { SEEDS = 3 };

static const uint64_t sizes[] = {4096,          4097,          8193,        65537,      1000000,
                                 1048577,       16777217,      1000000000,  1073741825, 4294967297,
                                 1099511627777, 1000000000000, 999999000001};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static uint64_t sink; /* so that nothing is left out */

static double next_ns(const struct er_order *order, uint64_t n, uint64_t count)
{
    uint64_t at = n / 3, sum = 0;
    double began = bench_now_ms();

    for (uint64_t i = 0; i < count; i++) {
        sum += er_order_at(order, at);
        at = at + 1 < n ? at + 1 : 0;
    }
    sink += sum;
    return (bench_now_ms() - began) * 1e6 / (double)count;
}

int main(void)
{
    static struct bench_series series[SIZES], worst;
    static struct er_order order;
    const uint64_t count = bench_runs(1000000, 200000);

    for (size_t run = 0; run < bench_runs(21, 7); run++) {
        double most = 0;

        for (size_t s = 0; s < SIZES; s++) {
            double ns;

            er_order_init(&order, sizes[s], run % SEEDS, run);
            ns = next_ns(&order, sizes[s], count);
            bench_add(&series[s], ns);
            most = sizes[s] > ER_ORDER_TABLE_MAX && ns > most ? ns : most;
        }
        bench_add(&worst, most);
    }
    for (size_t s = 0; s < SIZES; s++) {
        char figure[64];

        snprintf(figure, sizeof(figure), "next_%llu_ns", (unsigned long long)sizes[s]);
        bench_emit(figure, &series[s]);
    }
    bench_emit("next_worst_ns", &worst);
    bench_emit_value("order_bytes", (double)sizeof(order), 0, 1);
    return sink == 0;
}
