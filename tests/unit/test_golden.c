/* Operations, optimizers and schedules against PyTorch's numbers: tests/golden/make_golden.py. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/golden.h"
#include "tests/lib/op_bench.h"
#include "trainer/half.h"
#include "trainer/optim.h"
#include "trainer/schedule.h"

typedef int (*run_fn)(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err);

static const int32_t labels[] = {2, 0, 6, 1, 1};
static const int32_t ignoring[] = {2, -100, 6, -100, 1};
static const int32_t ids[] = {3, 0, 3, 299, 3, 1};

static int run_linear(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err)
{
    return er_linear(tape, p[0], p[1], p[2], ret, err);
}

static int run_linear_plain(struct er_tape *tape, struct er_tensor *const *p,
                            struct er_tensor **ret, struct er_error *err)
{
    return er_linear(tape, p[0], p[1], NULL, ret, err);
}

static int run_matmul(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err)
{
    return er_tensor_matmul(tape, p[0], p[1], ret, err);
}

static int run_add(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *err)
{
    return er_add(tape, p[0], p[1], ret, err);
}

static int run_mul(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *err)
{
    return er_mul(tape, p[0], p[1], ret, err);
}

static int run_relu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *err)
{
    return er_relu(tape, p[0], ret, err);
}

/* Of 4 x, so that its flat ends are met too. */
static int run_gelu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *err)
{
    static const float four[1] = {4.0f};
    struct er_shape one = er_shape_1d(1), column = {3, {3, 17, 1}}, flat = er_shape_2d(3, 17);
    struct er_tensor *x, *by;
    int rc = er_reshape(tape, p[0], &column, &x, err);

    if (rc == 0)
        rc = er_tape_input(tape, "four", &one, four, &by, err);
    if (rc == 0)
        rc = er_mul(tape, x, by, &x, err);
    if (rc == 0)
        rc = er_reshape(tape, x, &flat, &x, err);
    return rc < 0 ? rc : er_gelu(tape, x, ret, err);
}

static int run_layer_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *err)
{
    return er_layer_norm(tape, p[0], p[1], p[2], 1e-5f, ret, err);
}

static int run_rms_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                        struct er_error *err)
{
    return er_rms_norm(tape, p[0], p[1], 1e-6f, ret, err);
}

static int run_group_norm(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *err)
{
    return er_group_norm(tape, p[0], p[1], p[2], 2, 1e-5f, ret, err);
}

static int run_embedding(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *err)
{
    struct er_shape shape = er_shape_2d(2, 3);

    return er_embedding(tape, p[0], ids, &shape, ret, err);
}

static int run_attention(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *err)
{
    return er_attention(tape, p[0], 2, ret, err);
}

static int run_attention_long(struct er_tape *tape, struct er_tensor *const *p,
                              struct er_tensor **ret, struct er_error *err)
{
    return er_attention(tape, p[0], 1, ret, err);
}

static int run_transpose(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *err)
{
    return er_transpose(tape, p[0], 0, 2, ret, err);
}

static int run_cross_entropy(struct er_tape *tape, struct er_tensor *const *p,
                             struct er_tensor **ret, struct er_error *err)
{
    return er_cross_entropy(tape, p[0], labels, NULL, ret, err);
}

static int run_ignoring(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                        struct er_error *err)
{
    size_t count = 0;
    int rc = er_cross_entropy_ignoring(tape, p[0], ignoring, -100, NULL, &count, ret, err);

    cr_assert_eq(count, 3);
    return rc;
}

static const struct op_row {
    const char *name;
    run_fn run;
} op_rows[] = {
    {"linear", run_linear},
    {"linear_plain", run_linear_plain},
    {"matmul", run_matmul},
    {"matmul_shared", run_matmul},
    {"add", run_add},
    {"mul", run_mul},
    {"relu", run_relu},
    {"gelu", run_gelu},
    {"layer_norm", run_layer_norm},
    {"rms_norm", run_rms_norm},
    {"group_norm", run_group_norm},
    {"embedding", run_embedding},
    {"attention", run_attention},
    {"attention_long", run_attention_long},
    {"transpose", run_transpose},
    {"cross_entropy", run_cross_entropy},
    {"cross_entropy_ignoring", run_ignoring},
};

/* Of an element, and of the largest one. */
struct near {
    float each, largest;
};
static const struct near plain = {2e-5f, 0};

