/* The engine of a GPU against the CPU's, on the double of CUDA and cuBLAS: every operation, forward
 * and backward, and the optimizers. */
#include "trainer/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/half.h"
#include "tests/contract/on_gpu.h"
#include "trainer/engine_ops.h"
#include "trainer/half.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/sampler.h"

enum { PARAMS_MAX = 3, ELEMENTS_MAX = 8192, N = 6, C = 70, T = 40, WIDTH = 24 };

struct side {
    struct er_engine *engine;
    struct er_flat_param table[PARAMS_MAX];
    struct er_flat flat;
    struct er_tape *tape;
    void *memory;
    double sum;
    float values[ELEMENTS_MAX], grads[ELEMENTS_MAX]; /* of the last pass, and all gradients */
};

typedef int (*run_fn)(struct er_tape *tape, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *err);

static struct side cpu, gpu;
static struct er_error err = ER_ERROR_INIT;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != 0) {                                                                         \
            er_tap_note("%s: %s", #call, err.text);                                                \
            er_tap_require(false);                                                                 \
        }                                                                                          \
    } while (0)

static float noise(uint64_t a, uint64_t i)
{
    return (float)((double)(er_rng(11, a, 1, i) >> 11) * 0x1p-52 - 1.0);
}

static void open_side(struct side *s, enum er_device_kind kind, const struct er_shape *shapes,
                      size_t n)
{
    static const char *const names[PARAMS_MAX] = {"p0", "p1", "p2"};
    struct er_device_opts opts = {.kind = kind};
    float initial[ELEMENTS_MAX];

    *s = (struct side){0};
    OK(er_engine_open(&s->engine, &opts, &err));
    er_flat_init(&s->flat, s->table, PARAMS_MAX, er_optim_state_names(ER_OPTIM_ADAMW), 2);
    for (size_t i = 0; i < n; i++)
        OK(er_flat_add(&s->flat, names[i], &shapes[i], NULL, &err));
    OK(er_engine_alloc(s->engine, er_flat_bytes(&s->flat), &s->memory, &err));
    er_flat_place(&s->flat, s->memory);
    for (size_t p = 0; p < n; p++) {
        for (size_t i = 0; i < s->table[p].count; i++)
            initial[i] = noise(p, i);
        OK(er_engine_put(s->engine, er_flat_at(&s->flat, ER_FLAT_VALUE, p), initial,
                         s->table[p].count * sizeof(float), &err));
    }
    OK(er_tape_new_on(&s->tape, &s->flat, 0, s->engine, &err));
}

static void close_side(struct side *s)
{
    er_tape_free(s->tape);
    er_engine_free(s->engine, s->memory);
    er_engine_close(s->engine);
}

static void open_both(const struct er_shape *shapes, size_t n)
{
    OK(er_matmul_setup(&err));
    open_side(&cpu, ER_DEVICE_CPU, shapes, n);
    open_side(&gpu, ER_DEVICE_CUDA, shapes, n);
}

static void fetch(struct side *s, float *to, const float *from, size_t n)
{
    er_tap_require(n <= ELEMENTS_MAX);
    OK(er_engine_get(s->engine, to, from, n * sizeof(float), &err));
}

static void fetch_values(struct side *s, const struct er_tensor *y)
{
    uint16_t half[ELEMENTS_MAX];

    if (y->dtype == ER_F32) {
        fetch(s, s->values, y->value, y->count);
        return;
    }
    er_tap_require(y->count <= ELEMENTS_MAX);
    OK(er_engine_get(s->engine, half, y->half, y->count * sizeof(*half), &err));
    er_half_to(y->dtype, half, s->values, y->count);
}

/* Twice, so that gradients add up: to what is there (flat memory), and in one pass (the output is
 * used twice). */
