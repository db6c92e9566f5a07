/* Numbers that a GPU makes and the host wants: promised when they are asked for, there after the
 * next wait. */
#include <string.h>

#include "trainer/gpu_internal.h"

enum { SUM_PER_BLOCK = 16384 /* elements */ };

static void deliver(struct er_gpu_engine *gpu)
{
    for (size_t i = 0; i < gpu->results_n; i++) {
        const struct er_gpu_result *r = &gpu->results[i];

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

int er_gpu_wait(struct er_engine *engine, struct er_error *err)
{
    struct er_gpu_engine *gpu = er_gpu_of(engine);
    int rc = er_stream_copy(engine->stream, gpu->slots_got, gpu->slots,
                            gpu->slots_n * sizeof(*gpu->slots), ER_COPY_TO_HOST, err);

    if (rc == 0)
        rc = er_gpu_sync(gpu, err);
    if (rc == 0)
        deliver(gpu);
    return rc;
}

/* The slots stay taken until the next wait: kernels may be on their way to them. */
void er_gpu_forget(struct er_engine *engine)
{
    er_gpu_of(engine)->results_n = 0;
}

/* Room for `n` slots and so many results of them. */
static int take_slots(struct er_gpu_engine *gpu, size_t n, size_t results, double **ret,
                      struct er_error *err)
{
    int rc = 0;

    if (gpu->slots_n + n > ER_GPU_SLOTS_MAX || gpu->results_n + results > ER_GPU_RESULTS_MAX)
        rc = er_gpu_wait(&gpu->engine, err);
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
        (struct er_gpu_result){into, into_count, (size_t)(slots - gpu->slots), n};
}

int er_gpu_promise(struct er_gpu_engine *gpu, double *into, double **ret_place,
                   struct er_error *err)
{
    int rc = take_slots(gpu, 1, 1, ret_place, err);

    if (rc == 0)
        expect(gpu, *ret_place, 1, into, NULL);
    return rc;
}

int er_gpu_promise_words(struct er_gpu_engine *gpu, size_t blocks, uint64_t *const *into, size_t n,
                         uint64_t **ret, struct er_error *err)
{
    double *slots = NULL;
    int rc = take_slots(gpu, n * blocks, n, &slots, err);

    for (size_t i = 0; i < n && rc == 0; i++)
        expect(gpu, slots + i * blocks, blocks, NULL, into[i]);
    *ret = (uint64_t *)(void *)slots;
    return rc;
}

size_t er_gpu_sum_blocks(size_t n)
{
    size_t blocks = (n + SUM_PER_BLOCK - 1) / SUM_PER_BLOCK;

    return blocks < ER_GPU_SUM_BLOCKS_MAX ? blocks : ER_GPU_SUM_BLOCKS_MAX;
}

static int measure(struct er_gpu_engine *gpu, const float *x, size_t n, double *into,
                   uint64_t *into_count, struct er_error *err)
{
    size_t blocks = er_gpu_sum_blocks(n);
    double *slots = NULL;
    int rc;

    if (n == 0)
        return 0;
    rc = take_slots(gpu, 2 * blocks, 1, &slots, err);
    if (rc == 0) {
        const struct er_kernel_args a = {.y = slots, .z = slots + blocks, .x = x, .n = n};

        expect(gpu, into ? slots : slots + blocks, blocks, into, into_count);
        rc = er_gpu_launch(gpu, ER_KERNEL_norm2_f32, &a, sizeof(a), blocks, err);
    }
    return rc;
}

int er_gpu_norm2(struct er_engine *engine, const float *x, size_t n, double *into,
                 struct er_error *err)
{
    return measure(er_gpu_of(engine), x, n, into, NULL, err);
}

int er_gpu_count_bad(struct er_engine *engine, const float *x, size_t n, uint64_t *into,
                     struct er_error *err)
{
    return measure(er_gpu_of(engine), x, n, NULL, into, err);
}
