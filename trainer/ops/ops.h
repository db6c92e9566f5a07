#pragma once
/*
 * The operations: one file each. Every one checks its shapes (an error names operation, tensors and
 * shapes), runs, and records itself on the tape. B: samples of the batch, T: positions, I: inputs,
 * O: outputs, C: channels or classes; "..": any dimensions.
 *
 * Tensors are stored as float32, float16 or bfloat16. Whatever they are stored as, sums are made in
 * float32 and the output is rounded once, to the type of the first input (a loss is float32). The
 * two inputs of a matrix product have one type; elsewhere inputs may differ (weights of a norm that
 * stay float32, say).
 */
#include "trainer/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_OPS(X)                                                                                  \
    X(linear)                                                                                      \
    X(matmul)                                                                                      \
    X(add)                                                                                         \
    X(mul)                                                                                         \
    X(relu)                                                                                        \
    X(gelu)                                                                                        \
    X(layer_norm)                                                                                  \
    X(rms_norm)                                                                                    \
    X(group_norm)                                                                                  \
    X(embedding)                                                                                   \
    X(attention)                                                                                   \
    X(dropout)                                                                                     \
    X(reshape)                                                                                     \
    X(transpose)                                                                                   \
    X(cast)                                                                                        \
    X(cross_entropy)

#define ER_OP_DECLARE(name) extern const struct er_tape_op er_op_##name;
ER_OPS(ER_OP_DECLARE)
#undef ER_OP_DECLARE

enum er_op_id {
#define ER_OP_ENUM(name) ER_OP_ID_##name,
    ER_OPS(ER_OP_ENUM)
#undef ER_OP_ENUM
        ER_OP_ID_COUNT
};
extern const struct er_tape_op *const er_ops[ER_OP_ID_COUNT];

/* y (.., O) = x (.., I) weight (O, I) transposed + bias (O); `bias` may be NULL. Needs
 * er_matmul_setup(), as do the next one and attention. */
int er_linear(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
              struct er_tensor *bias, struct er_tensor **ret, struct er_error *err);
/* c (.., M, N) = a (.., M, K) b, b (K, N) or (.., K, N) with a's leading dimensions. */
int er_tensor_matmul(struct er_tape *tape, struct er_tensor *a, struct er_tensor *b,
                     struct er_tensor **ret, struct er_error *err);
/* x + y and x * y; y's shape equals the last dimensions of x's (a bias, a position, the same). */
int er_add(struct er_tape *tape, struct er_tensor *x, struct er_tensor *y, struct er_tensor **ret,
           struct er_error *err);
int er_mul(struct er_tape *tape, struct er_tensor *x, struct er_tensor *y, struct er_tensor **ret,
           struct er_error *err);
/* y = max(x, 0), any shape; the derivative at 0 is 0. A NaN stays one. */
int er_relu(struct er_tape *tape, struct er_tensor *x, struct er_tensor **ret,
            struct er_error *err);
/* The tanh form; any shape. */
int er_gelu(struct er_tape *tape, struct er_tensor *x, struct er_tensor **ret,
            struct er_error *err);
/* Over the last dimension C: weight (C), bias (C). */
int er_layer_norm(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
                  struct er_tensor *bias, float eps, struct er_tensor **ret, struct er_error *err);
int er_rms_norm(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight, float eps,
                struct er_tensor **ret, struct er_error *err);
/* x (N, C, ..) over groups of C / `groups` channels of each sample: weight (C), bias (C). Batch
 * norm is not offered: it depends on how a batch is divided over the ranks. */
int er_group_norm(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
                  struct er_tensor *bias, uint32_t groups, float eps, struct er_tensor **ret,
                  struct er_error *err);
/* y (`shape`, C) = rows `ids` of table (V, C). `ids`: borrowed until backward; one outside [0, V)
 * is -EINVAL. */
int er_embedding(struct er_tape *tape, struct er_tensor *table, const int32_t *ids,
                 const struct er_shape *shape, struct er_tensor **ret, struct er_error *err);
/* Causal self-attention: qkv (B, T, 3 C), query, key and value side by side -> (B, T, C). Memory
 * O(B heads T + T). */
int er_attention(struct er_tape *tape, struct er_tensor *qkv, uint32_t heads,
                 struct er_tensor **ret, struct er_error *err);

/* x (B, ..): which elements are dropped is a function of (seed, samples[b], op) alone, so the same
 * in any batch, on any rank and in any repetition. */
struct er_dropout {
    float p;                 /* [0, 1), rounded to 1 / 65536 */
    uint32_t op;             /* a number of the program's for this place in the model */
    uint64_t seed;           /* fold the epoch or step in */
    const uint64_t *samples; /* (B) global sample indices; read during the call only */
};
int er_dropout(struct er_tape *tape, struct er_tensor *x, const struct er_dropout *dropout,
               struct er_tensor **ret, struct er_error *err);

/* Copies: other dimensions of the same count; dimensions `a` and `b` swapped. */
int er_reshape(struct er_tape *tape, struct er_tensor *x, const struct er_shape *shape,
               struct er_tensor **ret, struct er_error *err);
int er_transpose(struct er_tape *tape, struct er_tensor *x, uint32_t a, uint32_t b,
                 struct er_tensor **ret, struct er_error *err);

/* x stored as another type, ER_F32, ER_F16 or ER_BF16; gradients go back the same way. Of its own
 * type: x itself. ER_E_UNSUPPORTED: other types. */
int er_cast(struct er_tape *tape, struct er_tensor *x, enum er_dtype dtype, struct er_tensor **ret,
            struct er_error *err);

/*
 * loss (1) = SUM over the rows of -log softmax(logits (.., C))[label]: sums, so that shares of a
 * batch add up over ranks. `labels`: one a row, in [0, C), borrowed until backward; another value
 * is -EINVAL. `ret_sum` (may be NULL): the same sum in double precision.
 */
int er_cross_entropy(struct er_tape *tape, struct er_tensor *logits, const int32_t *labels,
                     double *ret_sum, struct er_tensor **ret, struct er_error *err);
/* Rows with the label `ignored` count nothing; `ret_count` (may be NULL): how many others, the
 * weight of this loss. */
int er_cross_entropy_ignoring(struct er_tape *tape, struct er_tensor *logits, const int32_t *labels,
                              int32_t ignored, double *ret_sum, size_t *ret_count,
                              struct er_tensor **ret, struct er_error *err);

#ifdef __cplusplus
}
#endif
