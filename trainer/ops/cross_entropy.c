/*
 * loss (1) = sum over the rows of log(sum over C of exp(z - max z)) + max z - z[label],
 * z = logits (.., C); a row whose label is the ignored one counts nothing
 *   dlogits (.., C) += dloss * (softmax(z) - onehot(label)), 0 for an ignored row
 * saved: softmax(z) (.., C).
 */
#include <errno.h>
#include <math.h>

#include "trainer/ops/ops_internal.h"

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_tensor *z = node->in[0];
    const struct er_attr_cross_entropy *attr = node->attr;

    if (z->shape.ndim < 2) {
        char text[ER_SHAPE_TEXT_MAX];

        er_shape_format(&z->shape, text);
        return er_error_set(err, -EINVAL, "cross_entropy: logits '%s' %s, expected (B, C)", z->name,
                            text);
    }
    for (size_t i = 0; i < er_op_rows(z); i++) {
        if (er_cross_entropy_counts(attr, i) &&
            (attr->labels[i] < 0 || (size_t)attr->labels[i] >= er_op_cols(z)))
            return er_error_set(err, -EINVAL,
                                "cross_entropy: label %d of sample %zu is not a class of '%s': "
                                "expected 0 to %zu",
                                attr->labels[i], i, z->name, er_op_cols(z) - 1);
    }
    *ret_out = er_shape_1d(1);
    *ret_saved = z->count;
    return 0;
}

/* Sums of many rows are not for 16 bits. */
static enum er_dtype type(const struct er_node *node)
{
    return ER_F32;
}

/* One row's loss; p (C) becomes the softmax of z (C). */
ER_EACH_WIDTH static double forward_row(const float *restrict z, float *restrict p, size_t classes,
                                        int32_t label)
{
    float max = er_largest(z, classes), sum;

    for (size_t j = 0; j < classes; j++)
        p[j] = er_exp(z[j] - max);
    sum = er_sum(p, classes);
    for (size_t j = 0; j < classes; j++)
        p[j] /= sum;
    return log((double)sum) + (double)max - (double)z[label];
}

static void forward(const struct er_node *node)
{
    const struct er_tensor *z = node->in[0];
    const struct er_attr_cross_entropy *attr = node->attr;
    size_t classes = er_op_cols(z), count = 0;
    double loss = 0;

    for (size_t i = 0; i < er_op_rows(z); i++) {
        if (!er_cross_entropy_counts(attr, i))
            continue;
        loss += forward_row(z->value + i * classes, node->saved + i * classes, classes,
                            attr->labels[i]);
        count++;
    }
    node->out->value[0] = (float)loss;
    if (attr->ret_sum)
        *attr->ret_sum = loss;
    if (attr->ret_count)
        *attr->ret_count = count;
}

ER_EACH_WIDTH static void backward_row(const float *restrict p, float *restrict dz, size_t classes,
                                       float scale, float beta)
{
    for (size_t j = 0; j < classes; j++)
        dz[j] = er_old(beta, dz[j]) + scale * p[j];
}

static void backward(const struct er_node *node, float beta)
{
    struct er_tensor *z = node->in[0];
    const struct er_attr_cross_entropy *attr = node->attr;
    size_t classes = er_op_cols(z);
    float scale = node->out->grad[0];

    for (size_t i = 0; i < er_op_rows(z); i++) {
        float *dz = z->grad + i * classes;

        if (er_cross_entropy_counts(attr, i)) {
            backward_row(node->saved + i * classes, dz, classes, scale, beta);
            dz[attr->labels[i]] -= scale;
        } else if (beta == 0.0f) {
            memset(dz, 0, classes * sizeof(float));
        }
    }
}

const struct er_tape_op er_op_cross_entropy = {
    .name = "cross_entropy",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_attr_cross_entropy),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .type = type,
    .inputs_unread = true,
    .output_unread = true,
};

int er_cross_entropy(struct er_tape *tape, struct er_tensor *logits, const int32_t *labels,
                     double *ret_sum, struct er_tensor **ret, struct er_error *err)
{
    struct er_attr_cross_entropy attr = {.labels = labels, .ret_sum = ret_sum};

    return er_tape_apply(tape, &er_op_cross_entropy, &logits, &attr, ret, err);
}

int er_cross_entropy_ignoring(struct er_tape *tape, struct er_tensor *logits, const int32_t *labels,
                              int32_t ignored, double *ret_sum, size_t *ret_count,
                              struct er_tensor **ret, struct er_error *err)
{
    struct er_attr_cross_entropy attr = {.labels = labels,
                                         .ignored = ignored,
                                         .ignoring = true,
                                         .ret_sum = ret_sum,
                                         .ret_count = ret_count};

    return er_tape_apply(tape, &er_op_cross_entropy, &logits, &attr, ret, err);
}
