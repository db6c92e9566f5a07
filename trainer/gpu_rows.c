/* Operations on a GPU that sum over rows or columns: norms, embedding, cross-entropy. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "trainer/gpu_internal.h"

enum { X, W, B };

/* ---- norms: a row is what one mean is made of ---- */

/* The three norms as one: RMS is the one without a bias. */
static struct er_kernel_op_args norm_args(const struct er_node *node)
{
    const struct er_tensor *x = node->in[X];
    struct er_kernel_op_args a = {ER_VALUE(x, x),
                                  ER_VALUE(w, node->in[W]),
                                  .s = node->saved,
                                  .rows = er_op_rows(x),
                                  .cols = er_op_cols(x),
                                  .inner = 1,
                                  .k = 1};

    if (node->op == &er_op_group_norm) {
        const struct er_attr_group_norm *attr = node->attr;

        a.f = attr->eps;
        a.k = attr->groups;
        a.rows = x->shape.dim[0] * attr->groups;
        a.cols = x->count / a.rows;
        a.inner = x->count / (x->shape.dim[0] * x->shape.dim[1]);
    } else {
        a.f = ((const struct er_attr_norm *)node->attr)->eps;
        a.flag = node->op == &er_op_rms_norm;
    }
    return a;
}

static size_t norm_saved(const struct er_node *node)
{
    return 2 * er_op_rows(node->in[X]);
}

static int norm(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    struct er_kernel_op_args a = norm_args(node);

    ER_SET_VALUE(a, y, node->out);
    if (!a.flag)
        ER_SET_VALUE(a, b, node->in[B]);
    return er_gpu_rows(gpu, ER_KERNEL_norm, &a, a.rows, err);
}

static int norm_back_x(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                       struct er_error *err)
{
    struct er_kernel_op_args a = norm_args(node);

    ER_SET_GRAD(a, y, node->in[X]);
    ER_SET_GRAD(a, d, node->out);
    a.beta = beta;
    return er_gpu_rows(gpu, ER_KERNEL_norm_back, &a, a.rows, err);
}

/* dw or db: over samples and positions of each channel. */
static int norm_back_channels(struct er_gpu_engine *gpu, struct er_node *node, size_t input,
                              float beta, struct er_error *err)
{
    struct er_kernel_op_args a = norm_args(node);

    ER_SET_GRAD(a, y, node->in[input]);
    ER_SET_GRAD(a, d, node->out);
    a.beta = beta;
    a.rows = a.rows / a.k;
    a.cols = node->in[input]->count;
    return er_gpu_columns(gpu, a, input == W ? ER_COLUMNS_CENTRED : ER_COLUMNS_D, err);
}

static int norm_back_w(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                       struct er_error *err)
{
    return norm_back_channels(gpu, node, W, beta, err);
}

static int norm_back_b(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                       struct er_error *err)
{
    return norm_back_channels(gpu, node, B, beta, err);
}

const struct er_gpu_op er_gpu_layer_norm = {.forward = norm,
                                            .backward = {norm_back_x, norm_back_w, norm_back_b}};
const struct er_gpu_op er_gpu_group_norm = {.forward = norm,
                                            .backward = {norm_back_x, norm_back_w, norm_back_b}};
const struct er_gpu_op er_gpu_rms_norm = {
    .saved = norm_saved, .forward = norm, .backward = {norm_back_x, norm_back_w}};

/* ---- embedding ---- */

static size_t embedding_saved(const struct er_node *node)
{
    return 0;
}

static int embedding(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_attr_embedding *attr = node->attr;
    size_t n = er_op_rows(node->out);
    struct er_kernel_op_args a = {ER_VALUE(y, node->out), ER_VALUE(x, node->in[0]),
                                  .n = node->out->count, .cols = er_op_cols(node->out)};
    void *ids = NULL;
    int rc = er_tape_upload(node->tape, attr->ids, n * sizeof(*attr->ids), &ids, err);

    a.at = ids;
    return rc ? rc : er_gpu_each(gpu, ER_KERNEL_embedding, &a, err);
}

/* Starts of the segments of equal ids (segments + 1), the id of each, and all positions sorted by
 * id: how the kernel wants it. `to`: room for 3 n + 1. Returns the segments. */
static size_t make_segments(const int32_t *ids, const uint32_t *sorted, size_t n, int32_t *to)
{
    size_t segments = 0;

    for (size_t i = 0; i < n; i++)
        segments += i == 0 || ids[sorted[i]] != ids[sorted[i - 1]];
    for (size_t i = 0, at = 0; i < n; i++) {
        if (i == 0 || ids[sorted[i]] != ids[sorted[i - 1]]) {
            to[at] = (int32_t)i;
            to[segments + 1 + at++] = ids[sorted[i]];
        }
        to[2 * segments + 1 + i] = (int32_t)sorted[i];
    }
    to[segments] = (int32_t)n;
    return segments;
}

