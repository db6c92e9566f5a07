/* Operations on a GPU: those that go element by element, and matrix products. The definitions are
 * in trainer/ops/, the kernels in runtime/kernels/. */
#include "trainer/gpu_internal.h"

/* ---- element by element ---- */

static int relu(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_VALUE(y, node->out), ER_VALUE(x, node->in[0]),
                                        .n = node->out->count};

    return er_gpu_each(gpu, ER_KERNEL_relu, &a, err);
}

static int relu_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                     struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_GRAD(y, node->in[0]), ER_VALUE(x, node->out),
                                        ER_GRAD(d, node->out), .n = node->out->count, .beta = beta};

    return er_gpu_each(gpu, ER_KERNEL_relu_back, &a, err);
}

static int gelu(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_VALUE(y, node->out), ER_VALUE(x, node->in[0]),
                                        .n = node->out->count};

    return er_gpu_each(gpu, ER_KERNEL_gelu, &a, err);
}

static int gelu_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                     struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_GRAD(y, node->in[0]), ER_VALUE(x, node->in[0]),
                                        ER_GRAD(d, node->out), .n = node->out->count, .beta = beta};

    return er_gpu_each(gpu, ER_KERNEL_gelu_back, &a, err);
}

/* The gradient goes on as it is. */
static int pass_on(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                   struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_GRAD(y, node->in[0]), ER_GRAD(d, node->out),
                                        .n = node->out->count, .beta = beta};

    return er_gpu_each(gpu, ER_KERNEL_accumulate, &a, err);
}

/* The type of the output may be another one. */
static int reshape(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_VALUE(y, node->out), ER_VALUE(d, node->in[0]),
                                        .n = node->out->count};

    return er_gpu_each(gpu, ER_KERNEL_accumulate, &a, err);
}

/* Of two inputs, the second repeated. */
static struct er_kernel_op_args pair(const struct er_node *node)
{
    return (struct er_kernel_op_args){
        ER_VALUE(y, node->out),    ER_VALUE(x, node->in[0]),
        ER_VALUE(w, node->in[1]),  ER_GRAD(d, node->out),
        .n = node->out->count,     .rows = node->out->count / node->in[1]->count,
        .cols = node->in[1]->count};
}

static int add(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_kernel_op_args a = pair(node);

    return er_gpu_each(gpu, ER_KERNEL_add, &a, err);
}

static int add_back_y(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                      struct er_error *err)
{
    struct er_kernel_op_args a = pair(node);

    ER_SET_GRAD(a, y, node->in[1]);
    a.beta = beta;
    return er_gpu_columns(gpu, a, ER_COLUMNS_D, err);
}

static int mul(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_kernel_op_args a = pair(node);

    return er_gpu_each(gpu, ER_KERNEL_mul, &a, err);
}

static int mul_back_x(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                      struct er_error *err)
{
    struct er_kernel_op_args a = pair(node);

    ER_SET_GRAD(a, y, node->in[0]);
    a.beta = beta;
    return er_gpu_each(gpu, ER_KERNEL_mul_back, &a, err);
}

static int mul_back_y(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                      struct er_error *err)
{
    struct er_kernel_op_args a = pair(node);

    ER_SET_GRAD(a, y, node->in[1]);
    a.beta = beta;
    return er_gpu_columns(gpu, a, ER_COLUMNS_DX, err);
}

/* ---- dropout ---- */

static struct er_kernel_op_args dropout_args(const struct er_node *node)
{
    const struct er_attr_dropout *attr = node->attr;
    const struct er_tensor *x = node->in[0];

    return (struct er_kernel_op_args){.at = node->side,
                                      .n = x->count,
                                      .cols = x->count / x->shape.dim[0],
                                      .inner = attr->dropout.seed,
                                      .f = er_dropout_scale(&attr->dropout),
                                      .k = attr->dropout.op,
                                      .flag = er_dropout_threshold(&attr->dropout)};
}

static int dropout(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_attr_dropout *attr = node->attr;
    size_t bytes = node->in[0]->shape.dim[0] * sizeof(*attr->dropout.samples);
    struct er_kernel_op_args a;
    int rc = er_tape_upload(node->tape, attr->dropout.samples, bytes, &node->side, err);

    if (rc < 0)
        return rc;
    a = dropout_args(node);
    ER_SET_VALUE(a, y, node->out);
    ER_SET_VALUE(a, x, node->in[0]);
    return er_gpu_each(gpu, ER_KERNEL_dropout, &a, err);
}

static int dropout_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                        struct er_error *err)
{
    struct er_kernel_op_args a = dropout_args(node);

    ER_SET_GRAD(a, y, node->in[0]);
    ER_SET_GRAD(a, d, node->out);
    a.beta = beta;
    return er_gpu_each(gpu, ER_KERNEL_dropout_back, &a, err);
}

/* ---- transposition ---- */

static int walk(struct er_gpu_engine *gpu, const struct er_node *node, enum er_kernel kernel,
                struct er_kernel_walk_args a, struct er_error *err)
{
    const struct er_walk w = er_transpose_walk(node);