static void pass(struct side *s, run_fn run)
{
    struct er_tensor *p[PARAMS_MAX], *y = NULL, *z = NULL, *loss = NULL;
    static int32_t labels[ELEMENTS_MAX];
    struct er_shape flat = {2, {0, 2}};

    for (size_t i = 0; i < s->flat.params_n; i++)
        p[i] = er_tape_param(s->tape, i);
    for (int i = 0; i < ELEMENTS_MAX; i++)
        labels[i] = i % 5 ? i % 2 : -7;
    for (int time = 0; time < 2; time++) {
        OK(er_tape_begin(s->tape, &err));
        OK(run(s->tape, p, &y, &err));
        flat.dim[0] = y->count / 2;
        OK(er_reshape(s->tape, y, &flat, &z, &err));
        OK(er_add(s->tape, z, z, &z, &err));
        s->sum = 0;
        OK(er_cross_entropy_ignoring(s->tape, z, labels, -7, &s->sum, NULL, &loss, &err));
        er_tap_check(s->sum > 0); /* already */
        OK(er_tape_backward(s->tape, loss, &err));
    }
    fetch_values(s, y);
    fetch(s, s->grads, s->flat.block[ER_FLAT_GRAD], s->flat.total);
}

static bool near(const float *x, const float *y, size_t n, float part, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i] - y[i]) <= part * (1.0f + fabsf(x[i])))) {
            er_tap_note("%s %zu: %g on the CPU, %g on the GPU", what, i, (double)x[i],
                        (double)y[i]);
            return false;
        }
    }
    return true;
}

/* With parameters, and what is made of them, stored as `type`; `part`: how near. */
static void compare_as(const struct er_shape *shapes, size_t n, run_fn run, enum er_dtype type,
                       float part)
{
    open_both(shapes, n);
    OK(er_tape_store(cpu.tape, type, &err));
    OK(er_tape_store(gpu.tape, type, &err));
    pass(&cpu, run);
    pass(&gpu, run);
    er_tap_check(near(cpu.values, gpu.values, ELEMENTS_MAX, part, "value"));
    er_tap_check(near(cpu.grads, gpu.grads, gpu.flat.total, part, "gradient"));
    er_tap_check(fabs(cpu.sum - gpu.sum) < 1e-5 * cpu.sum + (double)part * 0.1 * cpu.sum);
    close_side(&gpu);
    close_side(&cpu);
}

static void compare(const struct er_shape *shapes, size_t n, run_fn run)
{
    compare_as(shapes, n, run, ER_F32, 2e-5f);
    /* Sums in another order are rounded the other way now and then. */
    compare_as(shapes, n, run, ER_BF16, 0x1p-7f);
    compare_as(shapes, n, run, ER_F16, 0x1p-10f);
}

/* ---- the operations ---- */

static int run_linear(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *e)
{
    return er_linear(t, p[0], p[1], p[2], ret, e);
}

static int run_matmul(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *e)
{
    return er_tensor_matmul(t, p[0], p[1], ret, e);
}

static int run_add(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *e)
{
    return er_add(t, p[0], p[1], ret, e);
}

static int run_mul(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                   struct er_error *e)
{
    return er_mul(t, p[0], p[1], ret, e);
}

static int run_relu(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *e)
{
    return er_relu(t, p[0], ret, e);
}

static int run_gelu(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *e)
{
    return er_gelu(t, p[0], ret, e);
}

static int run_layer_norm(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *e)
{
    return er_layer_norm(t, p[0], p[1], p[2], 1e-5f, ret, e);
}

static int run_rms_norm(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                        struct er_error *e)
{
    return er_rms_norm(t, p[0], p[1], 1e-5f, ret, e);
}

static int run_group_norm(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                          struct er_error *e)
{
    return er_group_norm(t, p[0], p[1], p[2], 3, 1e-5f, ret, e);
}

static int run_embedding(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *e)
{
    static const int32_t ids[10] = {3, 1, 3, 3, 0, 5, 1, 2, 3, 0};
    struct er_shape shape = er_shape_2d(2, 5);

    return er_embedding(t, p[0], ids, &shape, ret, e);
}

