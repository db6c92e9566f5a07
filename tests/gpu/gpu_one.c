/* Items of one process: what is there, the kernels, their speed. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "runtime/gpu_module.h"
#include "tests/gpu/gpu_check.h"

enum { ODD = 100003, NO_GPU = 77 };

#define DECLARE(name, args)                                                                        \
    void er_shim_##name(const void *args, unsigned blocks, unsigned threads);
ER_KERNELS(DECLARE)
#undef DECLARE

void *gpu_alloc(struct er_device *device, enum er_memory_kind kind, size_t bytes)
{
    struct er_error err = ER_ERROR_INIT;
    void *p = NULL;

    RANK_OK(er_device_alloc(device, kind, bytes, &p, &err), err);
    return p;
}

void gpu_copy(struct er_stream *stream, void *to, const void *from, size_t bytes,
              enum er_copy_kind kind)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_stream_copy(stream, to, from, bytes, kind, &err), err);
    RANK_OK(er_stream_sync(stream, &err), err);
}

void gpu_run(struct er_stream *stream, enum er_kernel kernel, const void *args, size_t bytes,
             unsigned blocks)
{
    struct er_launch l = {.kernel = kernel,
                          .blocks = blocks,
                          .threads = ER_KERNEL_THREADS,
                          .args = args,
                          .args_bytes = bytes};
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_stream_launch(stream, &l, &err), err);
}

static struct er_device *open_first(void)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA};
    struct er_error err = ER_ERROR_INIT;
    struct er_device *device = NULL;

    RANK_OK(er_device_open(&device, &opts, &err), err);
    return device;
}

static struct er_stream *make_stream(struct er_device *device, enum er_stream_priority priority)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_stream *stream = NULL;

    RANK_OK(er_stream_new(&stream, device, priority, &err), err);
    return stream;
}

void item_versions(void)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA};
    struct er_error err = ER_ERROR_INIT;
    const struct er_device_info *info;
    struct er_device *device = NULL;
    int rc = er_device_open(&device, &opts, &err), nccl = 0;

    if (rc == ER_E_UNSUPPORTED) {
        say_text("reason", err.text);
        exit(NO_GPU);
    }
    RANK_OK(rc, err);
    info = er_device_info(device);
    RANK_OK(device->gpu->nccl->version(&nccl, &err), err);
    gpu_facts()->devices_n = info->devices_n;
    gpu_facts()->is_double = strstr(info->name, "a double") != NULL;
    say_text("gpu", info->name);
    say("gpus", info->devices_n);
    say("capability", info->capability);
    say("processors", info->processors_n);
    say("memory_gb", (double)info->memory_bytes / 1e9);
    say("runtime", info->runtime_version);
    say("driver", info->driver_version);
    say("nccl", nccl);
    say("kernels", ER_KERNEL_COUNT);
    er_device_close(device);
}

/* ---- kernels: the GPU's bits against those of the same source on the CPU ---- */

struct arrays {
    char *y, *x, *z;    /* device */
    char *hy, *hx, *hz; /* pinned */
};

enum { BYTES = ODD * 8 };

/* Finite floats in x and y (as halves they are any values), whatever the kernel reads them as. */
static void fill(struct arrays *a, uint64_t salt)
{
    for (uint64_t i = 0; i < BYTES / 4; i++) {
        float v = (float)((double)(int32_t)er_rand_mix(i ^ salt << 32) * 1e-6);

        memcpy(a->hx + i * 4, &v, 4);
        memcpy(a->hy + i * 4, &v, 4);
    }
    memset(a->hz, 0, BYTES);
}

