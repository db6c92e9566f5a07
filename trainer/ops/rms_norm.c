/*
 * y (.., C) = xhat * w (C), xhat = x / sqrt(mean of x^2 over C + eps)
 *   dw (C) += sum of dy * xhat over the rows
 *   dx += (g - xhat mean(g xhat)) / sqrt(mean of x^2 + eps), g = dy * w
 * saved: 1 / sqrt(mean of x^2 + eps) of each row. Source: B. Zhang, R. Sennrich, "Root Mean Square
 * Layer Normalization", NeurIPS 2019.
 */
#include "trainer/ops/ops_internal.h"

enum { X, W, INPUTS_N };

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    if (!er_op_is_vector(node->in[W], er_op_cols(node->in[X])))
        return er_op_misfit(node, "(.., C) and (C)", err);
    *ret_out = node->in[X]->shape;
    *ret_saved = er_op_rows(node->in[X]);
    return 0;
}

ER_EACH_WIDTH static void forward(const struct er_node *node)
{
    const struct er_attr_norm *attr = node->attr;
    size_t rows = er_op_rows(node->out), cols = er_op_cols(node->out);
    const float *restrict w = node->in[W]->value;

    for (size_t i = 0; i < rows; i++) {
        const float *restrict x = node->in[X]->value + i * cols;
        float *restrict y = node->out->value + i * cols;
        float mean = er_sum_squares(x, cols, 0.0f) / (float)cols;
        float inverse = 1.0f / __builtin_sqrtf(mean + attr->eps);

        for (size_t j = 0; j < cols; j++)
            y[j] = x[j] * inverse * w[j];
        node->saved[i] = inverse;
    }
}

/* Sum of dy w x. */
ER_IN_LOOP float row_sum(const float *x, const float *dy, const float *w, size_t cols)
{
    er_lanes lanes = {0};
    size_t j = 0;
    float sum;

    for (; j + ER_LANES <= cols; j += ER_LANES)
        lanes +=
            *(const er_lanes *)(dy + j) * *(const er_lanes *)(w + j) * *(const er_lanes *)(x + j);
    sum = er_lanes_sum(&lanes);
    for (; j < cols; j++)
        sum += dy[j] * w[j] * x[j];
    return sum;
}

ER_EACH_WIDTH static void backward_x(const struct er_node *node, float beta)
{
    size_t rows = er_op_rows(node->out), cols = er_op_cols(node->out);
    const float *restrict w = node->in[W]->value;

    for (size_t i = 0; i < rows; i++) {
        const float *restrict x = node->in[X]->value + i * cols;
        const float *restrict dy = node->out->grad + i * cols;
        float *restrict dx = node->in[X]->grad + i * cols;
        float inverse = node->saved[i];
        float gx = row_sum(x, dy, w, cols) * inverse / (float)cols;

        for (size_t j = 0; j < cols; j++)
            dx[j] = er_old(beta, dx[j]) + (dy[j] * w[j] - x[j] * inverse * gx) * inverse;
    }
}

ER_EACH_WIDTH static void backward_w(const struct er_node *node, float beta)
{
    size_t rows = er_op_rows(node->out), cols = er_op_cols(node->out);
    float *restrict dw = node->in[W]->grad;

    if (beta == 0.0f)
        memset(dw, 0, cols * sizeof(float));
    for (size_t i = 0; i < rows; i++) {
        const float *restrict x = node->in[X]->value + i * cols;
        const float *restrict dy = node->out->grad + i * cols;
        float inverse = node->saved[i];

        for (size_t j = 0; j < cols; j++)
            dw[j] += dy[j] * (x[j] * inverse);
    }
}

const struct er_tape_op er_op_rms_norm = {
    .name = "rms_norm",
    .inputs_n = INPUTS_N,
    .attr_bytes = sizeof(struct er_attr_norm),
    .infer = infer,
    .forward = forward,
    .backward = {[X] = backward_x, [W] = backward_w},
    .output_unread = true,
};

int er_rms_norm(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight, float eps,
                struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[X] = x, [W] = weight};
    struct er_attr_norm attr = {.eps = eps};

    return er_tape_apply(tape, &er_op_rms_norm, in, &attr, ret, err);
}
