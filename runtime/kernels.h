#pragma once
/*
 * The GPU kernels and their arguments: one struct each, passed by value, shared by the host, the
 * .cu files and the double. The names are the symbols in kernels/. Internal to runtime/ and
 * trainer/.
 */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, args): element-wise unless it says otherwise; any grid covers any n. */
#define ER_KERNELS(X)                                                                              \
    X(scale_f32, er_kernel_args)   /* x[i] = x[i] * a */                                           \
    X(sgd_f32, er_kernel_args)     /* p[i] = p[i] - a * (b * g[i]); a: rate, b: 1 / weight */      \
    X(f32_to_bf16, er_kernel_args) /* y[i] = x[i], to nearest even */                              \
    X(bf16_to_f32, er_kernel_args) /* y[i] = x[i] */                                               \
    X(f32_to_f16, er_kernel_args)  /* y[i] = x[i], to nearest even */                              \
    X(f16_to_f32, er_kernel_args)  /* y[i] = x[i] */                                               \
    X(norm2_f32, er_kernel_args)   /* y[block] = sum of x[i]^2, z[block] = non-finite x; a fixed   \
                                      tree */                                                      \
    X(fill_f32, er_kernel_args)    /* y[i] = a */                                                  \
    X(sum_f64, er_kernel_args)     /* y[0] = (float) and z[0] = sum of double x; one block */      \
    X(adamw_f32, er_kernel_adam_args)   /* one step of AdamW, as trainer/optim.c computes it */    \
    X(adam_f32, er_kernel_adam_args)    /* of Adam */                                              \
    X(momentum_f32, er_kernel_sgd_args) /* of SGD */                                               \
    ER_KERNELS_OF_EXACT(X)                                                                         \
    ER_KERNELS_OF_OPS(X)

/* Exact mode, as trainer/exact.c computes it. */
#define ER_KERNELS_OF_EXACT(X)                                                                     \
    X(exact_put, er_kernel_exact_args)  /* sums = (adds: sums +) g * unit; how many did not fit is \
                                           added to words[0] */                                    \
    X(exact_sum, er_kernel_exact_args)  /* sums = sums + from */                                   \
    X(exact_take, er_kernel_exact_args) /* g = sums * unit / weight, sums = 0 */                   \
    X(exact_norm, er_kernel_exact_args) /* of (sums * unit)^2, in 2^-64: three words a block */

/* The operations of trainer/ops/, one or a few each; what the arguments mean is said there. */
#define ER_KERNELS_OF_OPS(X)                                                                       \
    X(rows, er_kernel_op_args)       /* y = w in each row */                                       \
    X(add, er_kernel_op_args)        /* y = x + w, w repeated */                                   \
    X(mul, er_kernel_op_args)        /* y = x * w */                                               \
    X(accumulate, er_kernel_op_args) /* y = old + d */                                             \
    X(mul_back, er_kernel_op_args)   /* y = old + d * w */                                         \
    X(relu, er_kernel_op_args)       /* y = max(x, 0) */                                           \
    X(relu_back, er_kernel_op_args)  /* y = old + d where x > 0 */                                 \
    X(gelu, er_kernel_op_args)                                                                     \
    X(gelu_back, er_kernel_op_args)                                                                \
    X(columns, er_kernel_op_args) /* y = old + sums over rows: enum er_columns */                  \
    X(norm, er_kernel_op_args)    /* layer, RMS and group norm; a block a row */                   \
    X(norm_back, er_kernel_op_args)                                                                \
    X(embedding, er_kernel_op_args)                                                                \
    X(embedding_back, er_kernel_op_args)                                                           \
    X(causal, er_kernel_op_args)       /* scores become probabilities; a block a row */            \
    X(causal_again, er_kernel_op_args) /* the same from the rows' sums */                          \
    X(causal_back, er_kernel_op_args)                                                              \
    X(dropout, er_kernel_op_args)                                                                  \
    X(dropout_back, er_kernel_op_args)                                                             \
    X(entropy, er_kernel_op_args) /* softmax and loss of each row; a block a row */                \
    X(entropy_back, er_kernel_op_args)                                                             \
    X(transpose, er_kernel_walk_args)                                                              \
    X(transpose_back, er_kernel_walk_args)

