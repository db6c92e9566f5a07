/*
 * loss (1) = sum over B of log(sum over C of exp(z - max z)) + max z - z[label], z = logits (B, C)
 *   dlogits (B, C) += dloss * (softmax(z) - onehot(label))
 * saved: softmax(z) (B, C).
 */
#include <errno.h>
#include <math.h>

#include "trainer/ops/ops.h"

struct attr {
    const int32_t *labels; /* (B), borrowed */
    double *ret_sum;       /* or NULL */
};

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_tensor *z = node->in[0];
    const struct attr *attr = node->attr;

    if (z->shape.ndim != 2) {
        char text[ER_SHAPE_TEXT_MAX];

        er_shape_format(&z->shape, text);
        return er_error_set(err, -EINVAL, "cross_entropy: logits '%s' %s, expected (B, C)", z->name,
                            text);
    }
    for (size_t i = 0; i < z->shape.dim[0]; i++) {
        if (attr->labels[i] < 0 || (size_t)attr->labels[i] >= z->shape.dim[1])
            return er_error_set(err, -EINVAL,
                                "cross_entropy: label %d of sample %zu is not a class of '%s': "
                                "expected 0 to %zu",
                                attr->labels[i], i, z->name, z->shape.dim[1] - 1);
    }
    *ret_out = er_shape_1d(1);
    *ret_saved = z->count;
    return 0;
}

/* One sample's loss; p (C) becomes the softmax of z (C). */
static double forward_row(const float *z, float *p, size_t classes, int32_t label)
{
    float max = z[0];
    double sum = 0;

    for (size_t j = 1; j < classes; j++)
        max = z[j] > max ? z[j] : max;
    for (size_t j = 0; j < classes; j++) {
        p[j] = expf(z[j] - max);
        sum += (double)p[j];
    }
    for (size_t j = 0; j < classes; j++)
        p[j] = (float)((double)p[j] / sum);
    return log(sum) + (double)max - (double)z[label];
}

static void forward(const struct er_node *node)
{
    const struct er_tensor *z = node->in[0];
    const struct attr *attr = node->attr;
    size_t classes = z->shape.dim[1];
    double loss = 0;

    for (size_t i = 0; i < z->shape.dim[0]; i++)
        loss += forward_row(z->value + i * classes, node->saved + i * classes, classes,
                            attr->labels[i]);
    node->out->value[0] = (float)loss;
    if (attr->ret_sum)
        *attr->ret_sum = loss;
}

static void backward(const struct er_node *node, float beta)
{
    struct er_tensor *z = node->in[0];
    const struct attr *attr = node->attr;
    size_t classes = z->shape.dim[1];
    float scale = node->out->grad[0];

    for (size_t i = 0; i < z->shape.dim[0]; i++) {
        const float *p = node->saved + i * classes;
        float *dz = z->grad + i * classes;

        for (size_t j = 0; j < classes; j++) {
            float share = scale * (p[j] - ((size_t)attr->labels[i] == j ? 1.0f : 0.0f));

            dz[j] = beta == 0.0f ? share : dz[j] + share;
        }
    }
}

const struct er_tape_op er_op_cross_entropy = {
    .name = "cross_entropy",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct attr),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
};

int er_cross_entropy(struct er_tape *tape, struct er_tensor *logits, const int32_t *labels,
                     double *ret_sum, struct er_tensor **ret, struct er_error *err)
{
    struct attr attr = {.labels = labels, .ret_sum = ret_sum};

    return er_tape_apply(tape, &er_op_cross_entropy, &logits, &attr, ret, err);
}
