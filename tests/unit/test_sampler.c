/* The order of samples: bijections at every size, fair shuffles, batches that cover each epoch once
 * whatever the world does. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/sampler.h"

#define EVERY_N_TO 3000u

static void expect_bijection(struct er_order *order, uint8_t *seen)
{
    memset(seen, 0, order->n);
    for (uint64_t i = 0; i < order->n; i++) {
        uint64_t at = er_order_at(order, i);

        cr_assert_lt(at, order->n, "n %lu: position %lu -> %lu", order->n, i, at);
        cr_assert_not(seen[at], "n %lu: sample %lu comes twice", order->n, at);
        seen[at] = 1;
    }
}

Test(sampler, each_sample_comes_once_at_every_size_to_3000)
{
    static struct er_order order;
    static uint8_t seen[EVERY_N_TO];

    for (uint64_t n = 1; n <= EVERY_N_TO; n++) {
        er_order_init(&order, n, n * 7, n % 5);
        expect_bijection(&order, seen);
    }
}

Test(sampler, each_sample_comes_once_around_powers_of_two_and_squares)
{
    static const uint64_t around[] = {4096,   8192,      16384,     32768,     65536, 131072,
                                      262144, 70u * 70u, 257 * 257, 512 * 513, 60000};
    static struct er_order order;
    static uint8_t seen[512 * 513 + 4];

    for (size_t i = 0; i < ER_ARRAY_N(around); i++) {
        for (uint64_t n = around[i] - 3; n <= around[i] + 3; n++) {
            er_order_init(&order, n, 3, n);
            expect_bijection(&order, seen);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Values at positions [first, first + n) are distinct and in range. */
static void expect_distinct(const struct er_order *order, uint64_t first, size_t n)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *values = calloc(n, sizeof(*values));

    cr_assert_not_null(values);
    for (size_t i = 0; i < n; i++) {
        values[i] = er_order_at(order, first + i);
        cr_assert_lt(values[i], order->n);
    }
    qsort(values, n, sizeof(*values), by_value);
    for (size_t i = 1; i < n; i++)
        cr_assert_neq(values[i], values[i - 1], "n %lu: sample %lu twice", order->n, values[i]);
}

Test(sampler, huge_orders_stay_in_range_and_distinct)
{
    static const uint64_t sizes[] = {1000000, 1000000007, 1000000000000};
    enum { WINDOW = 100000 };
    static struct er_order order;

    for (size_t i = 0; i < ER_ARRAY_N(sizes); i++) {
        er_order_init(&order, sizes[i], 11, 2);
        expect_distinct(&order, 0, WINDOW);
        expect_distinct(&order, sizes[i] / 2, WINDOW);
        expect_distinct(&order, sizes[i] - WINDOW, WINDOW);
    }
}

Test(sampler, a_million_samples_come_once_each)
{
    enum { N = 1000000 };
    static struct er_order order;
    static uint8_t seen[N];

    er_order_init(&order, N, 5, 9);
    expect_bijection(&order, seen);
}

/* Index of the permutation of [0, n) in lexicographic order. */
static size_t permutation_index(const struct er_order *order)
{
    size_t index = 0;

    for (uint64_t i = 0; i < order->n; i++) {
        size_t smaller = 0;

        for (uint64_t j = i + 1; j < order->n; j++)
            smaller += er_order_at(order, j) < er_order_at(order, i);
        index = index * (size_t)(order->n - i) + smaller;
    }
    return index;
}

/* Chi-squared of uniform counts; with k - 1 degrees of freedom its mean is k - 1 and its deviation
 * sqrt(2 (k - 1)). */
static void expect_uniform(const size_t *counts, size_t k, double draws)
{
    double chi2 = 0, expected = draws / (double)k, freedom = (double)k - 1, off;

    for (size_t i = 0; i < k; i++) {
        double d = (double)counts[i] - expected;

        chi2 += d * d / expected;
    }
    off = (chi2 - freedom) * (chi2 - freedom);
    cr_expect_lt(off, 16 * 2 * freedom, "k %zu: chi-squared %.1f", k, chi2);
}

Test(sampler, every_small_permutation_is_equally_likely)
{
    static struct er_order order;
    static size_t counts[720];
    size_t factorial = 1;

    for (uint64_t n = 2; n <= 6; n++) {
        factorial *= (size_t)n;
        memset(counts, 0, sizeof(counts));
        for (uint64_t draw = 0; draw < 100 * factorial; draw++) {
            er_order_init(&order, n, 2026 + n, draw); /* neighbouring epochs are independent */
            counts[permutation_index(&order)]++;
        }
        expect_uniform(counts, factorial, 100.0 * (double)factorial);
    }
}

/* Above the table: where the first position and its neighbour go over many epochs, in a grid. */
Test(sampler, large_orders_spread_evenly)
{
    enum { N = 10007, GRID = 16, DRAWS = 40000 };
    static struct er_order order;
    static size_t counts[GRID * GRID];

    memset(counts, 0, sizeof(counts));
    for (uint64_t epoch = 0; epoch < DRAWS; epoch++) {
        uint64_t x, y;

        er_order_init(&order, N, 77, epoch);
        x = er_order_at(&order, 5000) * GRID / N;
        y = er_order_at(&order, 5001) * GRID / N;
        counts[x * GRID + y]++;
    }
    expect_uniform(counts, GRID * GRID, DRAWS);
}

