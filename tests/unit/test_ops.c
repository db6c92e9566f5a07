/* Each operation against finite differences of its own definition in double precision. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/op_bench.h"
#include "trainer/sampler.h"

enum { ELEMENTS_MAX = 192, B = 5, I = 4, O = 3 };
/* attention; group norm (samples, channels, positions, groups) */
enum { T = 4, C = 8, HEADS = 2, D = C / HEADS, N = 3, CH = 6, POS = 2, GROUPS = 3 };

static const double EPS = 1e-5;

/* One operation under test. */
struct op_case {
    size_t params_n;
    struct er_shape shape[OP_BENCH_PARAMS_MAX];
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

/* Two products of (B, I) by (I, O). */
static void define_matmul(const double *const *p, double *out)
{
    for (int x = 0; x < 2 * B * O; x++) {
        int n = x / (B * O), b = x / O % B, o = x % O;

        out[x] = 0;
        for (int i = 0; i < I; i++)
            out[x] += p[0][(n * B + b) * I + i] * p[1][(n * I + i) * O + o];
    }
}

static int run_matmul(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err)
{
    return er_tensor_matmul(tape, p[0], p[1], ret, err);
}

static void define_add(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++)
        out[i] = p[0][i] + p[1][i % I];
}

static int run_add(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *err)
{
    return er_add(tape, p[0], p[1], ret, err);
}

static void define_mul(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++)
        out[i] = p[0][i] * p[1][i % I];
}

static int run_mul(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *err)
{
    return er_mul(tape, p[0], p[1], ret, err);
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

static void define_gelu(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++) {
        double x = p[0][i];

        out[i] = x / 2 * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    }
}

static int run_gelu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *err)
{
    return er_gelu(tape, p[0], ret, err);
}

static void moments(const double *x, int n, double *ret_mean, double *ret_variance)
{
    *ret_mean = *ret_variance = 0;
    for (int i = 0; i < n; i++)
        *ret_mean += x[i] / n;
    for (int i = 0; i < n; i++)
        *ret_variance += (x[i] - *ret_mean) * (x[i] - *ret_mean) / n;
}

static void define_layer_norm(const double *const *p, double *out)
{
    for (int b = 0; b < B; b++) {
        double mean, variance;

        moments(p[0] + b * 18, 18, &mean, &variance);
        for (int i = 0; i < 18; i++)
            out[b * 18 + i] = (p[0][b * 18 + i] - mean) / sqrt(variance + EPS) * p[1][i] + p[2][i];
    }
}

static int run_layer_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *err)
{
    return er_layer_norm(tape, p[0], p[1], p[2], (float)EPS, ret, err);
}

static void define_rms_norm(const double *const *p, double *out)
{
    for (int b = 0; b < B; b++) {
        double squares = 0;

        for (int i = 0; i < 18; i++)
            squares += p[0][b * 18 + i] * p[0][b * 18 + i] / 18;
        for (int i = 0; i < 18; i++)
            out[b * 18 + i] = p[0][b * 18 + i] / sqrt(squares + EPS) * p[1][i];
    }
}

static int run_rms_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                        struct er_error *err)
{
    return er_rms_norm(tape, p[0], p[1], (float)EPS, ret, err);
}

static void define_group_norm(const double *const *p, double *out)
{
    const int n = CH / GROUPS * POS;

    for (int g = 0; g < N * GROUPS; g++) {
        double mean, variance;

        moments(p[0] + g * n, n, &mean, &variance);
        for (int i = g * n; i < (g + 1) * n; i++)
            out[i] =
                (p[0][i] - mean) / sqrt(variance + EPS) * p[1][i / POS % CH] + p[2][i / POS % CH];
    }
}

static int run_group_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *err)
{
    return er_group_norm(tape, p[0], p[1], p[2], GROUPS, (float)EPS, ret, err);
}

static void define_embedding(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++)
        out[i] = p[0][labels[i / I] * I + i % I];
}

