#pragma once
/* A classifier of ReLU layers on made-up samples, for benchmarks of a step. Any failure ends the
 * program. */
#include "base/pool.h"
#include "trainer/ddp.h"
#include "trainer/exact.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"

enum { MLP_LAYERS = 3, MLP_PARAMS = 2 * MLP_LAYERS };

struct mlp {
    const size_t *widths; /* MLP_LAYERS + 1 */
    size_t rows;
    struct er_pool *pool;
    struct er_flat_param table[MLP_PARAMS];
    struct er_flat flat;
    struct er_span spans[MLP_PARAMS];
    struct er_tape *tape;
    struct er_optim optim;
    struct er_ddp *ddp;     /* of the pass that runs; NULL: alone, or not the last one */
    struct er_exact *exact; /* likewise; NULL: float32 sums */
    float *images;          /* (rows, widths[0]) */
    int32_t *labels;        /* (rows) */
    uint64_t step;
};

/* `widths` is borrowed. Samples differ by rank, parameters do not. */
void mlp_open(struct mlp *mlp, const size_t *widths, size_t rows, uint64_t rank);
void mlp_close(struct mlp *mlp);
/* Forward and backward of `rows` samples on a tape of these parameters, the model's own or that of
 * a replica; the sum of losses. */
double mlp_backward(const struct mlp *mlp, struct er_tape *tape, const float *images,
                    const int32_t *labels, size_t rows);
/* Milliseconds of one step; with `ddp` NULL there is nobody else. */
double mlp_step_ms(struct mlp *mlp, struct er_ddp *ddp);
/* The same in exact mode: the rows in `shards` equal shards; `ddp` reduces the sums of `exact`. */
double mlp_exact_step_ms(struct mlp *mlp, struct er_ddp *ddp, struct er_exact *exact,
                         size_t shards);
