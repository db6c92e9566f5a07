#include "trainer/ops/ops_internal.h"

#include <errno.h>
#include <stdio.h>

bool er_op_is_suffix(const struct er_shape *y, const struct er_shape *x)
{
    if (y->ndim > x->ndim)
        return false;
    for (uint32_t i = 1; i <= y->ndim; i++) {
        if (y->dim[y->ndim - i] != x->dim[x->ndim - i])
            return false;
    }
    return true;
}

int er_op_misfit(const struct er_node *node, const char *expected, struct er_error *err)
{
    char list[ER_TAPE_INPUTS_MAX * (ER_SHAPE_TEXT_MAX + 64)] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < node->op->inputs_n; i++) {
        char text[ER_SHAPE_TEXT_MAX];

        if (!node->in[i])
            continue;
        er_shape_format(&node->in[i]->shape, text);
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s'%.56s' %s", i ? ", " : "",
                               node->in[i]->name, text);
    }
    return er_error_set(err, -EINVAL, "%s: %s do not fit: expected %s", node->op->name, list,
                        expected);
}

int er_op_one_type(const struct er_node *node, const struct er_tensor *a, const struct er_tensor *b,
                   struct er_error *err)
{
    if (a->dtype == b->dtype)
        return 0;
    return er_error_set(
        err, ER_E_USAGE, "%s: '%.56s' is of %s and '%.56s' of %s: er_cast() one of them",
        node->op->name, a->name, er_dtype_name(a->dtype), b->name, er_dtype_name(b->dtype));
}
