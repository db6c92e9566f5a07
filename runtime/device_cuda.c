/* The GPU behind the device layer, over CUDA's runtime. Part of er_nccl.so. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "runtime/gpu_parts_internal.h"
#include "runtime/kernels.h"

struct cuda {
    cudaLibrary_t library; /* NULL: built without kernels */
    cudaKernel_t kernel[ER_KERNEL_COUNT];
    int high; /* numerically lowest: the highest priority */
};

/* After these every call fails until the process ends. (CUDA Runtime API, "Error handling".) */
static const cudaError_t sticky[] = {
    cudaErrorIllegalAddress,      cudaErrorLaunchTimeout,       cudaErrorAssert,
    cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
    cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,           cudaErrorLaunchFailure,
    cudaErrorECCUncorrectable,    cudaErrorNvlinkUncorrectable, cudaErrorMpsClientTerminated,
    cudaErrorExternalDevice,      cudaErrorContained,           cudaErrorTensorMemoryLeak};

static bool is_sticky(cudaError_t result)
{
    for (size_t i = 0; i < ER_ARRAY_N(sticky); i++)
        if (sticky[i] == result)
            return true;
    return false;
}

/* No exit handlers: those of CUDA and NCCL may hang on a lost device. */
static _Noreturn void lose(struct er_device *device, cudaError_t result, const char *what)
{
    char why[256];
    struct iovec line;

    snprintf(why, sizeof(why),
             "elastic: GPU %d (%s) is lost: %s: %s (%s); the process ends and may be started "
             "again\n",
             device->info.index, device->info.id, what, cudaGetErrorName(result),
             cudaGetErrorString(result));
    line = (struct iovec){why, strlen(why)};
    if (device->opts.on_lost)
        device->opts.on_lost(device->opts.arg, why + strlen("elastic: "));
    if (writev(STDERR_FILENO, &line, 1) < 0)
        _exit(ER_WORKER_EXIT_DEVICE_LOST);
    _exit(ER_WORKER_EXIT_DEVICE_LOST);
}

static int check(struct er_device *device, cudaError_t result, const char *what,
                 struct er_error *err)
{
    int code = -EIO;

    if (result == cudaSuccess)
        return 0;
    if (is_sticky(result))
        lose(device, result, what);
    cudaGetLastError(); /* ordinary errors are told once, here */
    if (result == cudaErrorMemoryAllocation)
        code = -ENOMEM;
    else if (result == cudaErrorInvalidValue)
        code = ER_E_USAGE;
    else if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver ||
             result == cudaErrorInvalidDevice)
        code = ER_E_UNSUPPORTED;
    return er_error_set(err, code, "%s: %s (%s)", what, cudaGetErrorString(result),
                        cudaGetErrorName(result));
}

/* ---- opening ---- */

static int attribute(struct er_device *device, enum cudaDeviceAttr attr, int *ret,
                     struct er_error *err)
{
    return check(device, cudaDeviceGetAttribute(ret, attr, device->info.index),
                 "cudaDeviceGetAttribute", err);
}

static int describe(struct er_device *device, struct er_error *err)
{
    struct er_device_info *info = &device->info;
    int major = 0, minor = 0, rc;
    struct cudaDeviceProp *p = calloc(1, sizeof(*p));

    if (!p)
        return er_error_set(err, -ENOMEM, "out of memory");
    rc = check(device, cudaGetDeviceProperties(p, info->index), "cudaGetDeviceProperties", err);
    if (rc == 0) {
        const unsigned char *u = (const unsigned char *)p->uuid.bytes;

        snprintf(info->name, sizeof(info->name), "%.90s", p->name);
        snprintf(info->id, sizeof(info->id), "%02x%02x%02x%02x%02x%02x%02x%02x-%04x:%02x:%02x",
                 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], p->pciDomainID & 0xffff,
                 p->pciBusID & 0xff, p->pciDeviceID & 0xff);
        info->memory_bytes = p->totalGlobalMem;
    }
    free(p);
    if (!rc)
        rc = attribute(device, cudaDevAttrMultiProcessorCount, &info->processors_n, err);
    if (!rc)
        rc = attribute(device, cudaDevAttrComputeCapabilityMajor, &major, err);
    if (!rc)
        rc = attribute(device, cudaDevAttrComputeCapabilityMinor, &minor, err);
    info->capability = major * 10 + minor;
    cudaRuntimeGetVersion(&info->runtime_version);
    cudaDriverGetVersion(&info->driver_version);
    return rc;
}