static int run_embedding(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *err)
{
    struct er_shape shape = er_shape_1d(B);

    return er_embedding(tape, p[0], labels, &shape, ret, err);
}

/* Query `t` of one sample and head: its part of out. */
static void attend(const double *qkv, int t, double *out)
{
    double weight[T], sum = 0;

    for (int j = 0; j <= t; j++) {
        double score = 0;

        for (int d = 0; d < D; d++)
            score += qkv[t * 3 * C + d] * qkv[j * 3 * C + C + d];
        weight[j] = exp(score / sqrt(D));
        sum += weight[j];
    }
    for (int d = 0; d < D; d++) {
        out[t * C + d] = 0;
        for (int j = 0; j <= t; j++)
            out[t * C + d] += weight[j] / sum * qkv[j * 3 * C + 2 * C + d];
    }
}

static void define_attention(const double *const *p, double *out)
{
    for (int b = 0; b < 2; b++) {
        for (int h = 0; h < HEADS; h++) {
            for (int t = 0; t < T; t++)
                attend(p[0] + b * T * 3 * C + h * D, t, out + b * T * C + h * D);
        }
    }
}

static int run_attention(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *err)
{
    return er_attention(tape, p[0], HEADS, ret, err);
}

static const uint64_t samples[B] = {100, 7, 12345, 0, 1};
static const struct er_dropout drop = {.p = 0.25f, .op = 3, .seed = 9, .samples = samples};

static void define_dropout(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++) {
        uint64_t draw = er_rng(9, samples[i / I], 3, 0) >> 16 * (i % I);

        out[i] = (draw & 65535) >= 16384 ? p[0][i] / 0.75 : 0;
    }
}

static int run_dropout(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                       struct er_error *err)
{
    return er_dropout(tape, p[0], &drop, ret, err);
}

static void define_reshape(const double *const *p, double *out)
{
    for (int i = 0; i < B * I; i++)
        out[i] = p[0][i];
}

static int run_reshape(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                       struct er_error *err)
{
    struct er_shape shape = {3, {2, B, I / 2}};

    return er_reshape(tape, p[0], &shape, ret, err);
}

/* The bench's values are numbers of bfloat16, too. */
static int run_cast(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *err)
{
    int rc = er_cast(tape, p[0], ER_BF16, ret, err);

    return rc ? rc : er_cast(tape, *ret, ER_F32, ret, err);
}

/* (2, B, I, O), 1, 3 -> (2, O, I, B) */
static void define_transpose(const double *const *p, double *out)
{
    for (int x = 0; x < 2 * B * I * O; x++) {
        int n = x / (B * I * O), b = x / (I * O) % B, i = x / O % I, o = x % O;

        out[((n * O + o) * I + i) * B + b] = p[0][x];
    }
}

static int run_transpose(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *err)
{
    return er_transpose(tape, p[0], 1, 3, ret, err);
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
    [ER_OP_ID_matmul] = {2, {{3, {2, B, I}}, {3, {2, I, O}}}, 2 * B *O, define_matmul, run_matmul},
    [ER_OP_ID_add] = {2, {{2, {B, I}}, {1, {I}}}, B *I, define_add, run_add},
    [ER_OP_ID_mul] = {2, {{2, {B, I}}, {1, {I}}}, B *I, define_mul, run_mul},
    [ER_OP_ID_relu] = {1, {{2, {B, I}}}, B *I, define_relu, run_relu},
    [ER_OP_ID_gelu] = {1, {{2, {B, I}}}, B *I, define_gelu, run_gelu},
    [ER_OP_ID_layer_norm] =
        {3, {{2, {B, 18}}, {1, {18}}, {1, {18}}}, B * 18, define_layer_norm, run_layer_norm},
    [ER_OP_ID_rms_norm] = {2, {{2, {B, 18}}, {1, {18}}}, B * 18, define_rms_norm, run_rms_norm},
    [ER_OP_ID_group_norm] = {3,
                             {{3, {N, CH, POS}}, {1, {CH}}, {1, {CH}}},
                             N *CH *POS,
                             define_group_norm,
                             run_group_norm},
    [ER_OP_ID_embedding] = {1, {{2, {O, I}}}, B *I, define_embedding, run_embedding},
    [ER_OP_ID_attention] = {1, {{3, {2, T, 3 * C}}}, 2 * T *C, define_attention, run_attention},
    [ER_OP_ID_dropout] = {1, {{2, {B, I}}}, B *I, define_dropout, run_dropout},
    [ER_OP_ID_reshape] = {1, {{2, {B, I}}}, B *I, define_reshape, run_reshape},
    [ER_OP_ID_transpose] = {1, {{4, {2, B, I, O}}}, 2 * B *I *O, define_transpose, run_transpose},
    [ER_OP_ID_cast] = {1, {{2, {B, I}}}, B *I, define_reshape, run_cast},
    [ER_OP_ID_cross_entropy] = {1, {{2, {B, O}}}, 1, define_cross_entropy, run_cross_entropy},
};