/*
 * Over many epochs: which sample is at a place (the first, the last, one between), and how far
 * apart the samples of two neighbouring places are. A table and a Feistel network; cells divide the
 * samples, and the differences, evenly.
 */
Test(sampler, places_and_differences_are_uniform)
{
    enum { CELLS_MAX = 1009 };
    static const struct {
        uint64_t n;
        size_t places, differences; /* cells */
        uint64_t draws;
    } rows[] = {{37, 37, 36, 20000}, {1009, 1009, 1008, 20000}, {1000000, 50, 27, 20000}};
    static size_t places[3][CELLS_MAX], differences[CELLS_MAX];
    static struct er_order order;

    for (size_t r = 0; r < ER_ARRAY_N(rows); r++) {
        uint64_t n = rows[r].n, at[3] = {0, n / 3, n - 1};

        memset(places, 0, sizeof(places));
        memset(differences, 0, sizeof(differences));
        for (uint64_t epoch = 0; epoch < rows[r].draws; epoch++) {
            uint64_t here, next;

            er_order_init(&order, n, 5, epoch);
            for (size_t p = 0; p < 3; p++)
                places[p][er_order_at(&order, at[p]) / (n / rows[r].places)]++;
            here = er_order_at(&order, n / 2);
            next = er_order_at(&order, n / 2 + 1);
            differences[((next + n - here) % n - 1) / ((n - 1) / rows[r].differences)]++;
        }
        for (size_t p = 0; p < 3; p++)
            expect_uniform(places[p], rows[r].places, (double)rows[r].draws);
        expect_uniform(differences, rows[r].differences, (double)rows[r].draws);
    }
}

/* Within one epoch: (position, sample) pairs fill a grid evenly, so neighbours are not kept. */
Test(sampler, one_epoch_has_no_pattern)
{
    enum { N = 1000003, GRID = 32 };
    static struct er_order order;
    static size_t pairs[GRID * GRID], steps[GRID];

    memset(pairs, 0, sizeof(pairs));
    memset(steps, 0, sizeof(steps));
    er_order_init(&order, N, 1, 0);
    for (uint64_t i = 0; i + 1 < N; i++) {
        uint64_t at = er_order_at(&order, i), next = er_order_at(&order, i + 1);

        pairs[at * GRID / N * GRID + next * GRID / N]++;
        steps[(next + N - at) % N * GRID / N]++;
    }
    expect_uniform(pairs, GRID * GRID, N - 1);
    expect_uniform(steps, GRID, N - 1);
}

Test(sampler, seeds_and_epochs_give_other_orders)
{
    static struct er_order a, b;
    static const uint64_t sizes[] = {1000, 100000};

    for (size_t s = 0; s < ER_ARRAY_N(sizes); s++) {
        uint64_t same = 0;

        er_order_init(&a, sizes[s], 1, 0);
        er_order_init(&b, sizes[s], 1, 1);
        for (uint64_t i = 0; i < sizes[s]; i++)
            same += er_order_at(&a, i) == er_order_at(&b, i);
        cr_expect_lt(same, 12, "n %lu: %lu samples in the same place", sizes[s], same);
        er_order_init(&b, sizes[s], 1, 0);
        cr_expect_eq(er_order_at(&a, 17), er_order_at(&b, 17));
    }
}

/* Walks one epoch with a world whose size follows `sizes` in turn. */
static void expect_epoch_covered(const struct er_plan *plan, uint64_t epoch, const int *sizes,
                                 size_t sizes_n)
{
    uint64_t steps = er_plan_steps(plan), next = 0;

    for (uint64_t s = 0; s < steps; s++) {
        int size = sizes[s % sizes_n];

        for (int rank = 0; rank < size; rank++) {
            struct er_range r = er_batch(plan, epoch * steps + s + 1, rank, size);

            cr_assert_eq(r.epoch, epoch);
            cr_assert_eq(r.first, next, "step %lu rank %d of %d", s + 1, rank, size);
            cr_assert_leq(r.count, r.step_count / (uint64_t)size + 1);
            cr_assert_eq(r.step_first, s * plan->global_batch);
            next += r.count;
        }
    }
    cr_assert_eq(next, plan->samples);
}

Test(sampler, each_position_is_used_once_per_epoch_at_any_world_size)
{
    static const struct er_plan plans[] = {{1, 1, 0},     {1, 64, 0},     {10, 3, 0},
                                           {256, 256, 0}, {1000, 256, 0}, {4099, 37, 0}};

    for (size_t p = 0; p < ER_ARRAY_N(plans); p++) {
        for (int size = 1; size <= 70; size++) {
            expect_epoch_covered(&plans[p], 0, &size, 1);
            expect_epoch_covered(&plans[p], 3, &size, 1);
        }
    }
}

