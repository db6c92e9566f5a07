/*
 * y = x with dimensions `a` and `b` swapped, copied: (B, T, H, D), 1, 2 -> (B, H, T, D)
 *   dx += dy with the same dimensions swapped
 */
#include <errno.h>

#include "trainer/ops/ops_internal.h"

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_tensor *x = node->in[0];
    const struct er_attr_transpose *attr = node->attr;

    if (attr->a >= x->shape.ndim || attr->b >= x->shape.ndim)
        return er_op_misfit(node, "a tensor with the dimensions that are to be swapped", err);
    *ret_out = x->shape;
    ret_out->dim[attr->a] = x->shape.dim[attr->b];
    ret_out->dim[attr->b] = x->shape.dim[attr->a];
    *ret_saved = 0;
    return 0;
}

struct er_walk er_transpose_walk(const struct er_node *node)
{
    const struct er_shape *x = &node->in[0]->shape, *y = &node->out->shape;
    const struct er_attr_transpose *attr = node->attr;
    uint32_t pad = ER_SHAPE_DIMS_MAX - x->ndim;
    struct er_walk walk;
    size_t stride = 1;

    for (uint32_t i = 0; i < ER_SHAPE_DIMS_MAX; i++) {
        walk.dim[i] = i < pad ? 1 : y->dim[i - pad];
        walk.stride[i] = 0;
    }
    for (uint32_t i = x->ndim; i-- > 0;) {
        uint32_t to = i == attr->a ? attr->b : i == attr->b ? attr->a : i;

        walk.stride[pad + to] = stride;
        stride *= x->dim[i];
    }
    return walk;
}

static void forward(const struct er_node *node)
{
    const struct er_walk w = er_transpose_walk(node);
    const float *x = node->in[0]->value;
    float *y = node->out->value;

    for (size_t i = 0; i < w.dim[0]; i++)
        for (size_t j = 0; j < w.dim[1]; j++)
            for (size_t k = 0; k < w.dim[2]; k++, y += w.dim[3]) {
                const float *row = x + i * w.stride[0] + j * w.stride[1] + k * w.stride[2];

                for (size_t l = 0; l < w.dim[3]; l++)
                    y[l] = row[l * w.stride[3]];
            }
}

static void backward(const struct er_node *node, float beta)
{
    const struct er_walk w = er_transpose_walk(node);
    const float *dy = node->out->grad;
    float *dx = node->in[0]->grad;

    for (size_t i = 0; i < w.dim[0]; i++)
        for (size_t j = 0; j < w.dim[1]; j++)
            for (size_t k = 0; k < w.dim[2]; k++, dy += w.dim[3]) {
                float *row = dx + i * w.stride[0] + j * w.stride[1] + k * w.stride[2];

                for (size_t l = 0; l < w.dim[3]; l++)
                    row[l * w.stride[3]] = er_old(beta, row[l * w.stride[3]]) + dy[l];
            }
}

const struct er_tape_op er_op_transpose = {
    .name = "transpose",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_attr_transpose),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .inputs_unread = true,
    .output_unread = true,
};

int er_transpose(struct er_tape *tape, struct er_tensor *x, uint32_t a, uint32_t b,
                 struct er_tensor **ret, struct er_error *err)
{
    struct er_attr_transpose attr = {.a = a, .b = b};

    return er_tape_apply(tape, &er_op_transpose, &x, &attr, ret, err);
}
