#pragma once
/*
 * The operations: one file each. Every one checks its shapes (an error names operation, tensors and
 * shapes), runs, and records itself on the tape. B: samples of the batch, I: inputs, O: outputs,
 * C: classes. All float32.
 */
#include "trainer/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_OPS(X) X(linear) X(relu) X(cross_entropy)

#define ER_OP_DECLARE(name) extern const struct er_tape_op er_op_##name;
ER_OPS(ER_OP_DECLARE)
#undef ER_OP_DECLARE

enum er_op_id {
#define ER_OP_ENUM(name) ER_OP_ID_##name,
    ER_OPS(ER_OP_ENUM)
#undef ER_OP_ENUM
        ER_OP_ID_COUNT
};
extern const struct er_tape_op *const er_ops[ER_OP_ID_COUNT];

/* y (B, O) = x (B, I) weight (O, I) transposed + bias (O). Needs er_matmul_setup(). */
int er_linear(struct er_tape *tape, struct er_tensor *x, struct er_tensor *weight,
              struct er_tensor *bias, struct er_tensor **ret, struct er_error *err);
/* y = max(x, 0), any shape; the derivative at 0 is 0. A NaN stays one. */
int er_relu(struct er_tape *tape, struct er_tensor *x, struct er_tensor **ret,
            struct er_error *err);
/*
 * loss (1) = SUM over the batch of -log softmax(logits (B, C))[labels (B)]: sums, so that shares of
 * a batch add up over ranks. `labels`: B values in [0, C), borrowed until backward; another value
 * is -EINVAL. `ret_sum` (may be NULL): the same sum in double precision.
 */
int er_cross_entropy(struct er_tape *tape, struct er_tensor *logits, const int32_t *labels,
                     double *ret_sum, struct er_tensor **ret, struct er_error *err);

#ifdef __cplusplus
}
#endif
