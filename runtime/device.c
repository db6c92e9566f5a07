/* The front of the device layer: handles, and the mistakes that a device would not notice. */
#include "runtime/device.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "runtime/comm.h"
#include "runtime/gpu_module.h"

ER_CLEANUP_FOR(er_device_close, struct er_device)

int er_device_open(struct er_device **ret, const struct er_device_opts *opts, struct er_error *err)
{
    ER_CLEANUP(er_device_close_cleanup) struct er_device *device = calloc(1, sizeof(*device));
    int rc = 0;

    if (!device)
        return er_error_set(err, -ENOMEM, "device: out of memory");
    device->opts = *opts;
    device->info.index = opts->index;
    if (opts->kind == ER_DEVICE_CUDA)
        rc = er_gpu_load(&device->gpu, err);
    if (rc < 0)
        return rc;
    device->ops = device->gpu ? device->gpu->device : &er_device_cpu_ops;
    rc = device->ops->open(device, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "open %s %d", device->gpu ? "GPU" : "CPU device",
                             opts->index);
    *ret = ER_TAKE(device);
    return 0;
}

void er_device_close(struct er_device *device)
{
    int saved = errno;

    if (!device)
        return;
    if (device->ops)
        device->ops->close(device);
    free(device);
    errno = saved;
}

const struct er_device_info *er_device_info(const struct er_device *device)
{
    return &device->info;
}

int er_device_memory(struct er_device *device, uint64_t *ret_free, uint64_t *ret_total,
                     struct er_error *err)
{
    return device->ops->memory(device, ret_free, ret_total, err);
}

int er_device_alloc(struct er_device *device, enum er_memory_kind kind, size_t bytes, void **ret,
                    struct er_error *err)
{
    int rc = 0;

    *ret = NULL;
    if (bytes > 0)
        rc = device->ops->alloc(device, kind, bytes, ret, err);
    return rc < 0 ? er_error_wrap(err, rc, "%zu bytes of %s memory", bytes,
                                  kind == ER_MEMORY_PINNED ? "pinned" : "device")
                  : 0;
}

void er_device_free(struct er_device *device, enum er_memory_kind kind, void *p)
{
    if (p)
        device->ops->free(device, kind, p);
}

int er_stream_new(struct er_stream **ret, struct er_device *device,
                  enum er_stream_priority priority, struct er_error *err)
{
    struct er_stream *stream = calloc(1, sizeof(*stream));
    int rc;

    if (!stream)
        return er_error_set(err, -ENOMEM, "stream: out of memory");
    stream->device = device;
    rc = device->ops->stream_new(device, priority, &stream->native, err);
    if (rc < 0) {
        free(stream);
        return rc;
    }
    *ret = stream;
    return 0;
}

void er_stream_free(struct er_stream *stream)
{
    if (!stream)
        return;
    stream->device->ops->stream_free(stream->device, stream->native);
    free(stream);
}

int er_stream_test(struct er_stream *stream, struct er_error *err)
{
    return stream->device->ops->stream_test(stream->device, stream->native, err);
}

int er_stream_sync(struct er_stream *stream, struct er_error *err)
{
    return stream->device->ops->stream_sync(stream->device, stream->native, err);
}

static int check_recorded(const struct er_event *event, struct er_error *err)
{
    return event->recorded ? 0 : er_error_set(err, ER_E_USAGE, "the event was never recorded");
}

int er_stream_wait(struct er_stream *stream, struct er_event *event, struct er_error *err)
{
    int rc = check_recorded(event, err);

    return rc ? rc
              : stream->device->ops->stream_wait(stream->device, stream->native, event->native,
                                                 err);
}

int er_event_new(struct er_event **ret, struct er_device *device, bool timed, struct er_error *err)
{
    struct er_event *event = calloc(1, sizeof(*event));
    int rc;

    if (!event)
        return er_error_set(err, -ENOMEM, "event: out of memory");
    event->device = device;
    rc = device->ops->event_new(device, timed, &event->native, err);
    if (rc < 0) {
        free(event);
        return rc;
    }
    *ret = event;
    return 0;
}

void er_event_free(struct er_event *event)
{
    if (!event)
        return;
    event->device->ops->event_free(event->device, event->native);
    free(event);
}

int er_event_record(struct er_event *event, struct er_stream *stream, struct er_error *err)
{
    int rc = event->device->ops->event_record(event->device, event->native, stream->native, err);

    if (rc == 0)
        event->recorded = true;
    return rc;
}

int er_event_test(struct er_event *event, struct er_error *err)
{
    int rc = check_recorded(event, err);

    return rc ? rc : event->device->ops->event_test(event->device, event->native, err);
}

int er_event_elapsed_us(struct er_event *from, struct er_event *to, double *ret_us,
                        struct er_error *err)
{
    int rc = check_recorded(from, err);

    if (!rc)
        rc = check_recorded(to, err);
    return rc ? rc
              : from->device->ops->event_elapsed(from->device, from->native, to->native, ret_us,
                                                 err);
}

int er_stream_copy(struct er_stream *stream, void *to, const void *from, size_t bytes,
                   enum er_copy_kind kind, struct er_error *err)
{
    if (bytes == 0)
        return 0;
    return stream->device->ops->copy(stream->device, stream->native, to, from, bytes, kind, err);
}

int er_stream_fill(struct er_stream *stream, void *to, int byte, size_t bytes, struct er_error *err)
{
    if (bytes == 0)
        return 0;
    return stream->device->ops->fill(stream->device, stream->native, to, byte, bytes, err);
}

int er_stream_launch(struct er_stream *stream, const struct er_launch *launch, struct er_error *err)
{
    if (launch->blocks == 0 || launch->threads == 0)
        return 0;
    return stream->device->ops->launch(stream->device, stream->native, launch, err);
}
