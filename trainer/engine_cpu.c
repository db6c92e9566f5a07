/* The CPU as an engine: the operations' own loops, done when they are asked for. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/engine_ops.h"
#include "trainer/half.h"

static size_t saved_cpu(struct er_engine *engine, const struct er_node *node, size_t wanted)
{
    return wanted;
}

static int forward_cpu(struct er_engine *engine, struct er_node *node, struct er_error *err)
{
    node->op->forward(node);
    return 0;
}

static int backward_cpu(struct er_engine *engine, struct er_node *node, uint32_t input, float beta,
                        struct er_error *err)
{
    node->op->backward[input](node, beta);
    return 0;
}

static int fill_cpu(struct er_engine *engine, float *at, float value, size_t n,
                    struct er_error *err)
{
    if (value == 0.0f)
        memset(at, 0, n * sizeof(*at));
    for (size_t i = 0; value != 0.0f && i < n; i++)
        at[i] = value;
    return 0;
}

static int copy_within_cpu(struct er_engine *engine, void *y, const void *x, size_t bytes,
                           struct er_error *err)
{
    memcpy(y, x, bytes);
    return 0;
}

static int add_cpu(struct er_engine *engine, float *y, const void *x, enum er_dtype type, size_t n,
                   struct er_error *err)
{
    const float *from = x;

    if (type != ER_F32)
        er_half_add(type, x, y, n);
    for (size_t i = 0; type == ER_F32 && i < n; i++)
        y[i] += from[i];
    return 0;
}

static int apply_cpu(struct er_engine *engine, const struct er_optim *optim,
                     const struct er_optim_view *view, uint64_t step, double lr, double scale,
                     struct er_error *err)
{
    er_optim_apply(optim, view, step, lr, scale);
    return 0;
}

static int norm2_cpu(struct er_engine *engine, const float *x, size_t n, double *into,
                     struct er_error *err)
{
    *into += er_optim_norm2(x, n);
    return 0;
}

static int count_bad_cpu(struct er_engine *engine, const float *x, size_t n, uint64_t *into,
                         struct er_error *err)
{
    uint64_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad += isfinite(x[i]) ? 0 : 1;
    *into += bad;
    return 0;
}

static int convert_cpu(struct er_engine *engine, const void *from, enum er_dtype from_type,
                       void *to, enum er_dtype to_type, size_t n, struct er_error *err)
{
    er_half_convert(from_type, from, to_type, to, n);
    return 0;
}

static int exact_put_cpu(struct er_engine *engine, const struct er_exact_scale *scale,
                         int64_t *sums, const float *grad, size_t n, bool adds, uint64_t *outside,
                         struct er_error *err)
{
    *outside += adds ? er_exact_add(scale, sums, grad, n) : er_exact_convert(scale, sums, grad, n);
    return 0;
}

static int exact_sum_cpu(struct er_engine *engine, int64_t *sums, const int64_t *from, size_t n,
                         struct er_error *err)
{
    er_exact_sum(sums, from, n);
    return 0;
}

static int exact_take_cpu(struct er_engine *engine, const struct er_exact_scale *scale,
                          int64_t *sums, float *grad, size_t n, double weight, struct er_error *err)
{
    er_exact_mean(scale, sums, grad, n, weight);
    return 0;
}

static int exact_norm_cpu(struct er_engine *engine, const struct er_exact_scale *scale,
                          const int64_t *sums, size_t n, uint64_t words[ER_EXACT_WORDS],
                          struct er_error *err)
{
    struct er_exact_norm norm = er_exact_norm_of(scale, sums, n);
    uint64_t more[ER_EXACT_WORDS];

    er_exact_norm_split(&norm, more);
    for (int i = 0; i < ER_EXACT_WORDS; i++)
        words[i] += more[i];
    return 0;
}

static int products_cpu(struct er_engine *engine, enum er_dtype type, struct er_error *err)
{
    return type == ER_F32 ? 0
                          : er_error_set(err, ER_E_UNSUPPORTED,
                                         "matrix products of bfloat16 are offered on a GPU only; "
                                         "er_tape_store() is offered here, too");
}

static int wait_cpu(struct er_engine *engine, struct er_error *err)
{
    return 0;
}

static void forget_cpu(struct er_engine *engine) {}

static int alloc_cpu(struct er_engine *engine, size_t bytes, void **ret, struct er_error *err)
{
    size_t whole = (bytes + ER_TENSOR_ALIGN - 1) & ~(size_t)(ER_TENSOR_ALIGN - 1);
    void *memory = whole < bytes ? NULL : aligned_alloc(ER_TENSOR_ALIGN, whole);

    if (!memory)
        return er_error_set(err, -ENOMEM, "%zu bytes of memory", bytes);
    memset(memory, 0, whole);
    *ret = memory;
    return 0;
}

static void free_cpu(struct er_engine *engine, void *memory)
{
    free(memory);
}

static int copy_cpu(struct er_engine *engine, void *to, const void *from, size_t bytes,
                    struct er_error *err)
{
    memcpy(to, from, bytes);
    return 0;
}

static void close_cpu(struct er_engine *engine) {}

const struct er_engine_ops er_engine_cpu_ops = {
    .name = "cpu",
    .of_host = true,
    .saved = saved_cpu,
    .forward = forward_cpu,
    .backward = backward_cpu,
    .fill = fill_cpu,
    .copy = copy_within_cpu,
    .add = add_cpu,
    .apply = apply_cpu,
    .norm2 = norm2_cpu,
    .count_bad = count_bad_cpu,
    .convert = convert_cpu,
    .exact_put = exact_put_cpu,
    .exact_sum = exact_sum_cpu,
    .exact_take = exact_take_cpu,
    .exact_norm = exact_norm_cpu,
    .products = products_cpu,
    .wait = wait_cpu,
    .forget = forget_cpu,
    .alloc = alloc_cpu,
    .free = free_cpu,
    .put = copy_cpu,
    .get = copy_cpu,
    .close = close_cpu,
};

struct er_engine *er_engine_cpu(void)
{
    static struct er_engine cpu = {.ops = &er_engine_cpu_ops, .describe = "cpu"};

    return &cpu;
}
