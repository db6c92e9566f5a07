/* A GPU as an engine: its memory, its stream, results that come later, optimizers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/gpu_internal.h"

enum {
    BOUNCE_BYTES = 4 << 20, /* between pageable memory and the device */
    SLOTS_MAX = 1 << 16,    /* numbers on their way to the host; more wait for these */
    RESULTS_MAX = 4096,
    SUM_BLOCKS_MAX = 64,   /* of a norm: fixed for a count, so the same bits on every GPU */
    SUM_PER_BLOCK = 16384, /* elements */
    BLOCKS_PER_PROCESSOR = 8
};

/* Slots [first, first + n) added up go to one of the two. */
struct result {
    double *into;
    uint64_t *into_count;
    size_t first, n;
};

struct er_gpu_engine {
    struct er_engine engine;
    void *blas;
    char *bounce;              /* pinned */
    double *slots, *slots_got; /* (SLOTS_MAX) on the device, and pinned */
    size_t slots_n;
    struct result results[RESULTS_MAX];
    size_t results_n;
    unsigned blocks_max;
    enum er_dtype products;
    uint16_t *half; /* inputs of a product as bfloat16, one behind the other */
    size_t half_n;
};

static struct er_gpu_engine *gpu_of(struct er_engine *engine)
{
    return (struct er_gpu_engine *)(void *)engine;
}

/* ---- launching ---- */

int er_gpu_launch(struct er_gpu_engine *gpu, enum er_kernel kernel, const void *args,
                  size_t args_bytes, uint64_t blocks, struct er_error *err)
{
    const struct er_launch launch = {
        .kernel = kernel,
        .blocks = (unsigned)(blocks < gpu->blocks_max ? blocks : gpu->blocks_max),
        .threads = ER_KERNEL_THREADS,
        .args = args,
        .args_bytes = args_bytes};

    return er_stream_launch(gpu->engine.stream, &launch, err);
}

static uint64_t blocks_for(uint64_t n)
{
    return (n + ER_KERNEL_THREADS - 1) / ER_KERNEL_THREADS;
}

int er_gpu_each(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                struct er_error *err)
{
    return er_gpu_launch(gpu, kernel, a, sizeof(*a), blocks_for(a->n), err);
}

int er_gpu_rows(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                uint64_t rows, struct er_error *err)
{
    return er_gpu_launch(gpu, kernel, a, sizeof(*a), rows, err);
}

int er_gpu_columns(struct er_gpu_engine *gpu, struct er_kernel_op_args a, enum er_columns what,
                   struct er_error *err)
{
    a.flag = (uint32_t)what;
    a.inner = a.inner ? a.inner : 1;
    a.k = a.k ? a.k : 1;
    return er_gpu_rows(gpu, ER_KERNEL_columns, &a, (a.cols + 31) / 32, err);
}

/* Room for the inputs of a product; grows until the largest has been seen. */
static int take_half(struct er_gpu_engine *gpu, size_t n, struct er_error *err)
{
    void *half = NULL;
    int rc;

    if (n <= gpu->half_n)
        return 0;
    rc = er_stream_sync(gpu->engine.stream, err);
    if (rc == 0)
        rc = er_device_alloc(gpu->engine.device, ER_MEMORY_DEVICE, n * sizeof(*gpu->half), &half,
                             err);
    if (rc < 0)
        return rc;
    er_device_free(gpu->engine.device, ER_MEMORY_DEVICE, gpu->half);
    gpu->half = half;
    gpu->half_n = n;
    return 0;
}

static int round_one(struct er_gpu_engine *gpu, uint16_t *to, const void *from, size_t n,
                     struct er_error *err)
{
    const struct er_kernel_args a = {.y = to, .x = from, .n = n};

    return er_gpu_launch(gpu, ER_KERNEL_f32_to_bf16, &a, sizeof(a), blocks_for(n), err);
}

/* From the first element to the last, gaps included: the strides stay. */
static size_t extent(size_t rows, size_t cols, size_t ld, size_t times, size_t stride)
{
    return (times - 1) * stride + (rows - 1) * ld + cols;
}