/* All kernels now: loading one later would wait for the device, and so for NCCL's kernels. */
static int load_kernels(struct er_device *device, struct er_error *err)
{
    static const char *const names[] = {
#define NAME(name, args) "er_k_" #name,
        ER_KERNELS(NAME)
#undef NAME
    };
    struct cuda *c = device->impl;
    int rc = 0;

    if (er_kernels_bytes == 0)
        return 0;
    rc = check(device,
               cudaLibraryLoadData(&c->library, er_kernels_image, NULL, NULL, 0, NULL, NULL, 0),
               "load the kernels", err);
    for (int i = 0; i < ER_KERNEL_COUNT && rc == 0; i++)
        rc =
            check(device, cudaLibraryGetKernel(&c->kernel[i], c->library, names[i]), names[i], err);
    return rc;
}

static int choose(struct er_device *device, struct er_error *err)
{
    struct cuda *c = device->impl;
    int n = 0, low = 0, rc;

    rc = check(device, cudaGetDeviceCount(&n), "no GPU can be used", err);
    if (rc < 0)
        return rc;
    device->info.devices_n = n;
    if (device->info.index < 0 || device->info.index >= n)
        return er_error_set(err, ER_E_UNSUPPORTED,
                            "there are %d visible GPUs (CUDA_VISIBLE_DEVICES chooses)", n);
    rc = check(device, cudaSetDevice(device->info.index), "cudaSetDevice", err);
    if (rc == 0)
        rc = check(device, cudaDeviceGetStreamPriorityRange(&low, &c->high),
                   "cudaDeviceGetStreamPriorityRange", err);
    return rc;
}

static int open_cuda(struct er_device *device, struct er_error *err)
{
    int rc;

    device->impl = calloc(1, sizeof(struct cuda));
    if (!device->impl)
        return er_error_set(err, -ENOMEM, "out of memory");
    rc = choose(device, err);
    if (rc == 0)
        rc = describe(device, err);
    if (rc == 0)
        rc = load_kernels(device, err);
    return rc;
}

static void close_cuda(struct er_device *device)
{
    struct cuda *c = device->impl;

    if (c && c->library)
        cudaLibraryUnload(c->library);
    free(c);
    device->impl = NULL;
}

static int use_cuda(struct er_device *device, struct er_error *err)
{
    return check(device, cudaSetDevice(device->info.index), "cudaSetDevice", err);
}

static int memory_cuda(struct er_device *device, uint64_t *ret_free, uint64_t *ret_total,
                       struct er_error *err)
{
    size_t free_bytes = 0, total = 0;
    int rc = use_cuda(device, err);

    if (rc == 0)
        rc = check(device, cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo", err);
    *ret_free = free_bytes;
    *ret_total = total;
    return rc;
}

static int alloc_cuda(struct er_device *device, enum er_memory_kind kind, size_t bytes, void **ret,
                      struct er_error *err)
{
    int rc = use_cuda(device, err);

    if (rc < 0)
        return rc;
    if (kind == ER_MEMORY_PINNED)
        return check(device, cudaHostAlloc(ret, bytes, cudaHostAllocDefault), "cudaHostAlloc", err);
    return check(device, cudaMalloc(ret, bytes), "cudaMalloc", err);
}

static void free_cuda(struct er_device *device, enum er_memory_kind kind, void *p)
{
    check(device, kind == ER_MEMORY_PINNED ? cudaFreeHost(p) : cudaFree(p), "free device memory",
          NULL);
}

/* ---- streams and events ---- */

static int stream_new_cuda(struct er_device *device, enum er_stream_priority priority, void **ret,
                           struct er_error *err)
{
    const struct cuda *c = device->impl;
    int rc = use_cuda(device, err);

