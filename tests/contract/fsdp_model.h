#pragma once
/*
 * A residual network with output weights tied to those of the input, W x, layers, W' x, trained by
 * ranks of a fake world with DDP, or sharded with FSDP's strategies; and what of it the programs
 * fsdp*.c set and look at. With ER_TEST_ENGINE=gpu it is in the memory of GPUs.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/comm.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tempdir.h"

enum { FSDP_RANKS_MAX = 8, FSDP_ELEMENTS_MAX = 4096 };

enum strategy { DDP, FULL, GRAD_OPTIM, STRATEGIES };

/* Shared by the ranks. Zeroed: float32, one pass a step, nobody dies, no checkpoints. */
struct fsdp_test {
    enum strategy strategy;
    uint32_t passes;
    bool disordered; /* layer 2 comes before layer 1 */
    int dies;        /* this rank, in its third step; 0: none */
    bool leaves;     /* it leaves then, instead, as it is told */
    bool shadow;     /* others hold second copies of shards */
    uint64_t checkpoint_steps;
    struct er_fake_world *world;   /* where there are notices */
    uint64_t recoveries, passes_n; /* of rank 0 */
    enum er_dtype param, reduce[FSDP_RANKS_MAX];
    uint32_t exact;
    int64_t scale; /* exponent of the first one; 0: losses are not scaled */
    char dir[ER_TEST_PATH_MAX];
    uint64_t epochs;
    int rcs[FSDP_RANKS_MAX];
    char text[ER_ERROR_TEXT_MAX];    /* of rank 0 */
    char refused[ER_ERROR_TEXT_MAX]; /* of any rank that made a mistake */
    size_t bytes, bound;             /* of rank 0 */
    uint64_t resumed_from;
    float values[FSDP_ELEMENTS_MAX]; /* all parameters, one after another, at the end */
    double norm2;                    /* of the last step */
    uint64_t wire_bytes;             /* likewise */
    int64_t last_scale;
    uint64_t skipped;
};

/* A new one, in memory that the processes of ranks share; it is the one that the functions below
 * mean. */
struct fsdp_test *fsdp_test_new(void);
/* One rank, for er_ranks_run(). */
int fsdp_rank(struct er_ctx *ctx, void *user);
/* Trains on `size` ranks, which must all succeed. `ret` (FSDP_ELEMENTS_MAX): the parameters at the
 * end, one after another. */
void fsdp_train(int size, enum strategy strategy, uint32_t passes, float *ret);
/* `ret` (FSDP_ELEMENTS_MAX): the first values. */
void fsdp_first(float *ret);
/* Are these parameters the same but for rounding? Says by how much they differ where not. */
bool fsdp_near(const float *a, const float *b);
