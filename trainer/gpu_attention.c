/*
 * Attention on a GPU: ROWS queries at a time against the keys before them, in products of cuBLAS
 * and kernels over rows of scores. Backward makes the probabilities again from the logarithms of
 * the row sums, the only thing that is kept: never (T, T), and the later keys' half of the products
 * is not made. The definitions are those of trainer/ops/attention.c.
 */
#include <math.h>

#include "trainer/gpu_internal.h"

#define ROWS     ((size_t)512)
#define ROWS_MIN ((size_t)64)
#define SCORES_BYTES_MAX                                                                           \
    ((size_t)128 << 20) /* of a block: rows are fewer when there are many keys */

/* Sample by sample, a product for each head: (T, D) pieces at a stride of 3 C. */
struct heads {
    size_t samples, heads, t, width, d;
    size_t most; /* queries of a block */
    float root;
};

/* Queries [first, first + rows) of a sample, and the keys up to the last of them. */
struct block {
    size_t sample, first, rows, keys;
};

static struct heads heads_of(const struct er_node *node)
{
    const struct er_attr_attention *attr = node->attr;
    const struct er_shape *x = &node->in[0]->shape;
    struct heads h = {
        .samples = x->dim[0], .heads = attr->heads, .t = x->dim[1], .width = x->dim[2] / 3};

    h.d = h.width / h.heads;
    h.root = (float)(1.0 / sqrt((double)h.d));
    h.most = SCORES_BYTES_MAX / (h.heads * h.t * sizeof(float) + 1);
    h.most = h.most > ROWS ? ROWS : h.most;
    h.most = h.most < ROWS_MIN ? ROWS_MIN : h.most;
    h.most = h.most > h.t ? h.t : h.most;
    return h;
}

static size_t scores_n(const struct heads *h)
{
    return h->heads * h->most * h->t;
}

static struct block block_at(const struct heads *h, size_t sample, size_t first)
{
    size_t rows = h->t - first < h->most ? h->t - first : h->most;

    return (struct block){sample, first, rows, first + rows};
}

/* A matrix (rows, D) of each head in a row of heads, at `ld` elements from row to row. */
struct part {
    void *at;
    enum er_dtype type;
    size_t ld;
};

/* From row `first` of queries (0), keys (1) or values (2) of a sample in qkv (B, T, 3 C) or its
 * gradient. */
static struct part part_of(void *qkv, enum er_dtype type, const struct heads *h, size_t sample,
                           size_t first, size_t which)
{
    size_t at = (sample * h->t + first) * 3 * h->width + which * h->width;

    return (struct part){(char *)qkv + at * er_dtype_size(type), type, 3 * h->width};
}

static struct part value_of(const struct er_node *node, const struct heads *h,
                            const struct block *b, size_t which)
{
    return part_of(node->in[0]->value, node->in[0]->dtype, h, b->sample, which ? 0 : b->first,
                   which);
}

static struct part grad_of(const struct er_node *node, const struct heads *h, const struct block *b,
                           size_t which)
{
    return part_of(node->in[0]->grad, node->in[0]->grad_dtype, h, b->sample, which ? 0 : b->first,
                   which);
}

/* The block's rows of the output (B, T, C), or of its gradient. */
static struct part out_of(void *out, enum er_dtype type, const struct heads *h,
                          const struct block *b)
{
    size_t at = (b->sample * h->t + b->first) * h->width;

    return (struct part){(char *)out + at * er_dtype_size(type), type, h->width};
}

/* s (rows, keys) = a b^T for each head: a (rows, D), b (keys, D). */
static int scores(struct er_gpu_engine *gpu, const struct heads *h, const struct block *block,
                  struct part a, struct part b, float *s, struct er_error *err)
{
    const struct er_matmul product = {.m = block->rows,
                                      .n = block->keys,
                                      .k = h->d,
                                      .a = a.at,
                                      .a_type = a.type,
                                      .lda = a.ld,
                                      .b = b.at,
                                      .b_type = b.type,
                                      .ldb = b.ld,
                                      .transpose_b = true,
                                      .c = s};
    const struct er_matmul_run run = {h->heads, h->d, h->d, block->rows * block->keys};

    return er_gpu_matmul(gpu, &product, &run, err);
}

/* c = beta c + s b, for each head: s (rows, keys), b (keys, D), c (rows, D); with `transposed`
 * s^T b: b (rows, D), c (keys, D). */
static int weigh(struct er_gpu_engine *gpu, const struct heads *h, const struct block *block,
                 const float *s, bool transposed, struct part b, struct part c, float beta,
                 struct er_error *err)
{
    const struct er_matmul product = {.m = transposed ? block->keys : block->rows,
                                      .n = h->d,
                                      .k = transposed ? block->rows : block->keys,
                                      .a = s,
                                      .transpose_a = transposed,
                                      .b = b.at,
                                      .b_type = b.type,
                                      .ldb = b.ld,
                                      .c = c.at,
                                      .c_type = c.type,
                                      .ldc = c.ld,
                                      .beta = beta};
    const struct er_matmul_run run = {h->heads, block->rows * block->keys, h->d, h->d};

    return er_gpu_matmul(gpu, &product, &run, err);
}

/* A kernel over the block's rows of scores `s`, head by head. */
static int over_rows(struct er_gpu_engine *gpu, const struct er_node *node, const struct heads *h,
                     const struct block *block, enum er_kernel kernel, float *s, const float *x,
                     struct er_error *err)
{
    const struct er_kernel_op_args a = {.y = s,
                                        .x = x,
                                        .s = node->saved + block->sample * h->heads * h->t +
                                             block->first,
                                        .rows = h->heads * block->rows,
                                        .cols = block->keys,
                                        .inner = block->rows,
                                        .n = h->t,
                                        .f = h->root};

