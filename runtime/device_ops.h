#pragma once
/* Between the front of the device layer (device.c) and what carries it out: the CPU, or the GPU
 * module. Handles are the backend's own. Internal to runtime/. */
#include "runtime/device.h"

struct er_launch {
    unsigned kernel; /* enum er_kernel */
    unsigned blocks, threads, shared_bytes;
    const void *args; /* one struct, by value */
    size_t args_bytes;
};

struct er_device_ops {
    int (*open)(struct er_device *device, struct er_error *err);
    void (*close)(struct er_device *device);
    /* Calls of this thread that name no device mean this one. */
    int (*use)(struct er_device *device, struct er_error *err);
    int (*memory)(struct er_device *device, uint64_t *ret_free, uint64_t *ret_total,
                  struct er_error *err);
    int (*alloc)(struct er_device *device, enum er_memory_kind kind, size_t bytes, void **ret,
                 struct er_error *err);
    void (*free)(struct er_device *device, enum er_memory_kind kind, void *p);
    int (*stream_new)(struct er_device *device, enum er_stream_priority priority, void **ret,
                      struct er_error *err);
    void (*stream_free)(struct er_device *device, void *stream);
    int (*stream_test)(struct er_device *device, void *stream, struct er_error *err);
    int (*stream_sync)(struct er_device *device, void *stream, struct er_error *err);
    int (*stream_wait)(struct er_device *device, void *stream, void *event, struct er_error *err);
    int (*event_new)(struct er_device *device, bool timed, void **ret, struct er_error *err);
    void (*event_free)(struct er_device *device, void *event);
    int (*event_record)(struct er_device *device, void *event, void *stream, struct er_error *err);
    int (*event_test)(struct er_device *device, void *event, struct er_error *err);
    int (*event_elapsed)(struct er_device *device, void *from, void *to, double *ret_us,
                         struct er_error *err);
    int (*copy)(struct er_device *device, void *stream, void *to, const void *from, size_t bytes,
                enum er_copy_kind kind, struct er_error *err);
    int (*fill)(struct er_device *device, void *stream, void *to, int byte, size_t bytes,
                struct er_error *err);
    int (*launch)(struct er_device *device, void *stream, const struct er_launch *launch,
                  struct er_error *err);
};

struct er_gpu_module;

struct er_device {
    const struct er_device_ops *ops;
    const struct er_gpu_module *gpu; /* NULL: the CPU */
    struct er_device_opts opts;
    struct er_device_info info;
    void *impl;      /* the backend's */
    int reporters_n; /* communicators by which a loss reaches the agent; see comm_nccl.c */
};

struct er_stream {
    struct er_device *device;
    void *native;
};

struct er_event {
    struct er_device *device;
    void *native;
    bool recorded;
};

extern const struct er_device_ops er_device_cpu_ops;

/* Work of a kernel, in the stream's order. ER_E_UNSUPPORTED: this device has no kernels. */
int er_stream_launch(struct er_stream *stream, const struct er_launch *launch,
                     struct er_error *err);
