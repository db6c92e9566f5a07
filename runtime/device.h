#pragma once
/*
 * A device with memory of its own, streams of work, and events between them: a GPU, or the CPU as
 * if it were one (memory is host memory; work is done when it is issued).
 *
 * One thread per device: the one that opened it. Nothing here uses the default stream, pageable
 * asynchronous copies or an implicit synchronisation. Allocate before the first step: allocating
 * and freeing device memory may wait for everything that runs.
 *
 * An error after which the device can't be used any more (illegal address, ECC, ...) does not
 * return: the process tells why on stderr and ends with ER_WORKER_EXIT_DEVICE_LOST, since the
 * device's context is lost with everything in it and the only cure is a new process.
 */
#include <stdbool.h>

#include "runtime/elastic.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_DEVICE_NAME_MAX 96

enum er_device_kind { ER_DEVICE_CPU, ER_DEVICE_CUDA };
enum er_memory_kind { ER_MEMORY_DEVICE, ER_MEMORY_PINNED };
enum er_stream_priority { ER_STREAM_NORMAL, ER_STREAM_HIGH };

struct er_device; /* opaque */
struct er_stream; /* opaque; work on it runs in order, beside the others' */
struct er_event;  /* opaque; a point on a stream */

struct er_device_opts {
    enum er_device_kind kind;
    int index; /* of the visible devices; a rank usually takes its local rank */
    /* Called with the reason before the process ends. NULL: er_fail() of the context of a
     * communicator that uses the device, if there is one. */
    void (*on_lost)(void *arg, const char *why);
    void *arg;
};

struct er_device_info {
    char name[ER_DEVICE_NAME_MAX];
    char id[ER_DEVICE_NAME_MAX]; /* the same text means the same device of the same host */
    int index, devices_n, processors_n;
    int capability; /* 90: compute capability 9.0; 0: the CPU */
    uint64_t memory_bytes;
    int runtime_version, driver_version; /* 13000: CUDA 13.0 */
};

/* ER_E_UNSUPPORTED: this build or host has no such device (the text says what is missing). */
ER_API int er_device_open(struct er_device **ret, const struct er_device_opts *opts,
                          struct er_error *err);
/* Streams, events and memory must have been freed, communicators aborted. NULL is fine. */
ER_API void er_device_close(struct er_device *device);
ER_API const struct er_device_info *er_device_info(const struct er_device *device);
ER_API int er_device_memory(struct er_device *device, uint64_t *ret_free, uint64_t *ret_total,
                            struct er_error *err);

/* At least 256-byte aligned; not cleared. 0 bytes give NULL. -ENOMEM. */
ER_API int er_device_alloc(struct er_device *device, enum er_memory_kind kind, size_t bytes,
                           void **ret, struct er_error *err);
/* What er_device_alloc() gave with the same kind; NULL is fine. May wait for the device: never
 * while a communicator with unfinished operations is not aborted. */
ER_API void er_device_free(struct er_device *device, enum er_memory_kind kind, void *p);

ER_API int er_stream_new(struct er_stream **ret, struct er_device *device,
                         enum er_stream_priority priority, struct er_error *err);
ER_API void er_stream_free(struct er_stream *stream);
/* 0 all work is done, ER_IN_PROGRESS, negative failed. */
ER_API int er_stream_test(struct er_stream *stream, struct er_error *err);
/* Waits without a deadline: after a failed communicator only once that has been aborted. */
ER_API int er_stream_sync(struct er_stream *stream, struct er_error *err);
/* Work issued on the stream from now on begins after the event's last recording. ER_E_USAGE: it was
 * never recorded (a wait that would silently do nothing). */
ER_API int er_stream_wait(struct er_stream *stream, struct er_event *event, struct er_error *err);

/* `timed`: for er_event_elapsed_us(). */
ER_API int er_event_new(struct er_event **ret, struct er_device *device, bool timed,
                        struct er_error *err);
ER_API void er_event_free(struct er_event *event);
ER_API int er_event_record(struct er_event *event, struct er_stream *stream, struct er_error *err);
/* 0 reached, ER_IN_PROGRESS, negative failed. ER_E_USAGE: never recorded. */
ER_API int er_event_test(struct er_event *event, struct er_error *err);
/* Between two events that were reached. */
ER_API int er_event_elapsed_us(struct er_event *from, struct er_event *to, double *ret_us,
                               struct er_error *err);

/* Asynchronous, in the stream's order. Between host and device the host's side must be pinned: the
 * caller answers for it. Buffers are borrowed until the stream has passed the copy. */
enum er_copy_kind { ER_COPY_TO_DEVICE, ER_COPY_TO_HOST, ER_COPY_ON_DEVICE };
ER_API int er_stream_copy(struct er_stream *stream, void *to, const void *from, size_t bytes,
                          enum er_copy_kind kind, struct er_error *err);
ER_API int er_stream_fill(struct er_stream *stream, void *to, int byte, size_t bytes,
                          struct er_error *err);

#ifdef __cplusplus
}
#endif
