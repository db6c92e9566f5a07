/* Each operation against finite differences of its own definition in double precision. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/rand.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"

enum { PARAMS_MAX = 3, ELEMENTS_MAX = 64, B = 5, I = 4, O = 3 };

/* One operation under test: its inputs are all parameters, so that every gradient is kept. */
struct op_case {
    size_t params_n;
    struct er_shape shape[PARAMS_MAX];
    size_t out_n;
    /* the definition: out from p[] */
    void (*define)(const double *const *p, double *out);
    int (*run)(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
               struct er_error *err);
};

static const int32_t labels[B] = {2, 0, 1, 1, 2};

static void define_linear(const double *const *p, double *out)
{
    for (int b = 0; b < B; b++) {
        for (int o = 0; o < O; o++) {
            out[b * O + o] = p[2][o];
            for (int i = 0; i < I; i++)
                out[b * O + o] += p[0][b * I + i] * p[1][o * I + i];
        }
    }
}

static int run_linear(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err)
{
    return er_linear(tape, p[0], p[1], p[2], ret, err);
}

static void define_relu(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++)
        out[i] = p[0][i] > 0 ? p[0][i] : 0;
}

static int run_relu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *err)
{
    return er_relu(tape, p[0], ret, err);
}

static void define_cross_entropy(const double *const *p, double *out)
{
    out[0] = 0;
    for (int b = 0; b < B; b++) {
        double sum = 0;

        for (int o = 0; o < O; o++)
            sum += exp(p[0][b * O + o]);
        out[0] += log(sum) - p[0][b * O + labels[b]];
    }
}

static int run_cross_entropy(struct er_tape *tape, struct er_tensor *const *p,
                             struct er_tensor **ret, struct er_error *err)
{
    return er_cross_entropy(tape, p[0], labels, NULL, ret, err);
}

static const struct op_case cases[ER_OP_ID_COUNT] = {
    [ER_OP_ID_linear] = {3, {{2, {B, I}}, {2, {O, I}}, {1, {O}}}, B *O, define_linear, run_linear},
    [ER_OP_ID_relu] = {1, {{2, {B, I}}}, B *I, define_relu, run_relu},
    [ER_OP_ID_cross_entropy] = {1, {{2, {B, O}}}, 1, define_cross_entropy, run_cross_entropy},
};

/* loss (1) = sum of coefficient[i] * x[i]: gives every output of an operation its own weight. */
static double coefficient(size_t i)
{
    return 0.25 * (double)(i % 7) - 0.625;
}

static int infer_weigh(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                       struct er_error *err)
{
    *ret_out = er_shape_1d(1);
    return 0;
}

static void forward_weigh(const struct er_node *node)
{
    double sum = 0;

    for (size_t i = 0; i < node->in[0]->count; i++)
        sum += coefficient(i) * (double)node->in[0]->value[i];
    node->out->value[0] = (float)sum;
}

static void backward_weigh(const struct er_node *node, float beta)
{
    for (size_t i = 0; i < node->in[0]->count; i++)
        node->in[0]->grad[i] =
            (beta > 0 ? node->in[0]->grad[i] : 0) + (float)coefficient(i) * node->out->grad[0];
}

static const struct er_tape_op weigh = {.name = "weigh",
                                        .inputs_n = 1,
                                        .infer = infer_weigh,
                                        .forward = forward_weigh,
                                        .backward = {backward_weigh}};

struct bench {
    struct er_pool *pool;
    struct er_flat_param table[PARAMS_MAX];
    struct er_flat flat;
    struct er_tape *tape;
};

