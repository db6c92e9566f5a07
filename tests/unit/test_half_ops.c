/* Tensors stored in 16 bits: an operation gives the bits of its float32 loops on the widened
 * inputs, rounded once; parameters keep float32 master values. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/op_bench.h"
#include "trainer/half.h"

enum { N_MAX = 4096, ROWS = 6, C = 48, O = 20, T = 70 };

typedef int (*run_fn)(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err);

static const int32_t labels[ROWS] = {2, 0, 1, 19, 2, 5};
static struct er_error err = ER_ERROR_INIT;

static int run_linear(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *e)
{
    return er_linear(tape, p[0], p[1], p[2], ret, e);
}

static int run_matmul(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *e)
{
    return er_tensor_matmul(tape, p[0], p[1], ret, e);
}

/* Twice the same input, and twice the same output. */
static int run_add(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *e)
{
    int rc = er_add(tape, p[0], p[1], ret, e);

    return rc ? rc : er_add(tape, *ret, *ret, ret, e);
}

static int run_mul(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *e)
{
    return er_mul(tape, p[0], p[1], ret, e);
}

static int run_relu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *e)
{
    return er_relu(tape, p[0], ret, e);
}

static int run_gelu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *e)
{
    return er_gelu(tape, p[0], ret, e);
}

static int run_layer_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *e)
{
    return er_layer_norm(tape, p[0], p[1], p[2], 1e-5f, ret, e);
}

static int run_rms_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                        struct er_error *e)
{
    return er_rms_norm(tape, p[0], p[1], 1e-5f, ret, e);
}

static int run_group_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *e)
{
    return er_group_norm(tape, p[0], p[1], p[2], 3, 1e-5f, ret, e);
}

static int run_embedding(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *e)
{
    static const int32_t ids[10] = {3, 1, 3, 3, 0, 5, 1, 2, 3, 0};
    struct er_shape shape = er_shape_2d(2, 5);

    return er_embedding(tape, p[0], ids, &shape, ret, e);
}

static int run_attention(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *e)
{
    return er_attention(tape, p[0], 3, ret, e);
}

static int run_dropout(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                       struct er_error *e)
{
    static const uint64_t samples[ROWS] = {100, 7, 12345, 0, 1, 1ull << 40};
    const struct er_dropout drop = {.p = 0.3f, .op = 3, .seed = 9, .samples = samples};

    return er_dropout(tape, p[0], &drop, ret, e);
}

static int run_reshape(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                       struct er_error *e)
{
    struct er_shape shape = er_shape_1d(ROWS * C);

    return er_reshape(tape, p[0], &shape, ret, e);
}

static int run_transpose(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *e)
{
    return er_transpose(tape, p[0], 0, 1, ret, e);
}

static int run_cast(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *e)
{
    int rc = er_cast(tape, p[0], ER_F32, ret, e);

    return rc ? rc : er_cast(tape, *ret, p[0]->dtype, ret, e);
}

static int run_cross_entropy(struct er_tape *tape, struct er_tensor *const *p,
                             struct er_tensor **ret, struct er_error *e)
{
    return er_cross_entropy(tape, p[0], labels, NULL, ret, e);
}