static int run_attention(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *e)
{
    return er_attention(t, p[0], 3, ret, e);
}

/* Blocks of 512 queries; the gradient is not a parameter's, so it is stored as its value is. */
static int run_long_attention(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                              struct er_error *e)
{
    struct er_tensor *x;
    int rc = er_add(t, p[0], p[0], &x, e);

    return rc ? rc : er_attention(t, x, 2, ret, e);
}

static int run_dropout(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                       struct er_error *e)
{
    static const uint64_t samples[N] = {100, 7, 12345, 0, 1, 1ull << 40};
    const struct er_dropout drop = {.p = 0.3f, .op = 3, .seed = 9, .samples = samples};

    return er_dropout(t, p[0], &drop, ret, e);
}

static int run_transpose(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                         struct er_error *e)
{
    return er_transpose(t, p[0], 1, 3, ret, e);
}

static int run_cast(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                    struct er_error *e)
{
    int rc = er_cast(t, p[0], ER_F16, ret, e);

    if (rc == 0)
        rc = er_cast(t, *ret, ER_BF16, ret, e);
    return rc ? rc : er_cast(t, *ret, ER_F32, ret, e);
}

static int run_inputs(struct er_tape *t, struct er_tensor *const *p, struct er_tensor **ret,
                      struct er_error *e)
{
    static float data[N * C];
    struct er_shape shape = er_shape_2d(N, C);
    struct er_tensor *x, *y;
    int rc;

    for (size_t i = 0; i < ER_ARRAY_N(data); i++)
        data[i] = noise(5, i);
    rc = er_tape_input(t, "x", &shape, data, &x, e);
    if (rc == 0)
        rc = er_tape_buffer(t, "y", &shape, &y, e);
    if (rc == 0)
        memcpy(y->value, data, sizeof(data));
    if (rc == 0)
        rc = er_add(t, x, y, &x, e);
    return rc ? rc : er_mul(t, x, p[0], ret, e);
}

static void products(void)
{
    const struct er_shape linear[] = {{3, {2, 3, C}}, {2, {WIDTH, C}}, {1, {WIDTH}}};
    const struct er_shape batched[] = {{3, {N, 5, 8}}, {3, {N, 8, 4}}};
    const struct er_shape single[] = {{3, {2, N, 8}}, {2, {8, 4}}};

    compare(linear, 3, run_linear);
    compare(batched, 2, run_matmul);
    compare(single, 2, run_matmul);
}

static void elements(void)
{
    const struct er_shape pair[] = {{2, {N, C}}, {1, {C}}};
    const struct er_shape four[] = {{4, {2, 3, 4, 5}}};

    compare(pair, 2, run_add);
    compare(pair, 2, run_mul);
    compare(pair, 1, run_relu);
    compare(pair, 1, run_gelu);
    compare(pair, 1, run_dropout);
    compare(pair, 1, run_cast);
    compare(pair + 1, 1, run_inputs);
    compare(four, 1, run_transpose);
}

static void rows(void)
{
    const struct er_shape norm[] = {{3, {2, 3, C}}, {1, {C}}, {1, {C}}};
    const struct er_shape groups[] = {{3, {N, 36, 4}}, {1, {36}}, {1, {36}}};
    const struct er_shape table[] = {{2, {N, C}}};
    const struct er_shape qkv[] = {{3, {2, T, 3 * WIDTH}}};
    const struct er_shape two_blocks_and_a_bit[] = {{3, {1, 1100, 6}}};

    compare(norm, 3, run_layer_norm);
    compare(norm, 2, run_rms_norm);
    compare(groups, 3, run_group_norm);
    compare(table, 1, run_embedding);
    compare(qkv, 1, run_attention);
    compare_as(two_blocks_and_a_bit, 1, run_long_attention, ER_F32, 2e-5f);
    /* Differences of large numbers, rounded by the products. */
    compare_as(two_blocks_and_a_bit, 1, run_long_attention, ER_BF16, 0x1p-5f);
    compare_as(two_blocks_and_a_bit, 1, run_long_attention, ER_F16, 0x1p-8f);
}

