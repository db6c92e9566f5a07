#pragma once
/* What operations share. */
#include "trainer/ops/ops.h"
#include "trainer/width.h"

/* A tensor seen as a matrix (rows, cols): its last dimension, and all before it. */
static inline size_t er_op_cols(const struct er_tensor *x)
{
    return x->shape.dim[x->shape.ndim - 1];
}

static inline size_t er_op_rows(const struct er_tensor *x)
{
    return x->count / er_op_cols(x);
}

/* `shape` is one dimension of `n`. */
static inline bool er_op_is_vector(const struct er_tensor *x, size_t n)
{
    return x->shape.ndim == 1 && x->shape.dim[0] == n;
}

/* The last dimensions of `x` are all of `y`'s. */
bool er_op_is_suffix(const struct er_shape *y, const struct er_shape *x);

/* -EINVAL: "layer_norm: 'x' (2, 8), 'w' (7) and 'b' (8): expected ...". */
int er_op_misfit(const struct er_node *node, const char *expected, struct er_error *err);
