/* y = x with other dimensions of the same count, copied; dx += dy. */
#include "trainer/half.h"
#include "trainer/ops/ops_internal.h"

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_shape *want = node->attr;
    char text[ER_SHAPE_TEXT_MAX + 32] = "as many elements as ";
    int rc = er_shape_check(want, node->in[0]->name, err);

    if (rc < 0)
        return er_error_wrap(err, rc, "reshape");
    if (er_shape_count(want) != node->in[0]->count) {
        er_shape_format(want, text + strlen(text));
        return er_op_misfit(node, text, err);
    }
    *ret_out = *want;
    *ret_saved = 0;
    return 0;
}

static void forward(const struct er_node *node)
{
    const struct er_tensor *y = node->out;

    memcpy(y->value, node->in[0]->value, y->count * er_dtype_size(y->dtype));
}

ER_EACH_WIDTH static void add(float *restrict dx, const float *restrict dy, size_t n, float beta)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = er_old(beta, dx[i]) + dy[i];
}

static void backward(const struct er_node *node, float beta)
{
    const struct er_tensor *x = node->in[0], *y = node->out;

    if (x->grad_dtype == ER_F32 && y->grad_dtype == ER_F32)
        add(x->grad, y->grad, y->count, beta);
    else
        er_half_add_as(y->grad_dtype, y->grad, x->grad_dtype, x->grad, y->count, beta);
}

const struct er_tape_op er_op_reshape = {
    .name = "reshape",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_shape),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .of_any_type = true,
};

int er_reshape(struct er_tape *tape, struct er_tensor *x, const struct er_shape *shape,
               struct er_tensor **ret, struct er_error *err)
{
    return er_tape_apply(tape, &er_op_reshape, &x, shape, ret, err);
}
