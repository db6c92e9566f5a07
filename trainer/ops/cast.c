/* y = x stored as another type, rounded to nearest even; dx += dy. */
#include "trainer/half.h"
#include "trainer/ops/ops_internal.h"

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_attr_cast *attr = node->attr;

    if (!er_tensor_dtype_ok(attr->dtype))
        return er_error_set(err, ER_E_UNSUPPORTED,
                            "cast: '%s' as %s: float32, float16 and bfloat16 are offered",
                            node->in[0]->name, er_dtype_name(attr->dtype));
    *ret_out = node->in[0]->shape;
    *ret_saved = 0;
    return 0;
}

static enum er_dtype type(const struct er_node *node)
{
    return ((const struct er_attr_cast *)node->attr)->dtype;
}

static void forward(const struct er_node *node)
{
    const struct er_tensor *x = node->in[0], *y = node->out;

    er_half_add_as(x->dtype, x->value, y->dtype, y->value, y->count, 0.0f);
}

static void backward(const struct er_node *node, float beta)
{
    const struct er_tensor *x = node->in[0], *y = node->out;

    er_half_add_as(y->grad_dtype, y->grad, x->grad_dtype, x->grad, y->count, beta);
}

const struct er_tape_op er_op_cast = {
    .name = "cast",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_attr_cast),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .type = type,
    .of_any_type = true,
};

int er_cast(struct er_tape *tape, struct er_tensor *x, enum er_dtype dtype, struct er_tensor **ret,
            struct er_error *err)
{
    struct er_attr_cast attr = {.dtype = dtype};

    if (x->dtype == dtype) {
        *ret = x;
        return 0;
    }
    return er_tape_apply(tape, &er_op_cast, &x, &attr, ret, err);
}
