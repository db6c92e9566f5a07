#pragma once
/*
 * Matrix products of float32 through OpenBLAS, which is loaded at run time.
 *
 * Results are a function of the call's shape, the OpenBLAS version, the core type and the number of
 * threads, and of nothing else: equal shapes give equal bits from run to run. OpenBLAS 0.3.21 takes
 * some newer AMD processors for Haswell and loses half the speed, so the core type is chosen here,
 * by CPU features, before the library is loaded.
 */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "runtime/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Load the library; the first call does it, later ones repeat its result. Call it before threads
 * are started: unless the user has set them, OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS (1) are put
 * into the environment. ER_E_UNSUPPORTED: the library is missing (the text names the Debian
 * package) or lacks a function.
 */
int er_matmul_setup(struct er_error *err);

/* "openblas 0.3.21 SkylakeX 1 thread"; "" before a successful er_matmul_setup(). Static. */
const char *er_matmul_describe(void);

/* One product, row-major:
 *   c (M, N) = op(a) op(b) + beta * c,   op(a) (M, K), op(b) (K, N)
 * with op(x) = x, or the transpose of the stored matrix. beta = 0: c is not read. */
struct er_matmul {
    size_t m, n, k; /* each at least 1 and at most ER_MATMUL_DIM_MAX */
    const float *a; /* (M, K); transpose_a: stored (K, M) */
    const float *b; /* (K, N); transpose_b: stored (N, K) */
    float *c;
    bool transpose_a, transpose_b;
    float beta;
    size_t lda, ldb, ldc;                 /* elements from one stored row to the next; 0: no gaps */
    enum er_dtype a_type, b_type, c_type; /* er_matmul() is of float32 alone, a GPU's of more */
};
#define ER_MATMUL_DIM_MAX 0x7fffffff /* OpenBLAS counts in int */

/* After a successful er_matmul_setup(). Any thread. */
void er_matmul(const struct er_matmul *product);

/* CPU features that decide about the core type; pure, for tests. */
struct er_cpu {
    bool avx2, fma, avx512; /* avx512: F, DQ, BW, VL and CD */
    bool amd;
};
/* OPENBLAS_CORETYPE for such a processor; NULL: leave it to the library. */
const char *er_matmul_core_type(const struct er_cpu *cpu);

#ifdef __cplusplus
}
#endif