/* ---- bfloat16 ---- */

static void products_of_bfloat16_round_their_inputs(void)
{
    const struct er_shape linear[] = {{2, {N, C}}, {2, {WIDTH, C}}, {1, {WIDTH}}};
    const struct er_shape qkv[] = {{3, {2, T, 3 * WIDTH}}};
    struct er_tensor *y = NULL;
    static float x[N * C], w[WIDTH * C];

    open_both(linear, 3);
    er_tap_check(er_engine_products(gpu.engine, ER_F16, &err) == ER_E_UNSUPPORTED);
    er_tap_check(er_engine_products(cpu.engine, ER_BF16, &err) == ER_E_UNSUPPORTED);
    OK(er_engine_products(gpu.engine, ER_BF16, &err));
    for (size_t i = 0; i < N * C; i++)
        x[i] = er_float_of_bf16(er_bf16_of_float(noise(0, i)));
    for (size_t i = 0; i < WIDTH * C; i++)
        w[i] = er_float_of_bf16(er_bf16_of_float(noise(1, i)));
    OK(er_tape_begin(gpu.tape, &err));
    OK(er_linear(gpu.tape, er_tape_param(gpu.tape, 0), er_tape_param(gpu.tape, 1), NULL, &y, &err));
    fetch(&gpu, gpu.values, y->value, N * WIDTH);
    OK(er_engine_put(cpu.engine, er_flat_at(&cpu.flat, ER_FLAT_VALUE, 0), x, sizeof(x), &err));
    OK(er_engine_put(cpu.engine, er_flat_at(&cpu.flat, ER_FLAT_VALUE, 1), w, sizeof(w), &err));
    OK(er_tape_begin(cpu.tape, &err));
    OK(er_linear(cpu.tape, er_tape_param(cpu.tape, 0), er_tape_param(cpu.tape, 1), NULL, &y, &err));
    er_tap_check(near(y->value, gpu.values, N * WIDTH, 2e-5f, "value"));
    close_side(&gpu);
    close_side(&cpu);
    /* forward and backward of batched products with gaps, near to those of float32 */
    open_both(qkv, 1);
    OK(er_engine_products(gpu.engine, ER_BF16, &err));
    pass(&cpu, run_attention);
    pass(&gpu, run_attention);
    er_tap_check(fabs(cpu.sum - gpu.sum) < 1e-2 * cpu.sum && cpu.sum != gpu.sum);
    for (size_t i = 0; i < gpu.flat.total; i++)
        er_tap_require(fabsf(cpu.grads[i] - gpu.grads[i]) < 0.03f);
    on_gpu_call_double("fake_cuda_step_begin");
    pass(&gpu, run_attention);
    on_gpu_call_double("fake_cuda_step_end");
    close_side(&gpu);
    close_side(&cpu);
}

/* ---- optimizers, norms ---- */

static void optimize(struct side *s, enum er_optim_kind kind)
{
    struct er_optim optim = kind == ER_OPTIM_SGD    ? er_optim_sgd()
                            : kind == ER_OPTIM_ADAM ? er_optim_adam()
                                                    : er_optim_adamw();
    struct er_optim_view view = er_optim_view_flat(&s->flat);

    optim.weight_decay = 0.1f;
    optim.nesterov = true;
    for (uint64_t step = 1; step <= 3; step++) {
        OK(er_engine_put(s->engine, view.grad, cpu.values, view.count * sizeof(float), &err));
        OK(er_engine_apply(s->engine, &optim, &view, step, 0.01, 0.125, &err));
    }
}

