/* How operations behave in use: sums, wrong shapes and labels, special values. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/lib/op_bench.h"

enum { B = 5, I = 4, O = 3 };

static const int32_t labels[B] = {2, 0, 1, 1, 2};

static double coefficient(size_t i)
{
    return 0.25 * (double)(i % 7) - 0.625;
}

/* Gradients of a batch are the sum of its samples' gradients, not their mean. */
Test(ops, gradients_are_sums_over_the_batch)
{
    const struct er_shape shapes[] = {{2, {O, I}}, {1, {O}}};
    float x[B * I], whole[O * I], *dw;
    struct er_tensor *in, *y, *loss;
    struct er_error err = ER_ERROR_INIT;
    double sum, sums = 0;
    struct op_bench bench;

    op_bench_open(&bench, shapes, 2);
    dw = er_flat_at(&bench.flat, ER_FLAT_GRAD, 0);
    for (int i = 0; i < B * I; i++)
        x[i] = (float)coefficient((size_t)i);
    /* B batches of one sample add up in the flat memory */
    for (size_t b = 0; b <= B; b++) {
        struct er_shape rows = er_shape_2d(b < B ? 1 : B, I);

        if (b == B) {
            memcpy(whole, dw, sizeof(whole));
            memset(bench.flat.block[ER_FLAT_GRAD], 0, bench.flat.total * sizeof(float));
        }
        cr_assert_eq(er_tape_begin(bench.tape, &err), 0);
        cr_assert_eq(er_tape_input(bench.tape, "x", &rows, x + b % B * I, &in, &err), 0);
        cr_assert_eq(er_linear(bench.tape, in, er_tape_param(bench.tape, 0),
                               er_tape_param(bench.tape, 1), &y, &err),
                     0);
        cr_assert_eq(er_cross_entropy(bench.tape, y, labels + b % B, &sum, &loss, &err), 0);
        cr_assert_float_eq(sum, (double)loss->value[0], 1e-5);
        cr_assert_eq(er_tape_backward(bench.tape, loss, &err), 0);
        sums += b < B ? sum : -sum;
    }
    cr_assert_float_eq(sums, 0, 1e-5);
    for (int i = 0; i < O * I; i++)
        cr_assert_float_eq((double)dw[i], (double)whole[i], 1e-5);
    op_bench_close(&bench);
}

Test(ops, shapes_that_do_not_fit_are_named)
{
    const struct er_shape shapes[] = {{2, {O, I}}, {1, {O}}, {1, {O + 1}}};
    struct er_tensor *p[OP_BENCH_PARAMS_MAX], *x, *y = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_shape good = er_shape_2d(B, I), bad = er_shape_2d(B, I + 1);
    static const float data[B * (I + 1)];
    struct op_bench bench;

    op_bench_open(&bench, shapes, 3);
    for (size_t i = 0; i < 3; i++)
        p[i] = er_tape_param(bench.tape, i);
    cr_assert_eq(er_tape_input(bench.tape, "images", &bad, data, &x, &err), 0);
    cr_assert_eq(er_linear(bench.tape, x, p[0], p[1], &y, &err), -EINVAL);
    cr_assert_str_eq(err.text,
                     "linear: 'images' (5, 5), 'p0' (3, 4), 'p1' (3) do not fit: expected (.., I), "
                     "(O, I) and (O), none above 2147483647");
    cr_assert_eq(er_tape_input(bench.tape, "images", &good, data, &x, &err), 0);
    cr_assert_eq(er_linear(bench.tape, x, p[0], p[2], &y, &err), -EINVAL);
    cr_assert_eq(er_linear(bench.tape, x, p[1], p[1], &y, &err), -EINVAL);
    cr_assert_eq(er_linear(bench.tape, p[1], p[0], p[1], &y, &err), -EINVAL);
    cr_assert_eq(er_cross_entropy(bench.tape, p[1], labels, NULL, &y, &err), -EINVAL);
    cr_assert_str_eq(err.text, "cross_entropy: logits 'p1' (3), expected (B, C)");
    cr_assert_null(y);
    op_bench_close(&bench);
}

Test(ops, labels_outside_the_classes_are_refused)
{
    const struct er_shape shapes[] = {{2, {2, O}}};
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *loss = NULL;
    struct op_bench bench;

    op_bench_open(&bench, shapes, 1);
    cr_assert_eq(er_cross_entropy(bench.tape, er_tape_param(bench.tape, 0), (const int32_t[]){0, 3},
                                  NULL, &loss, &err),
                 -EINVAL);
    cr_assert_str_eq(err.text, "cross_entropy: label 3 of sample 1 is not a class of 'p0': "
                               "expected 0 to 2");
    cr_assert_eq(er_cross_entropy(bench.tape, er_tape_param(bench.tape, 0),
                                  (const int32_t[]){-1, 0}, NULL, &loss, &err),
                 -EINVAL);
    cr_assert_null(loss);
    op_bench_close(&bench);
}

Test(ops, large_logits_and_nan_are_handled)
{
    const struct er_shape shapes[] = {{2, {2, 2}}};
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *loss, *y, *z;
    struct op_bench bench;
    double sum;

    op_bench_open(&bench, shapes, 1);
    z = er_tape_param(bench.tape, 0);
    memcpy(z->value, (const float[]){1e4f, -1e4f, -3e38f, 3e38f}, 4 * sizeof(float));
    cr_assert_eq(er_cross_entropy(bench.tape, z, (const int32_t[]){0, 1}, &sum, &loss, &err), 0);
    cr_assert_eq(sum, 0.0);
    z->value[0] = NAN;
    cr_assert_eq(er_relu(bench.tape, z, &y, &err), 0);
    cr_assert(isnan(y->value[0]), "a NaN must not vanish");
    op_bench_close(&bench);
}
