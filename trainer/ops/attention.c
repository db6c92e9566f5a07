/*
 * Causal self-attention of H heads. qkv (B, T, 3 C) holds query, key and value side by side; head h
 * is columns [h D, (h + 1) D) of each, D = C / H:
 *   out (B, T, C) = softmax(q k^T / sqrt(D), keys up to the query's own position) v
 *   p = softmax; dv = p^T dout, dp = dout v^T, ds = p (dp - sum of dout * out), dq = ds k /
 * sqrt(D), dk = ds^T q / sqrt(D) Never (T, T): ROWS queries at a time against the keys before them.
 * Backward makes the probabilities again from the saved logarithms of the row sums. saved: those
 * (B, H, T), then two blocks (ROWS, T) of scratch, rows padded
 * to whole vectors. Source: T. Dao et al., "FlashAttention", NeurIPS
 * 2022, section 3 (the recomputation; keys are not divided up).
 */
#include <math.h>

#include "trainer/matmul.h"
#include "trainer/ops/ops_internal.h"

#define ROWS ((size_t)64)

/* One head of one sample, and one block of its queries. */
struct head {
    size_t t, width, d; /* T, C, D */
    size_t stride;      /* of a row of scores */
    size_t first, rows; /* queries [first, first + rows), keys [0, first + rows) */
    float root;         /* 1 / sqrt(D) */
    float *q, *k, *v;   /* (T, D) at a stride of 3 C: values or gradients */
};

/* Elements of a row of scores, so that loops over it end with a whole vector. */
static size_t whole(size_t n)
{
    return (n + ER_LANES - 1) & ~(size_t)(ER_LANES - 1);
}

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_shape *x = &node->in[0]->shape;
    const struct er_attr_attention *attr = node->attr;

    if (x->ndim != 3 || attr->heads == 0 || x->dim[2] % (3 * (size_t)attr->heads) != 0 ||
        x->dim[1] > ER_MATMUL_DIM_MAX || x->dim[2] > ER_MATMUL_DIM_MAX)
        return er_op_misfit(node, "(B, T, 3 C), C a multiple of the heads", err);
    *ret_out = *x;
    ret_out->dim[2] = x->dim[2] / 3;
    *ret_saved = x->dim[0] * attr->heads * x->dim[1] + 2 * ROWS * whole(x->dim[1]);
    return 0;
}

static struct head head_of(const struct er_node *node, float *qkv, size_t sample, size_t h)
{
    const struct er_attr_attention *attr = node->attr;
    size_t t = node->out->shape.dim[1], width = node->out->shape.dim[2], d = width / attr->heads;
    float *q = qkv + sample * t * 3 * width + h * d;

    return (struct head){.t = t,
                         .stride = whole(t),
                         .width = width,
                         .d = d,
                         .root = (float)(1.0 / sqrt((double)d)),
                         .q = q,
                         .k = q + width,
                         .v = q + 2 * width};
}

static bool next_block(struct head *head)
{
    head->first += head->rows;
    head->rows = head->t - head->first < ROWS ? head->t - head->first : ROWS;
    return head->rows > 0;
}

static size_t keys(const struct head *head)
{
    return head->first + head->rows;
}

/* s (rows, T) = a b^T over D: a (rows, D) from query `first` on, b (T, D). */
static void scores(const struct head *head, const float *a, size_t lda, const float *b, float *s)
{
    er_matmul(&(struct er_matmul){.m = head->rows,
                                  .n = keys(head),
                                  .k = head->d,
                                  .a = a + head->first * lda,
                                  .lda = lda,
                                  .b = b,
                                  .ldb = 3 * head->width,
                                  .transpose_b = true,
                                  .c = s,
                                  .ldc = head->stride});
}

/* s becomes the softmax of root * s, row by row, 0 behind the query's position; sums[i] = log of a
 * row's sum of exponentials. */
ER_EACH_WIDTH static void softmax_rows(const struct head *head, float *s_all, float *sums)
{
    const float root = head->root;

    for (size_t i = 0; i < head->rows; i++) {
        float *restrict s = s_all + i * head->stride;
        size_t n = head->first + i + 1, n_whole = whole(n);
        float max, sum, inverse;

        for (size_t j = n; j < n_whole; j++)
            s[j] = s[0];
        max = er_largest(s, n_whole) * root;
        for (size_t j = 0; j < n_whole; j++)
            s[j] = er_exp(s[j] * root - max);
        for (size_t j = n; j < whole(keys(head)); j++)
            s[j] = 0.0f;
        sum = er_sum(s, n_whole);
        inverse = 1.0f / sum;
        for (size_t j = 0; j < n_whole; j++)
            s[j] *= inverse;
        sums[head->first + i] = max + (float)log((double)sum);
    }
}

