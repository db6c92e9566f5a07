#include "trainer/wide.h"

#include <errno.h>
#include <stdlib.h>

#include "trainer/half.h"

struct er_wide {
    struct er_arena *arena;   /* owned; the copies of one node */
    const struct er_node *of; /* whose backward they are for; NULL: nobody's */
    struct er_node node;      /* the same with the tensors below */
    struct er_tensor in[ER_TAPE_INPUTS_MAX], out;
};

int er_wide_new(struct er_wide **ret, struct er_error *err)
{
    struct er_wide *wide = calloc(1, sizeof(*wide));
    int rc = wide ? er_arena_new(&wide->arena, 0, 0, err)
                  : er_error_set(err, -ENOMEM, "copies of float32");

    if (rc < 0) {
        free(wide);
        return rc;
    }
    *ret = wide;
    return 0;
}

void er_wide_free(struct er_wide *wide)
{
    if (!wide)
        return;
    er_arena_free(wide->arena);
    free(wide);
}

static bool is_half(const struct er_tensor *x)
{
    return x && (x->dtype != ER_F32 || (x->grad && x->grad_dtype != ER_F32));
}

bool er_wide_wanted(const struct er_node *node)
{
    bool wanted = is_half(node->out);

    for (uint32_t i = 0; i < node->op->inputs_n; i++)
        wanted |= is_half(node->in[i]);
    return wanted;
}

static int take(struct er_wide *wide, size_t n, float **ret, struct er_error *err)
{
    void *p = NULL;
    int rc = er_arena_alloc(wide->arena, n * sizeof(float), &p, err);

    *ret = p;
    return rc;
}

/* `n` numbers of `type` as float32: in place where they are. */
static int widen(struct er_wide *wide, enum er_dtype type, void *from, size_t n, float **ret,
                 struct er_error *err)
{
    int rc = 0;

    if (type == ER_F32) {
        *ret = from;
        return 0;
    }
    rc = take(wide, n, ret, err);
    if (rc == 0)
        er_half_to(type, from, *ret, n);
    return rc;
}

/* Inputs with their values, if wanted; gradients come when they are. */
static int copy_inputs(struct er_wide *wide, const struct er_node *node, bool values,
                       struct er_error *err)
{
    int rc = er_arena_reset(wide->arena, err);

    wide->of = NULL;
    wide->node = *node;
    wide->out = *node->out;
    wide->out.dtype = wide->out.grad_dtype = ER_F32;
    wide->node.out = &wide->out;
    for (uint32_t i = 0; i < node->op->inputs_n && rc == 0; i++) {
        struct er_tensor *in = node->in[i];

        if (!in)
            continue;
        wide->in[i] = *in;
        wide->in[i].dtype = wide->in[i].grad_dtype = ER_F32;
        wide->in[i].grad = NULL;
        wide->node.in[i] = &wide->in[i];
        wide->in[i].value = NULL;
        if (values)
            rc = widen(wide, in->dtype, in->half, in->count, &wide->in[i].value, err);
    }
    return rc;
}

int er_wide_forward(struct er_wide *wide, const struct er_node *node, struct er_error *err)
{
    const struct er_tensor *out = node->out;
    int rc = copy_inputs(wide, node, true, err);

    if (rc == 0 && out->dtype != ER_F32)
        rc = take(wide, out->count, &wide->out.value, err);
    if (rc < 0)
        return rc;
    node->op->forward(&wide->node);
    if (out->dtype != ER_F32)
        er_half_from(out->dtype, wide->out.value, out->half, out->count);
    return 0;
}

static int begin_backward(struct er_wide *wide, const struct er_node *node, struct er_error *err)
{
    const struct er_tensor *out = node->out;
    int rc = copy_inputs(wide, node, !node->op->inputs_unread, err);

    wide->out.value = NULL;
    if (rc == 0 && !node->op->output_unread)
        rc = widen(wide, out->dtype, out->half, out->count, &wide->out.value, err);
    if (rc == 0)
        rc = widen(wide, out->grad_dtype, out->half_grad, out->count, &wide->out.grad, err);
    if (rc == 0)
        wide->of = node;
    return rc;
}

int er_wide_backward(struct er_wide *wide, const struct er_node *node, uint32_t input, float beta,
                     struct er_error *err)
{
    struct er_tensor *in = node->in[input], *copy = &wide->in[input];
    int rc = wide->of == node ? 0 : begin_backward(wide, node, err);

    if (rc < 0)
        return rc;
    if (in->grad_dtype == ER_F32)
        copy->grad = in->grad;
    else if (beta == 0.0f)
        rc = take(wide, in->count, &copy->grad, err);
    else
        rc = widen(wide, in->grad_dtype, in->half_grad, in->count, &copy->grad, err);
    if (rc < 0)
        return rc;
    node->op->backward[input](&wide->node, beta);
    if (in->grad_dtype != ER_F32)
        er_half_from(in->grad_dtype, copy->grad, in->half_grad, in->count);
    return 0;
}

void er_wide_forget(struct er_wide *wide)
{
    wide->of = NULL;
}

size_t er_wide_growths(const struct er_wide *wide)
{
    return er_arena_growths(wide->arena);
}
