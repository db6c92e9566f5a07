/* The CPU as a device: host memory; work is done at once, so streams and events have nothing to
 * wait for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/device_ops.h"

enum { ALIGN = 256 };

static int open_cpu(struct er_device *device, struct er_error *err)
{
    struct er_device_info *info = &device->info;

    if (device->opts.index != 0)
        return er_error_set(err, ER_E_USAGE, "there is only device 0");
    snprintf(info->name, sizeof(info->name), "cpu");
    snprintf(info->id, sizeof(info->id), "cpu");
    info->devices_n = 1;
    info->processors_n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    info->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return 0;
}

static void close_cpu(struct er_device *device) {}

static int use_cpu(struct er_device *device, struct er_error *err)
{
    return 0;
}

static int memory_cpu(struct er_device *device, uint64_t *ret_free, uint64_t *ret_total,
                      struct er_error *err)
{
    *ret_free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    *ret_total = device->info.memory_bytes;
    return 0;
}

static int alloc_cpu(struct er_device *device, enum er_memory_kind kind, size_t bytes, void **ret,
                     struct er_error *err)
{
    if (bytes > SIZE_MAX - ALIGN)
        return er_error_set(err, -ENOMEM, "larger than any memory");
    *ret = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
    return *ret ? 0 : er_error_set(err, -ENOMEM, "out of memory");
}

static void free_cpu(struct er_device *device, enum er_memory_kind kind, void *p)
{
    free(p);
}

static int stream_new_cpu(struct er_device *device, enum er_stream_priority priority, void **ret,
                          struct er_error *err)
{
    *ret = NULL;
    return 0;
}

static void handle_free_cpu(struct er_device *device, void *handle) {}

static int stream_done_cpu(struct er_device *device, void *stream, struct er_error *err)
{
    return 0;
}

static int stream_wait_cpu(struct er_device *device, void *stream, void *event,
                           struct er_error *err)
{
    return 0;
}

/* An event is the time at which it was recorded. */
static int event_new_cpu(struct er_device *device, bool timed, void **ret, struct er_error *err)
{
    *ret = calloc(1, sizeof(uint64_t));
    return *ret ? 0 : er_error_set(err, -ENOMEM, "event: out of memory");
}

static void event_free_cpu(struct er_device *device, void *event)
{
    free(event);
}

static int event_record_cpu(struct er_device *device, void *event, void *stream,
                            struct er_error *err)
{
    *(uint64_t *)event = er_now_us();
    return 0;
}

static int event_test_cpu(struct er_device *device, void *event, struct er_error *err)
{
    return 0;
}

static int event_elapsed_cpu(struct er_device *device, void *from, void *to, double *ret_us,
                             struct er_error *err)
{
    *ret_us = (double)*(uint64_t *)to - (double)*(uint64_t *)from;
    return 0;
}

static int copy_cpu(struct er_device *device, void *stream, void *to, const void *from,
                    size_t bytes, enum er_copy_kind kind, struct er_error *err)
{
    memmove(to, from, bytes);
    return 0;
}

static int fill_cpu(struct er_device *device, void *stream, void *to, int byte, size_t bytes,
                    struct er_error *err)
{
    memset(to, byte, bytes);
    return 0;
}

static int launch_cpu(struct er_device *device, void *stream, const struct er_launch *launch,
                      struct er_error *err)
{
    return er_error_set(err, ER_E_UNSUPPORTED, "the CPU device has no kernels");
}

const struct er_device_ops er_device_cpu_ops = {
    .open = open_cpu,
    .close = close_cpu,
    .use = use_cpu,
    .memory = memory_cpu,
    .alloc = alloc_cpu,
    .free = free_cpu,
    .stream_new = stream_new_cpu,
    .stream_free = handle_free_cpu,
    .stream_test = stream_done_cpu,
    .stream_sync = stream_done_cpu,
    .stream_wait = stream_wait_cpu,
    .event_new = event_new_cpu,
    .event_free = event_free_cpu,
    .event_record = event_record_cpu,
    .event_test = event_test_cpu,
    .event_elapsed = event_elapsed_cpu,
    .copy = copy_cpu,
    .fill = fill_cpu,
    .launch = launch_cpu,
};