static void compare(const char *name, const char *what, const float *got, const float *want,
                    size_t n, struct near near)
{
    float largest = 0;

    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(want[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert_leq(fabsf(got[i] - want[i]),
                      near.each * (1 + fabsf(want[i])) + near.largest * largest,
                      "%s, %s: element %zu is %.8g, want %.8g", name, what, i, (double)got[i],
                      (double)want[i]);
}

static const float *part(const struct golden *golden, const char *name, const char *what,
                         struct er_shape *ret_shape)
{
    char full[96];

    snprintf(full, sizeof(full), "%s.%s", name, what);
    return golden_find(golden, full, ret_shape);
}

static size_t find_inputs(const struct golden *golden, const char *name, const float **ret_values,
                          struct er_shape *ret_shapes)
{
    size_t n = 0;
    char what[8] = "in0";

    for (; n < OP_BENCH_PARAMS_MAX; n++) {
        what[2] = (char)('0' + n);
        ret_values[n] = part(golden, name, what, &ret_shapes[n]);
        if (!ret_values[n])
            break;
    }
    cr_assert_gt(n, 0, "%s is not in the golden file", name);
    return n;
}

/* The values of `y` as float32: where they are, or in `room`. */
static const float *widened(const struct er_tensor *y, float *room)
{
    if (y->dtype == ER_F32)
        return y->value;
    er_half_to(y->dtype, y->half, room, y->count);
    return room;
}

/* `name` in the file, with parameters stored as `type`. */
static void check_op(const struct golden *golden, const char *name, run_fn run, enum er_dtype type,
                     struct near near)
{
    static float room[1024];
    struct er_shape shapes[OP_BENCH_PARAMS_MAX], shape;
    const float *values[OP_BENCH_PARAMS_MAX];
    struct er_tensor *in[OP_BENCH_PARAMS_MAX] = {0}, *y, *loss;
    size_t n = find_inputs(golden, name, values, shapes);
    struct er_error err = ER_ERROR_INIT;
    struct op_bench bench;
    char what[] = "grad0";

    op_bench_open(&bench, shapes, n);
    for (size_t i = 0; i < n; i++) {
        in[i] = er_tape_param(bench.tape, i);
        memcpy(in[i]->value, values[i], in[i]->count * sizeof(float));
    }
    cr_assert_eq(er_tape_store(bench.tape, type, &err), 0, "%s", err.text);
    cr_assert_eq(er_tape_begin(bench.tape, &err), 0);
    cr_assert_eq(run(bench.tape, in, &y, &err), 0, "%s", err.text);
    compare(name, "output", widened(y, room), part(golden, name, "out", &shape), y->count, near);
    cr_assert(er_shape_equal(&y->shape, &shape), "%s", name);
    cr_assert_eq(op_bench_weigh(&bench, y, part(golden, name, "weights", &shape), &loss, &err), 0);
    cr_assert_eq(er_tape_backward(bench.tape, loss, &err), 0, "%s", err.text);
    for (size_t i = 0; i < n; i++) {
        what[4] = (char)('0' + i);
        compare(name, what, in[i]->grad, part(golden, name, what, &shape), in[i]->count, near);
    }
    op_bench_close(&bench);
}

Test(golden, operations_equal_pytorch)
{
    struct golden *golden = golden_open("ops.txt");

    for (size_t i = 0; i < ER_ARRAY_N(op_rows); i++)
        check_op(golden, op_rows[i].name, op_rows[i].run, ER_F32, plain);
    golden_close(golden);
}

static int run_plain_gelu(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *err)
{
    return er_gelu(tape, p[0], ret, err);
}

static const struct op_row half_rows[] = {
    {"linear", run_linear},
    {"matmul", run_matmul},
    {"add", run_add},
    {"mul", run_mul},
    {"relu", run_relu},
    {"gelu", run_plain_gelu},
    {"layer_norm", run_layer_norm},
    {"rms_norm", run_rms_norm},
    {"embedding", run_embedding},
    {"attention", run_attention},
    {"cross_entropy", run_cross_entropy},
};

/* Stored in 16 bits, computed in float32, rounded once: half a unit in the last place, and what
 * the rounded output of attention does to its gradient. PyTorch's own sums of bfloat16 are rounded
 * on their way. */
Test(golden, operations_of_16_bits_equal_pytorch)
{
    static const struct {
        const char *name;
        enum er_dtype type;
        struct near near;
    } kinds[] = {
        {"bf16", ER_BF16, {0x1p-8f, 0}},
        {"f16", ER_F16, {0x1p-11f, 0}},
        {"native", ER_BF16, {0, 0x1p-6f}},
    };
    struct golden *golden = golden_open("half.txt");

    for (size_t i = 0; i < ER_ARRAY_N(kinds) * ER_ARRAY_N(half_rows); i++) {
        size_t k = i / ER_ARRAY_N(half_rows);
        const struct op_row *row = &half_rows[i % ER_ARRAY_N(half_rows)];
        struct er_shape shape;
        char name[64];

        snprintf(name, sizeof(name), "%s.%s", kinds[k].name, row->name);
        if (k < 2 || part(golden, name, "out", &shape))
            check_op(golden, name, row->run, kinds[k].type, kinds[k].near);
    }
    golden_close(golden);
}

static const struct optim_row {
    const char *name;
    double lr, max_norm;
    struct er_optim optim;
} optim_rows[] = {
    {"sgd", 0.1, 0, {.kind = ER_OPTIM_SGD}},
    {"sgd_momentum", 0.1, 0, {.kind = ER_OPTIM_SGD, .momentum = 0.9f}},
    {"sgd_decay", 0.1, 0, {.kind = ER_OPTIM_SGD, .momentum = 0.9f, .weight_decay = 0.05f}},
    {"sgd_nesterov",
     0.1,
     0,
     {.kind = ER_OPTIM_SGD, .momentum = 0.9f, .weight_decay = 0.05f, .nesterov = true}},
    {"adam", 0.01, 0, {.kind = ER_OPTIM_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}},
    {"adam_decay",
     0.01,
     0,
     {.kind = ER_OPTIM_ADAM, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f}},
    {"adamw",
     0.01,
     0,
     {.kind = ER_OPTIM_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f}},
    {"adamw_clipped",
     0.01,
     1.5,
     {.kind = ER_OPTIM_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f}},
    {"sgd_clipped", 0.1, 1.5, {.kind = ER_OPTIM_SGD, .momentum = 0.9f}},
};

/* The gradients come as sums over `weight` samples, as they do in training. */
static void check_optimizer(const struct golden *golden, const struct optim_row *row)
{
    enum { N_MAX = 64 };
    static const double weight = 8;
    struct er_shape shape, steps;
    const float *start = part(golden, row->name, "start", &shape);
    const float *grads = part(golden, row->name, "grads", &steps);
    const float *values = part(golden, row->name, "values", &steps);
    float p[N_MAX], g[N_MAX], m[N_MAX] = {0}, v[N_MAX] = {0};
    size_t n = shape.dim[0];
    struct er_optim_view view = {.value = p, .grad = g, .state = {m, v}, .count = n};

    cr_assert(start && grads && values && n <= N_MAX, "%s", row->name);
    memcpy(p, start, n * sizeof(float));
    for (size_t t = 0; t < steps.dim[0]; t++) {
        for (size_t i = 0; i < n; i++)
            g[i] = grads[t * n + i] * (float)weight;
        er_optim_apply(&row->optim, &view, t + 1, row->lr,
                       er_optim_clip(er_optim_norm2(g, n), weight, row->max_norm));
        compare(row->name, "values", p, values + t * n, n, plain);
    }
}

Test(golden, optimizers_equal_pytorch)
{
    struct golden *golden = golden_open("optim.txt");

    for (size_t i = 0; i < ER_ARRAY_N(optim_rows); i++)
        check_optimizer(golden, &optim_rows[i]);
    golden_close(golden);
}

/* PyTorch's lists begin before the first step: entry k is the rate of step k + 1. Our cosine
 * reaches lr_end in its last step and so is one entry ahead. */
Test(golden, schedules_equal_pytorch)
{
    struct er_schedule cosine = {
        .kind = ER_SCHEDULE_COSINE, .lr = 0.8, .lr_end = 0.05, .total_steps = 20};
    struct er_schedule step = {
        .kind = ER_SCHEDULE_STEP, .lr = 0.8, .every_steps = 4, .factor = 0.5};
    struct golden *golden = golden_open("schedule.txt");
    struct er_shape shape;
    const float *want = golden_get(golden, "cosine", &shape);

    for (size_t k = 1; k < shape.dim[0]; k++)
        cr_assert_float_eq(er_schedule_lr(&cosine, k), (double)want[k], 1e-7);
    want = golden_get(golden, "step", &shape);
    for (size_t k = 0; k < shape.dim[0]; k++)
        cr_assert_float_eq(er_schedule_lr(&step, k + 1), (double)want[k], 1e-7);
    golden_close(golden);
}