    a.n = node->out->count;
    for (size_t i = 0; i < ER_SHAPE_DIMS_MAX; i++) {
        a.dim[i] = w.dim[i];
        a.stride[i] = w.stride[i];
    }
    return er_gpu_launch(gpu, kernel, &a, sizeof(a),
                         (a.n + ER_KERNEL_THREADS - 1) / ER_KERNEL_THREADS, err);
}

static int transpose(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_kernel_walk_args a = {ER_VALUE(y, node->out), ER_VALUE(x, node->in[0])};

    return walk(gpu, node, ER_KERNEL_transpose, a, err);
}

static int transpose_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                          struct er_error *err)
{
    const struct er_kernel_walk_args a = {ER_GRAD(y, node->in[0]), ER_GRAD(x, node->out),
                                          .beta = beta};

    return walk(gpu, node, ER_KERNEL_transpose_back, a, err);
}

/* ---- matrix products ---- */

static int linear(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_tensor *b = node->in[2];
    const struct er_kernel_op_args bias = {ER_VALUE(y, node->out), .w = b ? b->value : NULL,
                                           .tw = b ? er_gpu_type(b->dtype) : ER_KERNEL_F32,
                                           .n = node->out->count, .cols = er_op_cols(node->out)};
    const struct er_matmul product = er_linear_product(node, ER_PRODUCT_FORWARD, b ? 1.0f : 0.0f);
    int rc = b ? er_gpu_each(gpu, ER_KERNEL_rows, &bias, err) : 0;

    return rc ? rc : er_gpu_matmul(gpu, &product, NULL, err);
}

static int linear_back_x(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                         struct er_error *err)
{
    const struct er_matmul product = er_linear_product(node, ER_PRODUCT_BACK_0, beta);

    return er_gpu_matmul(gpu, &product, NULL, err);
}

static int linear_back_w(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                         struct er_error *err)
{
    const struct er_matmul product = er_linear_product(node, ER_PRODUCT_BACK_1, beta);

    return er_gpu_matmul(gpu, &product, NULL, err);
}

static int linear_back_b(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                         struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_GRAD(y, node->in[2]), ER_GRAD(d, node->out),
                                        .rows = er_op_rows(node->out),
                                        .cols = er_op_cols(node->out), .beta = beta};

    return er_gpu_columns(gpu, a, ER_COLUMNS_D, err);
}

static int multiply(struct er_gpu_engine *gpu, const struct er_node *node, enum er_product which,
                    float beta, struct er_error *err)
{
    struct er_matmul_run run;
    const struct er_matmul product = er_matmul_product(node, which, beta, &run);

    return er_gpu_matmul(gpu, &product, &run, err);
}

static int matmul(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    return multiply(gpu, node, ER_PRODUCT_FORWARD, 0.0f, err);
}

static int matmul_back_a(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                         struct er_error *err)
{
    return multiply(gpu, node, ER_PRODUCT_BACK_0, beta, err);
}

static int matmul_back_b(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                         struct er_error *err)
{
    return multiply(gpu, node, ER_PRODUCT_BACK_1, beta, err);
}

static const struct er_gpu_op linear_op = {
    .forward = linear, .backward = {linear_back_x, linear_back_w, linear_back_b}};
static const struct er_gpu_op matmul_op = {.forward = matmul,
                                           .backward = {matmul_back_a, matmul_back_b}};
static const struct er_gpu_op add_op = {.forward = add, .backward = {pass_on, add_back_y}};
static const struct er_gpu_op mul_op = {.forward = mul, .backward = {mul_back_x, mul_back_y}};
static const struct er_gpu_op relu_op = {.forward = relu, .backward = {relu_back}};
static const struct er_gpu_op gelu_op = {.forward = gelu, .backward = {gelu_back}};
static const struct er_gpu_op dropout_op = {.forward = dropout, .backward = {dropout_back}};
static const struct er_gpu_op reshape_op = {.forward = reshape, .backward = {pass_on}};
static const struct er_gpu_op cast_op = {.forward = reshape, .backward = {pass_on}};
static const struct er_gpu_op transpose_op = {.forward = transpose, .backward = {transpose_back}};

const struct er_gpu_op *const er_gpu_ops[ER_OP_ID_COUNT] = {
    [ER_OP_ID_linear] = &linear_op,
    [ER_OP_ID_matmul] = &matmul_op,
    [ER_OP_ID_add] = &add_op,
    [ER_OP_ID_mul] = &mul_op,
    [ER_OP_ID_relu] = &relu_op,
    [ER_OP_ID_gelu] = &gelu_op,
    [ER_OP_ID_layer_norm] = &er_gpu_layer_norm,
    [ER_OP_ID_rms_norm] = &er_gpu_rms_norm,
    [ER_OP_ID_group_norm] = &er_gpu_group_norm,
    [ER_OP_ID_embedding] = &er_gpu_embedding,
    [ER_OP_ID_attention] = &er_gpu_attention,
    [ER_OP_ID_dropout] = &dropout_op,
    [ER_OP_ID_reshape] = &reshape_op,
    [ER_OP_ID_transpose] = &transpose_op,
    [ER_OP_ID_cast] = &cast_op,
    [ER_OP_ID_cross_entropy] = &er_gpu_cross_entropy,
};
