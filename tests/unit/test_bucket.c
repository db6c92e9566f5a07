/* Buckets: which gradients travel together, and when a bucket is full. */
#include <criterion/criterion.h>

#include <string.h>

#include "base/cleanup.h"
#include "trainer/bucket.h"

#define SPANS_MAX 8
#define FLOATS    4096

static float memory[FLOATS];

struct fixture {
    struct er_span spans[SPANS_MAX];
    struct er_bucket buckets[SPANS_MAX];
    uint32_t members[SPANS_MAX], bucket_of[SPANS_MAX];
    bool final[SPANS_MAX];
    struct er_bucket_plan plan;
};

static const char *const names[SPANS_MAX] = {"a", "b", "c", "d", "e", "f", "g", "h"};

/* Spans of `counts` one after the other in memory; a negative count leaves a hole before it. */
static void plan(struct fixture *f, const int *counts, size_t n, size_t first_bytes,
                 size_t bucket_bytes)
{
    float *at = memory;

    memset(f, 0, sizeof(*f));
    for (size_t i = 0; i < n; i++) {
        size_t count = (size_t)(counts[i] < 0 ? -counts[i] : counts[i]);

        at += counts[i] < 0;
        f->spans[i] = (struct er_span){names[i], at, count};
        at += count;
    }
    f->plan = (struct er_bucket_plan){.element = sizeof(float),
                                      .spans = f->spans,
                                      .spans_n = n,
                                      .buckets = f->buckets,
                                      .members = f->members,
                                      .bucket_of = f->bucket_of,
                                      .final = f->final};
    er_bucket_plan_make(&f->plan, NULL, first_bytes, bucket_bytes);
}

static void expect_layout(const struct fixture *f, const char *expected)
{
    char text[64];
    size_t n = er_bucket_layout(&f->plan, text, sizeof(text));

    cr_expect_str_eq(text, expected);
    cr_expect_eq(n, strlen(expected));
}

Test(bucket, last_layer_leaves_first)
{
    struct fixture f;

    plan(&f, (int[]){10, 10, 10, 10}, 4, 40, 80);
    expect_layout(&f, "d|b+c|a");
    cr_expect_eq(f.plan.buckets[1].ptr, f.spans[1].ptr);
    cr_expect_eq(f.plan.buckets[1].count, 20);
    cr_expect_eq(f.plan.bucket_of[0], 2);
    cr_expect_eq(f.plan.bucket_of[3], 0);
}

/* Eight of ten elements, 20 to a bucket, in another order of coming. */
static void plan_in_order(struct fixture *f, const uint32_t *order, size_t bytes)
{
    plan(f, (int[]){10, 10, 10, 10, 10, 10, 10, 10}, 8, bytes, bytes);
    er_bucket_plan_make(&f->plan, order, bytes, bytes);
}

Test(bucket, gradients_that_come_together_travel_together)
{
    struct fixture f;

    plan_in_order(&f, (const uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7}, 80);
    expect_layout(&f, "a+b|c+d|e+f|g+h");
    cr_expect_eq(f.plan.buckets[0].ptr, f.spans[0].ptr);
    cr_expect_eq(f.plan.bucket_of[1], 0);
    cr_expect_eq(f.plan.bucket_of[7], 3);
    plan_in_order(&f, (const uint32_t[]){1, 0, 3, 2, 5, 4, 7, 6}, 160); /* weights before biases */
    expect_layout(&f, "a+b+c+d|e+f+g+h");
}

Test(bucket, gradients_apart_in_memory_stay_apart)
{
    struct fixture f;

    plan_in_order(&f, (const uint32_t[]){0, 7, 2, 5, 1, 3, 4, 6}, 160);
    expect_layout(&f, "a|h|c|f|b|d+e|g");
    plan_in_order(&f, (const uint32_t[]){0, 7, 1, 6, 2, 5, 3, 4}, 160);
    expect_layout(&f, "a+b|g+h|c+d+e+f"); /* by the last of each: b came before g */
}

Test(bucket, order_is_each_gradient_once)
{
    bool seen[4];

    cr_expect(er_bucket_order_valid((const uint32_t[]){2, 0, 3, 1}, 4, seen));
    cr_expect_not(er_bucket_order_valid((const uint32_t[]){2, 0, 2, 1}, 4, seen));
    cr_expect_not(er_bucket_order_valid((const uint32_t[]){2, 0, 4, 1}, 4, seen));
    cr_expect(er_bucket_order_valid(NULL, 0, seen));
}

Test(bucket, small_gradients_share_one_bucket_by_default)
{
    struct fixture f;

    plan(&f, (int[]){100, 1, 100, 1}, 4, 0, 0);
    expect_layout(&f, "a+b+c+d");
    cr_expect_eq(f.plan.buckets[0].count, 202);
}

Test(bucket, holes_in_memory_end_a_bucket)
{
    struct fixture f;

    plan(&f, (int[]){10, -10, 10, 10}, 4, 4096, 4096);
    expect_layout(&f, "b+c+d|a");
}

Test(bucket, a_large_gradient_travels_alone)
{
    struct fixture f;

    plan(&f, (int[]){5, 1000, 5}, 3, 40, 40);
    expect_layout(&f, "c|b|a");
}