static const struct op_row {
    size_t n;
    struct er_shape shape[3];
    run_fn run;
} rows[ER_OP_ID_COUNT] = {
    [ER_OP_ID_linear] = {3, {{2, {ROWS, C}}, {2, {O, C}}, {1, {O}}}, run_linear},
    [ER_OP_ID_matmul] = {2, {{3, {2, ROWS, C}}, {3, {2, C, O}}}, run_matmul},
    [ER_OP_ID_add] = {2, {{2, {ROWS, C}}, {1, {C}}}, run_add},
    [ER_OP_ID_mul] = {2, {{2, {ROWS, C}}, {1, {C}}}, run_mul},
    [ER_OP_ID_relu] = {1, {{2, {ROWS, C}}}, run_relu},
    [ER_OP_ID_gelu] = {1, {{2, {ROWS, C}}}, run_gelu},
    [ER_OP_ID_layer_norm] = {3, {{2, {ROWS, C}}, {1, {C}}, {1, {C}}}, run_layer_norm},
    [ER_OP_ID_rms_norm] = {2, {{2, {ROWS, C}}, {1, {C}}}, run_rms_norm},
    [ER_OP_ID_group_norm] = {3, {{3, {ROWS, 36, 4}}, {1, {36}}, {1, {36}}}, run_group_norm},
    [ER_OP_ID_embedding] = {1, {{2, {ROWS, C}}}, run_embedding},
    [ER_OP_ID_attention] = {1, {{3, {1, T, 54}}}, run_attention},
    [ER_OP_ID_dropout] = {1, {{2, {ROWS, C}}}, run_dropout},
    [ER_OP_ID_reshape] = {1, {{2, {ROWS, C}}}, run_reshape},
    [ER_OP_ID_transpose] = {1, {{2, {ROWS, C}}}, run_transpose},
    [ER_OP_ID_cast] = {1, {{2, {ROWS, C}}}, run_cast},
    [ER_OP_ID_cross_entropy] = {1, {{2, {ROWS, O}}}, run_cross_entropy},
};

static float weights[N_MAX];

static void round_to(enum er_dtype type, float *x, size_t n)
{
    uint16_t half[N_MAX];

    cr_assert_leq(n, N_MAX);
    er_half_from(type, x, half, n);
    er_half_to(type, half, x, n);
}

/* Parameters that are not numbers of 16 bits. */
static void open_bench(struct op_bench *bench, const struct er_shape *shapes, size_t n)
{
    op_bench_open(bench, shapes, n);
    for (size_t p = 0; p < n; p++) {
        float *value = er_flat_at(&bench->flat, ER_FLAT_VALUE, p);

        for (size_t i = 0; i < bench->table[p].count; i++)
            value[i] *= 1.0f + (float)((i * 37 + p) % 101) / 77.0f;
    }
    for (size_t i = 0; i < N_MAX; i++)
        weights[i] = (float)((double)(i % 23) * 0.25 - 2.5); /* exact in both */
}

/* Forward, backward; the output as float32. */
static void pass(struct op_bench *bench, run_fn run, float *out, size_t *ret_n,
                 enum er_dtype *ret_type)
{
    struct er_tensor *p[3], *y = NULL, *loss = NULL;

    cr_assert_eq(er_tape_begin(bench->tape, &err), 0);
    for (size_t i = 0; i < bench->flat.params_n; i++)
        p[i] = er_tape_param(bench->tape, i);
    cr_assert_eq(run(bench->tape, p, &y, &err), 0, "%s", err.text);
    *ret_type = y->dtype;
    *ret_n = y->count;
    er_half_convert(y->dtype, y->value, ER_F32, out, y->count);
    cr_assert_eq(op_bench_weigh(bench, y, weights, &loss, &err), 0);
    cr_assert_eq(er_tape_backward(bench->tape, loss, &err), 0, "%s", err.text);
}