static double coefficient(size_t i)
{
    return 0.25 * (double)(i % 7) - 0.625;
}

static double defined_loss(const struct op_case *c, const double *const *p)
{
    double out[ELEMENTS_MAX], loss = 0;

    c->define(p, out);
    for (size_t i = 0; i < c->out_n; i++)
        loss += coefficient(i) * out[i];
    return loss;
}

static void check_gradient(const struct op_case *c, const char *name, const double *const *p,
                           double *wide, const struct er_tensor *in)
{
    for (size_t j = 0; j < in->count; j++) {
        const double h = 1e-5, x = wide[j];
        double up, down, want;

        wide[j] = x + h;
        up = defined_loss(c, p);
        wide[j] = x - h;
        down = defined_loss(c, p);
        wide[j] = x;
        want = (up - down) / (2 * h);
        cr_assert_float_eq((double)in->grad[j], want, 1e-5 * (1 + fabs(want)),
                           "%s: input %s element %zu: %g, want %g", name, in->name, j,
                           (double)in->grad[j], want);
    }
}

static void check_case(const struct op_case *c, const char *name)
{
    double wide[OP_BENCH_PARAMS_MAX][ELEMENTS_MAX], out[ELEMENTS_MAX];
    float weights[ELEMENTS_MAX];
    const double *p[OP_BENCH_PARAMS_MAX];
    struct er_tensor *in[OP_BENCH_PARAMS_MAX], *y, *loss;
    struct er_error err = ER_ERROR_INIT;
    struct op_bench bench;

    op_bench_open(&bench, c->shape, c->params_n);
    for (size_t i = 0; i < c->params_n; i++) {
        in[i] = er_tape_param(bench.tape, i);
        p[i] = wide[i];
        cr_assert_leq(in[i]->count, ELEMENTS_MAX);
        for (size_t j = 0; j < in[i]->count; j++)
            wide[i][j] = (double)in[i]->value[j];
    }
    cr_assert_eq(c->run(bench.tape, in, &y, &err), 0, "%s", err.text);
    cr_assert_eq(y->count, c->out_n);
    c->define(p, out);
    for (size_t i = 0; i < c->out_n; i++) {
        cr_assert_float_eq((double)y->value[i], out[i], 1e-5, "%s: output %zu: %g, want %g", name,
                           i, (double)y->value[i], out[i]);
        weights[i] = (float)coefficient(i);
    }
    cr_assert_eq(op_bench_weigh(&bench, y, weights, &loss, &err), 0);
    cr_assert_eq(er_tape_backward(bench.tape, loss, &err), 0, "%s", err.text);
    for (size_t i = 0; i < c->params_n; i++)
        check_gradient(c, name, p, wide[i], in[i]);
    op_bench_close(&bench);
}

Test(ops, gradients_equal_finite_differences)
{
    for (size_t i = 0; i < ER_OP_ID_COUNT; i++) {
        cr_assert_not_null(cases[i].run, "operation '%s' has no case", er_ops[i]->name);
        check_case(&cases[i], er_ops[i]->name);
    }
}