/* Nothing is read: the memory need not exist. */
static void place_mib(struct fixture *f, const double *mib, size_t n)
{
    uintptr_t at = 64;

    for (size_t i = 0; i < n; i++) {
        f->spans[i] =
            (struct er_span){names[i], (float *)at, (size_t)(mib[i] * (1 << 20)) / sizeof(float)};
        at += f->spans[i].count * sizeof(float);
    }
    f->plan.spans_n = n;
}

/* What comes last has no computation to hide behind. */
Test(bucket, buckets_become_smaller_towards_the_end)
{
    struct fixture f;

    plan(&f, (int[]){1}, 1, 0, 0);
    place_mib(&f, (double[]){0.125, 0.125, 0.25, 0.5, 1, 2, 2, 2}, 8);
    er_bucket_plan_make(&f.plan, NULL, 0, 0); /* without: all but the first in one of 25 MiB */
    expect_layout(&f, "h|g|f|e|d|c|a+b");
    place_mib(&f, (double[]){0.125, 0.125, 0.125, 0.0625}, 4); /* half of that is too little */
    er_bucket_plan_make(&f.plan, NULL, 0, 0);
    expect_layout(&f, "c+d|a+b");
    place_mib(&f, (double[]){0.0625, 0.0625, 0.0625, 0.0625}, 4);
    er_bucket_plan_make(&f.plan, NULL, 0, 0);
    expect_layout(&f, "a+b+c+d");
}

Test(bucket, every_element_is_in_exactly_one_bucket)
{
    static const size_t limits[] = {4, 36, 100, 400, 0};
    struct fixture f;

    for (size_t l = 0; l < ER_ARRAY_N(limits); l++) {
        static uint8_t covered[FLOATS];
        size_t total = 0;

        memset(covered, 0, sizeof(covered));
        plan(&f, (int[]){7, -30, 1, 9, -2, 64, 3, 12}, 8, limits[l], limits[l] * 2);
        for (size_t b = 0; b < f.plan.buckets_n; b++) {
            for (size_t i = 0; i < f.plan.buckets[b].count; i++)
                cr_assert_eq(covered[f.plan.buckets[b].ptr - memory + (ptrdiff_t)i]++, 0);
            total += f.plan.buckets[b].count;
        }
        cr_expect_eq(total, 128);
    }
}

Test(bucket, is_full_when_its_last_gradient_is_final)
{
    struct fixture f;

    plan(&f, (int[]){10, 10, 10}, 3, 80, 80);
    expect_layout(&f, "b+c|a");
    cr_expect_eq(er_bucket_mark(&f.plan, 2), 0);
    cr_expect_not(er_bucket_full(&f.plan, 0));
    cr_expect_eq(er_bucket_mark(&f.plan, 1), 0);
    cr_expect(er_bucket_full(&f.plan, 0));
    cr_expect_not(er_bucket_full(&f.plan, 1));
    er_bucket_mark_rest(&f.plan);
    cr_expect(er_bucket_full(&f.plan, 1));
    er_bucket_reset(&f.plan);
    cr_expect_not(er_bucket_full(&f.plan, 0));
}

Test(bucket, marking_twice_is_told_and_changes_nothing)
{
    struct fixture f;

    plan(&f, (int[]){10, 10}, 2, 80, 80);
    cr_expect_eq(er_bucket_mark(&f.plan, 0), 0);
    cr_expect_eq(er_bucket_mark(&f.plan, 0), ER_BUCKET_TWICE);
    cr_expect_not(er_bucket_full(&f.plan, 0));
}

Test(bucket, layout_is_cut_at_its_place)
{
    struct fixture f;
    char text[4] = "xxx";

    plan(&f, (int[]){10, 10, 10}, 3, 0, 0);
    cr_expect_eq(er_bucket_layout(&f.plan, text, sizeof(text)), 5);
    cr_expect_str_eq(text, "a+b");
    cr_expect_eq(er_bucket_layout(&f.plan, NULL, 0), 5);
}

Test(bucket, no_gradients_make_no_buckets)
{
    struct fixture f;

    plan(&f, NULL, 0, 0, 0);
    expect_layout(&f, "");
    cr_expect_eq(f.plan.buckets_n, 0);
}

Test(bucket, wrong_gradients_are_refused_by_name)
{
    static const struct {
        struct er_span spans[2];
        const char *text;
    } cases[] = {
        {{{"a", memory, 4}, {"", memory + 4, 4}}, "gradient 1 has no name"},
        {{{"a", memory, 4}, {NULL, memory + 4, 4}}, "gradient 1 has no name"},
        {{{"a", memory, 4}, {"x+y", memory + 4, 4}}, "'x+y'"},
        {{{"a", memory, 4}, {"x|y", memory + 4, 4}}, "'x|y'"},
        {{{"a", memory, 4}, {"b", memory + 4, 0}}, "'b' has no elements"},
        {{{"a", memory, 4}, {"b", NULL, 4}}, "'b' has no elements"},
        {{{"a", memory, 4}, {"a", memory + 4, 4}}, "called 'a'"},
        {{{"a", memory, 4}, {"b", memory + 3, 4}}, "'a' and 'b' overlap"},
        {{{"a", memory, 4}, {"b", memory + 4, SIZE_MAX / 4}}, "beyond memory"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct er_error err = ER_ERROR_INIT;

        cr_expect_eq(er_bucket_check(cases[i].spans, 2, sizeof(float), &err), ER_E_USAGE,
                     "case %zu", i);
        cr_expect(strstr(err.text, cases[i].text), "case %zu: %s", i, err.text);
    }
}
