/* Operations on a GPU that sum over rows or columns: norms, embedding, attention, cross-entropy. */
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
    struct er_kernel_op_args a = {.x = x->value,
                                  .w = node->in[W]->value,
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

    a.y = node->out->value;
    a.b = a.flag ? NULL : node->in[B]->value;
    return er_gpu_rows(gpu, ER_KERNEL_norm, &a, a.rows, err);
}

static int norm_back_x(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                       struct er_error *err)
{
    struct er_kernel_op_args a = norm_args(node);

    a.y = node->in[X]->grad;
    a.d = node->out->grad;
    a.beta = beta;
    return er_gpu_rows(gpu, ER_KERNEL_norm_back, &a, a.rows, err);
}

/* dw or db: over samples and positions of each channel. */
static int norm_back_channels(struct er_gpu_engine *gpu, struct er_node *node, size_t input,
                              float beta, struct er_error *err)
{
    struct er_kernel_op_args a = norm_args(node);

    a.y = node->in[input]->grad;
    a.d = node->out->grad;
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
    struct er_kernel_op_args a = {.y = node->out->value,
                                  .x = node->in[0]->value,
                                  .n = node->out->count,
                                  .cols = er_op_cols(node->out)};
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
    struct er_kernel_op_args a = {
        .y = table->grad, .d = node->out->grad, .cols = er_op_cols(node->out)};
    void *at = NULL;
    int rc = 0;

    if (!room || !list || n > INT32_MAX)
        return er_error_set(err, -ENOMEM, "%zu positions to sort", n);
    segments = make_segments(attr->ids, er_embedding_sort(attr->ids, n, table->shape.dim[0], room),
                             n, list);
    if (beta == 0.0f)
        rc = er_stream_fill(er_engine_stream(er_tape_engine(node->tape)), table->grad, 0,
                            table->count * sizeof(float), err);
    if (rc == 0)
        rc = er_tape_upload(node->tape, list, (2 * segments + 1 + n) * sizeof(*list), &at, err);
    a.at = at;
    a.k = (uint32_t)segments;
    return rc ? rc : er_gpu_rows(gpu, ER_KERNEL_embedding_back, &a, segments, err);
}

const struct er_gpu_op er_gpu_embedding = {
    .saved = embedding_saved, .forward = embedding, .backward = {embedding_back}};

/* ---- attention: all scores of a sample's heads at once, kept as probabilities ---- */

/* Sample by sample, a product for each head: (T, D) pieces at a stride of 3 C. */
struct heads {
    size_t samples, heads, t, width, d;
    float root;
};

static struct heads heads_of(const struct er_node *node)
{
    const struct er_attr_attention *attr = node->attr;
    const struct er_shape *x = &node->in[0]->shape;
    struct heads h = {
        .samples = x->dim[0], .heads = attr->heads, .t = x->dim[1], .width = x->dim[2] / 3};

    h.d = h.width / h.heads;
    h.root = (float)(1.0 / sqrt((double)h.d));
    return h;
}

static size_t attention_saved(const struct er_node *node)
{
    const struct heads h = heads_of(node);

    return h.samples * h.heads * h.t * h.t;
}

/* s (T, T) = a b^T for each head: a, b (T, D) of strides lda and 3 C. */
static int scores(struct er_gpu_engine *gpu, const struct heads *h, const float *a, size_t lda,
                  const float *b, float *s, struct er_error *err)
{
    const struct er_matmul product = {.m = h->t,
                                      .n = h->t,
                                      .k = h->d,
                                      .a = a,
                                      .lda = lda,
                                      .b = b,
                                      .ldb = 3 * h->width,
                                      .transpose_b = true,
                                      .c = s};
    const struct er_matmul_run run = {h->heads, h->d, h->d, h->t * h->t};

    return er_gpu_matmul(gpu, &product, &run, err);
}

