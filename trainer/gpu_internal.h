#pragma once
/*
 * The engine of a GPU and its parts:
 *   engine_gpu.c   opening, memory, launching
 *   gpu_results.c  numbers that the host wants, which come with the next wait
 *   gpu_optim.c    optimizers
 *   gpu_exact.c    exact mode
 *   gpu_products.c matrix products
 *   gpu_ops.c      the table of operations; those that go element by element
 *   gpu_rows.c     norms, embedding, cross-entropy
 *   gpu_attention.c  attention
 */
#include "runtime/gpu_module.h"
#include "runtime/kernels.h"
#include "trainer/engine_ops.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops_internal.h"

enum {
    ER_GPU_SLOTS_MAX = 1 << 16, /* numbers on their way to the host; more wait for these */
    ER_GPU_RESULTS_MAX = 4096,
    ER_GPU_SUM_BLOCKS_MAX = 64 /* of a norm: fixed for a count, so the same bits on every GPU */
};

/* Slots [first, first + n) added up go to one of the two. */
struct er_gpu_result {
    double *into;
    uint64_t *into_count;
    size_t first, n;
};

struct er_gpu_engine {
    struct er_engine engine;
    void *blas;
    char *bounce;              /* pinned */
    double *slots, *slots_got; /* (ER_GPU_SLOTS_MAX) on the device, and pinned */
    size_t slots_n;
    struct er_gpu_result results[ER_GPU_RESULTS_MAX];
    size_t results_n;
    unsigned blocks_max;
    void *scratch; /* of one operation, between its kernels */
    void *half;    /* inputs of a product in 16 bits, one behind the other */
    size_t scratch_bytes, half_bytes;
};

static inline struct er_gpu_engine *er_gpu_of(struct er_engine *engine)
{
    return (struct er_gpu_engine *)(void *)engine;
}

/* One operation on a GPU; `backward` as in struct er_tape_op. */
struct er_gpu_op {
    /* NULL: what `infer` says. */
    size_t (*saved)(const struct er_node *node);
    int (*forward)(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err);
    int (*backward[ER_TAPE_INPUTS_MAX])(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                                        struct er_error *err);
};
extern const struct er_gpu_op *const er_gpu_ops[ER_OP_ID_COUNT];

/* gpu_rows.c, gpu_attention.c */
extern const struct er_gpu_op er_gpu_layer_norm, er_gpu_rms_norm, er_gpu_group_norm,
    er_gpu_embedding, er_gpu_attention, er_gpu_cross_entropy;

/* Until the stream is through, and whatever its work waits for (er_engine_guard()). */
int er_gpu_sync(struct er_gpu_engine *gpu, struct er_error *err);

/* Blocks for n elements, one a thread. */
uint64_t er_gpu_blocks(uint64_t n);

static inline uint8_t er_gpu_type(enum er_dtype type)
{
    return type == ER_F16 ? ER_KERNEL_F16 : type == ER_BF16 ? ER_KERNEL_BF16 : ER_KERNEL_F32;
}

/* A tensor's values, or its gradient, as an argument of a kernel: in an initializer, or later. */
#define ER_VALUE(field, x)        .field = (x)->value, .t##field = er_gpu_type((x)->dtype)
#define ER_GRAD(field, x)         .field = (x)->grad, .t##field = er_gpu_type((x)->grad_dtype)
#define ER_SET_VALUE(a, field, x) ((a).field = (x)->value, (a).t##field = er_gpu_type((x)->dtype))
#define ER_SET_GRAD(a, field, x)                                                                   \
    ((a).field = (x)->grad, (a).t##field = er_gpu_type((x)->grad_dtype))

/* A kernel over a->n elements; one whose blocks take a row each. */
int er_gpu_each(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                struct er_error *err);
int er_gpu_rows(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                uint64_t rows, struct er_error *err);
/* No blocks: nothing to do. */
int er_gpu_launch(struct er_gpu_engine *gpu, enum er_kernel kernel, const void *args,
                  size_t args_bytes, uint64_t blocks, struct er_error *err);
/* `n` numbers as another type. */
int er_gpu_convert(struct er_gpu_engine *gpu, enum er_dtype to_type, void *to,
                   enum er_dtype from_type, const void *from, size_t n, struct er_error *err);
/* `run` NULL: one product. */
int er_gpu_matmul(struct er_gpu_engine *gpu, const struct er_matmul *product,
                  const struct er_matmul_run *run, struct er_error *err);
/* y (cols) = beta y + what `what` says, summed over the rows of d (rows, cols). */
int er_gpu_columns(struct er_gpu_engine *gpu, struct er_kernel_op_args a, enum er_columns what,
                   struct er_error *err);
/* Room for n elements until the operation's next call of this; grows until the largest has been
 * seen. */
int er_gpu_scratch(struct er_gpu_engine *gpu, size_t n, float **ret, struct er_error *err);
/* A place on the device for a number that is added to `*into` at the next wait. */
int er_gpu_promise(struct er_gpu_engine *gpu, double *into, double **ret_place,
                   struct er_error *err);

/* Room for `blocks` words in each of `n` results of a kernel, one behind the other; they are added
 * to into[i] at the next wait. */
int er_gpu_promise_words(struct er_gpu_engine *gpu, size_t blocks, uint64_t *const *into, size_t n,
                         uint64_t **ret, struct er_error *err);
/* Blocks of a kernel that sums n elements up. */
size_t er_gpu_sum_blocks(size_t n);

/* Of struct er_engine_ops. gpu_exact.c: */
int er_gpu_exact_put(struct er_engine *engine, const struct er_exact_scale *scale, int64_t *sums,
                     const float *grad, size_t n, bool adds, uint64_t *outside,
                     struct er_error *err);
int er_gpu_exact_sum(struct er_engine *engine, int64_t *sums, const int64_t *from, size_t n,
                     struct er_error *err);
int er_gpu_exact_take(struct er_engine *engine, const struct er_exact_scale *scale, int64_t *sums,
                      float *grad, size_t n, double weight, struct er_error *err);
int er_gpu_exact_norm(struct er_engine *engine, const struct er_exact_scale *scale,
                      const int64_t *sums, size_t n, uint64_t words[ER_EXACT_WORDS],
                      struct er_error *err);
/* The others: */
int er_gpu_wait(struct er_engine *engine, struct er_error *err);
void er_gpu_forget(struct er_engine *engine);
int er_gpu_norm2(struct er_engine *engine, const float *x, size_t n, double *into,
                 struct er_error *err);
int er_gpu_count_bad(struct er_engine *engine, const float *x, size_t n, uint64_t *into,
                     struct er_error *err);
int er_gpu_apply(struct er_engine *engine, const struct er_optim *optim,
                 const struct er_optim_view *view, uint64_t step, double lr, double scale,
                 struct er_error *err);
