#pragma once
/* What operations share. */
#include "trainer/ops/ops.h"
#include "trainer/width.h"

/* Attributes of calls, as the tape keeps them. */
struct er_attr_norm {
    float eps;
};
struct er_attr_group_norm {
    uint32_t groups;
    float eps;
};
struct er_attr_attention {
    uint32_t heads;
};
struct er_attr_dropout {
    struct er_dropout dropout;
};
struct er_attr_transpose {
    uint32_t a, b;
};
struct er_attr_cast {
    enum er_dtype dtype;
};
struct er_attr_embedding {
    const int32_t *ids; /* (N), borrowed */
    struct er_shape shape;
};
struct er_attr_cross_entropy {
    const int32_t *labels; /* (..), borrowed */
    int32_t ignored;
    bool ignoring;
    double *ret_sum;   /* or NULL */
    size_t *ret_count; /* or NULL */
};

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

/* The two inputs of a product. ER_E_USAGE names both and their types. */
int er_op_one_type(const struct er_node *node, const struct er_tensor *a, const struct er_tensor *b,
                   struct er_error *err);

/* The products of linear and matmul: the same on every device. `beta` as backward has it. */
struct er_matmul;
enum er_product { ER_PRODUCT_FORWARD, ER_PRODUCT_BACK_0, ER_PRODUCT_BACK_1 };
struct er_matmul er_linear_product(const struct er_node *node, enum er_product which, float beta);
/* `times` of them, at `stride` elements of a, b and c from one to the next. */
struct er_matmul_run {
    size_t times, stride_a, stride_b, stride_c;
};
struct er_matmul er_matmul_product(const struct er_node *node, enum er_product which, float beta,
                                   struct er_matmul_run *ret_run);

/* A row of cross_entropy that counts. */
static inline bool er_cross_entropy_counts(const struct er_attr_cross_entropy *attr, size_t row)
{
    return !attr->ignoring || attr->labels[row] != attr->ignored;
}

/* Of 65536 draws so many drop an element, and what a kept one is multiplied by. */
uint32_t er_dropout_threshold(const struct er_dropout *dropout);
float er_dropout_scale(const struct er_dropout *dropout);

/* y of a transposition in its order: dimensions padded to four in front, and x's stride for each.
 */
struct er_walk {
    size_t dim[ER_SHAPE_DIMS_MAX], stride[ER_SHAPE_DIMS_MAX];
};
struct er_walk er_transpose_walk(const struct er_node *node);

/* Positions [0, n) sorted by their id below `rows`, stable; in `room`, which holds 2 n of them. */
const uint32_t *er_embedding_sort(const int32_t *ids, size_t n, size_t rows, uint32_t *room);
