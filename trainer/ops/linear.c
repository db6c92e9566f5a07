/*
 * y (B, O) = x (B, I) w (O, I)^T + b (O)
 *   dx (B, I) += dy (B, O) w        dw (O, I) += dy^T x        db (O) += sum over B of dy
 */
#include <errno.h>
#include <string.h>

#include "trainer/matmul.h"
#include "trainer/ops/ops.h"

enum { X, W, B, INPUTS_N };

static int shape_error(const struct er_node *node, struct er_error *err)
{
    char x[ER_SHAPE_TEXT_MAX], w[ER_SHAPE_TEXT_MAX], b[ER_SHAPE_TEXT_MAX];

    er_shape_format(&node->in[X]->shape, x);
    er_shape_format(&node->in[W]->shape, w);
    er_shape_format(&node->in[B]->shape, b);
    return er_error_set(
        err, -EINVAL,
        "linear: input '%s' %s, weight '%s' %s and bias '%s' %s do not fit: expected (B, I), "
        "(O, I) and (O), none above %d",
        node->in[X]->name, x, node->in[W]->name, w, node->in[B]->name, b, ER_MATMUL_DIM_MAX);
}

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_shape *x = &node->in[X]->shape, *w = &node->in[W]->shape,
                          *b = &node->in[B]->shape;

    if (x->ndim != 2 || w->ndim != 2 || b->ndim != 1 || x->dim[1] != w->dim[1] ||
        b->dim[0] != w->dim[0] || x->dim[0] > ER_MATMUL_DIM_MAX || x->dim[1] > ER_MATMUL_DIM_MAX ||
        w->dim[0] > ER_MATMUL_DIM_MAX)
        return shape_error(node, err);
    *ret_out = er_shape_2d(x->dim[0], w->dim[0]);
    *ret_saved = 0;
    return 0;
}

static void forward(const struct er_node *node)
{
    const struct er_tensor *x = node->in[X], *w = node->in[W], *b = node->in[B];
    struct er_tensor *y = node->out;
    size_t rows = y->shape.dim[0], cols = y->shape.dim[1];

    for (size_t i = 0; i < rows; i++)
        memcpy(y->value + i * cols, b->value, cols * sizeof(float));
    er_matmul(&(struct er_matmul){.m = rows,
                                  .n = cols,
                                  .k = x->shape.dim[1],
                                  .a = x->value,
                                  .b = w->value,
                                  .c = y->value,
                                  .transpose_b = true,
                                  .beta = 1.0f});
}

static void backward_x(const struct er_node *node, float beta)
{
    const struct er_tensor *w = node->in[W], *y = node->out;

    er_matmul(&(struct er_matmul){.m = y->shape.dim[0],
                                  .n = w->shape.dim[1],
                                  .k = y->shape.dim[1],
                                  .a = y->grad,
                                  .b = w->value,
                                  .c = node->in[X]->grad,
                                  .beta = beta});
}

static void backward_w(const struct er_node *node, float beta)
{
    const struct er_tensor *x = node->in[X], *y = node->out;

    er_matmul(&(struct er_matmul){.m = y->shape.dim[1],
                                  .n = x->shape.dim[1],
                                  .k = y->shape.dim[0],
                                  .a = y->grad,
                                  .b = x->value,
                                  .c = node->in[W]->grad,
                                  .transpose_a = true,
                                  .beta = beta});
}

/* Row after row, so that the order of the sum is the batch's. */
static void backward_b(const struct er_node *node, float beta)
{
    const struct er_tensor *y = node->out;
    size_t rows = y->shape.dim[0], cols = y->shape.dim[1];
    float *db = node->in[B]->grad;

    if (beta == 0.0f)
        memset(db, 0, cols * sizeof(float));
    for (size_t i = 0; i < rows; i++) {
        const float *dy = y->grad + i * cols;

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
};

int er_linear(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
              struct er_tensor *bias, struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[X] = x, [W] = weight, [B] = bias};

    return er_tape_apply(tape, &er_op_linear, in, NULL, ret, err);
}