Test(sampler, each_position_is_used_once_per_epoch_while_the_world_changes)
{
    static const int sizes[] = {4, 3, 300, 1, 7, 2, 5};
    static const struct er_plan plans[] = {{1000, 64, 0}, {60000, 256, 0}, {12345, 1000, 0}};

    for (size_t p = 0; p < ER_ARRAY_N(plans); p++)
        expect_epoch_covered(&plans[p], 2, sizes, ER_ARRAY_N(sizes));
}

Test(sampler, more_ranks_than_samples_leaves_ranges_empty)
{
    const struct er_plan plan = {.samples = 10, .global_batch = 8};
    struct er_range tail = er_batch(&plan, 2, 0, 4);
    int empty = 0;

    cr_expect_eq(er_plan_steps(&plan), 2);
    cr_expect_eq(tail.step_count, 2);
    for (int rank = 0; rank < 4; rank++)
        empty += er_batch(&plan, 2, rank, 4).count == 0;
    cr_expect_eq(empty, 2);
}

Test(sampler, enormous_plans_do_not_overflow)
{
    const struct er_plan plan = {.samples = UINT64_MAX, .global_batch = UINT64_MAX - 1};
    struct er_range last = er_batch(&plan, 1, 999, 1000);

    cr_expect_eq(er_plan_steps(&plan), 2);
    cr_expect_eq(last.first + last.count, plan.global_batch);
    cr_expect_eq(er_batch(&plan, 2, 0, 1).count, 1);
}

/* Known answer of Philox4x64-10 (Random123's kat_vectors: counter 0, key 0). */
Test(sampler, rng_is_philox)
{
    cr_expect_eq(er_rng(0, 0, 0, 0), 0x16554d9eca36314cull);
}

Test(sampler, rng_depends_on_every_argument)
{
    uint64_t base = er_rng(1, 2, 3, 4);

    cr_expect_eq(er_rng(1, 2, 3, 4), base);
    cr_expect_neq(er_rng(2, 2, 3, 4), base);
    cr_expect_neq(er_rng(1, 3, 3, 4), base);
    cr_expect_neq(er_rng(1, 2, 4, 4), base);
    cr_expect_neq(er_rng(1, 2, 3, 5), base);
    cr_expect_neq(er_rng(1, 4, 3, 2), base);
}

/* Exact mode: shards do not depend on the world size, ranks take whole ones, and all are taken. */
Test(sampler, ranks_take_whole_shards)
{
    static const struct er_plan plan = {.samples = 1003, .global_batch = 50, .shards = 12};

    for (uint64_t step = 1; step <= er_plan_steps(&plan); step++) {
        for (int size = 1; size <= 12; size++) {
            uint32_t shard = 0;

            for (int rank = 0; rank < size; rank++) {
                struct er_range mine = er_batch(&plan, step, rank, size);
                uint64_t at = mine.first;

                cr_assert_eq(mine.first_shard, shard);
                cr_assert_geq(mine.shards_n, 1);
                for (uint32_t i = 0; i < mine.shards_n; i++) {
                    struct er_range one = er_batch_shard(&plan, step, shard++);

                    cr_assert_eq(one.first, at);
                    cr_assert_eq(one.step_first, mine.step_first);
                    at += one.count;
                }
                cr_assert_eq(at, mine.first + mine.count);
            }
            cr_assert_eq(shard, plan.shards);
        }
    }
}

/* tests/golden/make_distributed_sampler.py */
Test(sampler, strided_is_what_torch_distributed_sampler_gives)
{
    char line[256];
    FILE *f;
    int rows = 0;

    f = fopen(ER_SOURCE_ROOT "/tests/golden/distributed_sampler.txt", "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof(line), f)) {
        char *at = line;
        uint64_t head[4], i = 0;
        struct er_strided s;

        for (int k = 0; k < 4; k++)
            head[k] = strtoull(at, &at, 10);
        s = (struct er_strided){
            .samples = head[0], .world = head[1], .drop_last = head[2], .rank = head[3]};
        for (char *end; (void)strtoull(at, &end, 10), end != at; i++) {
            double weight;
            uint64_t want = strtoull(at, &at, 10);

            cr_assert_lt(i, er_strided_count(&s), "%s", line);
            cr_assert_eq(er_strided_at(&s, i, &weight), want, "%s", line);
            cr_assert_eq(weight, s.rank + i * s.world < s.samples ? 1.0 : 0.0);
        }
        cr_assert_eq(i, er_strided_count(&s), "%s", line);
        rows++;
    }
    fclose(f);
    cr_assert_gt(rows, 100);
}

Test(sampler, strided_counts_every_sample_once)
{
    for (uint64_t samples = 1; samples <= 50; samples++) {
        for (uint64_t world = 1; world <= 9; world++) {
            double total[50] = {0};

            for (uint64_t rank = 0; rank < world; rank++) {
                const struct er_strided s = {.samples = samples, .world = world, .rank = rank};

                for (uint64_t i = 0; i < er_strided_count(&s); i++) {
                    double weight;
                    uint64_t at = er_strided_at(&s, i, &weight);

                    total[at] += weight;
                }
            }
            for (uint64_t at = 0; at < samples; at++)
                cr_assert_eq(total[at], 1.0);
        }
    }
}
