/* Matrix products of the GPU, by cuBLAS. Part of er_nccl.so; the library is loaded when a program
 * opens its first handle, so that those that only communicate do without it. */
#include <cublas_v2.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "runtime/gpu_parts_internal.h"

/* What NVIDIA recommends for Hopper. Its own for each handle: results may depend on its size. */
#define WORKSPACE_BYTES ((size_t)32 << 20)

#define TEXT_OF(x)  TEXT_OF_(x)
#define TEXT_OF_(x) #x
#define LIBRARY     "libcublas.so." TEXT_OF(CUBLAS_VER_MAJOR)

/* X(name): what is called in the library, by its exported name. */
#define CALLS(X)                                                                                   \
    X(cublasCreate_v2)                                                                             \
    X(cublasDestroy_v2)                                                                            \
    X(cublasGetVersion_v2)                                                                         \
    X(cublasGetStatusString)                                                                       \
    X(cublasSetStream_v2)                                                                          \
    X(cublasSetWorkspace_v2)                                                                       \
    X(cublasSetMathMode)                                                                           \
    X(cublasSetAtomicsMode)                                                                        \
    X(cublasGemmStridedBatchedEx)

static struct {
#define CALL(name) __typeof__(name) *name;
    CALLS(CALL)
#undef CALL
} calls;

struct blas {
    struct er_device *device;
    cublasHandle_t handle;
    void *workspace;
};

static int load(struct er_error *err)
{
    static const struct {
        const char *name;
        void **to;
    } table[] = {
#define CALL(name) {#name, (void **)&calls.name},
        CALLS(CALL)
#undef CALL
    };
    static void *library; /* one owner thread; never unloaded */

    if (library)
        return 0;
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return er_error_set(err, ER_E_UNSUPPORTED, "matrix products on a GPU need cuBLAS: %s",
                            dlerror());
    for (size_t i = 0; i < ER_ARRAY_N(table); i++) {
        *table[i].to = dlsym(library, table[i].name);
        if (!*table[i].to) {
            library = NULL;
            return er_error_set(err, ER_E_UNSUPPORTED, LIBRARY " has no %s()", table[i].name);
        }
    }
    return 0;
}

static int check(cublasStatus_t status, const char *what, struct er_error *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return er_error_set(err,
                        status == CUBLAS_STATUS_ALLOC_FAILED    ? -ENOMEM
                        : status == CUBLAS_STATUS_INVALID_VALUE ? ER_E_USAGE
                                                                : -EIO,
                        "%s: %s", what, calls.cublasGetStatusString(status));
}

static void close_blas(void *impl)
{
    struct blas *b = impl;

    if (!b)
        return;
    if (b->handle)
        calls.cublasDestroy_v2(b->handle);
    er_device_cuda_ops.free(b->device, ER_MEMORY_DEVICE, b->workspace);
    free(b);
}

/* The stream resets the workspace: it comes first. */
static int set_up(struct blas *b, void *stream, struct er_error *err)
{
    int rc = check(calls.cublasCreate_v2(&b->handle), "cublasCreate", err);

    if (rc == 0)
        rc = check(calls.cublasSetStream_v2(b->handle, stream), "cublasSetStream", err);
    if (rc == 0)
        rc = er_device_cuda_ops.alloc(b->device, ER_MEMORY_DEVICE, WORKSPACE_BYTES, &b->workspace,
                                      err);
    if (rc == 0)
        rc = check(calls.cublasSetWorkspace_v2(b->handle, b->workspace, WORKSPACE_BYTES),
                   "cublasSetWorkspace", err);
    if (rc == 0)
        rc = check(calls.cublasSetMathMode(b->handle,
                                           CUBLAS_DEFAULT_MATH |
                                               CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                   "cublasSetMathMode", err);
    if (rc == 0)
        rc = check(calls.cublasSetAtomicsMode(b->handle, CUBLAS_ATOMICS_NOT_ALLOWED),
                   "cublasSetAtomicsMode", err);
    return rc;
}

static int open_blas(void **ret, struct er_device *device, void *stream, struct er_error *err)
{
    struct blas *b;
    int rc = load(err);

    if (rc == 0)
        rc = er_device_cuda_ops.use(device, err);
    if (rc < 0)
        return rc;
    b = calloc(1, sizeof(*b));
    if (!b)
        return er_error_set(err, -ENOMEM, "out of memory");
    b->device = device;
    rc = set_up(b, stream, err);
    if (rc < 0) {
        close_blas(b);
        return rc;
    }
    *ret = b;
    return 0;
}

static int version_blas(void *impl)
{
    const struct blas *b = impl;
    int version = 0;

    calls.cublasGetVersion_v2(b->handle, &version);
    return version;
}

/* cuBLAS counts columns first: it computes c^T (n, m) = op(b)^T op(a)^T from the same memory. */
static int gemm_blas(void *impl, const struct er_gemm *g, struct er_error *err)
{
    static const cudaDataType types[ER_DTYPE_COUNT] = {
        [ER_F32] = CUDA_R_32F, [ER_F16] = CUDA_R_16F, [ER_BF16] = CUDA_R_16BF};
    struct blas *b = impl;
    const float one = 1.0f;
    int rc = er_device_cuda_ops.use(b->device, err);

    if (rc < 0)
        return rc;
    return check(calls.cublasGemmStridedBatchedEx(
                     b->handle, g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                     g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, (int)g->n, (int)g->m, (int)g->k,
                     &one, g->b, types[g->type], (int)g->ldb, (long long)g->stride_b, g->a,
                     types[g->type], (int)g->lda, (long long)g->stride_a, &g->beta, g->c,
                     types[g->out_type], (int)g->ldc, (long long)g->stride_c, (int)g->batch,
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmStridedBatchedEx", err);
}

const struct er_blas_ops er_blas_calls_ops = {
    .open = open_blas,
    .close = close_blas,
    .gemm = gemm_blas,
    .version = version_blas,
};