static int round_inputs(struct er_gpu_engine *gpu, struct er_gemm *g, struct er_error *err)
{
    const size_t align = 128 / sizeof(uint16_t);
    size_t a_n = g->transpose_a ? extent(g->k, g->m, g->lda, g->batch, g->stride_a)
                                : extent(g->m, g->k, g->lda, g->batch, g->stride_a);
    size_t b_n = g->transpose_b ? extent(g->n, g->k, g->ldb, g->batch, g->stride_b)
                                : extent(g->k, g->n, g->ldb, g->batch, g->stride_b);
    size_t b_at = (a_n + align - 1) / align * align;
    int rc = take_half(gpu, b_at + b_n, err);

    if (rc == 0)
        rc = round_one(gpu, gpu->half, g->a, a_n, err);
    if (rc == 0)
        rc = round_one(gpu, gpu->half + b_at, g->b, b_n, err);
    if (rc < 0)
        return rc;
    g->a = gpu->half;
    g->b = gpu->half + b_at;
    g->type = ER_BF16;
    return 0;
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
                           .out_type = ER_F32,
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

    int rc = gpu->products == ER_BF16 ? round_inputs(gpu, &gemm, err) : 0;

    return rc ? rc : gpu->engine.device->gpu->blas->gemm(gpu->blas, &gemm, err);
}

/* ---- results ---- */

static void deliver(struct er_gpu_engine *gpu)
{
    for (size_t i = 0; i < gpu->results_n; i++) {
        const struct result *r = &gpu->results[i];

        for (size_t s = r->first; s < r->first + r->n; s++) {
            uint64_t count;

            memcpy(&count, &gpu->slots_got[s], sizeof(count));
            if (r->into)
                *r->into += gpu->slots_got[s];
            if (r->into_count)
                *r->into_count += count;
        }
    }
    gpu->results_n = gpu->slots_n = 0;
}

static int wait_gpu(struct er_engine *engine, struct er_error *err)
{
    struct er_gpu_engine *gpu = gpu_of(engine);
    int rc = er_stream_copy(engine->stream, gpu->slots_got, gpu->slots,
                            gpu->slots_n * sizeof(*gpu->slots), ER_COPY_TO_HOST, err);

    if (rc == 0)
        rc = er_stream_sync(engine->stream, err);
    if (rc == 0)
        deliver(gpu);
    return rc;
}

/* The slots stay taken until the next wait: kernels may be on their way to them. */
static void forget_gpu(struct er_engine *engine)
{
    gpu_of(engine)->results_n = 0;
}

/* Room for `n` slots and their result. */
static int take_slots(struct er_gpu_engine *gpu, size_t n, double **ret, struct er_error *err)
{
    int rc = 0;

    if (gpu->slots_n + n > SLOTS_MAX || gpu->results_n == RESULTS_MAX)
        rc = wait_gpu(&gpu->engine, err);
    if (rc < 0)
        return rc;
    *ret = gpu->slots + gpu->slots_n;
    gpu->slots_n += n;
    return 0;
}

static void expect(struct er_gpu_engine *gpu, const double *slots, size_t n, double *into,
                   uint64_t *into_count)
{
    gpu->results[gpu->results_n++] =
        (struct result){into, into_count, (size_t)(slots - gpu->slots), n};
}

int er_gpu_result(struct er_gpu_engine *gpu, double *into, double **ret_place, struct er_error *err)
{
    int rc = take_slots(gpu, 1, ret_place, err);

    if (rc == 0)
        expect(gpu, *ret_place, 1, into, NULL);
    return rc;
}

static int measure(struct er_gpu_engine *gpu, const float *x, size_t n, double *into,
                   uint64_t *into_count, struct er_error *err)
{
    size_t blocks = (n + SUM_PER_BLOCK - 1) / SUM_PER_BLOCK;
    double *slots = NULL;
    int rc;

    if (n == 0)
        return 0;
    blocks = blocks < SUM_BLOCKS_MAX ? blocks : SUM_BLOCKS_MAX;
    rc = take_slots(gpu, 2 * blocks, &slots, err);
    if (rc == 0) {
        const struct er_kernel_args a = {.y = slots, .z = slots + blocks, .x = x, .n = n};

        expect(gpu, into ? slots : slots + blocks, blocks, into, into_count);
        rc = er_gpu_launch(gpu, ER_KERNEL_norm2_f32, &a, sizeof(a), blocks, err);
    }
    return rc;
}

static int norm2_gpu(struct er_engine *engine, const float *x, size_t n, double *into,
                     struct er_error *err)
{
    return measure(gpu_of(engine), x, n, into, NULL, err);
}

static int count_bad_gpu(struct er_engine *engine, const float *x, size_t n, uint64_t *into,
                         struct er_error *err)
{
    return measure(gpu_of(engine), x, n, NULL, into, err);
}

/* ---- operations ---- */

static int find_op(const struct er_node *node, const struct er_gpu_op **ret, struct er_error *err)
{
    for (size_t i = 0; i < ER_OP_ID_COUNT; i++) {
        if (er_ops[i] == node->op && er_gpu_ops[i]) {
            *ret = er_gpu_ops[i];
            return 0;
        }
    }
    return er_error_set(err, ER_E_UNSUPPORTED, "operation '%s' is not offered on a GPU",
                        node->op->name);
}

