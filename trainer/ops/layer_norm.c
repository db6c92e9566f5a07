/*
 * y (.., C) = xhat * w (C) + b (C), xhat = (x - mean) / sqrt(variance + eps), both over C
 *   dw (C) += sum of dy * xhat        db (C) += sum of dy        over the rows
 *   dx += (g - mean(g) - xhat mean(g xhat)) / sqrt(variance + eps), g = dy * w
 * saved: mean and 1 / sqrt(variance + eps) of each row. Source: J. Ba et al., "Layer
 * Normalization", 2016.
 */
#include "trainer/ops/ops_internal.h"

enum { X, W, B, INPUTS_N };

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    size_t cols = er_op_cols(node->in[X]);

    if (!er_op_is_vector(node->in[W], cols) || !er_op_is_vector(node->in[B], cols))
        return er_op_misfit(node, "(.., C), (C) and (C)", err);
    *ret_out = node->in[X]->shape;
    *ret_saved = 2 * er_op_rows(node->in[X]);
    return 0;
}

ER_EACH_WIDTH static void forward(const struct er_node *node)
{
    const struct er_attr_norm *attr = node->attr;
    size_t rows = er_op_rows(node->out), cols = er_op_cols(node->out);
    const float *restrict w = node->in[W]->value, *restrict b = node->in[B]->value;

    for (size_t i = 0; i < rows; i++) {
        const float *restrict x = node->in[X]->value + i * cols;
        float *restrict y = node->out->value + i * cols;
        float mean = er_sum(x, cols) / (float)cols;
        float variance = er_sum_squares(x, cols, mean) / (float)cols;
        float inverse = 1.0f / __builtin_sqrtf(variance + attr->eps);

        for (size_t j = 0; j < cols; j++)
            y[j] = (x[j] - mean) * inverse * w[j] + b[j];
        node->saved[2 * i] = mean;
        node->saved[2 * i + 1] = inverse;
    }
}

/* The two sums beside one another: of g, and of g xhat. */
ER_IN_LOOP void row_sums(const float *x, const float *dy, const float *w, size_t cols, float mean,
                         float inverse, float *ret_g, float *ret_gx)
{
    er_lanes sum_g = {0}, sum_gx = {0};
    size_t j = 0;

    for (; j + ER_LANES <= cols; j += ER_LANES) {
        er_lanes g = *(const er_lanes *)(dy + j) * *(const er_lanes *)(w + j);

        sum_g += g;
        sum_gx += g * ((*(const er_lanes *)(x + j) - mean) * inverse);
    }
    *ret_g = er_lanes_sum(&sum_g);
    *ret_gx = er_lanes_sum(&sum_gx);
    for (; j < cols; j++) {
        *ret_g += dy[j] * w[j];
        *ret_gx += dy[j] * w[j] * ((x[j] - mean) * inverse);
    }
}

ER_EACH_WIDTH static void backward_x(const struct er_node *node, float beta)
{
    size_t rows = er_op_rows(node->out), cols = er_op_cols(node->out);
    const float *restrict w = node->in[W]->value;

    for (size_t i = 0; i < rows; i++) {
        const float *restrict x = node->in[X]->value + i * cols;
        const float *restrict dy = node->out->grad + i * cols;
        float *restrict dx = node->in[X]->grad + i * cols;
        float mean = node->saved[2 * i], inverse = node->saved[2 * i + 1], g, gx;

        row_sums(x, dy, w, cols, mean, inverse, &g, &gx);
        g /= (float)cols;
        gx /= (float)cols;
        for (size_t j = 0; j < cols; j++)
            dx[j] =
                er_old(beta, dx[j]) + (dy[j] * w[j] - g - (x[j] - mean) * inverse * gx) * inverse;
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
        float mean = node->saved[2 * i], inverse = node->saved[2 * i + 1];

        for (size_t j = 0; j < cols; j++)
            dw[j] += dy[j] * ((x[j] - mean) * inverse);
    }
}

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

const struct er_tape_op er_op_layer_norm = {
    .name = "layer_norm",
    .inputs_n = INPUTS_N,
    .attr_bytes = sizeof(struct er_attr_norm),
    .infer = infer,
    .forward = forward,
    .backward = {[X] = backward_x, [W] = backward_w, [B] = backward_b},
    .output_unread = true,
};

int er_layer_norm(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
                  struct er_tensor *bias, float eps, struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[X] = x, [W] = weight, [B] = bias};
    struct er_attr_norm attr = {.eps = eps};

    return er_tape_apply(tape, &er_op_layer_norm, in, &attr, ret, err);
}
