/* The double of CUDA's runtime: the device, copies, kernels. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernels.h"
#include "tests/fakecuda/fake.h"

static bool lost;
static _Thread_local cudaError_t last_error;
static long launches;

/* ---- errors ---- */

int fake_enter(const char *who)
{
    return lost ? cudaErrorIllegalAddress : cudaSuccess;
}

void fake_lose_device(void)
{
    lost = true;
    pthread_cond_broadcast(&fake_changed);
}

static cudaError_t note(cudaError_t rc)
{
    if (rc != cudaSuccess)
        last_error = rc;
    return rc;
}

int fake_note(int rc)
{
    return note((cudaError_t)rc);
}

int fake_pending(void)
{
    return last_error;
}

FAKE_API cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = last_error;

    last_error = cudaSuccess;
    return lost ? cudaErrorIllegalAddress : rc;
}

FAKE_API const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
           : error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
           : error == cudaErrorInvalidDevice  ? "cudaErrorInvalidDevice"
           : error == cudaErrorNoDevice       ? "cudaErrorNoDevice"
                                              : "cudaError";
}

FAKE_API const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
           : error == cudaErrorNoDevice       ? "no CUDA-capable device is detected"
                                              : "an error";
}

/* ---- the device ---- */

static int device;

FAKE_API cudaError_t cudaGetDeviceCount(int *ret)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");

    if (!loading || strcmp(loading, "EAGER") != 0)
        fake_fail("CUDA_MODULE_LOADING is not EAGER at the first call: kernels loaded later wait "
                  "for the device");
    *ret = (int)fake_env("FAKE_CUDA_DEVICES", 64);
    return *ret > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}

FAKE_API cudaError_t cudaSetDevice(int index)
{
    if (index >= fake_env("FAKE_CUDA_DEVICES", 64))
        return note(cudaErrorInvalidDevice);
    device = index;
    return cudaSuccess;
}

FAKE_API cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_low, int *ret_high)
{
    *ret_low = 0;
    *ret_high = -5;
    return cudaSuccess;
}

FAKE_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int index)
{
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->name, sizeof(ret->name), "a double of a GPU");
    memset(&ret->uuid, 0x11 * (index + 1), sizeof(ret->uuid));
    ret->pciBusID = index + 1;
    ret->totalGlobalMem = (size_t)fake_env("FAKE_CUDA_MEM", 1l << 40);
    return cudaSuccess;
}

FAKE_API cudaError_t cudaDeviceGetAttribute(int *ret, enum cudaDeviceAttr attr, int index)
{
    *ret = attr == cudaDevAttrMultiProcessorCount      ? (int)fake_env("FAKE_CUDA_PROCESSORS", 4)
           : attr == cudaDevAttrComputeCapabilityMajor ? 9
           : attr == cudaDevAttrPageableMemoryAccess   ? (int)fake_env("FAKE_CUDA_ATS", 0)
                                                       : 0;
    return cudaSuccess;
}

FAKE_API cudaError_t cudaRuntimeGetVersion(int *ret)
{
    *ret = CUDART_VERSION;
    return cudaSuccess;
}

FAKE_API cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = CUDART_VERSION;
    return cudaSuccess;
}

/* What the program must not call: each waits for the whole device, or uses the default stream. */
FAKE_API cudaError_t cudaDeviceSynchronize(void)
{
    fake_fail("cudaDeviceSynchronize");
}

FAKE_API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    fake_fail("cudaMemcpy uses the default stream");
}

/* ---- copies ---- */

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int byte;
};

static void do_copy(struct fake_stream *s, void *arg)
{
    const struct copy *c = arg;

    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, c->byte, c->bytes);
}

static void check_host_side(const void *p, size_t bytes)
{
    if (!fake_is_pinned(p, bytes))
        fake_fail("cudaMemcpyAsync with pageable memory at %p waits for the device", p);
}

FAKE_API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                     enum cudaMemcpyKind kind, cudaStream_t stream)
{
    struct copy c = {.to = to, .from = from, .bytes = bytes};
    cudaError_t rc = (cudaError_t)fake_enter("cudaMemcpyAsync");
    struct fake_stream *s;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaMemcpyAsync");
    if (kind == cudaMemcpyHostToDevice)
        check_host_side(from, bytes);
    if (kind == cudaMemcpyDeviceToHost)
        check_host_side(to, bytes);
    if (rc == cudaSuccess) {
        fake_push(s, do_copy, &c, sizeof(c));
        fake_touch(s, from, bytes, false, "cudaMemcpyAsync");
        fake_touch(s, to, bytes, true, "cudaMemcpyAsync");
    }
    pthread_mutex_unlock(&fake_lock);
    return note(rc);
}

FAKE_API cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    struct copy c = {.to = to, .bytes = bytes, .byte = byte};
    cudaError_t rc = (cudaError_t)fake_enter("cudaMemsetAsync");
    struct fake_stream *s;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaMemsetAsync");
    if (rc == cudaSuccess) {
        fake_push(s, do_copy, &c, sizeof(c));
        fake_touch(s, to, bytes, true, "cudaMemsetAsync");
    }
    pthread_mutex_unlock(&fake_lock);
    return note(rc);
}