static size_t saved_gpu(struct er_engine *engine, const struct er_node *node, size_t wanted)
{
    const struct er_gpu_op *op = NULL;

    return find_op(node, &op, NULL) == 0 && op->saved ? op->saved(node) : wanted;
}

static int forward_gpu(struct er_engine *engine, struct er_node *node, struct er_error *err)
{
    const struct er_gpu_op *op = NULL;
    int rc = find_op(node, &op, err);

    if (rc == 0)
        rc = op->forward(gpu_of(engine), node, err);
    return rc < 0 ? er_error_wrap(err, rc, "%s", node->op->name) : 0;
}

static int backward_gpu(struct er_engine *engine, struct er_node *node, uint32_t input, float beta,
                        struct er_error *err)
{
    const struct er_gpu_op *op = NULL;
    int rc = find_op(node, &op, err);

    if (rc == 0)
        rc = op->backward[input](gpu_of(engine), node, beta, err);
    return rc < 0 ? er_error_wrap(err, rc, "%s, backward", node->op->name) : 0;
}

static int fill_gpu(struct er_engine *engine, float *at, float value, size_t n,
                    struct er_error *err)
{
    const struct er_kernel_args a = {.y = at, .n = n, .a = value};

    return er_gpu_launch(gpu_of(engine), ER_KERNEL_fill_f32, &a, sizeof(a), blocks_for(n), err);
}

/* ---- optimizers ---- */

static int apply_sgd(struct er_gpu_engine *gpu, const struct er_optim *o,
                     const struct er_optim_view *view, double lr, double scale,
                     struct er_error *err)
{
    const struct er_kernel_sgd_args a = {.p = view->value,
                                         .m = view->state[0],
                                         .g = view->grad,
                                         .n = view->count,
                                         .scale = (float)scale,
                                         .momentum = o->momentum,
                                         .decay = o->weight_decay,
                                         .rate = (float)lr,
                                         .nesterov = o->nesterov};

    return er_gpu_launch(gpu, ER_KERNEL_momentum_f32, &a, sizeof(a), blocks_for(a.n), err);
}

static int apply_gpu(struct er_engine *engine, const struct er_optim *o,
                     const struct er_optim_view *view, uint64_t step, double lr, double scale,
                     struct er_error *err)
{
    struct er_optim_adam adam;
    struct er_kernel_adam_args a;

    if (o->kind == ER_OPTIM_SGD)
        return apply_sgd(gpu_of(engine), o, view, lr, scale, err);
    adam = er_optim_adam_of(o, step, lr, scale);
    a = (struct er_kernel_adam_args){.p = view->value,
                                     .m = view->state[0],
                                     .v = view->state[1],
                                     .g = view->grad,
                                     .n = view->count,
                                     .scale = adam.scale,
                                     .beta1 = adam.beta1,
                                     .rest1 = adam.rest1,
                                     .beta2 = adam.beta2,
                                     .rest2 = adam.rest2,
                                     .eps = adam.eps,
                                     .keep = adam.keep,
                                     .rate = adam.rate,
                                     .inverse2 = adam.inverse2,
                                     .decay = adam.decay};
    return er_gpu_launch(gpu_of(engine),
                         o->kind == ER_OPTIM_ADAM ? ER_KERNEL_adam_f32 : ER_KERNEL_adamw_f32, &a,
                         sizeof(a), blocks_for(a.n), err);
}

/* ---- memory ---- */

static int alloc_gpu(struct er_engine *engine, size_t bytes, void **ret, struct er_error *err)
{
    void *memory = NULL;
    int rc = er_device_alloc(engine->device, ER_MEMORY_DEVICE, bytes, &memory, err);

    if (rc == 0)
        rc = er_stream_fill(engine->stream, memory, 0, bytes, err);
    if (rc == 0)
        rc = er_stream_sync(engine->stream, err);
    if (rc < 0) {
        er_device_free(engine->device, ER_MEMORY_DEVICE, memory);
        return rc;
    }
    *ret = memory;
    return 0;
}

static void free_gpu(struct er_engine *engine, void *memory)
{
    er_stream_sync(engine->stream, NULL);
    er_device_free(engine->device, ER_MEMORY_DEVICE, memory);
}

/* Through the pinned piece, which is free again after each part. */
static int move(struct er_engine *engine, char *to, const char *from, size_t bytes, bool to_device,
                struct er_error *err)
{
    char *bounce = gpu_of(engine)->bounce;
    int rc = 0;