    if (rc < 0)
        return rc;
    return check(device,
                 cudaStreamCreateWithPriority((cudaStream_t *)ret, cudaStreamNonBlocking,
                                              priority == ER_STREAM_HIGH ? c->high : 0),
                 "cudaStreamCreateWithPriority", err);
}

static void stream_free_cuda(struct er_device *device, void *stream)
{
    check(device, cudaStreamDestroy(stream), "cudaStreamDestroy", NULL);
}

static int three_way(struct er_device *device, cudaError_t result, const char *what,
                     struct er_error *err)
{
    if (result != cudaErrorNotReady)
        return check(device, result, what, err);
    cudaGetLastError(); /* "not ready" stays as the last error, which NCCL would take for its own */
    return ER_IN_PROGRESS;
}

static int stream_test_cuda(struct er_device *device, void *stream, struct er_error *err)
{
    return three_way(device, cudaStreamQuery(stream), "cudaStreamQuery", err);
}

static int stream_sync_cuda(struct er_device *device, void *stream, struct er_error *err)
{
    return check(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize", err);
}

static int stream_wait_cuda(struct er_device *device, void *stream, void *event,
                            struct er_error *err)
{
    return check(device, cudaStreamWaitEvent(stream, event, cudaEventWaitDefault),
                 "cudaStreamWaitEvent", err);
}

static int event_new_cuda(struct er_device *device, bool timed, void **ret, struct er_error *err)
{
    unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    int rc = use_cuda(device, err);

    return rc < 0 ? rc
                  : check(device, cudaEventCreateWithFlags((cudaEvent_t *)ret, flags),
                          "cudaEventCreateWithFlags", err);
}

static void event_free_cuda(struct er_device *device, void *event)
{
    check(device, cudaEventDestroy(event), "cudaEventDestroy", NULL);
}

static int event_record_cuda(struct er_device *device, void *event, void *stream,
                             struct er_error *err)
{
    return check(device, cudaEventRecord(event, stream), "cudaEventRecord", err);
}

static int event_test_cuda(struct er_device *device, void *event, struct er_error *err)
{
    return three_way(device, cudaEventQuery(event), "cudaEventQuery", err);
}

static int event_elapsed_cuda(struct er_device *device, void *from, void *to, double *ret_us,
                              struct er_error *err)
{
    float ms = 0;
    int rc = check(device, cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime", err);

    *ret_us = (double)ms * 1e3;
    return rc;
}

/* ---- work ---- */

static int copy_cuda(struct er_device *device, void *stream, void *to, const void *from,
                     size_t bytes, enum er_copy_kind kind, struct er_error *err)
{
    static const enum cudaMemcpyKind kinds[] = {[ER_COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
                                                [ER_COPY_TO_HOST] = cudaMemcpyDeviceToHost,
                                                [ER_COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice};

    return check(device, cudaMemcpyAsync(to, from, bytes, kinds[kind], stream), "cudaMemcpyAsync",
                 err);
}

static int fill_cuda(struct er_device *device, void *stream, void *to, int byte, size_t bytes,
                     struct er_error *err)
{
    return check(device, cudaMemsetAsync(to, byte, bytes, stream), "cudaMemsetAsync", err);
}

static int launch_cuda(struct er_device *device, void *stream, const struct er_launch *launch,
                       struct er_error *err)
{
    static const size_t args_bytes[] = {
#define BYTES(name, args) sizeof(struct args),
        ER_KERNELS(BYTES)
#undef BYTES
    };
    const struct cuda *c = device->impl;
    void *args[1] = {(void *)launch->args};
    struct dim3 grid = {launch->blocks, 1, 1}, block = {launch->threads, 1, 1};
    int rc;

    if (launch->kernel >= ER_KERNEL_COUNT || launch->args_bytes != args_bytes[launch->kernel])
        return er_error_set(err, ER_E_USAGE, "kernel %u with %zu bytes of arguments",
                            launch->kernel, launch->args_bytes);
    if (!c->library)
        return er_error_set(err, ER_E_UNSUPPORTED, "the GPU module was built without nvcc");
    rc = use_cuda(device, err);
    if (rc < 0)
        return rc;
    return check(device,
                 cudaLaunchKernel((const void *)c->kernel[launch->kernel], grid, block, args,
                                  launch->shared_bytes, stream),
                 "cudaLaunchKernel", err);
}

const struct er_device_ops er_device_cuda_ops = {
    .open = open_cuda,
    .close = close_cuda,
    .use = use_cuda,
    .memory = memory_cuda,
    .alloc = alloc_cuda,
    .free = free_cuda,
    .stream_new = stream_new_cuda,
    .stream_free = stream_free_cuda,
    .stream_test = stream_test_cuda,
    .stream_sync = stream_sync_cuda,
    .stream_wait = stream_wait_cuda,
    .event_new = event_new_cuda,
    .event_free = event_free_cuda,
    .event_record = event_record_cuda,
    .event_test = event_test_cuda,
    .event_elapsed = event_elapsed_cuda,
    .copy = copy_cuda,
    .fill = fill_cuda,
    .launch = launch_cuda,
};
