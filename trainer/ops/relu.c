/* y = max(x, 0), dx += dy where y > 0; any shape. */
#include "trainer/ops/ops.h"

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    *ret_out = node->in[0]->shape;
    *ret_saved = 0;
    return 0;
}

static void forward(const struct er_node *node)
{
    const float *x = node->in[0]->value;
    float *y = node->out->value;

    /* "x < 0 ? 0" and not "x > 0 ? x": a NaN must reach the loss, not vanish. */
    for (size_t i = 0; i < node->out->count; i++)
        y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

static void backward(const struct er_node *node, float beta)
{
    const float *y = node->out->value, *dy = node->out->grad;
    float *dx = node->in[0]->grad;
    size_t n = node->out->count;

    /* dy is loaded whatever y is: a load under a condition would keep the loops scalar. */
    if (beta == 0.0f) {
        for (size_t i = 0; i < n; i++) {
            float d = dy[i];

            dx[i] = y[i] > 0.0f ? d : 0.0f;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float d = dy[i];

        dx[i] += y[i] > 0.0f ? d : 0.0f;
    }
}

const struct er_tape_op er_op_relu = {
    .name = "relu",
    .inputs_n = 1,
    .infer = infer,
    .forward = forward,
    .backward = {backward},
};

int er_relu(struct er_tape *tape, struct er_tensor *x, struct er_tensor **ret, struct er_error *err)
{
    return er_tape_apply(tape, &er_op_relu, &x, NULL, ret, err);
}
