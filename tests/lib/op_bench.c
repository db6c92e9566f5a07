#include "tests/lib/op_bench.h"

#include <criterion/criterion.h>

#include "base/rand.h"
#include "trainer/matmul.h"

static int infer_weigh(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                       struct er_error *err)
{
    *ret_out = er_shape_1d(1);
    *ret_saved = 0;
    return 0;
}

static const float *weights_of(const struct er_node *node)
{
    return *(const float *const *)node->attr;
}

static void forward_weigh(const struct er_node *node)
{
    double sum = 0;

    for (size_t i = 0; i < node->in[0]->count; i++)
        sum += (double)weights_of(node)[i] * (double)node->in[0]->value[i];
    node->out->value[0] = (float)sum;
}

static void backward_weigh(const struct er_node *node, float beta)
{
    for (size_t i = 0; i < node->in[0]->count; i++)
        node->in[0]->grad[i] =
            (beta > 0 ? node->in[0]->grad[i] : 0) + weights_of(node)[i] * node->out->grad[0];
}

static enum er_dtype type_weigh(const struct er_node *node)
{
    return ER_F32;
}

static const struct er_tape_op weigh = {.name = "weigh",
                                        .inputs_n = 1,
                                        .attr_bytes = sizeof(const float *),
                                        .infer = infer_weigh,
                                        .forward = forward_weigh,
                                        .backward = {backward_weigh},
                                        .type = type_weigh};

int op_bench_weigh(struct op_bench *bench, struct er_tensor *x, const float *weights,
                   struct er_tensor **ret, struct er_error *err)
{
    return er_tape_apply(bench->tape, &weigh, &x, &weights, ret, err);
}

void op_bench_open(struct op_bench *bench, const struct er_shape *shapes, size_t n)
{
    static const char *const names[OP_BENCH_PARAMS_MAX] = {"p0", "p1", "p2", "p3"};
    struct er_error err = ER_ERROR_INIT;
    struct er_rand r;

    cr_assert_eq(er_matmul_setup(&err), 0, "%s", err.text);
    er_flat_init(&bench->flat, bench->table, OP_BENCH_PARAMS_MAX, NULL, 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(er_flat_add(&bench->flat, names[i], &shapes[i], NULL, &err), 0, "%s",
                     err.text);
    cr_assert_eq(er_pool_new(&bench->pool, er_flat_bytes(&bench->flat), &err), 0);
    er_flat_bind(&bench->flat, er_pool_alloc(bench->pool, er_flat_bytes(&bench->flat), 64));
    cr_assert_eq(er_tape_new(&bench->tape, &bench->flat, 0, &err), 0);
    er_rand_init(&r, 11);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < er_shape_count(&shapes[i]); j++)
            er_flat_at(&bench->flat, ER_FLAT_VALUE, i)[j] =
                ((float)er_rand_below(&r, 128) - 63.5f) / 64.0f;
    }
}

void op_bench_close(struct op_bench *bench)
{
    er_tape_free(bench->tape);
    er_pool_free(bench->pool);
}