    for (size_t at = 0, n; at < bytes && rc == 0; at += n) {
        n = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;
        if (to_device)
            memcpy(bounce, from + at, n);
        rc = to_device ? er_stream_copy(engine->stream, to + at, bounce, n, ER_COPY_TO_DEVICE, err)
                       : er_stream_copy(engine->stream, bounce, from + at, n, ER_COPY_TO_HOST, err);
        if (rc == 0)
            rc = er_stream_sync(engine->stream, err);
        if (rc == 0 && !to_device)
            memcpy(to + at, bounce, n);
    }
    return rc;
}

static int put_gpu(struct er_engine *engine, void *to, const void *from, size_t bytes,
                   struct er_error *err)
{
    return move(engine, to, from, bytes, true, err);
}

static int get_gpu(struct er_engine *engine, void *to, const void *from, size_t bytes,
                   struct er_error *err)
{
    return move(engine, to, from, bytes, false, err);
}

static int products_gpu(struct er_engine *engine, enum er_dtype type, struct er_error *err)
{
    gpu_of(engine)->products = type;
    return 0;
}

static void close_gpu(struct er_engine *engine)
{
    struct er_gpu_engine *gpu = gpu_of(engine);
    struct er_device *device = engine->device;

    if (engine->stream)
        er_stream_sync(engine->stream, NULL);
    if (gpu->blas)
        device->gpu->blas->close(gpu->blas);
    if (device) {
        er_device_free(device, ER_MEMORY_PINNED, gpu->bounce);
        er_device_free(device, ER_MEMORY_PINNED, gpu->slots_got);
        er_device_free(device, ER_MEMORY_DEVICE, gpu->slots);
        er_device_free(device, ER_MEMORY_DEVICE, gpu->half);
    }
    er_stream_free(engine->stream);
    er_device_close(device);
    free(gpu);
}

static const struct er_engine_ops ops = {
    .name = "gpu",
    .saved = saved_gpu,
    .forward = forward_gpu,
    .backward = backward_gpu,
    .fill = fill_gpu,
    .apply = apply_gpu,
    .norm2 = norm2_gpu,
    .count_bad = count_bad_gpu,
    .products = products_gpu,
    .wait = wait_gpu,
    .forget = forget_gpu,
    .alloc = alloc_gpu,
    .free = free_gpu,
    .put = put_gpu,
    .get = get_gpu,
    .close = close_gpu,
};

/* ---- opening ---- */

static int open_parts(struct er_gpu_engine *gpu, const struct er_device_opts *opts,
                      struct er_error *err)
{
    struct er_engine *engine = &gpu->engine;
    const size_t slots_bytes = SLOTS_MAX * sizeof(*gpu->slots);
    int rc = er_device_open(&engine->device, opts, err);

    if (rc == 0)
        rc = er_stream_new(&engine->stream, engine->device, ER_STREAM_NORMAL, err);
    if (rc == 0)
        rc = er_device_alloc(engine->device, ER_MEMORY_PINNED, BOUNCE_BYTES, (void **)&gpu->bounce,
                             err);
    if (rc == 0)
        rc = er_device_alloc(engine->device, ER_MEMORY_PINNED, slots_bytes,
                             (void **)&gpu->slots_got, err);
    if (rc == 0)
        rc = er_device_alloc(engine->device, ER_MEMORY_DEVICE, slots_bytes, (void **)&gpu->slots,
                             err);
    if (rc == 0)
        rc = engine->device->gpu->blas->open(&gpu->blas, engine->device, engine->stream->native,
                                             err);
    if (rc == 0) /* there are kernels */
        rc = fill_gpu(engine, (float *)(void *)gpu->slots, 0.0f, 1, err);
    return rc;
}

ER_CLEANUP_FOR(er_engine_close, struct er_engine)

int er_engine_gpu_open(struct er_engine **ret, const struct er_device_opts *opts,
                       struct er_error *err)
{
    struct er_gpu_engine *gpu = calloc(1, sizeof(*gpu));
    ER_CLEANUP(er_engine_close_cleanup) struct er_engine *engine = NULL;
    const struct er_device_info *info;
    int version, rc;

    if (!gpu)
        return er_error_set(err, -ENOMEM, "engine of a GPU");
    engine = &gpu->engine;
    engine->ops = &ops;
    gpu->blocks_max = 1;
    rc = open_parts(gpu, opts, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "engine of GPU %d", opts->index);
    info = er_device_info(engine->device);
    gpu->blocks_max = (unsigned)info->processors_n * BLOCKS_PER_PROCESSOR;
    gpu->blocks_max = gpu->blocks_max > SUM_BLOCKS_MAX ? gpu->blocks_max : SUM_BLOCKS_MAX;
    version = engine->device->gpu->blas->version(gpu->blas);
    snprintf(engine->describe, sizeof(engine->describe), "%s, %d processors, cublas %d", info->name,
             info->processors_n, version);
    *ret = ER_TAKE(engine);
    return 0;
}
