/* What trainer/sampler.h says, as lines of numbers, for python/elastic to be compared with. */
#include <inttypes.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "trainer/sampler.h"

static void print_rng(void)
{
    for (uint64_t i = 0; i < 50; i++)
        printf("rng %" PRIu64 " %" PRIu64 " %u %" PRIu64 " %" PRIu64 "\n", i * i << 30, i * 7,
               (unsigned)i, UINT64_MAX - i,
               er_rng(i * i << 30, i * 7, (uint32_t)i, UINT64_MAX - i));
}

static void print_orders(void)
{
    static const uint64_t sizes[] = {1, 2, 3, 6, 100, 4095, 4096, 4097, 5000, 60000, 1000003};
    static struct er_order order;

    for (size_t k = 0; k < ER_ARRAY_N(sizes); k++) {
        uint64_t n = sizes[k], epoch = k % 3, step = n / 61 + 1;

        er_order_init(&order, n, 17 + k, epoch);
        for (uint64_t i = 0; i < n; i += step)
            printf("order %" PRIu64 " %zu %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", n, 17 + k, epoch,
                   i, er_order_at(&order, i));
    }
}

static void print_batches(void)
{
    static const struct er_plan plans[] = {
        {.samples = 10, .global_batch = 4},
        {.samples = 4800, .global_batch = 48},
        {.samples = 1003, .global_batch = 250, .shards = 12},
        {.samples = 7, .global_batch = 100, .shards = 3},
    };

    for (size_t k = 0; k < ER_ARRAY_N(plans); k++) {
        for (uint64_t step = 1; step < 12; step++) {
            for (int size = 1, rank = 0; size < 6;
                 rank = rank + 1 < size ? rank + 1 : (size++, 0)) {
                struct er_range r = er_batch(&plans[k], step, rank, size);

                printf("batch %" PRIu64 " %" PRIu64 " %u %" PRIu64 " %d %d %" PRIu64 " %" PRIu64
                       " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                       plans[k].samples, plans[k].global_batch, plans[k].shards, step, rank, size,
                       r.epoch, r.first, r.count, r.step_first, r.step_count);
            }
        }
    }
}

int main(void)
{
    print_rng();
    print_orders();
    print_batches();
    return 0;
}
