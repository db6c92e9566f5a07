#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "base/rand.h"
#include "trainer/exact.h"

enum { N = 37, SHARDS = 12, WEIGHT = 100 };

struct bench {
    struct er_pool *pool;
    struct er_flat_param table[1];
    struct er_flat flat;
    struct er_exact exact;
    float *grad;
};

static void open_bench(struct bench *b)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_shape shape = er_shape_1d(N);
    size_t bytes;

    er_flat_init(&b->flat, b->table, 1, NULL, 0);
    cr_assert_eq(er_flat_add(&b->flat, "w", &shape, NULL, &err), 0);
    bytes = er_flat_bytes(&b->flat);
    cr_assert_eq(er_pool_new(&b->pool, bytes + er_exact_bytes(&b->flat), &err), 0);
    er_flat_bind(&b->flat, er_pool_alloc(b->pool, bytes, ER_FLAT_ALIGN));
    cr_assert_eq(er_exact_bind(&b->exact, &b->flat, SHARDS, WEIGHT,
                               er_pool_alloc(b->pool, er_exact_bytes(&b->flat), ER_FLAT_ALIGN),
                               &err),
                 0, "%s", err.text);
    b->grad = er_flat_at(&b->flat, ER_FLAT_GRAD, 0);
}

static float number(struct er_rand *r)
{
    return ldexpf((float)er_rand_below(r, 1u << 24) - (float)(1u << 23),
                  (int)er_rand_below(r, 20) - 34);
}

Test(exact, any_order_of_shards_gives_the_same_bits_and_the_mean)
{
    float shards[SHARDS][N], first[N];
    struct bench b;

    open_bench(&b);
    for (int round = 0; round < SHARDS; round++) {
        struct er_rand r;

        er_rand_init(&r, 5);
        for (int s = 0; s < SHARDS * N; s++)
            shards[s / N][s % N] = number(&r);
        for (int s = 0; s < SHARDS; s++) {
            memcpy(b.grad, shards[(s * 5 + round) % SHARDS], sizeof(first));
            cr_assert_eq(er_exact_fold(&b.exact, &b.flat, 0), 0);
        }
        er_exact_take(&b.exact, &b.flat, WEIGHT);
        for (int i = 0; i < N; i++) {
            double want = 0;

            for (int s = 0; s < SHARDS; s++)
                want += (double)shards[s][i] / WEIGHT;
            cr_assert_float_eq((double)b.grad[i], want, 1e-7 * fabs(want) + 0x1p-50);
        }
        if (round == 0)
            memcpy(first, b.grad, sizeof(first));
        cr_assert_eq(memcmp(first, b.grad, sizeof(first)), 0);
    }
    er_pool_free(b.pool);
}

/* Values near and at the ends of what 64 bits hold, and with fractions at the last bit. */
Test(exact, rounding_is_to_nearest_over_the_whole_range)
{
    struct bench b;
    struct er_rand r;

    open_bench(&b);
    er_rand_init(&r, 8);
    for (int round = 0; round < 2000; round++) {
        float x = ldexpf((float)er_rand_below(&r, 1u << 24) - (float)(1u << 23),
                         (int)er_rand_below(&r, 56) - 70);

        memset(b.grad, 0, N * sizeof(float));
        b.grad[round % N] = x;
        if (er_exact_fold(&b.exact, &b.flat, 0) > 0)
            continue;
        cr_assert_eq(b.exact.sums[round % N], llrint((double)x * b.exact.scale.unit), "%a",
                     (double)x);
        b.exact.sums[round % N] = 0;
    }
    er_pool_free(b.pool);
}

/* Of any division of the elements, as FSDP divides them; and it is the norm. */
Test(exact, the_norm_does_not_depend_on_who_holds_what)
{
    enum { MANY = 10000 };
    static int64_t sums[MANY];
    struct er_exact_norm whole;
    struct er_exact_scale scale;
    struct er_rand r;
    double want = 0;

    cr_assert_eq(er_exact_scale(&scale, SHARDS, WEIGHT, NULL), 0);
    er_rand_init(&r, 6);
    for (int i = 0; i < MANY; i++) {
        double x = (double)number(&r) * (i == 77 ? 100 : 1);

        sums[i] = llrint(x * scale.unit);
        want += x * x;
    }
    whole = er_exact_norm_of(&scale, sums, MANY);
    cr_assert_float_eq(er_exact_norm_value(&scale, &whole), want, 1e-9 * want);
    for (int round = 0; round < 20; round++) {
        struct er_exact_norm norm = {0};

        for (size_t at = 0, n; at < MANY; at += n) {
            struct er_exact_norm part;

            n = 1 + er_rand_below(&r, 5000);
            n = n < MANY - at ? n : MANY - at;
            part = er_exact_norm_of(&scale, sums + at, n);
            er_exact_norm_add(&norm, &part);
        }
        cr_assert_eq(memcmp(&norm, &whole, sizeof(norm)), 0);
    }
}

/* All elements at the end of their range: no overflow on the way. */
Test(exact, the_norm_of_the_largest_sums)
{
    enum { MANY = 9000 };
    static int64_t sums[MANY];
    struct er_exact_norm norm;
    struct er_exact_scale scale;
    double want;

    cr_assert_eq(er_exact_scale(&scale, SHARDS, WEIGHT, NULL), 0);
    for (int i = 0; i < MANY; i++)
        sums[i] = i % 2 ? INT64_MAX / 2 : -(INT64_MAX / 2);
    norm = er_exact_norm_of(&scale, sums, MANY);
    want = MANY * 0x1p62 * 0x1p62 / scale.unit / scale.unit;
    cr_assert_float_eq(er_exact_norm_value(&scale, &norm), want, 1e-9 * want);
}

Test(exact, what_does_not_fit_is_counted_and_left_out)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    struct bench b;

    open_bench(&b);
    memcpy(b.grad, bad, sizeof(bad));
    b.grad[4] = 1.0f;
    b.grad[5] = (float)b.exact.scale.limit;
    cr_assert_eq(er_exact_fold(&b.exact, &b.flat, 0), 4);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(b.exact.sums[i], 0);
    cr_assert_eq(b.exact.sums[4], (int64_t)b.exact.scale.unit);
    cr_assert_gt(b.exact.sums[5], 0);
    cr_assert_leq(b.exact.sums[5], INT64_MAX / SHARDS);
    er_pool_free(b.pool);
}

Test(exact, wrong_settings_are_refused)
{
    struct er_error err = ER_ERROR_INIT;
    struct bench b;

    open_bench(&b);
    cr_assert_eq(er_exact_bind(&b.exact, &b.flat, 0, 1, b.exact.sums, &err), -EINVAL);
    cr_assert_eq(er_exact_bind(&b.exact, &b.flat, 1, 0, b.exact.sums, &err), -EINVAL);
    cr_assert_eq(er_exact_bind(&b.exact, &b.flat, 1, UINT64_MAX, b.exact.sums, &err), -EINVAL);
    cr_assert_eq(er_exact_bind(&b.exact, &b.flat, 1, 1ull << 32, b.exact.sums, &err), 0);
    er_pool_free(b.pool);
}
