/*
 * out = x + y, y's shape equal to the last dimensions of x's: (B, T, C) + (B, T, C), a position
 * (B, T, C) + (T, C), a bias (B, C) + (C)
 *   dx += dout        dy += sum of dout over the dimensions y does not have
 */
#include "trainer/ops/ops_internal.h"

enum { X, Y, INPUTS_N };

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    if (!er_op_is_suffix(&node->in[Y]->shape, &node->in[X]->shape))
        return er_op_misfit(node, "the second to be the last dimensions of the first", err);
    *ret_out = node->in[X]->shape;
    *ret_saved = 0;
    return 0;
}

ER_EACH_WIDTH static void forward(const struct er_node *node)
{
    size_t n = node->in[Y]->count;

    for (size_t at = 0; at < node->out->count; at += n) {
        const float *restrict x = node->in[X]->value + at, *restrict y = node->in[Y]->value;
        float *restrict out = node->out->value + at;

        for (size_t i = 0; i < n; i++)
            out[i] = x[i] + y[i];
    }
}

ER_EACH_WIDTH static void backward_x(const struct er_node *node, float beta)
{
    const float *restrict dout = node->out->grad;
    float *restrict dx = node->in[X]->grad;

    for (size_t i = 0; i < node->out->count; i++)
        dx[i] = er_old(beta, dx[i]) + dout[i];
}

ER_EACH_WIDTH static void backward_y(const struct er_node *node, float beta)
{
    size_t n = node->in[Y]->count;
    float *restrict dy = node->in[Y]->grad;

    if (beta == 0.0f)
        memset(dy, 0, n * sizeof(float));
    for (size_t at = 0; at < node->out->count; at += n) {
        const float *restrict dout = node->out->grad + at;

        for (size_t i = 0; i < n; i++)
            dy[i] += dout[i];
    }
}

const struct er_tape_op er_op_add = {
    .name = "add",
    .inputs_n = INPUTS_N,
    .infer = infer,
    .forward = forward,
    .backward = {[X] = backward_x, [Y] = backward_y},
    .inputs_unread = true,
    .output_unread = true,
};

int er_add(struct er_tape *tape, struct er_tensor *x, struct er_tensor *y, struct er_tensor **ret,
           struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[X] = x, [Y] = y};

    return er_tape_apply(tape, &er_op_add, in, NULL, ret, err);
}
