/*
 * y = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3); any shape
 *   dx += dy (s + x s (1 - s) 2 du/dx), s = 1 / (1 + e^(-2u)), for (1 + tanh u) / 2 = s
 * Nothing is saved: s is made again. Source: D. Hendrycks, K. Gimpel, "Gaussian Error Linear
 * Units", 2016, section 2.
 */
#include "trainer/ops/ops_internal.h"

#define TWO_ROOT 1.5957691216f /* 2 sqrt(2 / pi) */
#define CUBE     0.044715f

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    *ret_out = node->in[0]->shape;
    *ret_saved = 0;
    return 0;
}

ER_IN_LOOP float gate(float x)
{
    return 1.0f / (1.0f + er_exp(-TWO_ROOT * (x + CUBE * (x * x * x))));
}

ER_EACH_WIDTH static void forward(const struct er_node *node)
{
    const float *restrict x = node->in[0]->value;
    float *restrict y = node->out->value;

    for (size_t i = 0; i < node->out->count; i++)
        y[i] = x[i] * gate(x[i]);
}

ER_EACH_WIDTH static void backward(const struct er_node *node, float beta)
{
    const float *restrict x = node->in[0]->value, *restrict dy = node->out->grad;
    float *restrict dx = node->in[0]->grad;

    for (size_t i = 0; i < node->out->count; i++) {
        float s = gate(x[i]);
        float slope = TWO_ROOT * (1.0f + 3.0f * CUBE * (x[i] * x[i]));

        dx[i] = er_old(beta, dx[i]) + dy[i] * (s + x[i] * (s * (1.0f - s)) * slope);
    }
}

const struct er_tape_op er_op_gelu = {
    .name = "gelu",
    .inputs_n = 1,
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .output_unread = true,
};

int er_gelu(struct er_tape *tape, struct er_tensor *x, struct er_tensor **ret, struct er_error *err)
{
    return er_tape_apply(tape, &er_op_gelu, &x, NULL, ret, err);
}
