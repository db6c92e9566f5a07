#pragma once
/*
 * The GPUs of this host, without CUDA: NVML (libnvidia-ml.so.1, loaded when it is there), else the
 * driver's files. All of it happens in a child process, for a library or a device that hangs must
 * not take the agent along, and NVML's memory and descriptors stay out of it.
 */
#include <stdbool.h>

#include "agent/gpu_table.h"
#include "base/buf.h"

/* The probe's text (gpu_table.h) to `fd`; `pids`: also the processes that hold GPU memory. For a
 * child process; returns 0 or -errno. `root` is "" but for tests. */
int er_gpu_probe(int fd, bool pids, const char *root);
/* The driver's files alone: <root>/proc/driver/nvidia/gpus, else <root>/dev/nvidia<N>. */
int er_gpu_probe_files(struct er_buf *out, const char *root);

/* Runs the probe and waits for it, at most 30 s (-ETIMEDOUT). No GPUs: 0 and an empty table.
 * ret_table is large: not for the stack of deep calls. */
int er_gpu_read(struct er_gpu_table *ret_table, struct er_error *err);
/* Has this host an NVIDIA driver at all? */
bool er_gpu_driver_is_here(void);
