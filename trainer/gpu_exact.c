/* Exact mode on a GPU: the bits of trainer/exact.c. */
#include "trainer/gpu_internal.h"

static int launch(struct er_engine *engine, enum er_kernel kernel,
                  const struct er_kernel_exact_args *a, uint64_t blocks, struct er_error *err)
{
    return er_gpu_launch(er_gpu_of(engine), kernel, a, sizeof(*a), blocks, err);
}

int er_gpu_exact_put(struct er_engine *engine, const struct er_exact_scale *scale, int64_t *sums,
                     const float *grad, size_t n, bool adds, uint64_t *outside,
                     struct er_error *err)
{
    struct er_kernel_exact_args a = {.sums = sums,
                                     .g = (float *)(uintptr_t)grad,
                                     .n = n,
                                     .unit = scale->unit,
                                     .limit = scale->limit,
                                     .adds = adds};
    int rc = er_gpu_promise_words(er_gpu_of(engine), 1, &outside, 1, &a.words, err);

    if (rc == 0)
        rc = er_stream_fill(engine->stream, a.words, 0, sizeof(*a.words), err);
    return rc ? rc : launch(engine, ER_KERNEL_exact_put, &a, er_gpu_blocks(n), err);
}

int er_gpu_exact_sum(struct er_engine *engine, int64_t *sums, const int64_t *from, size_t n,
                     struct er_error *err)
{
    const struct er_kernel_exact_args a = {.sums = sums, .from = from, .n = n};

    return launch(engine, ER_KERNEL_exact_sum, &a, er_gpu_blocks(n), err);
}

int er_gpu_exact_take(struct er_engine *engine, const struct er_exact_scale *scale, int64_t *sums,
                      float *grad, size_t n, double weight, struct er_error *err)
{
    const struct er_kernel_exact_args a = {
        .sums = sums, .g = grad, .n = n, .unit = 1.0 / scale->unit, .weight = weight};

    return launch(engine, ER_KERNEL_exact_take, &a, er_gpu_blocks(n), err);
}

int er_gpu_exact_norm(struct er_engine *engine, const struct er_exact_scale *scale,
                      const int64_t *sums, size_t n, uint64_t words[ER_EXACT_WORDS],
                      struct er_error *err)
{
    struct er_kernel_exact_args a = {
        .sums = (int64_t *)(uintptr_t)sums, .n = n, .unit = 1.0 / (scale->unit * scale->whole)};
    uint64_t *const into[ER_EXACT_WORDS] = {&words[0], &words[1], &words[2]};
    size_t blocks = er_gpu_sum_blocks(n);
    int rc = er_gpu_promise_words(er_gpu_of(engine), blocks, into, ER_EXACT_WORDS, &a.words, err);

    return rc ? rc : launch(engine, ER_KERNEL_exact_norm, &a, blocks, err);
}