static void compare(struct er_stream *s, struct arrays *a, enum er_kernel k, size_t n)
{
    static void (*const shim[])(const void *, unsigned, unsigned) = {
#define SHIM(name, args) er_shim_##name,
        ER_KERNELS(SHIM)
#undef SHIM
    };
    struct er_kernel_args gpu = {
        .y = a->y, .x = a->x, .z = a->z, .n = n, .s = 1024, .a = 0.1f, .b = 0.5f};
    struct er_kernel_args cpu = gpu;
    unsigned blocks = 4;

    cpu.y = a->hy;
    cpu.x = a->hx;
    cpu.z = a->hz;
    fill(a, n + (uint64_t)k);
    gpu_copy(s, a->y, a->hy, BYTES, ER_COPY_TO_DEVICE);
    gpu_copy(s, a->x, a->hx, BYTES, ER_COPY_TO_DEVICE);
    gpu_copy(s, a->z, a->hz, BYTES, ER_COPY_TO_DEVICE);
    gpu_run(s, k, &gpu, sizeof(gpu), blocks);
    shim[k](&cpu, blocks, ER_KERNEL_THREADS);
    gpu_copy(s, a->hx, a->y, BYTES, ER_COPY_TO_HOST);
    if (memcmp(a->hx, a->hy, BYTES) != 0)
        say("differs", k);
    RANK_REQUIRE(memcmp(a->hx, a->hy, BYTES) == 0);
    gpu_copy(s, a->hx, a->z, BYTES, ER_COPY_TO_HOST);
    RANK_REQUIRE(memcmp(a->hx, a->hz, BYTES) == 0);
}

static void same(struct er_stream *s, struct arrays *a, const char *device, const char *host)
{
    gpu_copy(s, a->hx, device, BYTES, ER_COPY_TO_HOST);
    RANK_REQUIRE(memcmp(a->hx, host, BYTES) == 0);
}

/* Exact mode's, one after another: sums in y, gradients in x, words in z. */
static void compare_exact(struct er_stream *s, struct arrays *a, size_t n)
{
    enum { BLOCKS = 4 };
    const double unit = 0x1p40;
    struct er_kernel_exact_args gpu = {.sums = (int64_t *)(void *)a->y,
                                       .g = (float *)(void *)a->x,
                                       .from = (int64_t *)(void *)a->y,
                                       .words = (uint64_t *)(void *)a->z,
                                       .n = n,
                                       .unit = unit,
                                       .limit = 1000,
                                       .weight = 37};
    struct er_kernel_exact_args cpu = gpu;
    float *copy = calloc(1, BYTES);

    RANK_REQUIRE(copy);
    cpu.sums = (int64_t *)(void *)a->hy;
    cpu.from = cpu.sums;
    cpu.words = (uint64_t *)(void *)a->hz;
    cpu.g = copy;
    fill(a, n);
    ((float *)(void *)a->hx)[0] = NAN;
    memcpy(copy, a->hx, BYTES);
    gpu_copy(s, a->y, a->hy, BYTES, ER_COPY_TO_DEVICE);
    gpu_copy(s, a->x, a->hx, BYTES, ER_COPY_TO_DEVICE);
    gpu_copy(s, a->z, a->hz, BYTES, ER_COPY_TO_DEVICE);
    for (uint32_t adds = 0; adds < 2; adds++) {
        gpu.adds = cpu.adds = adds;
        gpu_run(s, ER_KERNEL_exact_put, &gpu, sizeof(gpu), BLOCKS);
        er_shim_exact_put(&cpu, BLOCKS, ER_KERNEL_THREADS);
    }
    gpu_run(s, ER_KERNEL_exact_sum, &gpu, sizeof(gpu), BLOCKS);
    er_shim_exact_sum(&cpu, BLOCKS, ER_KERNEL_THREADS);
    same(s, a, a->y, a->hy);
    same(s, a, a->z, a->hz);
    gpu.unit = cpu.unit = 1 / unit / 4096; /* of the mean, below 2^10 */
    gpu_run(s, ER_KERNEL_exact_norm, &gpu, sizeof(gpu), BLOCKS);
    er_shim_exact_norm(&cpu, BLOCKS, ER_KERNEL_THREADS);
    same(s, a, a->z, a->hz);
    gpu.unit = cpu.unit = 1 / unit;
    gpu_run(s, ER_KERNEL_exact_take, &gpu, sizeof(gpu), BLOCKS);
    er_shim_exact_take(&cpu, BLOCKS, ER_KERNEL_THREADS);
    same(s, a, a->x, (char *)copy);
    same(s, a, a->y, a->hy);
    free(copy);
}

