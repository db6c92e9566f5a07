#pragma once
/*
 * What er_nccl.so gives to the library: the GPU's device layer and NCCL, as thin calls without
 * policy. It is loaded when a program opens a GPU, so nobody else needs CUDA's libraries.
 *
 * NCCL's contract is kept on both sides: the module translates calls and results, comm_nccl.c knows
 * what may be called when. All calls come from the owner's thread.
 */
#include "runtime/comm_ops.h"
#include "runtime/device_ops.h"

#define ER_GPU_MODULE_SYMBOL  "er_gpu_module"
#define ER_GPU_MODULE_VERSION 2u
#define ER_NCCL_ID_BYTES      128

struct er_nccl_init {
    unsigned char id[ER_NCCL_ID_BYTES];
    int rank, size;
    const char *name; /* borrowed during the call */
};

struct er_nccl_ops {
    int (*version)(int *ret, struct er_error *err); /* 22809: 2.28.9 */
    /* A fresh id. It lives in this process and serves one communicator. */
    int (*make_id)(unsigned char ret[ER_NCCL_ID_BYTES], struct er_error *err);
    /* Begin to connect, non-blocking. `*ret` may be asked for its status and aborted from then on,
     * also when a failure is returned; NULL: there is nothing to abort. */
    int (*begin)(void **ret, const struct er_nccl_init *init, struct er_error *err);
    /* 0 ready for the next call, ER_IN_PROGRESS, negative failed: only abort is useful. */
    int (*status)(void *nccl, struct er_error *err);
    /* One group on the stream. 0, ER_IN_PROGRESS (ask for the status before anything else),
     * negative failed. */
    int (*launch)(void *nccl, void *stream, const struct er_op *const *ops, int ops_n, int rank,
                  int size, struct er_error *err);
    /* `parent` without the ranks in `left_out`, ending what it is at: as begin(). `left_out` is
     * borrowed, and sorted, until the communicator is ready. */
    int (*shrink)(void **ret, void *parent, int *left_out, int left_out_n, const char *name,
                  struct er_error *err);
    /* All of them in one group; may block as long as the device does. They are gone afterwards. */
    void (*abort)(void *const *nccl, int n);
};

/* `batch` products, row-major: c (m, n) = op(a) op(b) + beta c in float32, accumulated in float32.
 * As struct er_matmul of trainer/matmul.h; the strides are elements from one product to the next.
 */
struct er_gemm {
    size_t m, n, k, batch; /* each at least 1, at most 2^31 - 1 */
    const void *a, *b;     /* (m, k) and (k, n) of `type`; transposed: (k, m) and (n, k) */
    void *c;
    enum er_dtype type, out_type; /* float32, float16 or bfloat16 */
    bool transpose_a, transpose_b;
    float beta; /* 0: c is not read */
    size_t lda, ldb, ldc;
    size_t stride_a, stride_b, stride_c;
};

/* Matrix products by cuBLAS, which is loaded when the first handle is opened. */
struct er_blas_ops {
    /* Products of this handle run on `stream`, with a workspace of the handle's own. float32 means
     * float32: no TF32. ER_E_UNSUPPORTED: no cuBLAS; the text says what is missing. */
    int (*open)(void **ret, struct er_device *device, void *stream, struct er_error *err);
    void (*close)(void *blas);
    int (*gemm)(void *blas, const struct er_gemm *gemm, struct er_error *err);
    int (*version)(void *blas); /* 130100: 13.1.0 */
};

struct er_gpu_module {
    unsigned version; /* ER_GPU_MODULE_VERSION */
    const struct er_device_ops *device;
    const struct er_nccl_ops *nccl;
    const struct er_blas_ops *blas;
};

/* Loads it once per process. ER_E_UNSUPPORTED: not built, not found, or its libraries are missing;
 * the text says which. */
int er_gpu_load(const struct er_gpu_module **ret, struct er_error *err);
