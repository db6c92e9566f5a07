/*
 * y (.., O) = x (.., I) w (O, I)^T + b (O), or without b
 *   dx (.., I) += dy (.., O) w        dw (O, I) += dy^T x        db (O) += sum of dy over the rows
 */
#include <errno.h>
#include <string.h>

#include "trainer/matmul.h"
#include "trainer/ops/ops_internal.h"

enum { X, W, B, INPUTS_N };

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_tensor *x = node->in[X], *w = node->in[W], *b = node->in[B];

    if (w->shape.ndim != 2 || er_op_cols(x) != er_op_cols(w) ||
        (b && !er_op_is_vector(b, w->shape.dim[0])) || er_op_rows(x) > ER_MATMUL_DIM_MAX ||
        er_op_cols(x) > ER_MATMUL_DIM_MAX || w->shape.dim[0] > ER_MATMUL_DIM_MAX)
        return er_op_misfit(node, "(.., I), (O, I) and (O), none above 2147483647", err);
    *ret_out = x->shape;
    ret_out->dim[x->shape.ndim - 1] = w->shape.dim[0];
    *ret_saved = 0;
    return er_op_one_type(node, x, w, err);
}

struct er_matmul er_linear_product(const struct er_node *node, enum er_product which, float beta)
{
    const struct er_tensor *x = node->in[X], *w = node->in[W], *y = node->out;
    size_t rows = er_op_rows(y), inputs = er_op_cols(x), outputs = er_op_cols(y);

    switch (which) {
    case ER_PRODUCT_FORWARD:
        break;
    case ER_PRODUCT_BACK_0:
        return (struct er_matmul){.m = rows,
                                  .n = inputs,
                                  .k = outputs,
                                  .a = y->grad,
                                  .b = w->value,
                                  .c = x->grad,
                                  .beta = beta,
                                  .a_type = y->grad_dtype,
                                  .b_type = w->dtype,
                                  .c_type = x->grad_dtype};
    case ER_PRODUCT_BACK_1:
        return (struct er_matmul){.m = outputs,
                                  .n = inputs,
                                  .k = rows,
                                  .a = y->grad,
                                  .b = x->value,
                                  .c = w->grad,
                                  .transpose_a = true,
                                  .beta = beta,
                                  .a_type = y->grad_dtype,
                                  .b_type = x->dtype,
                                  .c_type = w->grad_dtype};
    }
    return (struct er_matmul){.m = rows,
                              .n = outputs,
                              .k = inputs,
                              .a = x->value,
                              .b = w->value,
                              .c = y->value,
                              .transpose_b = true,
                              .beta = beta,
                              .a_type = x->dtype,
                              .b_type = w->dtype,
                              .c_type = y->dtype};
}

static void forward(const struct er_node *node)
{
    const struct er_tensor *b = node->in[B];
    struct er_tensor *y = node->out;
    size_t rows = er_op_rows(y), cols = er_op_cols(y);
    struct er_matmul product = er_linear_product(node, ER_PRODUCT_FORWARD, b ? 1.0f : 0.0f);

    for (size_t i = 0; b && i < rows; i++)
        memcpy(y->value + i * cols, b->value, cols * sizeof(float));
    er_matmul(&product);
}

static void backward_x(const struct er_node *node, float beta)
{
    struct er_matmul product = er_linear_product(node, ER_PRODUCT_BACK_0, beta);

    er_matmul(&product);
}

static void backward_w(const struct er_node *node, float beta)
{
    struct er_matmul product = er_linear_product(node, ER_PRODUCT_BACK_1, beta);

    er_matmul(&product);
}

/* Row after row, so that the order of the sum is the batch's. */
ER_EACH_WIDTH static void backward_b(const struct er_node *node, float beta)
{
    size_t rows = er_op_rows(node->out), cols = er_op_cols(node->out);
    float *restrict db = node->in[B]->grad;

    if (beta == 0.0f)
        memset(db, 0, cols * sizeof(float));
    for (size_t i = 0; i < rows; i++) {
        const float *restrict dy = node->out->grad + i * cols;

        for (size_t j = 0; j < cols; j++)
            db[j] += dy[j];
    }
}

const struct er_tape_op er_op_linear = {
    .name = "linear",
    .inputs_n = INPUTS_N,
    .infer = infer,
    .forward = forward,
    .backward = {[X] = backward_x, [W] = backward_w, [B] = backward_b},
    .output_unread = true,
};

int er_linear(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
              struct er_tensor *bias, struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[X] = x, [W] = weight, [B] = bias};

    return er_tape_apply(tape, &er_op_linear, in, NULL, ret, err);
}