    return er_gpu_rows(gpu, kernel, &a, a.rows, err);
}

static size_t attention_saved(const struct er_node *node)
{
    const struct heads h = heads_of(node);

    return h.samples * h.heads * h.t;
}

static int forward_block(struct er_gpu_engine *gpu, const struct er_node *node,
                         const struct heads *h, const struct block *b, float *s,
                         struct er_error *err)
{
    int rc = scores(gpu, h, b, value_of(node, h, b, 0), value_of(node, h, b, 1), s, err);

    if (rc == 0)
        rc = over_rows(gpu, node, h, b, ER_KERNEL_causal, s, NULL, err);
    return rc ? rc
              : weigh(gpu, h, b, s, false, value_of(node, h, b, 2),
                      out_of(node->out->value, node->out->dtype, h, b), 0.0f, err);
}

static int attention(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err)
{
    const struct heads h = heads_of(node);
    float *s = NULL;
    int rc = er_gpu_scratch(gpu, scores_n(&h), &s, err);

    for (size_t i = 0; i < h.samples && rc == 0; i++) {
        for (size_t first = 0; first < h.t && rc == 0; first += h.most) {
            const struct block b = block_at(&h, i, first);

            rc = forward_block(gpu, node, &h, &b, s, err);
        }
    }
    return rc;
}

/* One sample on its way back. */
struct back {
    struct er_gpu_engine *gpu;
    const struct er_node *node;
    struct heads h;
    float *p, *ds; /* (heads, rows, keys) */
    float *keys;   /* (2, T, C): gradients of keys and values, where they are stored in 16 bits and
                      several blocks add to them; NULL: they add to the gradients themselves */
    float beta;
};

/* Of keys (1) or values (2). */
static struct part key_grads(const struct back *k, const struct block *b, size_t which)
{
    if (!k->keys)
        return grad_of(k->node, &k->h, b, which);
    return (struct part){k->keys + (which - 1) * k->h.t * k->h.width, ER_F32, k->h.width};
}

/* Keys get a share from every block behind them: the last block, which has all keys, comes first
 * and begins their gradients. */
static int backward_block(const struct back *k, const struct block *b, struct er_error *err)
{
    const struct heads *h = &k->h;
    const struct er_tensor *out = k->node->out;
    const struct part dout = out_of(out->grad, out->grad_dtype, h, b);
    const struct part query = value_of(k->node, h, b, 0), key = value_of(k->node, h, b, 1);
    float beta = b->keys < h->t ? 1.0f : k->keys ? 0.0f : k->beta;
    int rc = scores(k->gpu, h, b, query, key, k->p, err);

    if (rc == 0)
        rc = over_rows(k->gpu, k->node, h, b, ER_KERNEL_causal_again, k->p, NULL, err);
    if (rc == 0)
        rc = scores(k->gpu, h, b, dout, value_of(k->node, h, b, 2), k->ds, err);
    if (rc == 0)
        rc = over_rows(k->gpu, k->node, h, b, ER_KERNEL_causal_back, k->ds, k->p, err);
    if (rc == 0)
        rc = weigh(k->gpu, h, b, k->p, true, dout, key_grads(k, b, 2), beta, err);
    if (rc == 0)
        rc = weigh(k->gpu, h, b, k->ds, true, query, key_grads(k, b, 1), beta, err);
    return rc ? rc
              : weigh(k->gpu, h, b, k->ds, false, key, grad_of(k->node, h, b, 0), k->beta, err);
}

/* A sample's sums to where they are stored, rounded once. */
static int store_keys(const struct back *k, size_t sample, struct er_error *err)
{
    const struct block whole = {.sample = sample};
    int rc = 0;

    for (size_t which = 1; k->keys && which <= 2 && rc == 0; which++) {
        const struct part to = grad_of(k->node, &k->h, &whole, which);
        const struct er_kernel_walk_args a = {.y = to.at,
                                              .x = key_grads(k, &whole, which).at,
                                              .n = k->h.t * k->h.width,
                                              .dim = {1, 1, k->h.t, k->h.width},
                                              .stride = {0, 0, to.ld, 1},
                                              .beta = k->beta,
                                              .ty = er_gpu_type(to.type),
                                              .tx = ER_KERNEL_F32};

        rc =
            er_gpu_launch(k->gpu, ER_KERNEL_transpose_back, &a, sizeof(a), er_gpu_blocks(a.n), err);
    }
    return rc;
}

static int attention_back(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                          struct er_error *err)
{
    struct back k = {.gpu = gpu, .node = node, .h = heads_of(node), .beta = beta};
    bool apart = node->in[0]->grad_dtype != ER_F32 && k.h.most < k.h.t;
    const size_t n = scores_n(&k.h), blocks = (k.h.t - 1) / k.h.most + 1;
    int rc = er_gpu_scratch(gpu, 2 * n + (apart ? 2 * k.h.t * k.h.width : 0), &k.p, err);

    k.ds = k.p + n;
    k.keys = apart ? k.ds + n : NULL;
    for (size_t i = 0; i < k.h.samples && rc == 0; i++) {
        for (size_t j = blocks; j-- > 0 && rc == 0;) {
            const struct block b = block_at(&k.h, i, j * k.h.most);

            rc = backward_block(&k, &b, err);
        }
        if (rc == 0)
            rc = store_keys(&k, i, err);
    }
    return rc;
}

const struct er_gpu_op er_gpu_attention = {
    .saved = attention_saved, .forward = attention, .backward = {attention_back}};
