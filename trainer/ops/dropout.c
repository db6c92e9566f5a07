/*
 * y (B, ..) = x / (1 - p) where kept, 0 elsewhere; dx += dy / (1 - p) where kept
 * Element i of a sample is kept when 16 bits of er_rng(seed, sample, op, i / 4) are at least
 * 65536 p: a function of the sample and nothing else, whatever batch it came in. p is rounded to
 * 1 / 65536, and the scale uses the rounded value. saved: one bit an element.
 */
#include <errno.h>

#include "trainer/ops/ops_internal.h"
#include "trainer/sampler.h"

#define PER_DRAW 4 /* 16-bit numbers of one 64-bit one */
#define LEVELS   65536u

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_attr_dropout *attr = node->attr;

    if (!(attr->dropout.p >= 0.0f && attr->dropout.p < 1.0f))
        return er_error_set(err, -EINVAL, "dropout: p = %g, expected 0 or more, below 1",
                            (double)attr->dropout.p);
    *ret_out = node->in[0]->shape;
    *ret_saved = node->in[0]->count / 32 + 1;
    return 0;
}

uint32_t er_dropout_threshold(const struct er_dropout *dropout)
{
    uint32_t level = (uint32_t)((double)dropout->p * LEVELS + 0.5);

    return level < LEVELS ? level : LEVELS - 1;
}

float er_dropout_scale(const struct er_dropout *dropout)
{
    return (float)((double)LEVELS / (double)(LEVELS - er_dropout_threshold(dropout)));
}

static void fill_mask(const struct er_attr_dropout *attr, size_t samples, size_t per_sample,
                      uint32_t *mask)
{
    const struct er_dropout *d = &attr->dropout;
    uint32_t limit = er_dropout_threshold(d);
    size_t at = 0;

    for (size_t s = 0; s < samples; s++) {
        uint64_t draw = 0;

        for (size_t i = 0; i < per_sample; i++, at++, draw >>= 16) {
            if (i % PER_DRAW == 0)
                draw = er_rng(d->seed, d->samples[s], d->op, i / PER_DRAW);
            if ((draw & (LEVELS - 1)) >= limit)
                mask[at / 32] |= 1u << at % 32;
        }
    }
}

ER_IN_LOOP float kept(const uint32_t *mask, size_t i, float scale)
{
    return (mask[i / 32] >> i % 32 & 1) ? scale : 0.0f;
}

static void forward(const struct er_node *node)
{
    const struct er_attr_dropout *attr = node->attr;
    const struct er_tensor *x = node->in[0];
    uint32_t *mask = (uint32_t *)node->saved;
    float by = er_dropout_scale(&attr->dropout);

    memset(mask, 0, (x->count / 32 + 1) * sizeof(*mask));
    fill_mask(attr, x->shape.dim[0], x->count / x->shape.dim[0], mask);
    for (size_t i = 0; i < x->count; i++)
        node->out->value[i] = x->value[i] * kept(mask, i, by);
}

static void backward(const struct er_node *node, float beta)
{
    const uint32_t *mask = (const uint32_t *)node->saved;
    const struct er_attr_dropout *attr = node->attr;
    float *dx = node->in[0]->grad, by = er_dropout_scale(&attr->dropout);

    for (size_t i = 0; i < node->out->count; i++)
        dx[i] = er_old(beta, dx[i]) + node->out->grad[i] * kept(mask, i, by);
}

const struct er_tape_op er_op_dropout = {
    .name = "dropout",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_attr_dropout),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .inputs_unread = true,
    .output_unread = true,
};

int er_dropout(struct er_tape *tape, struct er_tensor *x, const struct er_dropout *dropout,
               struct er_tensor **ret, struct er_error *err)
{
    struct er_attr_dropout attr = {.dropout = *dropout};

    return er_tape_apply(tape, &er_op_dropout, &x, &attr, ret, err);
}
