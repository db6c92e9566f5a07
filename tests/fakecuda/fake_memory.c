/* Device memory of the double: host pages that a free takes away, and who touched what. */
#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/fake.h"

enum { ALLOCATIONS_MAX = 4096, ACCESSES_MAX = 1024, PAGE = 4096 };

struct allocation {
    char *at;
    size_t bytes, mapped;
    bool pinned, freed;
};

struct access {
    uintptr_t from, to;
    int stream;
    uint64_t item;
    bool writes;
};

static struct allocation allocations[ALLOCATIONS_MAX];
static int allocations_n;
static size_t device_bytes;
static struct access accesses[ACCESSES_MAX];
static unsigned accesses_n;
static uint64_t step_number, steps;

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

_Noreturn void fake_fail(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fprintf(stderr, "fakecuda: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

long fake_env(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

double fake_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* ---- steps ---- */

void fake_cuda_step_begin(void)
{
    pthread_mutex_lock(&fake_lock);
    step_number = ++steps;
    pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_step_end(void)
{
    pthread_mutex_lock(&fake_lock);
    step_number = 0;
    pthread_mutex_unlock(&fake_lock);
}

uint64_t fake_step(void)
{
    return step_number;
}

void fake_refuse_in_step(const char *what)
{
    if (step_number)
        fake_fail("%s within a step: it waits for the device", what);
}

/* ---- allocations ---- */

static struct allocation *find(const void *p, size_t bytes)
{
    const char *at = p;

    for (int i = allocations_n - 1; i >= 0; i--) {
        struct allocation *a = &allocations[i];

        if (at >= a->at && at + bytes <= a->at + a->mapped)
            return a;
    }
    return NULL;
}

bool fake_is_pinned(const void *p, size_t bytes)
{
    const struct allocation *a = find(p, bytes);

    return a && a->pinned && !a->freed;
}

bool fake_is_device(const void *p)
{
    const struct allocation *a = find(p, 1);

    return a && !a->freed;
}

static cudaError_t allocate(void **ret, size_t bytes, bool pinned)
{
    size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    size_t limit = (size_t)fake_env("FAKE_CUDA_MEM", 1l << 40);
    void *p;

    if (!pinned && device_bytes + bytes > limit)
        return cudaErrorMemoryAllocation;
    if (allocations_n == ALLOCATIONS_MAX)
        fake_fail("more than %d allocations in one process", ALLOCATIONS_MAX);
    p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(p, 0xa5, bytes < 1 << 20 ? bytes : 1 << 20); /* not cleared */
    allocations[allocations_n++] =
        (struct allocation){.at = p, .bytes = bytes, .mapped = mapped, .pinned = pinned};
    device_bytes += pinned ? 0 : bytes;
    *ret = p;
    return cudaSuccess;
}

/* The pages stay reserved: a later use is a fault, not somebody else's memory. */
static cudaError_t release(void *p, bool pinned)
{
    struct allocation *a = p ? find(p, 1) : NULL;

    if (!p)
        return cudaSuccess;
    if (!a || a->at != p || a->pinned != pinned || a->freed)
        fake_fail("free of %p, which is not such an allocation", p);
    a->freed = true;
    device_bytes -= pinned ? 0 : a->bytes;
    fake_forget_accesses(a->at, a->mapped);
    mmap(a->at, a->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
         0);
    return cudaSuccess;
}

static cudaError_t locked_allocate(void **ret, size_t bytes, bool pinned, const char *who)
{
    cudaError_t rc = (cudaError_t)fake_enter(who);

    pthread_mutex_lock(&fake_lock);
    fake_refuse_in_step(who);
    if (rc == cudaSuccess)
        rc = allocate(ret, bytes, pinned);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static cudaError_t locked_release(void *p, bool pinned, const char *who)
{
    cudaError_t rc = (cudaError_t)fake_enter(who);

    pthread_mutex_lock(&fake_lock);
    fake_refuse_in_step(who);
    if (rc == cudaSuccess)
        rc = release(p, pinned);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

FAKE_API cudaError_t cudaMalloc(void **ret, size_t bytes)
{
    return locked_allocate(ret, bytes, false, "cudaMalloc");
}

FAKE_API cudaError_t cudaFree(void *p)
{
    return locked_release(p, false, "cudaFree");
}

FAKE_API cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    return locked_allocate(ret, bytes, true, "cudaHostAlloc");
}

FAKE_API cudaError_t cudaFreeHost(void *p)
{
    return locked_release(p, true, "cudaFreeHost");
}

FAKE_API cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    *ret_total = (size_t)fake_env("FAKE_CUDA_MEM", 1l << 40);
    pthread_mutex_lock(&fake_lock);
    *ret_free = *ret_total - device_bytes;
    pthread_mutex_unlock(&fake_lock);
    return cudaSuccess;
}

/* ---- who touched what ---- */

void fake_forget_accesses(const void *p, size_t bytes)
{
    uintptr_t from = (uintptr_t)p;

    for (unsigned i = 0; i < ACCESSES_MAX; i++)
        if (accesses[i].from < from + bytes && accesses[i].to > from)
            accesses[i].to = accesses[i].from;
}

static void check_order(const struct fake_stream *s, const struct access *mine, const char *who)
{
    for (unsigned i = 0; i < ACCESSES_MAX; i++) {
        const struct access *a = &accesses[i];

        if (a->to <= mine->from || a->from >= mine->to || !(a->writes || mine->writes))
            continue;
        if (a->stream != mine->stream && s->clock.of[a->stream] < a->item)
            fake_fail("%s uses %p before the event of stream %d's work on it", who,
                      (void *)(mine->from > a->from ? mine->from : a->from), a->stream);
    }
}

/* An item about to be issued: the last that the stream has got. The caller holds the lock. */
void fake_touch(struct fake_stream *s, const void *p, size_t bytes, bool writes, const char *who)
{
    const struct allocation *a = bytes ? find(p, bytes) : NULL;
    struct access mine = {.from = (uintptr_t)p,
                          .to = (uintptr_t)p + bytes,
                          .stream = s->id,
                          .item = s->issued,
                          .writes = writes};

    if (bytes == 0)
        return;
    if (a && a->freed)
        fake_fail("%s uses freed memory at %p", who, p);
    if (!a && !fake_env("FAKE_CUDA_ATS", 0))
        fake_fail("%s uses %p, %zu bytes, which is not (or not all) memory of the device", who, p,
                  bytes);
    check_order(s, &mine, who);
    accesses[accesses_n++ % ACCESSES_MAX] = mine;
}
