/* The double of cuBLAS: products by plain loops, in the stream's order, in float32. */
#include <cublas_v2.h>
#include <stdlib.h>

#include "base/half.h"
#include "tests/fakecuda/fake.h"

struct handle {
    void *stream, *workspace;
    bool atomics_off, math_set;
};

/* A matrix counted by columns, as cuBLAS does. */
struct matrix {
    char *at;
    cudaDataType type;
    long long ld, stride;
};

struct product {
    struct matrix a, b, c;
    int m, n, k, batch;
    bool transpose_a, transpose_b;
    float alpha, beta;
};

/* Too large for a stream's item: kept aside until it has run. */
struct queued {
    struct product *p;
};

static size_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float get(const struct matrix *x, long long at)
{
    const uint16_t *half = (const uint16_t *)(const void *)x->at;

    return x->type == CUDA_R_32F   ? ((const float *)(const void *)x->at)[at]
           : x->type == CUDA_R_16F ? er_float_of_f16(half[at])
                                   : er_float_of_bf16(half[at]);
}

static void put(const struct matrix *x, long long at, float v)
{
    uint16_t *half = (uint16_t *)(void *)x->at;

    if (x->type == CUDA_R_32F)
        ((float *)(void *)x->at)[at] = v;
    else
        half[at] = x->type == CUDA_R_16F ? er_f16_of_float(v) : er_bf16_of_float(v);
}

static void one_element(const struct product *p, int batch, int row, int col)
{
    long long at = batch * p->c.stride + (long long)col * p->c.ld + row;
    float sum = 0;

    for (int i = 0; i < p->k; i++)
        sum += get(&p->a, batch * p->a.stride + (p->transpose_a ? (long long)row * p->a.ld + i
                                                                : (long long)i * p->a.ld + row)) *
               get(&p->b, batch * p->b.stride + (p->transpose_b ? (long long)i * p->b.ld + col
                                                                : (long long)col * p->b.ld + i));
    put(&p->c, at, p->alpha * sum + (p->beta == 0 ? 0 : p->beta * get(&p->c, at)));
}

static void multiply(struct fake_stream *s, void *arg)
{
    struct product *p = ((struct queued *)arg)->p;

    for (int batch = 0; batch < p->batch; batch++)
        for (int col = 0; col < p->n; col++)
            for (int row = 0; row < p->m; row++)
                one_element(p, batch, row, col);
    free(p);
}

/* From the first to the last element. */
static void touch(struct fake_stream *s, const struct matrix *x, int rows, int cols, int batch,
                  bool writes)
{
    long long last = (batch - 1) * x->stride + (cols - 1) * x->ld + rows;

    fake_touch(s, x->at, (size_t)last * size_of(x->type), writes, "a matrix product");
}

FAKE_API cublasStatus_t cublasCreate_v2(cublasHandle_t *ret)
{
    struct handle *h = calloc(1, sizeof(*h));

    fake_refuse_in_step("cublasCreate");
    *ret = (cublasHandle_t)(void *)h;
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

FAKE_API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    fake_refuse_in_step("cublasDestroy");
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

FAKE_API cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *ret)
{
    *ret = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

FAKE_API const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value" : "a status of cuBLAS";
}

/* As cuBLAS does, this takes the workspace away. */
FAKE_API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    struct handle *h = (struct handle *)(void *)handle;

    h->stream = stream;
    h->workspace = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

FAKE_API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    ((struct handle *)(void *)handle)->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}

FAKE_API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    ((struct handle *)(void *)handle)->math_set = !(mode & CUBLAS_TF32_TENSOR_OP_MATH);
    return CUBLAS_STATUS_SUCCESS;
}

FAKE_API cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    ((struct handle *)(void *)handle)->atomics_off = mode == CUBLAS_ATOMICS_NOT_ALLOWED;
    return CUBLAS_STATUS_SUCCESS;
}

static bool type_is_known(cudaDataType type)
{
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

static bool is_valid(const struct product *p, cublasComputeType_t compute)
{
    return p->m > 0 && p->n > 0 && p->k > 0 && p->batch > 0 && compute == CUBLAS_COMPUTE_32F &&
           type_is_known(p->a.type) && p->a.type == p->b.type && type_is_known(p->c.type) &&
           p->a.ld >= (p->transpose_a ? p->k : p->m) && p->b.ld >= (p->transpose_b ? p->n : p->k) &&
           p->c.ld >= p->m;
}

static void queue(struct handle *h, struct product *p)
{
    struct queued q = {p};
    struct fake_stream *s;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(h->stream, "a matrix product");
    fake_push(s, multiply, &q, sizeof(q));
    touch(s, &p->a, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->batch, false);
    touch(s, &p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->batch, false);
    touch(s, &p->c, p->m, p->n, p->batch, true);
    pthread_mutex_unlock(&fake_lock);
}

FAKE_API cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType a_type, int lda, long long stride_a,
    const void *b, cudaDataType b_type, int ldb, long long stride_b, const void *beta, void *c,
    cudaDataType c_type, int ldc, long long stride_c, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t algo)
{
    struct handle *h = (struct handle *)(void *)handle;
    struct product *p = malloc(sizeof(*p));

    if (!h->workspace || !h->atomics_off || !h->math_set)
        fake_fail("a matrix product without a workspace, atomics off and a mode: its bits depend "
                  "on what else runs");
    if (!p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *p = (struct product){.a = {(char *)(uintptr_t)a, a_type, lda, stride_a},
                          .b = {(char *)(uintptr_t)b, b_type, ldb, stride_b},
                          .c = {c, c_type, ldc, stride_c},
                          .m = m,
                          .n = n,
                          .k = k,
                          .batch = batch,
                          .transpose_a = op_a != CUBLAS_OP_N,
                          .transpose_b = op_b != CUBLAS_OP_N,
                          .alpha = *(const float *)alpha,
                          .beta = *(const float *)beta};
    if (!is_valid(p, compute)) {
        free(p);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    queue(h, p);
    return CUBLAS_STATUS_SUCCESS;
}
