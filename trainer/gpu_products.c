/* Matrix products on a GPU: cuBLAS, and inputs rounded to 16 bits first where that was asked for,
 * or where the other one is stored so. */
#include "trainer/gpu_internal.h"

/* Memory of the engine's own that grows until the largest use has been seen. */
static int grow(struct er_gpu_engine *gpu, void **memory, size_t *bytes, size_t wanted,
                struct er_error *err)
{
    void *more = NULL;
    int rc;

    if (wanted <= *bytes)
        return 0;
    rc = er_gpu_sync(gpu, err);
    if (rc == 0)
        rc = er_device_alloc(gpu->engine.device, ER_MEMORY_DEVICE, wanted, &more, err);
    if (rc < 0)
        return rc;
    er_device_free(gpu->engine.device, ER_MEMORY_DEVICE, *memory);
    *memory = more;
    *bytes = wanted;
    return 0;
}

int er_gpu_scratch(struct er_gpu_engine *gpu, size_t n, float **ret, struct er_error *err)
{
    int rc = grow(gpu, &gpu->scratch, &gpu->scratch_bytes, n * sizeof(**ret), err);

    *ret = gpu->scratch;
    return rc;
}

/* From the first element to the last, gaps included: the strides stay. */
static size_t extent(size_t rows, size_t cols, size_t ld, size_t times, size_t stride)
{
    return (times - 1) * stride + (rows - 1) * ld + cols;
}

/* cuBLAS wants two inputs of one type: those of another one are rounded to `type`, into `half`. */
static int round_inputs(struct er_gpu_engine *gpu, struct er_gemm *g, enum er_dtype a_type,
                        enum er_dtype b_type, enum er_dtype type, struct er_error *err)
{
    const size_t align = 128 / sizeof(uint16_t);
    size_t a_n = g->transpose_a ? extent(g->k, g->m, g->lda, g->batch, g->stride_a)
                                : extent(g->m, g->k, g->lda, g->batch, g->stride_a);
    size_t b_n = g->transpose_b ? extent(g->n, g->k, g->ldb, g->batch, g->stride_b)
                                : extent(g->k, g->n, g->ldb, g->batch, g->stride_b);
    size_t b_at = a_type == type ? 0 : (a_n + align - 1) / align * align;
    int rc = grow(gpu, &gpu->half, &gpu->half_bytes,
                  (b_at + (b_type == type ? 0 : b_n)) * sizeof(uint16_t), err);
    uint16_t *half = gpu->half;

    if (rc == 0 && a_type != type) {
        rc = er_gpu_convert(gpu, type, half, a_type, g->a, a_n, err);
        g->a = half;
    }
    if (rc == 0 && b_type != type) {
        rc = er_gpu_convert(gpu, type, half + b_at, b_type, g->b, b_n, err);
        g->b = half + b_at;
    }
    g->type = type;
    return rc;
}

/* What both inputs are taken as: what one of them is stored as, else what the engine was told. */
static enum er_dtype product_type(const struct er_gpu_engine *gpu, const struct er_matmul *p)
{
    if (p->a_type != ER_F32)
        return p->a_type;
    return p->b_type != ER_F32 ? p->b_type : gpu->engine.products;
}

int er_gpu_matmul(struct er_gpu_engine *gpu, const struct er_matmul *p,
                  const struct er_matmul_run *run, struct er_error *err)
{
    const struct er_matmul_run one = {.times = 1};
    const struct er_matmul_run *r = run ? run : &one;
    struct er_gemm gemm = {.m = p->m,
                           .n = p->n,
                           .k = p->k,
                           .batch = r->times,
                           .a = p->a,
                           .b = p->b,
                           .c = p->c,
                           .type = ER_F32,
                           .out_type = p->c_type,
                           .transpose_a = p->transpose_a,
                           .transpose_b = p->transpose_b,
                           .beta = p->beta,
                           .lda = p->lda           ? p->lda
                                  : p->transpose_a ? p->m
                                                   : p->k,
                           .ldb = p->ldb           ? p->ldb
                                  : p->transpose_b ? p->k
                                                   : p->n,
                           .ldc = p->ldc ? p->ldc : p->n,
                           .stride_a = r->stride_a,
                           .stride_b = r->stride_b,
                           .stride_c = r->stride_c};
    enum er_dtype type = product_type(gpu, p);
    int rc = type != ER_F32 ? round_inputs(gpu, &gemm, p->a_type, p->b_type, type, err) : 0;

    return rc ? rc : gpu->engine.device->gpu->blas->gemm(gpu->blas, &gemm, err);
}