void item_kernels(void)
{
    static const size_t sizes[] = {0, 1, 255, 257, 4099, ODD};
    struct er_device *d = open_first();
    struct er_stream *s = make_stream(d, ER_STREAM_NORMAL);
    struct arrays a = {
        gpu_alloc(d, ER_MEMORY_DEVICE, BYTES), gpu_alloc(d, ER_MEMORY_DEVICE, BYTES),
        gpu_alloc(d, ER_MEMORY_DEVICE, BYTES), gpu_alloc(d, ER_MEMORY_PINNED, BYTES),
        gpu_alloc(d, ER_MEMORY_PINNED, BYTES), gpu_alloc(d, ER_MEMORY_PINNED, BYTES)};
    int compared = 0;

    for (int k = 0; k <= ER_KERNEL_fill_f32; k++) /* those of er_kernel_args */
        for (size_t i = 0; i < ER_ARRAY_N(sizes); i++, compared++)
            compare(s, &a, (enum er_kernel)k, sizes[i]);
    for (size_t i = 0; i < ER_ARRAY_N(sizes); i++, compared++)
        compare_exact(s, &a, sizes[i]);
    say("compared", compared);
}

/* ---- the optimizer, twice ---- */

struct model {
    float *p, *m, *v, *g; /* device */
    size_t n;
};

static void adamw(struct er_stream *s, const struct model *m, unsigned blocks)
{
    struct er_kernel_adam_args a = {.p = m->p,
                                    .m = m->m,
                                    .v = m->v,
                                    .g = m->g,
                                    .n = m->n,
                                    .scale = 0.125f,
                                    .beta1 = 0.9f,
                                    .rest1 = 0.1f,
                                    .beta2 = 0.999f,
                                    .rest2 = 0.001f,
                                    .eps = 1e-8f,
                                    .keep = 0.9999f,
                                    .rate = 0.01f,
                                    .inverse2 = 1000};

    gpu_run(s, ER_KERNEL_adamw_f32, &a, sizeof(a), blocks);
}

static struct model make_model(struct er_device *d, size_t n)
{
    size_t bytes = n * sizeof(float);

    return (struct model){
        gpu_alloc(d, ER_MEMORY_DEVICE, bytes), gpu_alloc(d, ER_MEMORY_DEVICE, bytes),
        gpu_alloc(d, ER_MEMORY_DEVICE, bytes), gpu_alloc(d, ER_MEMORY_DEVICE, bytes), n};
}

/* Twenty steps from the same state: the bits, as a hash; the CPU must get the same. */
static uint64_t twenty_steps(struct er_stream *s, const struct model *m, float *host,
                             unsigned blocks)
{
    size_t bytes = m->n * sizeof(float);
    struct er_error err = ER_ERROR_INIT;
    uint64_t hash = 0;

    RANK_OK(er_stream_fill(s, m->m, 0, bytes, &err), err);
    RANK_OK(er_stream_fill(s, m->v, 0, bytes, &err), err);
    for (size_t i = 0; i < m->n; i++)
        host[i] = (float)(int)(er_rand_mix(i) % 2000) / 1000 - 1;
    gpu_copy(s, m->p, host, bytes, ER_COPY_TO_DEVICE);
    for (int step = 0; step < 20; step++) {
        gpu_copy(s, m->g, host, bytes, ER_COPY_TO_DEVICE);
        adamw(s, m, blocks);
    }
    gpu_copy(s, host, m->p, bytes, ER_COPY_TO_HOST);
    for (size_t i = 0; i < m->n; i++) {
        uint32_t bits;

        memcpy(&bits, &host[i], sizeof(bits));
        hash = er_rand_mix(hash ^ bits);
    }
    return hash;
}

