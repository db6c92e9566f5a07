#pragma once
/*
 * The engine of a GPU and its parts:
 *   engine_gpu.c   opening, memory, results that come later, optimizers
 *   gpu_ops.c      the table of operations; those that go element by element, matrix products
 *   gpu_rows.c     norms, embedding, attention, cross-entropy
 */
#include "runtime/gpu_module.h"
#include "runtime/kernels.h"
#include "trainer/engine_ops.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops_internal.h"

struct er_gpu_engine;

/* One operation on a GPU; `backward` as in struct er_tape_op. */
struct er_gpu_op {
    /* NULL: what `infer` says. */
    size_t (*saved)(const struct er_node *node);
    int (*forward)(struct er_gpu_engine *gpu, struct er_node *node, struct er_error *err);
    int (*backward[ER_TAPE_INPUTS_MAX])(struct er_gpu_engine *gpu, struct er_node *node, float beta,
                                        struct er_error *err);
};
extern const struct er_gpu_op *const er_gpu_ops[ER_OP_ID_COUNT];

/* gpu_rows.c */
extern const struct er_gpu_op er_gpu_layer_norm, er_gpu_rms_norm, er_gpu_group_norm,
    er_gpu_embedding, er_gpu_attention, er_gpu_cross_entropy;

/* A kernel over a->n elements; one whose blocks take a row each. */
int er_gpu_each(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                struct er_error *err);
int er_gpu_rows(struct er_gpu_engine *gpu, enum er_kernel kernel, const struct er_kernel_op_args *a,
                uint64_t rows, struct er_error *err);
int er_gpu_launch(struct er_gpu_engine *gpu, enum er_kernel kernel, const void *args,
                  size_t args_bytes, uint64_t blocks, struct er_error *err);
/* `run` NULL: one product. */
int er_gpu_matmul(struct er_gpu_engine *gpu, const struct er_matmul *product,
                  const struct er_matmul_run *run, struct er_error *err);
/* y (cols) = beta y + what `what` says, summed over the rows of d (rows, cols). */
int er_gpu_columns(struct er_gpu_engine *gpu, struct er_kernel_op_args a, enum er_columns what,
                   struct er_error *err);
/* A place on the device for a number that is added to `*into` at the next wait. */
int er_gpu_result(struct er_gpu_engine *gpu, double *into, double **ret_place,
                  struct er_error *err);
