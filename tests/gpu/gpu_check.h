#pragma once
/* The GPU check: items, each a process with a time limit of its own (gpu_check.c). */
#include <stdbool.h>
#include <stdint.h>

#include "runtime/device_ops.h"
#include "runtime/kernels.h"
#include "tests/lib/comm_ranks.h"

enum { GPU_RANKS_MAX = 4 };

/* Fails by exiting with something else than 0 (RANK_REQUIRE, RANK_OK). */
typedef void (*item_fn)(void);

void item_versions(void);
void item_kernels(void);
void item_repeat(void);
void item_speed(void);
void item_collectives(void);
void item_kill(void);
void item_stop(void);
void item_missing(void);
void item_released(void);
void item_exact(void);
void item_generations(void);
void item_three(void);
void item_train(void);
void item_ddp(void);
void item_fsdp(void);
void item_fsdp_lost(void);
void item_exact_train(void);
void item_hook(void);
void item_overlap(void);

/* A figure of the item's JSON line. */
void say(const char *key, double value);
void say_text(const char *key, const char *value);

/* What the items share: known after item_versions. */
struct gpu_facts {
    int devices_n;
    bool is_double; /* small sizes are enough */
};
struct gpu_facts *gpu_facts(void);

/* Ranks as processes, on one GPU if there is no other. */
void gpu_ranks(int size, rank_fn fn);
/* The same, where rank `lost` does not end well. */
void gpu_ranks_but(int size, int lost, rank_fn fn);
/* In a rank: which GPU it takes; what several ranks on one need, before the first call. */
int gpu_index(const struct rank *r);
void gpu_pose(const struct rank *r);
/* In a rank: its GPU, its communicator (`opts` may be NULL). */
struct er_device *gpu_device(struct rank *r);
struct er_comm *gpu_comm(struct rank *r, const struct er_comm_opts *opts);
/* Until it is done, and well. */
void gpu_finish(struct er_op *op);
void gpu_run(struct er_stream *stream, enum er_kernel kernel, const void *args, size_t bytes,
             unsigned blocks);
void *gpu_alloc(struct er_device *device, enum er_memory_kind kind, size_t bytes);
void gpu_copy(struct er_stream *stream, void *to, const void *from, size_t bytes,
              enum er_copy_kind kind);
