#pragma once
/*
 * Who computes: the CPU's loops, or the kernels of a GPU. A tape, a reducer and the training loop
 * are told once; model code is the same for both.
 *
 *     er_engine_open(&engine, &(struct er_device_opts){.kind = ER_DEVICE_CUDA}, err);
 *     er_engine_alloc(engine, er_flat_bytes(&flat), &memory, err);
 *     er_flat_place(&flat, memory);              parameters, gradients, optimizer states
 *     er_engine_put(engine, er_flat_at(&flat, ER_FLAT_VALUE, i), initial, bytes, err); ...
 *     er_tape_new_on(&tape, &flat, 0, engine, err);
 *     apply: er_engine_apply(engine, &optim, &view, step, lr, scale, err)
 *
 * A GPU works beside the caller, in the order of its calls, on one stream. The caller waits for it
 * where it wants a number: in er_cross_entropy() with `ret_sum`, at the end of er_tape_backward(),
 * in er_ddp_finish(), er_engine_get() and er_engine_wait(). Sums over many numbers are made in
 * another order than the CPU's, always the same one: a step on the same GPU with the same cuBLAS
 * gives the same bits.
 *
 * One thread per engine: the one that opened it.
 */
#include "runtime/comm.h"
#include "trainer/exact.h"
#include "trainer/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct er_engine; /* opaque */

/* The CPU's: always there, never closed. Any thread. */
ER_API struct er_engine *er_engine_cpu(void);
/* The CPU's, or that of a GPU, which loads the GPU module. ER_E_UNSUPPORTED: no GPU, module,
 * kernels or cuBLAS; the text says what is missing. */
ER_API int er_engine_open(struct er_engine **ret, const struct er_device_opts *opts,
                          struct er_error *err);
/* Waits for its work. Tapes, reducers and communicators on it must be gone. NULL is fine. */
ER_API void er_engine_close(struct er_engine *engine);
/* NULL: the CPU. */
ER_API struct er_device *er_engine_device(const struct er_engine *engine);
/* The stream that its work is on; NULL: the CPU. */
ER_API struct er_stream *er_engine_stream(const struct er_engine *engine);
/* "cpu", or the GPU's name and cuBLAS's version. Owned by the engine. */
ER_API const char *er_engine_describe(const struct er_engine *engine);

/* What matrix products (linear, matmul, attention) take their two inputs as: ER_F32, or ER_BF16:
 * each input is rounded to bfloat16, to nearest even, and sums are made in float32. That is mixed
 * precision: parameters (the master weights), values, gradients and optimizer states stay float32,
 * and bfloat16 has float32's range, so no loss is scaled. The same on all ranks. Not in a step; the
 * next step may allocate. ER_E_UNSUPPORTED: another type, or the CPU. */
ER_API int er_engine_products(struct er_engine *engine, enum er_dtype type, struct er_error *err);

/* Memory where the engine computes, 0 everywhere, aligned to 64 bytes and more. Not in a step. */
ER_API int er_engine_alloc(struct er_engine *engine, size_t bytes, void **ret,
                           struct er_error *err);
ER_API void er_engine_free(struct er_engine *engine, void *memory);
/* From and to ordinary memory of the host. They wait. */
ER_API int er_engine_put(struct er_engine *engine, void *to, const void *from, size_t bytes,
                         struct er_error *err);
ER_API int er_engine_get(struct er_engine *engine, void *to, const void *from, size_t bytes,
                         struct er_error *err);
/* er_optim_apply() where the engine computes. */
ER_API int er_engine_apply(struct er_engine *engine, const struct er_optim *optim,
                           const struct er_optim_view *view, uint64_t step, double lr, double scale,
                           struct er_error *err);
/* Exact mode where the engine computes: er_exact_fold(), er_exact_norm2() and er_exact_take(), the
 * same bits. `*outside` is added to, at the latest by the next wait (er_tape_backward() ends with
 * one); the norm is waited for. The sums are of er_engine_alloc() and er_exact_place(). */
ER_API int er_engine_fold(struct er_engine *engine, struct er_exact *exact,
                          const struct er_flat *flat, size_t param, uint64_t *outside,
                          struct er_error *err);
ER_API int er_engine_exact_norm2(struct er_engine *engine, const struct er_exact *exact,
                                 const struct er_flat *flat, double *ret, struct er_error *err);
ER_API int er_engine_take(struct er_engine *engine, struct er_exact *exact,
                          const struct er_flat *flat, double weight, struct er_error *err);
/* Until all that was asked for is done. */
ER_API int er_engine_wait(struct er_engine *engine, struct er_error *err);

#ifdef __cplusplus
}
#endif
