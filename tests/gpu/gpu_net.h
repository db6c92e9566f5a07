#pragma once
/* A block of a GPT for the items that train: on any engine, whole or sharded. */
#include "tests/gpu/gpu_check.h"
#include "trainer/ddp.h"
#include "trainer/engine.h"
#include "trainer/fsdp.h"

/* Table, norm, qkv, projection, norm, up, down, and the table again for logits. */
enum { TABLE, NORM_1, NORM_1B, QKV, OUT, NORM_2, NORM_2B, UP, UP_B, DOWN, PARAMS };
enum { UNITS = 4 };

struct net_size {
    size_t vocabulary, width, positions, batch;
};
extern const struct net_size net_small;

struct net {
    struct net_size size;
    struct er_engine *engine;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_span spans[PARAMS]; /* of gradients; of exact sums with net_exact() */
    struct er_tape *tape;
    struct er_optim optim;
    void *memory; /* NULL: sharded */
    int32_t *ids, *labels;
    struct er_ddp *ddp;   /* hears of gradients; NULL: not now */
    struct er_fsdp *fsdp; /* NULL: whole */
    struct er_exact exact;
    void *sums; /* NULL: not exact */
    uint64_t outside;
};

/* `sharded`: memory is net_shard()'s. */
struct net *net_open(struct er_engine *engine, const struct net_size *size, bool sharded);
void net_close(struct net *n);
void net_shard(struct net *n, struct er_comm *comm, const struct er_fsdp_opts *opts);
/* Gradients go into 64-bit sums of so many shards. */
void net_exact(struct net *n, uint32_t shards);
/* Forward and backward of samples [first, first + count) of the step's batch; the loss. */
int net_try(struct net *n, uint64_t step, size_t first, size_t count, double *ret_loss,
            struct er_error *err);
/* The same, which must succeed. */
double net_pass(struct net *n, uint64_t step, size_t first, size_t count);
void net_apply(struct net *n, uint64_t step, double weight);
/* This rank's part of the parameters, at their places in `ret` (flat.total). */
void net_values(struct net *n, float *ret);
uint32_t net_hash(const float *values, size_t count);
/* A GPU of its own. */
struct er_engine *net_gpu(int index);
/* Ordinary memory, 0. */
void *net_memory(size_t bytes);
