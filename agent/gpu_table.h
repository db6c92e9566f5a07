#pragma once
/*
 * The GPUs of this host as text that the probe (gpu.h) writes, and which of them a program sees
 * under CUDA_VISIBLE_DEVICES. Pure.
 *
 * A line each: "gpu UUID PCI", in the driver's order; "mig UUID" for each MIG device of the GPU
 * above it; "pid N" for a process that holds memory of it. "-" stands for what is not known.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_GPUS_MAX     64  /* of one host */
#define ER_GPU_MIGS_MAX 512 /* of all of them together */
#define ER_GPU_PIDS_MAX 4096
#define ER_GPU_UUID_MAX 96
#define ER_GPU_PCI_MAX  32

struct er_gpu {
    char uuid[ER_GPU_UUID_MAX]; /* "" not known */
    char pci[ER_GPU_PCI_MAX];   /* "0000:3b:00.0" as in sysfs; "" not known */
};

struct er_gpu_table {
    struct er_gpu gpus[ER_GPUS_MAX];
    size_t n;
    struct {
        char uuid[ER_GPU_UUID_MAX];
        int gpu; /* index of the GPU it is part of */
    } migs[ER_GPU_MIGS_MAX];
    size_t migs_n;
    int32_t pids[ER_GPU_PIDS_MAX]; /* may repeat */
    size_t pids_n;
};

/* What a local rank can use: a whole GPU or a MIG device. */
struct er_gpu_seen {
    int gpus[ER_GPU_MIGS_MAX]; /* index in the table, of the GPU it is (part of) */
    size_t n;
    bool migs; /* MIG devices */
};

/* More than fits is left out. ER_E_CONFIG: not the probe's words. */
int er_gpu_table_parse(struct er_gpu_table *ret, const char *text, struct er_error *err);

/*
 * As CUDA and torch read CUDA_VISIBLE_DEVICES (`list`; NULL: not set): indexes, UUIDs or
 * unambiguous beginnings of them, MIG devices; the first entry that is none (-1, empty, beyond the
 * last) ends the list; one that is named twice empties it. ER_E_CONFIG: it names UUIDs, which this
 * host's driver does not tell. Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
 */
int er_gpu_table_seen(const struct er_gpu_table *table, const char *list, struct er_gpu_seen *ret,
                      struct er_error *err);
