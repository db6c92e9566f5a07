#pragma once
/* A rank with arrays in device memory, on the double of CUDA and NCCL: for nccl.c and nccl_rules.c.
 */
#include "base/cleanup.h"
#include "runtime/device_ops.h"
#include "runtime/kernels.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/tap.h"

enum { ON_GPU_N = 50021, ON_GPU_BLOCKS = 8 };

/* What a rank works with. */
struct on_gpu {
    struct er_device *device;
    struct er_comm *comm;
    struct er_stream *compute;
    struct er_event *event;
    float *param, *grad; /* (ON_GPU_N) device */
    float *host;         /* (ON_GPU_N) pinned */
};

/* A function of the double by its name. */
void on_gpu_call_double(const char *name);
/* `opts` may be NULL. */
struct on_gpu on_gpu_open(struct rank *r, const struct er_comm_opts *opts);
void on_gpu_close(struct on_gpu *g);
void on_gpu_launch(struct on_gpu *g, enum er_kernel kernel, const struct er_kernel_args *args);
/* value + i % 7 at i. */
void on_gpu_fill(struct on_gpu *g, float *at, float value);
/* Into g->host. */
void on_gpu_fetch(struct on_gpu *g, const float *at);
/* A check of the case: a process that runs `fn` ends so. `signal_number` 0: with exit code `code`.
 */
void on_gpu_ends_with(rank_fn fn, int code, int signal_number);
