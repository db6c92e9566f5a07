/* The CPU as an engine: the operations' own loops, done when they are asked for. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/engine_ops.h"

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

static int products_cpu(struct er_engine *engine, enum er_dtype type, struct er_error *err)
{
    return type == ER_F32 ? 0
                          : er_error_set(err, ER_E_UNSUPPORTED,
                                         "matrix products of bfloat16 are offered on a GPU only");
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
    .apply = apply_cpu,
    .norm2 = norm2_cpu,
    .count_bad = count_bad_cpu,
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