/* Of the largest of them. */
static void check_near(const float *want, const float *got, size_t n, float part)
{
    float most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(want[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert_lt(fabsf(want[i] - got[i]), part * most, "%zu: %g, want %g", i, (double)got[i],
                     (double)want[i]);
}

static void check(const struct op_row *row, const char *name, enum er_dtype type)
{
    static float want[N_MAX], got[N_MAX];
    struct op_bench wide, half;
    enum er_dtype out_type;
    size_t n;

    open_bench(&wide, row->shape, row->n);
    open_bench(&half, row->shape, row->n);
    for (size_t p = 0; p < row->n; p++)
        round_to(type, er_flat_at(&wide.flat, ER_FLAT_VALUE, p), wide.table[p].count);
    cr_assert_eq(er_tape_store(half.tape, type, &err), 0, "%s", err.text);
    pass(&wide, row->run, want, &n, &out_type);
    pass(&half, row->run, got, &n, &out_type);
    if (out_type == ER_F32)
        cr_assert_eq(er_ops[ER_OP_ID_cross_entropy]->name, name);
    else
        round_to(type, want, n);
    /* run_add() rounds twice: its terms are doubled, which is exact. */
    cr_assert_arr_eq(got, want, n * sizeof(float), "%s of %s", name, er_dtype_name(type));
    for (size_t p = 0; p < row->n; p++) {
        const float *grad = er_flat_at(&half.flat, ER_FLAT_GRAD, p);
        const float *wanted = er_flat_at(&wide.flat, ER_FLAT_GRAD, p);

        if (row->run == run_attention) /* backward uses the output, which was rounded */
            check_near(wanted, grad, wide.table[p].count, type == ER_BF16 ? 0.004f : 0.0005f);
        else
            cr_assert_arr_eq(grad, wanted, wide.table[p].count * sizeof(float),
                             "%s of %s: gradient %zu", name, er_dtype_name(type), p);
    }
    op_bench_close(&wide);
    op_bench_close(&half);
}

Test(half_ops, storage_is_the_only_thing_that_is_rounded)
{
    for (size_t i = 0; i < ER_OP_ID_COUNT; i++) {
        if (i == ER_OP_ID_cross_entropy) /* its loss is float32 */
            continue;
        cr_assert_not_null(rows[i].run, "operation '%s' has no case", er_ops[i]->name);
        check(&rows[i], er_ops[i]->name, ER_BF16);
        check(&rows[i], er_ops[i]->name, ER_F16);
    }
}

/* A chain of operations: what lies between them has gradients of 16 bits. */
static int chain(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                 struct er_error *e)
{
    struct er_tensor *x, *y;
    int rc = er_layer_norm(tape, p[0], p[2], p[2], 1e-5f, &x, e);

    if (rc == 0)
        rc = er_linear(tape, x, p[1], NULL, &y, e);
    if (rc == 0)
        rc = er_gelu(tape, y, &y, e);
    if (rc == 0)
        rc = er_linear(tape, y, p[1], NULL, &y, e);
    if (rc == 0)
        rc = er_add(tape, x, y, &x, e);
    return rc ? rc : er_cross_entropy(tape, x, labels, NULL, ret, e);
}

Test(half_ops, a_chain_of_operations_follows_float32)
{
    const struct er_shape shapes[] = {{2, {ROWS, O}}, {2, {O, O}}, {1, {O}}};
    float loss[3];

    for (int type = 0; type < 3; type++) {
        static const enum er_dtype types[] = {ER_F32, ER_BF16, ER_F16};
        static float grads[2][N_MAX];
        struct op_bench bench;
        enum er_dtype out;
        size_t n;

        open_bench(&bench, shapes, 3);
        cr_assert_eq(er_tape_store(bench.tape, types[type], &err), 0);
        pass(&bench, chain, &loss[type], &n, &out);
        cr_assert_eq(out, ER_F32);
        memcpy(grads[type > 0], bench.flat.block[ER_FLAT_GRAD], bench.flat.total * sizeof(float));
        if (type > 0)
            check_near(grads[0], grads[1], bench.flat.total, type == 1 ? 0.03f : 0.004f);
        op_bench_close(&bench);
    }
    cr_assert_float_eq(loss[1], loss[0], 0.01 * (double)loss[0]);
    cr_assert_float_eq(loss[2], loss[0], 0.001 * (double)loss[0]);
    cr_assert_neq(loss[1], loss[0]);
}

/* Small steps, which bfloat16 would lose, add up in the master values. */
Test(half_ops, parameters_keep_master_values)
{
    const struct er_shape shape[] = {{1, {16}}};
    struct op_bench bench;
    struct er_tensor *x = NULL;
    float seen[16];

    op_bench_open(&bench, shape, 1);
    for (size_t i = 0; i < 16; i++)
        bench.flat.block[ER_FLAT_VALUE][i] = 1.0f;
    cr_assert_eq(er_tape_store(bench.tape, ER_BF16, &err), 0);
    for (int step = 0; step < 40; step++) {
        cr_assert_eq(er_tape_begin(bench.tape, &err), 0);
        cr_assert_eq(er_relu(bench.tape, er_tape_param(bench.tape, 0), &x, &err), 0);
        for (size_t i = 0; i < 16; i++)
            bench.flat.block[ER_FLAT_VALUE][i] += 1e-4f;
    }
    cr_assert_eq(er_tape_begin(bench.tape, &err), 0);
    cr_assert_eq(er_relu(bench.tape, er_tape_param(bench.tape, 0), &x, &err), 0);
    er_half_to(ER_BF16, x->half, seen, 16);
    cr_assert_eq(seen[3], 1.0078125f); /* 1.004, rounded */
    cr_assert_eq(er_tape_store(bench.tape, ER_F32, &err), 0);
    cr_assert_eq(er_tape_begin(bench.tape, &err), 0);
    cr_assert_eq(er_tape_param(bench.tape, 0)->value, bench.flat.block[ER_FLAT_VALUE]);
    op_bench_close(&bench);
}

Test(half_ops, a_loss_is_scaled)
{
    const struct er_shape shape[] = {{2, {ROWS, O}}};
    float plain[ROWS * O], out;
    struct op_bench bench;
    enum er_dtype type;
    size_t n;

    open_bench(&bench, shape, 1);
    pass(&bench, run_cross_entropy, &out, &n, &type);
    memcpy(plain, bench.flat.block[ER_FLAT_GRAD], sizeof(plain));
    memset(bench.flat.block[ER_FLAT_GRAD], 0, sizeof(plain));
    er_tape_scale(bench.tape, 1024.0f);
    pass(&bench, run_cross_entropy, &out, &n, &type);
    for (size_t i = 0; i < ER_ARRAY_N(plain); i++)
        cr_assert_eq(bench.flat.block[ER_FLAT_GRAD][i], 1024.0f * plain[i]);
    op_bench_close(&bench);
}

Test(half_ops, what_does_not_fit_is_refused)
{
    const struct er_shape shapes[] = {{2, {ROWS, C}}, {2, {O, C}}, {1, {O}}};
    struct er_tensor *x, *y;
    struct op_bench bench;

    op_bench_open(&bench, shapes, 3);
    cr_assert_eq(er_tape_begin(bench.tape, &err), 0);
    cr_assert_eq(er_cast(bench.tape, er_tape_param(bench.tape, 0), ER_BF16, &x, &err), 0);
    cr_assert_eq(er_linear(bench.tape, x, er_tape_param(bench.tape, 1), NULL, &y, &err),
                 ER_E_USAGE);
    cr_assert_str_eq(err.text, "linear: 'cast' is of bf16 and 'p1' of f32: er_cast() one of them");
    cr_assert_eq(er_cast(bench.tape, x, ER_I64, &y, &err), ER_E_UNSUPPORTED);
    cr_assert_eq(er_tape_store(bench.tape, ER_F64, &err), ER_E_UNSUPPORTED);
    cr_assert_eq(er_tape_input_as(bench.tape, "x", &shapes[0], ER_U8, "", &y, &err),
                 ER_E_UNSUPPORTED);
    /* a norm's weights may stay float32 */
    cr_assert_eq(er_rms_norm(bench.tape, x, er_tape_param(bench.tape, 0), 1e-5f, &y, &err),
                 -EINVAL);
    cr_assert_eq(er_add(bench.tape, x, er_tape_param(bench.tape, 0), &y, &err), 0, "%s", err.text);
    cr_assert_eq(y->dtype, ER_BF16);
    cr_assert_eq(er_cast(bench.tape, y, ER_BF16, &x, &err), 0);
    cr_assert_eq(x, y);
    op_bench_close(&bench);
}
