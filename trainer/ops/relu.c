/* y = max(x, 0), dx += dy where y > 0; any shape. */
#include "trainer/ops/ops_internal.h"

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    *ret_out = node->in[0]->shape;
    *ret_saved = 0;
    return 0;
}

ER_EACH_WIDTH static void forward(const struct er_node *node)
{
    const float *restrict x = node->in[0]->value;
    float *restrict y = node->out->value;

    /* "x < 0 ? 0" and not "x > 0 ? x": a NaN must reach the loss, not vanish. */
    for (size_t i = 0; i < node->out->count; i++)
        y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

ER_EACH_WIDTH static void backward(const struct er_node *node, float beta)
{
    const float *restrict y = node->out->value, *restrict dy = node->out->grad;
    float *restrict dx = node->in[0]->grad;

    /* dy is loaded whatever y is: a load under a condition would keep the loop scalar. */
    for (size_t i = 0; i < node->out->count; i++) {
        float d = dy[i];

        dx[i] = er_old(beta, dx[i]) + (y[i] > 0.0f ? d : 0.0f);
    }
}

const struct er_tape_op er_op_relu = {
    .name = "relu",
    .inputs_n = 1,
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .inputs_unread = true,
};

int er_relu(struct er_tape *tape, struct er_tensor *x, struct er_tensor **ret, struct er_error *err)
{
    return er_tape_apply(tape, &er_op_relu, &x, NULL, ret, err);
}
