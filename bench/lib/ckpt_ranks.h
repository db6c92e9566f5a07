#pragma once
/* Processes as the ranks of a job that has a state to save: shared memory is their network. */
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"
#include "bench/lib/bench.h"
#include "ckpt/ckpt.h"

enum { RANKS_MAX = 3, TENSORS = 3, BLOB_MAX = 1 << 20 };

/* Shared by the ranks. */
struct bench_shared {
    pthread_barrier_t barrier;
    char blobs[RANKS_MAX][BLOB_MAX];
    double value[8];
    struct bench_series series[13];
    struct bench_series save[4], first[4], pause[4]; /* the libraries' */
};

struct bench_rank {
    struct bench_shared *shared;
    int rank, size;
    struct er_pool *pool;
    char *state[TENSORS];
    uint64_t tensor_n; /* floats of a tensor */
    struct er_slice slices[TENSORS];
    struct er_ckpt *ckpt;
    struct er_error err;
};

extern char bench_dir[PATH_MAX]; /* holds all that is written */
extern uint64_t bench_state_bytes;

/* Ends the benchmark when `rc` is a failure. */
void bench_must(int rc, const struct er_error *err);
/* Collective: is it so on all ranks? */
bool bench_all(struct bench_rank *r, bool mine);
/* Opens `name` in the folder as r->ckpt. */
void bench_open(struct bench_rank *r, const char *name);
void bench_remove(const char *name);
void bench_remove_step(const char *name, uint64_t step);
/* `size` processes, each with its part of the state (`sharded`) or all of it, call `fn`. */
void bench_run_ranks(struct bench_shared *shared, int size, bool sharded,
                     void (*fn)(struct bench_rank *));