void item_repeat(void)
{
    struct er_device *d = open_first();
    struct er_stream *s = make_stream(d, ER_STREAM_NORMAL);
    struct model m = make_model(d, ODD);
    float *host = gpu_alloc(d, ER_MEMORY_PINNED, ODD * sizeof(float));
    uint64_t first = twenty_steps(s, &m, host, 8);

    RANK_REQUIRE(twenty_steps(s, &m, host, 8) == first);
    RANK_REQUIRE(twenty_steps(s, &m, host, 33) == first); /* another grid */
    say("hash32", (double)(first & 0xffffffff));
}

/* ---- speed ---- */

static double timed_us(struct er_stream *s, struct er_event *from, struct er_event *to)
{
    struct er_error err = ER_ERROR_INIT;
    double us = 0;

    RANK_OK(er_stream_sync(s, &err), err);
    RANK_OK(er_stream_test(s, &err), err); /* nothing is left */
    RANK_OK(er_event_elapsed_us(from, to, &us, &err), err);
    return us;
}

/* The optimizer's bandwidth, alone and beside a copy to the host on another stream: what a snapshot
 * costs. */
void item_speed(void)
{
    size_t n = gpu_facts()->is_double ? 1 << 16 : (size_t)64 << 20, bytes = n * sizeof(float);
    struct er_device *d = open_first();
    struct er_stream *s = make_stream(d, ER_STREAM_NORMAL), *side = make_stream(d, ER_STREAM_HIGH);
    struct er_error err = ER_ERROR_INIT;
    struct er_event *e[4];
    struct model m = make_model(d, n);
    float *host = gpu_alloc(d, ER_MEMORY_PINNED, bytes);
    float *state = gpu_alloc(d, ER_MEMORY_DEVICE, bytes);
    unsigned blocks = (unsigned)er_device_info(d)->processors_n * 8;
    double alone, beside, copy;

    for (int i = 0; i < 4; i++)
        RANK_OK(er_event_new(&e[i], d, true, &err), err);
    RANK_OK(er_stream_fill(s, m.p, 0, bytes, &err), err);
    RANK_OK(er_stream_fill(s, m.m, 0, bytes, &err), err);
    RANK_OK(er_stream_fill(s, m.v, 0, bytes, &err), err);
    RANK_OK(er_stream_fill(s, m.g, 0, bytes, &err), err);
    RANK_OK(er_stream_fill(side, state, 0, bytes, &err), err);
    for (int round = 0; round < 2; round++) { /* the first warms up */
        RANK_OK(er_event_record(e[0], s, &err), err);
        for (int i = 0; i < 10; i++)
            adamw(s, &m, blocks);
        RANK_OK(er_event_record(e[1], s, &err), err);
        alone = timed_us(s, e[0], e[1]);
    }
    RANK_OK(er_event_record(e[2], side, &err), err);
    RANK_OK(er_stream_copy(side, host, state, bytes, ER_COPY_TO_HOST, &err), err);
    RANK_OK(er_event_record(e[3], side, &err), err);
    RANK_OK(er_event_record(e[0], s, &err), err);
    for (int i = 0; i < 10; i++)
        adamw(s, &m, blocks);
    RANK_OK(er_event_record(e[1], s, &err), err);
    beside = timed_us(s, e[0], e[1]);
    copy = timed_us(side, e[2], e[3]);
    say("adamw_gb_s", 10 * 8 * (double)bytes / alone / 1e3); /* reads 4 arrays, writes 4 */
    say("adamw_beside_copy", beside / alone);
    say("to_host_gb_s", (double)bytes / copy / 1e3);
}