/* The same bits: they are the same operations. */
static void optimizers(void)
{
    const struct er_shape shape[] = {{2, {N, C}}};

    for (int kind = 0; kind < ER_OPTIM_COUNT; kind++) {
        open_both(shape, 1);
        for (int i = 0; i < N * C; i++)
            cpu.values[i] = noise(9, (uint64_t)i);
        optimize(&cpu, (enum er_optim_kind)kind);
        optimize(&gpu, (enum er_optim_kind)kind);
        fetch(&gpu, gpu.values, gpu.memory, 4 * gpu.flat.total);
        er_tap_check(memcmp(gpu.values, cpu.memory, er_flat_bytes(&cpu.flat)) == 0);
        close_side(&gpu);
        close_side(&cpu);
    }
}

static void norms_and_counts_come_with_the_wait(void)
{
    const struct er_shape shape[] = {{2, {N, C}}};
    double want = 0, got = 0;
    uint64_t bad = 0;

    open_both(shape, 1);
    for (int i = 0; i < N * C; i++)
        gpu.values[i] = noise(3, (uint64_t)i);
    want = er_optim_norm2(gpu.values, N * C);
    OK(er_engine_put(gpu.engine, gpu.memory, gpu.values, N * C * sizeof(float), &err));
    for (int i = 0; i < 5000; i++) /* more than fit: some are waited for */
        OK(gpu.engine->ops->norm2(gpu.engine, gpu.memory, N * C, &got, &err));
    OK(gpu.engine->ops->count_bad(gpu.engine, gpu.memory, N * C, &bad, &err));
    OK(er_engine_wait(gpu.engine, &err));
    er_tap_check(fabs(got - 5000 * want) < 1e-9 * got && bad == 0);
    gpu.values[7] = NAN;
    gpu.values[N * C - 1] = INFINITY;
    OK(er_engine_put(gpu.engine, gpu.memory, gpu.values, N * C * sizeof(float), &err));
    OK(gpu.engine->ops->count_bad(gpu.engine, gpu.memory, N * C, &bad, &err));
    OK(er_engine_wait(gpu.engine, &err));
    er_tap_check(bad == 2);
    close_side(&gpu);
    close_side(&cpu);
}

/* ---- rules ---- */

/* After a step of the largest size nothing is allocated: the double would end the process. */
static void a_step_allocates_nothing(void)
{
    const struct er_shape linear[] = {{3, {2, 3, C}}, {2, {WIDTH, C}}, {1, {WIDTH}}};

    open_side(&gpu, ER_DEVICE_CUDA, linear, 3);
    pass(&gpu, run_linear);
    on_gpu_call_double("fake_cuda_step_begin");
    pass(&gpu, run_linear);
    on_gpu_call_double("fake_cuda_step_end");
    close_side(&gpu);
    er_tap_check(true);
}

static int infer_strange(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                         struct er_error *e)
{
    *ret_out = node->in[0]->shape;
    *ret_saved = 0;
    return 0;
}

static void an_operation_of_the_programs_own_is_refused(void)
{
    static const struct er_tape_op strange = {
        .name = "strange", .inputs_n = 1, .infer = infer_strange};
    const struct er_shape shape[] = {{2, {N, C}}};
    struct er_tensor *x, *y;

    open_side(&gpu, ER_DEVICE_CUDA, shape, 1);
    x = er_tape_param(gpu.tape, 0);
    er_tap_check(er_tape_apply(gpu.tape, &strange, &x, NULL, &y, &err) == ER_E_UNSUPPORTED);
    er_tap_check(strstr(err.text, "'strange' is not offered on a GPU") != NULL);
    close_side(&gpu);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"products", products, 0},
        {"elements", elements, 0},
        {"rows", rows, 0},
        {"products_of_bfloat16_round_their_inputs", products_of_bfloat16_round_their_inputs, 0},
        {"optimizers", optimizers, 0},
        {"norms_and_counts_come_with_the_wait", norms_and_counts_come_with_the_wait, 0},
        {"a_step_allocates_nothing", a_step_allocates_nothing, 0},
        {"an_operation_of_the_programs_own_is_refused", an_operation_of_the_programs_own_is_refused,
         0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