static void forward_head(const struct er_node *node, size_t sample, size_t h, float *sums, float *s)
{
    struct head head = head_of(node, node->in[0]->value, sample, h);
    float *out = node->out->value + sample * head.t * head.width + h * head.d;

    while (next_block(&head)) {
        scores(&head, head.q, 3 * head.width, head.k, s);
        softmax_rows(&head, s, sums);
        er_matmul(&(struct er_matmul){.m = head.rows,
                                      .n = head.d,
                                      .k = keys(&head),
                                      .a = s,
                                      .lda = head.stride,
                                      .b = head.v,
                                      .ldb = 3 * head.width,
                                      .c = out + head.first * head.width,
                                      .ldc = head.width});
    }
}

static void forward(const struct er_node *node)
{
    const struct er_attr_attention *attr = node->attr;
    size_t samples = node->out->shape.dim[0], t = node->out->shape.dim[1];
    float *scratch = node->saved + samples * attr->heads * t;

    for (size_t i = 0; i < samples * attr->heads; i++)
        forward_head(node, i / attr->heads, i % attr->heads, node->saved + i * t, scratch);
}

/* p: scores become probabilities again; ds: dp becomes the gradient of the unscaled scores. */
ER_EACH_WIDTH static void backward_rows(const struct head *head, float *p_all, float *ds_all,
                                        const float *sums, const float *out, const float *dout)
{
    const float root = head->root;

    for (size_t i = 0; i < head->rows; i++) {
        float *restrict p = p_all + i * head->stride, *restrict ds = ds_all + i * head->stride;
        size_t row = head->first + i, n = row + 1, n_whole = whole(n);
        float log_sum = sums[row];
        float mean = er_dot(out + row * head->width, dout + row * head->width, head->d);

        for (size_t j = n; j < n_whole; j++)
            p[j] = ds[j] = 0.0f;
        for (size_t j = 0; j < n_whole; j++) {
            p[j] = er_exp(p[j] * root - log_sum);
            ds[j] = p[j] * (ds[j] - mean) * root;
        }
        for (size_t j = n; j < whole(keys(head)); j++)
            p[j] = ds[j] = 0.0f;
    }
}

/* c (keys, D) += s (rows, keys)^T a (rows, D) */
static void add_to_keys(const struct head *head, const float *s, const float *a, size_t lda,
                        float *c)
{
    er_matmul(&(struct er_matmul){.m = keys(head),
                                  .n = head->d,
                                  .k = head->rows,
                                  .a = s,
                                  .lda = head->stride,
                                  .transpose_a = true,
                                  .b = a + head->first * lda,
                                  .ldb = lda,
                                  .c = c,
                                  .ldc = 3 * head->width,
                                  .beta = 1.0f});
}

static void backward_head(const struct er_node *node, size_t sample, size_t h, const float *sums,
                          float *scratch)
{
    struct head head = head_of(node, node->in[0]->value, sample, h);
    struct head grad = head_of(node, node->in[0]->grad, sample, h);
    size_t at = sample * head.t * head.width + h * head.d, stride = 3 * head.width;
    const float *out = node->out->value + at, *dout = node->out->grad + at;
    float *p = scratch, *ds = scratch + ROWS * head.stride;

    while (next_block(&head)) {
        scores(&head, head.q, stride, head.k, p);
        scores(&head, dout, head.width, head.v, ds);
        backward_rows(&head, p, ds, sums, out, dout);
        add_to_keys(&head, p, dout, head.width, grad.v);
        add_to_keys(&head, ds, head.q, stride, grad.k);
        er_matmul(&(struct er_matmul){.m = head.rows,
                                      .n = head.d,
                                      .k = keys(&head),
                                      .a = ds,
                                      .lda = head.stride,
                                      .b = head.k,
                                      .ldb = stride,
                                      .c = grad.q + head.first * stride,
                                      .ldc = stride,
                                      .beta = 1.0f});
    }
}

static void backward(const struct er_node *node, float beta)
{
    const struct er_attr_attention *attr = node->attr;
    size_t samples = node->out->shape.dim[0], t = node->out->shape.dim[1];
    float *scratch = node->saved + samples * attr->heads * t;

    /* Keys get a share from every block behind them: all of it adds up. */
    if (beta == 0.0f)
        memset(node->in[0]->grad, 0, node->in[0]->count * sizeof(float));
    for (size_t i = 0; i < samples * attr->heads; i++)
        backward_head(node, i / attr->heads, i % attr->heads, node->saved + i * t, scratch);
}

const struct er_tape_op er_op_attention = {
    .name = "attention",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_attr_attention),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
};

int er_attention(struct er_tape *tape, struct er_tensor *qkv, uint32_t heads,
                 struct er_tensor **ret, struct er_error *err)
{
    struct er_attr_attention attr = {.heads = heads};

    return er_tape_apply(tape, &er_op_attention, &qkv, &attr, ret, err);
}
