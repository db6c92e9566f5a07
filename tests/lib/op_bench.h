#pragma once
/* Parameters in flat memory with a tape on them: one operation under test, whose inputs are all
 * parameters, so that every gradient is kept. For Criterion programs. */
#include "base/pool.h"
#include "trainer/ops/ops.h"

enum { OP_BENCH_PARAMS_MAX = 4 };

struct op_bench {
    struct er_pool *pool;
    struct er_flat_param table[OP_BENCH_PARAMS_MAX];
    struct er_flat flat;
    struct er_tape *tape;
};

/* Values: multiples of 1/64 in (-1, 1) away from 0, where relu has a corner. */
void op_bench_open(struct op_bench *bench, const struct er_shape *shapes, size_t n);
void op_bench_close(struct op_bench *bench);

/* loss (1) = sum of weights[i] * x[i]: gives every output of an operation its own weight.
 * `weights`: as many as x has elements, borrowed until backward. */
int op_bench_weigh(struct op_bench *bench, struct er_tensor *x, const float *weights,
                   struct er_tensor **ret, struct er_error *err);
