/* A GPU as an engine: its memory, its stream, launches on it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/gpu_internal.h"

enum {
    BOUNCE_BYTES = 4 << 20, /* between pageable memory and the device */
    BLOCKS_PER_PROCESSOR = 8
};

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

    return blocks == 0 ? 0 : er_stream_launch(gpu->engine.stream, &launch, err);
}

uint64_t er_gpu_blocks(uint64_t n)
{
    return (n + ER_KERNEL_THREADS - 1) / ER_KERNEL_THREADS;
}

int er_gpu_each(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                struct er_error *err)
{
    return er_gpu_launch(gpu, kernel, a, sizeof(*a), er_gpu_blocks(a->n), err);
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

int er_gpu_sync(struct er_gpu_engine *gpu, struct er_error *err)
{
    int rc = er_engine_guards_ask(&gpu->engine, err);

    return rc ? rc : er_stream_sync(gpu->engine.stream, err);
}

/* ---- operations ---- */

int er_gpu_convert(struct er_gpu_engine *gpu, enum er_dtype to_type, void *to,
                   enum er_dtype from_type, const void *from, size_t n, struct er_error *err)
{
    const struct er_kernel_op_args a = {
        .y = to, .d = from, .n = n, .ty = er_gpu_type(to_type), .td = er_gpu_type(from_type)};

    return er_gpu_each(gpu, ER_KERNEL_accumulate, &a, err);
}

static int convert_gpu(struct er_engine *engine, const void *from, enum er_dtype from_type,
                       void *to, enum er_dtype to_type, size_t n, struct er_error *err)
{
    return er_gpu_convert(er_gpu_of(engine), to_type, to, from_type, from, n, err);
}

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
        rc = op->forward(er_gpu_of(engine), node, err);
    return rc < 0 ? er_error_wrap(err, rc, "%s", node->op->name) : 0;
}

static int backward_gpu(struct er_engine *engine, struct er_node *node, uint32_t input, float beta,
                        struct er_error *err)
{
    const struct er_gpu_op *op = NULL;
    int rc = find_op(node, &op, err);

    if (rc == 0)
        rc = op->backward[input](er_gpu_of(engine), node, beta, err);
    return rc < 0 ? er_error_wrap(err, rc, "%s, backward", node->op->name) : 0;
}

static int fill_gpu(struct er_engine *engine, float *at, float value, size_t n,
                    struct er_error *err)
{
    const struct er_kernel_args a = {.y = at, .n = n, .a = value};

    return er_gpu_launch(er_gpu_of(engine), ER_KERNEL_fill_f32, &a, sizeof(a), er_gpu_blocks(n),
                         err);
}
static int copy_within_gpu(struct er_engine *engine, void *y, const void *x, size_t bytes,
                           struct er_error *err)
{
    return er_stream_copy(engine->stream, y, x, bytes, ER_COPY_ON_DEVICE, err);
}

static int add_gpu(struct er_engine *engine, float *y, const void *x, enum er_dtype type, size_t n,
                   struct er_error *err)
{
    const struct er_kernel_op_args a = {
        .y = y, .d = x, .td = er_gpu_type(type), .n = n, .beta = 1.0f};

    return er_gpu_each(er_gpu_of(engine), ER_KERNEL_accumulate, &a, err);
}

/* ---- memory ---- */

static int alloc_gpu(struct er_engine *engine, size_t bytes, void **ret, struct er_error *err)
{
    void *memory = NULL;
    int rc = er_device_alloc(engine->device, ER_MEMORY_DEVICE, bytes, &memory, err);

    if (rc == 0)
        rc = er_stream_fill(engine->stream, memory, 0, bytes, err);
    if (rc == 0)
        rc = er_gpu_sync(er_gpu_of(engine), err);
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
    char *bounce = er_gpu_of(engine)->bounce;
    int rc = 0;

    for (size_t at = 0, n; at < bytes && rc == 0; at += n) {
        n = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;
        if (to_device)
            memcpy(bounce, from + at, n);
        rc = to_device ? er_stream_copy(engine->stream, to + at, bounce, n, ER_COPY_TO_DEVICE, err)
                       : er_stream_copy(engine->stream, bounce, from + at, n, ER_COPY_TO_HOST, err);
        if (rc == 0)
            rc = er_gpu_sync(er_gpu_of(engine), err);
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
    return 0;
}

static void close_gpu(struct er_engine *engine)
{
    struct er_gpu_engine *gpu = er_gpu_of(engine);
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
        er_device_free(device, ER_MEMORY_DEVICE, gpu->scratch);
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
    .copy = copy_within_gpu,
    .add = add_gpu,
    .convert = convert_gpu,
    .apply = er_gpu_apply,
    .norm2 = er_gpu_norm2,
    .count_bad = er_gpu_count_bad,
    .exact_put = er_gpu_exact_put,
    .exact_sum = er_gpu_exact_sum,
    .exact_take = er_gpu_exact_take,
    .exact_norm = er_gpu_exact_norm,
    .products = products_gpu,
    .wait = er_gpu_wait,
    .forget = er_gpu_forget,
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
    const size_t slots_bytes = ER_GPU_SLOTS_MAX * sizeof(*gpu->slots);
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
    gpu->blocks_max =
        gpu->blocks_max > ER_GPU_SUM_BLOCKS_MAX ? gpu->blocks_max : ER_GPU_SUM_BLOCKS_MAX;
    version = engine->device->gpu->blas->version(gpu->blas);
    snprintf(engine->describe, sizeof(engine->describe), "%s, %d processors, cublas %d", info->name,
             info->processors_n, version);
    *ret = ER_TAKE(engine);
    return 0;
}
