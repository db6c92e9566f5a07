/*
 * y (N, C, ..) = xhat * w (C) + b (C), xhat = (x - mean) / sqrt(variance + eps), both over the C /
 * G channels of a group and all positions of one sample: nothing depends on the other samples dw
 * (C) += sum of dy * xhat        db (C) += sum of dy        over samples and positions dx += (g -
 * mean(g) - xhat mean(g xhat)) / sqrt(variance + eps), g = dy * w saved: mean and 1 / sqrt(variance
 * + eps) of each sample and group. Source: Y. Wu, K. He, "Group Normalization", ECCV 2018.
 */
#include "trainer/ops/ops_internal.h"

enum { X, W, B, INPUTS_N };

/* N samples of G groups of `channels` channels of `positions` elements. */
struct layout {
    size_t samples, groups, channels, positions;
};

static struct layout layout_of(const struct er_node *node)
{
    const struct er_shape *x = &node->in[X]->shape;
    const struct er_attr_group_norm *attr = node->attr;

    return (struct layout){.samples = x->dim[0],
                           .groups = attr->groups,
                           .channels = x->dim[1] / attr->groups,
                           .positions = node->in[X]->count / (x->dim[0] * x->dim[1])};
}

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_shape *x = &node->in[X]->shape;
    const struct er_attr_group_norm *attr = node->attr;

    if (x->ndim < 2 || attr->groups == 0 || x->dim[1] % attr->groups != 0 ||
        !er_op_is_vector(node->in[W], x->dim[1]) || !er_op_is_vector(node->in[B], x->dim[1]))
        return er_op_misfit(node, "(N, C, ..), (C) and (C), C a multiple of the groups", err);
    *ret_out = *x;
    *ret_saved = 2 * x->dim[0] * attr->groups;
    return 0;
}

ER_EACH_WIDTH static void forward(const struct er_node *node)
{
    const struct layout l = layout_of(node);
    const struct er_attr_group_norm *attr = node->attr;
    size_t n = l.channels * l.positions;

    for (size_t i = 0; i < l.samples * l.groups; i++) {
        const float *restrict x = node->in[X]->value + i * n;
        float *restrict y = node->out->value + i * n;
        float mean = er_sum(x, n) / (float)n;
        float variance = er_sum_squares(x, n, mean) / (float)n;
        float inverse = 1.0f / __builtin_sqrtf(variance + attr->eps);

        for (size_t c = 0; c < l.channels; c++) {
            float w = node->in[W]->value[i % l.groups * l.channels + c];
            float b = node->in[B]->value[i % l.groups * l.channels + c];

            for (size_t j = c * l.positions; j < (c + 1) * l.positions; j++)
                y[j] = (x[j] - mean) * inverse * w + b;
        }
        node->saved[2 * i] = mean;
        node->saved[2 * i + 1] = inverse;
    }
}

/* Sums over one channel: of dy, and of dy xhat. */
ER_IN_LOOP void channel_sums(const float *x, const float *dy, size_t n, float mean, float inverse,
                             float *ret_dy, float *ret_dyx)
{
    float sum = er_sum(dy, n);

    *ret_dy = sum;
    *ret_dyx = (er_dot(dy, x, n) - mean * sum) * inverse;
}

ER_EACH_WIDTH static void backward_x(const struct er_node *node, float beta)
{
    const struct layout l = layout_of(node);
    size_t n = l.channels * l.positions;

    for (size_t i = 0; i < l.samples * l.groups; i++) {
        const float *restrict x = node->in[X]->value + i * n;
        const float *restrict dy = node->out->grad + i * n;
        const float *restrict w = node->in[W]->value + i % l.groups * l.channels;
        float *restrict dx = node->in[X]->grad + i * n;
        float mean = node->saved[2 * i], inverse = node->saved[2 * i + 1], g = 0, gx = 0;

        for (size_t c = 0; c < l.channels; c++) {
            float sum, sum_x;

            channel_sums(x + c * l.positions, dy + c * l.positions, l.positions, mean, inverse,
                         &sum, &sum_x);
            g += sum * w[c] / (float)n;
            gx += sum_x * w[c] / (float)n;
        }
        for (size_t j = 0; j < n; j++)
            dx[j] = er_old(beta, dx[j]) +
                    (dy[j] * w[j / l.positions] - g - (x[j] - mean) * inverse * gx) * inverse;
    }
}

/* dw or db, one channel of one sample after another. */
ER_EACH_WIDTH static void add_channels(const struct er_node *node, float beta, size_t input)
{
    const struct layout l = layout_of(node);
    size_t all = l.groups * l.channels;
    float *d = node->in[input]->grad;

    if (beta == 0.0f)
        memset(d, 0, all * sizeof(float));
    for (size_t i = 0; i < l.samples * all; i++) {
        const float *saved = node->saved + 2 * (i / l.channels);
        float sum, sum_x;

        channel_sums(node->in[X]->value + i * l.positions, node->out->grad + i * l.positions,
                     l.positions, saved[0], saved[1], &sum, &sum_x);
        d[i % all] += input == W ? sum_x : sum;
    }
}

static void backward_w(const struct er_node *node, float beta)
{
    add_channels(node, beta, W);
}

static void backward_b(const struct er_node *node, float beta)
{
    add_channels(node, beta, B);
}

const struct er_tape_op er_op_group_norm = {
    .name = "group_norm",
    .inputs_n = INPUTS_N,
    .attr_bytes = sizeof(struct er_attr_group_norm),
    .infer = infer,
    .forward = forward,
    .backward = {[X] = backward_x, [W] = backward_w, [B] = backward_b},
    .output_unread = true,
};

int er_group_norm(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
                  struct er_tensor *bias, uint32_t groups, float eps, struct er_tensor **ret,
                  struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[X] = x, [W] = weight, [B] = bias};
    struct er_attr_group_norm attr = {.groups = groups, .eps = eps};

    return er_tape_apply(tape, &er_op_group_norm, in, &attr, ret, err);
}