static void open_bench(struct bench *bench, const struct er_shape *shapes, size_t n)
{
    static const char *const names[PARAMS_MAX] = {"p0", "p1", "p2"};
    struct er_error err = ER_ERROR_INIT;
    struct er_rand r;

    cr_assert_eq(er_matmul_setup(&err), 0, "%s", err.text);
    er_flat_init(&bench->flat, bench->table, PARAMS_MAX, NULL, 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(er_flat_add(&bench->flat, names[i], &shapes[i], NULL, &err), 0);
    cr_assert_eq(er_pool_new(&bench->pool, er_flat_bytes(&bench->flat), &err), 0);
    er_flat_bind(&bench->flat, er_pool_alloc(bench->pool, er_flat_bytes(&bench->flat), 64));
    cr_assert_eq(er_tape_new(&bench->tape, &bench->flat, 0, &err), 0);
    er_rand_init(&r, 11);
    for (size_t i = 0; i < n; i++) {
        /* multiples of 1/64 away from 0, where relu has a corner */
        for (size_t j = 0; j < er_shape_count(&shapes[i]); j++)
            er_flat_at(&bench->flat, ER_FLAT_VALUE, i)[j] =
                ((float)er_rand_below(&r, 128) - 63.5f) / 64.0f;
    }
}

static void close_bench(struct bench *bench)
{
    er_tape_free(bench->tape);
    er_pool_free(bench->pool);
}

static double defined_loss(const struct op_case *c, const double *const *p)
{
    double out[ELEMENTS_MAX], loss = 0;

    c->define(p, out);
    for (size_t i = 0; i < c->out_n; i++)
        loss += coefficient(i) * out[i];
    return loss;
}

static void check_case(const struct op_case *c, const char *name)
{
    double wide[PARAMS_MAX][ELEMENTS_MAX], out[ELEMENTS_MAX];
    const double *p[PARAMS_MAX];
    struct er_tensor *in[PARAMS_MAX], *y, *loss;
    struct er_error err = ER_ERROR_INIT;
    struct bench bench;

    open_bench(&bench, c->shape, c->params_n);
    for (size_t i = 0; i < c->params_n; i++) {
        in[i] = er_tape_param(bench.tape, i);
        p[i] = wide[i];
        for (size_t j = 0; j < in[i]->count; j++)
            wide[i][j] = (double)in[i]->value[j];
    }
    cr_assert_eq(c->run(bench.tape, in, &y, &err), 0, "%s", err.text);
    cr_assert_eq(y->count, c->out_n);
    c->define(p, out);
    for (size_t i = 0; i < c->out_n; i++)
        cr_assert_float_eq((double)y->value[i], out[i], 1e-5, "%s: output %zu", name, i);
    cr_assert_eq(er_tape_apply(bench.tape, &weigh, &y, NULL, &loss, &err), 0);
    cr_assert_eq(er_tape_backward(bench.tape, loss, &err), 0, "%s", err.text);
    for (size_t i = 0; i < c->params_n; i++) {
        for (size_t j = 0; j < in[i]->count; j++) {
            const double h = 1e-5, x = wide[i][j];
            double up, down, want;

            wide[i][j] = x + h;
            up = defined_loss(c, p);
            wide[i][j] = x - h;
            down = defined_loss(c, p);
            wide[i][j] = x;
            want = (up - down) / (2 * h);
            cr_assert_float_eq((double)in[i]->grad[j], want, 1e-5 * (1 + fabs(want)),
                               "%s: input %zu element %zu: %g, want %g", name, i, j,
                               (double)in[i]->grad[j], want);
        }
    }
    close_bench(&bench);
}

Test(ops, gradients_equal_finite_differences)
{
    for (size_t i = 0; i < ER_OP_ID_COUNT; i++) {
        cr_assert_not_null(cases[i].run, "operation '%s' has no case", er_ops[i]->name);
        check_case(&cases[i], er_ops[i]->name);
    }
}

/* Gradients of a batch are the sum of its samples' gradients, not their mean. */
Test(ops, gradients_are_sums_over_the_batch)
{
    const struct er_shape shapes[] = {{2, {O, I}}, {1, {O}}};
    float x[B * I], whole[O * I], *dw;
    struct er_tensor *in, *y, *loss;
    struct er_error err = ER_ERROR_INIT;
    double sum, sums = 0;
    struct bench bench;

    open_bench(&bench, shapes, 2);
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
    close_bench(&bench);
}

Test(ops, shapes_that_do_not_fit_are_named)
{
    const struct er_shape shapes[] = {{2, {O, I}}, {1, {O}}, {1, {O + 1}}};
    struct er_tensor *p[PARAMS_MAX], *x, *y = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_shape good = er_shape_2d(B, I), bad = er_shape_2d(B, I + 1);
    static const float data[B * (I + 1)];
    struct bench bench;

    open_bench(&bench, shapes, 3);
    for (size_t i = 0; i < 3; i++)
        p[i] = er_tape_param(bench.tape, i);
    cr_assert_eq(er_tape_input(bench.tape, "images", &bad, data, &x, &err), 0);
    cr_assert_eq(er_linear(bench.tape, x, p[0], p[1], &y, &err), -EINVAL);
    cr_assert_str_eq(err.text,
                     "linear: input 'images' (5, 5), weight 'p0' (3, 4) and bias 'p1' (3) "
                     "do not fit: expected (B, I), (O, I) and (O), none above 2147483647");
    cr_assert_eq(er_tape_input(bench.tape, "images", &good, data, &x, &err), 0);
    cr_assert_eq(er_linear(bench.tape, x, p[0], p[2], &y, &err), -EINVAL);
    cr_assert_eq(er_linear(bench.tape, x, p[1], p[1], &y, &err), -EINVAL);
    cr_assert_eq(er_linear(bench.tape, p[1], p[0], p[1], &y, &err), -EINVAL);
    cr_assert_eq(er_cross_entropy(bench.tape, p[1], labels, NULL, &y, &err), -EINVAL);
    cr_assert_str_eq(err.text, "cross_entropy: logits 'p1' (3), expected (B, C)");
    cr_assert_null(y);
    close_bench(&bench);
}

Test(ops, labels_outside_the_classes_are_refused)
{
    const struct er_shape shapes[] = {{2, {2, O}}};
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *loss = NULL;
    struct bench bench;

    open_bench(&bench, shapes, 1);
    cr_assert_eq(er_cross_entropy(bench.tape, er_tape_param(bench.tape, 0), (const int32_t[]){0, 3},
                                  NULL, &loss, &err),
                 -EINVAL);
    cr_assert_str_eq(err.text, "cross_entropy: label 3 of sample 1 is not a class of 'p0': "
                               "expected 0 to 2");
    cr_assert_eq(er_cross_entropy(bench.tape, er_tape_param(bench.tape, 0),
                                  (const int32_t[]){-1, 0}, NULL, &loss, &err),
                 -EINVAL);
    cr_assert_null(loss);
    close_bench(&bench);
}

Test(ops, large_logits_and_nan_are_handled)
{
    const struct er_shape shapes[] = {{2, {2, 2}}};
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *loss, *y, *z;
    struct bench bench;
    double sum;

    open_bench(&bench, shapes, 1);
    z = er_tape_param(bench.tape, 0);
    memcpy(z->value, (const float[]){1e4f, -1e4f, -3e38f, 3e38f}, 4 * sizeof(float));
    cr_assert_eq(er_cross_entropy(bench.tape, z, (const int32_t[]){0, 1}, &sum, &loss, &err), 0);
    cr_assert_eq(sum, 0.0);
    z->value[0] = NAN;
    cr_assert_eq(er_relu(bench.tape, z, &y, &err), 0);
    cr_assert(isnan(y->value[0]), "a NaN must not vanish");
    close_bench(&bench);
}