static int embedding_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                          struct er_error *err)
{
    const struct er_attr_embedding *attr = node->attr;
    struct er_tensor *table = node->in[0];
    size_t n = er_op_rows(node->out), segments;
    ER_CLEANUP(er_cleanup_free) uint32_t *room = malloc(2 * n * sizeof(*room));
    ER_CLEANUP(er_cleanup_free) int32_t *list = malloc((3 * n + 1) * sizeof(*list));
    struct er_kernel_op_args a = {ER_GRAD(y, table), ER_GRAD(d, node->out),
                                  .cols = er_op_cols(node->out)};
    void *at = NULL;
    int rc = 0;

    if (!room || !list || n > INT32_MAX)
        return er_error_set(err, -ENOMEM, "%zu positions to sort", n);
    segments = make_segments(attr->ids, er_embedding_sort(attr->ids, n, table->shape.dim[0], room),
                             n, list);
    if (beta == 0.0f)
        rc = er_stream_fill(er_engine_stream(er_tape_engine(node->tape)), table->grad, 0,
                            table->count * er_dtype_size(table->grad_dtype), err);
    if (rc == 0)
        rc = er_tape_upload(node->tape, list, (2 * segments + 1 + n) * sizeof(*list), &at, err);
    a.at = at;
    a.k = (uint32_t)segments;
    return rc ? rc : er_gpu_rows(gpu, ER_KERNEL_embedding_back, &a, segments, err);
}

const struct er_gpu_op er_gpu_embedding = {
    .saved = embedding_saved, .forward = embedding, .backward = {embedding_back}};

/* ---- cross-entropy ---- */

/* Rows that count nothing get a label below 0. */
static int upload_labels(struct er_node *node, size_t rows, size_t *ret_count, struct er_error *err)
{
    const struct er_attr_cross_entropy *attr = node->attr;
    ER_CLEANUP(er_cleanup_free) int32_t *labels = malloc(rows * sizeof(*labels));

    if (!labels)
        return er_error_set(err, -ENOMEM, "%zu labels", rows);
    *ret_count = 0;
    for (size_t i = 0; i < rows; i++) {
        bool counts = er_cross_entropy_counts(attr, i);

        labels[i] = counts ? attr->labels[i] : -1;
        *ret_count += counts;
    }
    return er_tape_upload(node->tape, labels, rows * sizeof(*labels), &node->side, err);
}

static int cross_entropy(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct er_attr_cross_entropy *attr = node->attr;
    struct er_kernel_op_args a = {ER_VALUE(x, node->in[0]), .s = node->saved,
                                  .rows = er_op_rows(node->in[0]), .cols = er_op_cols(node->in[0])};
    struct er_kernel_args sum = {.y = node->out->value, .n = a.rows};
    void *losses = NULL;
    size_t count = 0;
    int rc = upload_labels(node, a.rows, &count, err);

    if (rc == 0)
        rc = er_tape_scratch(node->tape, (a.rows + 1) * sizeof(double), &losses, err);
    if (rc < 0)
        return rc;
    a.z = losses;
    a.at = node->side;
    sum.x = losses;
    sum.z = a.z + a.rows;
    if (attr->ret_count)
        *attr->ret_count = count;
    if (attr->ret_sum) {
        *attr->ret_sum = 0;
        rc = er_gpu_promise(gpu, attr->ret_sum, (double **)&sum.z, err);
    }
    if (rc == 0)
        rc = er_gpu_rows(gpu, ER_KERNEL_entropy, &a, a.rows, err);
    if (rc == 0)
        rc = er_gpu_launch(gpu, ER_KERNEL_sum_f64, &sum, sizeof(sum), 1, err);
    if (rc == 0 && attr->ret_sum) /* the caller may add it up at once */
        rc = er_engine_wait(er_tape_engine(node->tape), err);
    return rc;
}

static int cross_entropy_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                              struct er_error *err)
{
    const struct er_kernel_op_args a = {ER_GRAD(y, node->in[0]),
                                        .x = node->saved,
                                        ER_GRAD(d, node->out),
                                        .at = node->side,
                                        .n = node->in[0]->count,
                                        .cols = er_op_cols(node->in[0]),
                                        .beta = beta};

    return er_gpu_each(gpu, ER_KERNEL_entropy_back, &a, err);
}

const struct er_gpu_op er_gpu_cross_entropy = {.forward = cross_entropy,
                                               .backward = {cross_entropy_back}};
