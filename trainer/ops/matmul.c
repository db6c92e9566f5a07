/*
 * c (.., M, N) = a (.., M, K) b (.., K, N), the same leading dimensions; or b (K, N) for all
 *   da += dc b^T        db += a^T dc, summed over the leading dimensions that b does not have
 */
#include "trainer/matmul.h"

#include "trainer/ops/ops_internal.h"

enum { A, B, INPUTS_N };

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_shape *a = &node->in[A]->shape, *b = &node->in[B]->shape;
    bool fit = a->ndim >= 2 && b->ndim >= 2 && a->dim[a->ndim - 1] == b->dim[b->ndim - 2] &&
               (b->ndim == 2 || b->ndim == a->ndim);

    for (uint32_t i = 0; fit && b->ndim > 2 && i + 2 < a->ndim; i++)
        fit = a->dim[i] == b->dim[i];
    if (!fit || er_op_rows(node->in[A]) > ER_MATMUL_DIM_MAX ||
        er_op_rows(node->in[B]) > ER_MATMUL_DIM_MAX || er_op_cols(node->in[B]) > ER_MATMUL_DIM_MAX)
        return er_op_misfit(node, "(.., M, K) and (K, N) or (.., K, N), none above 2147483647",
                            err);
    *ret_out = *a;
    ret_out->dim[a->ndim - 1] = b->dim[b->ndim - 1];
    *ret_saved = 0;
    return er_op_one_type(node, node->in[A], node->in[B], err);
}

/* (m, k) by (k, n), one after another in memory. */
struct er_matmul er_matmul_product(const struct er_node *node, enum er_product which, float beta,
                                   struct er_matmul_run *ret_run)
{
    const struct er_tensor *a = node->in[A], *b = node->in[B], *c = node->out;
    size_t m = er_op_rows(a), n = er_op_cols(b), k = er_op_cols(a), times = 1;

    if (b->shape.ndim > 2) {
        m = a->shape.dim[a->shape.ndim - 2];
        times = er_op_rows(a) / m;
    }
    switch (which) {
    case ER_PRODUCT_FORWARD:
        break;
    case ER_PRODUCT_BACK_0:
        *ret_run = (struct er_matmul_run){times, m * n, k * n, m * k};
        return (struct er_matmul){.m = m,
                                  .n = k,
                                  .k = n,
                                  .a = c->grad,
                                  .b = b->value,
                                  .c = a->grad,
                                  .transpose_b = true,
                                  .beta = beta,
                                  .a_type = c->grad_dtype,
                                  .b_type = b->dtype,
                                  .c_type = a->grad_dtype};
    case ER_PRODUCT_BACK_1:
        *ret_run = (struct er_matmul_run){times, m * k, m * n, k * n};
        return (struct er_matmul){.m = k,
                                  .n = n,
                                  .k = m,
                                  .a = a->value,
                                  .b = c->grad,
                                  .c = b->grad,
                                  .transpose_a = true,
                                  .beta = beta,
                                  .a_type = a->dtype,
                                  .b_type = c->grad_dtype,
                                  .c_type = b->grad_dtype};
    }
    *ret_run = (struct er_matmul_run){times, m * k, k * n, m * n};
    return (struct er_matmul){.m = m,
                              .n = n,
                              .k = k,
                              .a = a->value,
                              .b = b->value,
                              .c = c->value,
                              .beta = beta,
                              .a_type = a->dtype,
                              .b_type = b->dtype,
                              .c_type = c->dtype};
}

static void multiply(const struct er_node *node, enum er_product which, float beta)
{
    struct er_matmul_run run;
    struct er_matmul product = er_matmul_product(node, which, beta, &run);

    for (size_t i = 0; i < run.times; i++) {
        er_matmul(&product);
        product.a += run.stride_a;
        product.b += run.stride_b;
        product.c += run.stride_c;
    }
}

static void forward(const struct er_node *node)
{
    multiply(node, ER_PRODUCT_FORWARD, 0.0f);
}

static void backward_a(const struct er_node *node, float beta)
{
    multiply(node, ER_PRODUCT_BACK_0, beta);
}

static void backward_b(const struct er_node *node, float beta)
{
    multiply(node, ER_PRODUCT_BACK_1, beta);
}

const struct er_tape_op er_op_matmul = {
    .name = "matmul",
    .inputs_n = INPUTS_N,
    .infer = infer,
    .forward = forward,
    .backward = {[A] = backward_a, [B] = backward_b},
    .output_unread = true,
};

int er_tensor_matmul(struct er_tape *tape, struct er_tensor *a, struct er_tensor *b,
                     struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[A] = a, [B] = b};

    return er_tape_apply(tape, &er_op_matmul, in, NULL, ret, err);
}
