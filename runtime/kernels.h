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

/* X(name): element-wise unless it says otherwise; any grid covers any n. */
#define ER_KERNELS(X)                                                                              \
    X(scale_f32)     /* x[i] = x[i] * a */                                                         \
    X(sgd_f32)       /* p[i] = p[i] - a * (b * g[i]); a: rate, b: 1 / weight */                    \
    X(f32_to_bf16)   /* y[i] = x[i], to nearest even */                                            \
    X(bf16_to_f32)   /* y[i] = x[i] */                                                             \
    X(f32_to_f16)    /* y[i] = x[i], to nearest even */                                            \
    X(f16_to_f32)    /* y[i] = x[i] */                                                             \
    X(fixed_add_f32) /* y[i] = y[i] + rint(x[i] * s), int64: exact mode */                         \
    X(fixed_take)    /* y[i] = (float)(x[i] * s) of int64 x */                                     \
    X(adamw_f32)     /* one step of AdamW, as trainer/optim.c computes it */                       \
    X(norm2_f32)     /* y[block] = sum of x[i]^2, z[block] = non-finite x; a fixed tree */

enum er_kernel {
#define ER_KERNEL_ENUM(name) ER_KERNEL_##name,
    ER_KERNELS(ER_KERNEL_ENUM)
#undef ER_KERNEL_ENUM
        ER_KERNEL_COUNT
};

#define ER_KERNEL_THREADS 256 /* a block of norm2_f32 has exactly so many */

/* Of all kernels but adamw_f32. */
struct er_kernel_args {
    void *y;
    const void *x;
    void *z;
    uint64_t n;
    double s;
    float a, b;
};

/* As trainer/optim.c computes a step; g is cleared. */
struct er_kernel_adamw_args {
    float *p, *m, *v, *g;
    uint64_t n;
    float scale; /* of g: 1 / weight */
    float beta1, rest1, beta2, rest2, eps;
    float keep;     /* 1 - rate * weight decay */
    float rate;     /* rate / (1 - beta1^t) */
    float inverse2; /* 1 / (1 - beta2^t) */
    float pad;
};

#ifdef __cplusplus
}
static_assert(sizeof(struct er_kernel_args) == 48, "kernel arguments");
static_assert(sizeof(struct er_kernel_adamw_args) == 80, "kernel arguments");
#else
_Static_assert(sizeof(struct er_kernel_args) == 48, "kernel arguments");
_Static_assert(sizeof(struct er_kernel_adamw_args) == 80, "kernel arguments");
#endif