enum er_kernel {
#define ER_KERNEL_ENUM(name, args) ER_KERNEL_##name,
    ER_KERNELS(ER_KERNEL_ENUM)
#undef ER_KERNEL_ENUM
        ER_KERNEL_COUNT
};

#define ER_KERNEL_THREADS 256 /* blocks of kernels that sum have exactly so many */

struct er_kernel_args {
    void *y;
    const void *x;
    void *z;
    uint64_t n;
    double s;
    float a, b;
};

/* As trainer/optim.c computes a step; g is cleared. */
struct er_kernel_adam_args {
    float *p, *m, *v, *g;
    uint64_t n;
    float scale; /* of g: 1 / weight */
    float beta1, rest1, beta2, rest2, eps;
    float keep;     /* AdamW: 1 - rate * weight decay */
    float rate;     /* rate / (1 - beta1^t) */
    float inverse2; /* 1 / (1 - beta2^t) */
    float decay;    /* Adam: part of the gradient */
};

struct er_kernel_sgd_args {
    float *p, *m, *g;
    uint64_t n;
    float scale, momentum, decay, rate;
    uint32_t nesterov, pad;
};

struct er_kernel_exact_args {
    int64_t *sums;
    float *g;
    uint64_t *words;
    const int64_t *from;
    uint64_t n;
    double unit, limit, weight;
    uint32_t adds, pad;
};

/* `columns`: what is summed. */
enum er_columns {
    ER_COLUMNS_D,       /* d */
    ER_COLUMNS_DX,      /* d x */
    ER_COLUMNS_CENTRED, /* d (x - mean) inverse, of s */
    ER_COLUMNS_SCALED   /* d x inverse, of s */
};

/* What the numbers of an operation are stored as; what is computed with them is float32. */
enum er_kernel_type { ER_KERNEL_F32, ER_KERNEL_F16, ER_KERNEL_BF16 };

/* A row is a sample's group of `cols` elements, `inner` of them a channel; k groups a sample. */
struct er_kernel_op_args {
    void *y;               /* written, or added to */
    const void *x, *w, *b; /* input, weight, bias */
    const void *d;         /* gradient of the output */
    float *s;              /* what forward leaves for backward */
    double *z;
    const void *at; /* integers: ids, labels, samples */
    uint64_t n, rows, cols, inner;
    float beta; /* 0: the old content is not read */
    float f;
    uint32_t k, flag;
    uint8_t ty, tx, tw, tb, td; /* enum er_kernel_type of y, x, w, b, d */
    uint8_t pad[3];
};

/* n elements of y in the order of `dim`; `stride` of x. Back: the other way round. */
struct er_kernel_walk_args {
    void *y;
    const void *x;
    uint64_t n, dim[4], stride[4];
    float beta;
    uint8_t ty, tx, pad[2];
};

#ifdef __cplusplus
}
#define ER_KERNEL_ASSERT static_assert
#else
#define ER_KERNEL_ASSERT _Static_assert
#endif
ER_KERNEL_ASSERT(sizeof(struct er_kernel_args) == 48, "kernel arguments");
ER_KERNEL_ASSERT(sizeof(struct er_kernel_adam_args) == 80, "kernel arguments");
ER_KERNEL_ASSERT(sizeof(struct er_kernel_sgd_args) == 56, "kernel arguments");
ER_KERNEL_ASSERT(sizeof(struct er_kernel_exact_args) == 72, "kernel arguments");
ER_KERNEL_ASSERT(sizeof(struct er_kernel_op_args) == 120, "kernel arguments");
ER_KERNEL_ASSERT(sizeof(struct er_kernel_walk_args) == 96, "kernel arguments");