/* ---- kernels: the product's own source, compiled for the CPU (kernels_shim.cpp) ---- */

typedef void (*shim_fn)(const void *args, unsigned blocks, unsigned threads);

#define DECLARE(name, args)                                                                        \
    void er_shim_##name(const void *args, unsigned blocks, unsigned threads);
ER_KERNELS(DECLARE)
#undef DECLARE

enum {
    WRITES_er_kernel_args = 1 << 0 | 1 << 2, /* y, z */
    WRITES_er_kernel_adam_args = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3,
    WRITES_er_kernel_sgd_args = 1 << 0 | 1 << 1 | 1 << 2,
    WRITES_er_kernel_exact_args = 1 << 0 | 1 << 1 | 1 << 2, /* sums, g, words */
    WRITES_er_kernel_op_args = 1 << 0 | 1 << 5 | 1 << 6,    /* y, s, z */
    WRITES_er_kernel_walk_args = 1 << 0
};

static const struct kernel {
    const char *name;
    shim_fn run;
    size_t args_bytes;
    unsigned writes; /* words of the arguments that are written through */
} kernels[] = {
#define KERNEL(name, args) {"er_k_" #name, er_shim_##name, sizeof(struct args), WRITES_##args},
    ER_KERNELS(KERNEL)
#undef KERNEL
};

enum { ARGS_MAX = 128 };

struct call {
    const struct kernel *kernel;
    unsigned blocks, threads;
    _Alignas(16) char args[ARGS_MAX];
};

/* What it computes stays: others work on what is made anew. */
static bool is_optimizer(const struct kernel *kernel)
{
    const shim_fn optimizers[] = {er_shim_sgd_f32, er_shim_momentum_f32, er_shim_adam_f32,
                                  er_shim_adamw_f32};
    bool is_one = false;

    for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++)
        is_one = is_one || kernel->run == optimizers[i];
    return is_one;
}

static void do_kernel(struct fake_stream *s, void *arg)
{
    const struct call *c = arg;

    if (s->poisoned && is_optimizer(c->kernel))
        fake_fail("kernel %s runs because an aborted collective let its stream go on",
                  c->kernel->name);
    c->kernel->run(c->args, c->blocks, c->threads);
}

FAKE_API cudaError_t cudaLibraryLoadData(cudaLibrary_t *ret, const void *code,
                                         enum cudaJitOption *jit, void **jit_values, unsigned jit_n,
                                         enum cudaLibraryOption *options, void **values, unsigned n)
{
    *ret = (cudaLibrary_t)kernels;
    return cudaSuccess;
}

FAKE_API cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    return cudaSuccess;
}

FAKE_API cudaError_t cudaLibraryGetKernel(cudaKernel_t *ret, cudaLibrary_t library,
                                          const char *name)
{
    for (size_t i = 0; i < ER_KERNEL_COUNT; i++)
        if (strcmp(kernels[i].name, name) == 0) {
            *ret = (cudaKernel_t)&kernels[i];
            return cudaSuccess;
        }
    return note(cudaErrorSymbolNotFound);
}

/* Each word of the arguments that looks like an address of the device counts as far as its first
 * bytes: enough to see a kernel that runs before its input's event. */
static void touch_args(struct fake_stream *s, const struct call *c, size_t bytes)
{
    for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
        void *p;

        memcpy(&p, c->args + at, sizeof(p));
        if (fake_is_device(p))
            fake_touch(s, p, 1, c->kernel->writes >> at / sizeof(void *) & 1, c->kernel->name);
    }
}

FAKE_API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args,
                                      size_t shared, cudaStream_t stream)
{
    const struct kernel *k = function;
    struct call c = {.kernel = k, .blocks = grid.x, .threads = block.x};
    cudaError_t rc = (cudaError_t)fake_enter("cudaLaunchKernel");
    struct fake_stream *s;
    size_t bytes;

    if (k < kernels || k >= kernels + ER_KERNEL_COUNT)
        fake_fail("cudaLaunchKernel of an unknown kernel");
    if (grid.x < 1 || grid.x > 0x7fffffff || grid.y != 1 || grid.z != 1 || block.x < 1 ||
        block.x > ER_KERNEL_THREADS || shared > 48 << 10)
        return note(cudaErrorInvalidConfiguration);
    bytes = k->args_bytes;
    if (bytes > sizeof(c.args))
        fake_fail("kernel %s has %zu bytes of arguments", k->name, bytes);
    memcpy(c.args, args[0], bytes);
    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaLaunchKernel");
    if (++launches == fake_env("FAKE_CUDA_STICKY", 0))
        fake_lose_device();
    if (rc == cudaSuccess) {
        fake_push(s, do_kernel, &c, sizeof(c));
        touch_args(s, &c, bytes);
    }
    pthread_mutex_unlock(&fake_lock);
    return note(rc);
}
