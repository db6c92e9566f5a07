#pragma once
/*
 * The table of an engine: what the tape, the reducer and the training loop call. One for the CPU
 * (engine_cpu.c: the operations' own loops, done at once) and one for GPUs (engine_gpu.c, gpu_*.c).
 * Internal to trainer/.
 */
#include "trainer/engine.h"
#include "trainer/exact.h"
#include "trainer/tape.h"

struct er_engine_ops {
    const char *name;
    bool of_host; /* its memory is the host's */
    /* Elements that `node` needs from forward to backward; `wanted` is what its `infer` asked for.
     * The output is not there yet. */
    size_t (*saved)(struct er_engine *engine, const struct er_node *node, size_t wanted);
    /* With an engine of the host's, tensors are float32, unless the operation is of any type: the
     * tape sees to it (wide.h). */
    int (*forward)(struct er_engine *engine, struct er_node *node, struct er_error *err);
    /* As er_tape_op.backward[input]. */
    int (*backward)(struct er_engine *engine, struct er_node *node, uint32_t input, float beta,
                    struct er_error *err);
    int (*fill)(struct er_engine *engine, float *at, float value, size_t n, struct er_error *err);
    /* Within its memory: y = x, y = y + x, x of any type; they do not overlap. */
    int (*copy)(struct er_engine *engine, void *y, const void *x, size_t bytes,
                struct er_error *err);
    int (*add)(struct er_engine *engine, float *y, const void *x, enum er_dtype type, size_t n,
               struct er_error *err);
    int (*apply)(struct er_engine *engine, const struct er_optim *optim,
                 const struct er_optim_view *view, uint64_t step, double lr, double scale,
                 struct er_error *err);
    /* Added to `*into`, at the latest by the next wait(): the sum of squares; how many elements are
     * not finite. */
    int (*norm2)(struct er_engine *engine, const float *x, size_t n, double *into,
                 struct er_error *err);
    int (*count_bad)(struct er_engine *engine, const float *x, size_t n, uint64_t *into,
                     struct er_error *err);
    /* `n` elements of one type as another: float32, float16, bfloat16. */
    int (*convert)(struct er_engine *engine, const void *from, enum er_dtype from_type, void *to,
                   enum er_dtype to_type, size_t n, struct er_error *err);
    /* Exact mode (trainer/exact.h): sums = gradients, or sums + gradients; how many do not fit, and
     * the words of the norm, are added at the latest by the next wait(). */
    int (*exact_put)(struct er_engine *engine, const struct er_exact_scale *scale, int64_t *sums,
                     const float *grad, size_t n, bool adds, uint64_t *outside,
                     struct er_error *err);
    int (*exact_sum)(struct er_engine *engine, int64_t *sums, const int64_t *from, size_t n,
                     struct er_error *err);
    int (*exact_take)(struct er_engine *engine, const struct er_exact_scale *scale, int64_t *sums,
                      float *grad, size_t n, double weight, struct er_error *err);
    int (*exact_norm)(struct er_engine *engine, const struct er_exact_scale *scale,
                      const int64_t *sums, size_t n, uint64_t words[ER_EXACT_WORDS],
                      struct er_error *err);
    int (*products)(struct er_engine *engine, enum er_dtype type, struct er_error *err);
    int (*wait)(struct er_engine *engine, struct er_error *err);
    /* What was promised and has not come is not wanted any more: its places may be gone. */
    void (*forget)(struct er_engine *engine);
    int (*alloc)(struct er_engine *engine, size_t bytes, void **ret, struct er_error *err);
    void (*free)(struct er_engine *engine, void *memory);
    int (*put)(struct er_engine *engine, void *to, const void *from, size_t bytes,
               struct er_error *err);
    int (*get)(struct er_engine *engine, void *to, const void *from, size_t bytes,
               struct er_error *err);
    void (*close)(struct er_engine *engine);
};

/*
 * The work on a GPU's stream may wait for peers (er_op_before()). Asked before the host waits for
 * the stream, which has no deadline: 0 when they have come, or why they will not. Embedded in who
 * gives it.
 */
struct er_engine_guard {
    int (*arrived)(void *user, struct er_error *err);
    void *user;
    struct er_engine_guard *next;
};

struct er_engine {
    const struct er_engine_ops *ops;
    struct er_device *device; /* NULL: the CPU */
    struct er_stream *stream;
    struct er_engine_guard *guards;
    enum er_dtype products; /* what er_engine_products() said */
    char describe[192];
};

void er_engine_guard_add(struct er_engine *engine, struct er_engine_guard *guard);
/* One that was not added is fine. */
void er_engine_guard_remove(struct er_engine *engine, struct er_engine_guard *guard);
int er_engine_guards_ask(struct er_engine *engine, struct er_error *err);

extern const struct er_engine_ops er_engine_cpu_ops;
/* engine_gpu.c */
int er_engine_gpu_open(struct er_engine **ret, const struct er_device_opts *opts,
                       struct er_error *err);