/* c (T, D) = beta c + s (T, T) or its transpose times b (T, D), for each head. */
static int weigh(struct er_gpu_engine *gpu, const struct heads *h, const float *s, bool transposed,
                 const float *b, size_t ldb, float *c, size_t ldc, float beta, struct er_error *err)
{
    const struct er_matmul product = {.m = h->t,
                                      .n = h->d,
                                      .k = h->t,
                                      .a = s,
                                      .transpose_a = transposed,
                                      .b = b,
                                      .ldb = ldb,
                                      .c = c,
                                      .ldc = ldc,
                                      .beta = beta};
    const struct er_matmul_run run = {h->heads, h->t * h->t, h->d, h->d};

    return er_gpu_matmul(gpu, &product, &run, err);
}

static int attention(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct heads h = heads_of(node);
    const size_t square = h.heads * h.t * h.t, stride = 3 * h.width;
    const struct er_kernel_op_args a = {
        .y = node->saved, .rows = h.samples * h.heads * h.t, .cols = h.t, .f = h.root};
    int rc = 0;

    for (size_t i = 0; i < h.samples && rc == 0; i++) {
        const float *q = node->in[0]->value + i * h.t * stride;

        rc = scores(gpu, &h, q, stride, q + h.width, node->saved + i * square, err);
    }
    if (rc == 0)
        rc = er_gpu_rows(gpu, ER_KERNEL_causal, &a, a.rows, err);
    for (size_t i = 0; i < h.samples && rc == 0; i++)
        rc = weigh(gpu, &h, node->saved + i * square, false,
                   node->in[0]->value + i * h.t * stride + 2 * h.width, stride,
                   node->out->value + i * h.t * h.width, h.width, 0.0f, err);
    return rc;
}

/* One sample, `ds` for its scores. */
static int attention_back_one(struct er_gpu_engine *gpu, const struct er_node *node,
                              const struct heads *h, size_t sample, float *ds, float beta,
                              struct er_error *err)
{
    const size_t stride = 3 * h->width, at = sample * h->t;
    const float *q = node->in[0]->value + at * stride, *dout = node->out->grad + at * h->width;
    const float *p = node->saved + sample * h->heads * h->t * h->t;
    float *dq = node->in[0]->grad + at * stride;
    const struct er_kernel_op_args a = {
        .y = ds, .x = p, .rows = h->heads * h->t, .cols = h->t, .f = h->root};
    int rc = scores(gpu, h, dout, h->width, q + 2 * h->width, ds, err);

    if (rc == 0)
        rc = er_gpu_rows(gpu, ER_KERNEL_causal_back, &a, a.rows, err);
    if (rc == 0)
        rc = weigh(gpu, h, p, true, dout, h->width, dq + 2 * h->width, stride, beta, err);
    if (rc == 0)
        rc = weigh(gpu, h, ds, true, q, stride, dq + h->width, stride, beta, err);
    return rc ? rc : weigh(gpu, h, ds, false, q + h->width, stride, dq, stride, beta, err);
}

static int attention_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                          struct er_error *err)
{
    const struct heads h = heads_of(node);
    void *ds = NULL;
    int rc = er_tape_scratch(node->tape, h.heads * h.t * h.t * sizeof(float), &ds, err);

    for (size_t i = 0; i < h.samples && rc == 0; i++)
        rc = attention_back_one(gpu, node, &h, i, ds, beta, err);
    return rc;
}

const struct er_gpu_op er_gpu_attention = {
    .saved = attention_saved, .forward = attention, .backward = {attention_back}};

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
    struct er_kernel_op_args a = {.x = node->in[0]->value,
                                  .s = node->saved,
                                  .rows = er_op_rows(node->in[0]),
                                  .cols = er_op_cols(node->in[0])};
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
        rc = er_gpu_result(gpu, attr->ret_sum, (double **)&sum.z, err);
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
    const struct er_kernel_op_args a = {.y = node->in[0]->grad,
                                        .x = node->saved,
                                        .d = node->out->grad,
                                        .at = node->side,
                                        .n = node->in[0]->count,
                                        .cols = er_op_cols(node->in[0]),
                                        .beta = beta};

    return er_gpu_each(gpu, ER_KERNEL_entropy_back, &a, err);
}

const struct er_gpu_op er_gpu_cross_entropy = {.forward = cross_entropy,
                                               .backward = {cross_entropy_back}};
