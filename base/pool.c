#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels answer EINVAL */
#endif

#define HUGE_BYTES ((size_t)2 << 20)

struct er_pool {
    char *base;   /* owned mapping, 2 MiB-aligned */
    size_t size;  /* bytes mapped, a multiple of 2 MiB */
    size_t limit; /* bytes that may be handed out: what the caller asked for */
    size_t used;
    enum er_pool_how how;
};

/* A mapping of `size` bytes at a multiple of 2 MiB: map 2 MiB more, give back both ends. */
static char *map_aligned(size_t size)
{
    char *raw =
        mmap(NULL, size + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t head;

    if (raw == MAP_FAILED)
        return NULL;
    head = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    if (head)
        munmap(raw, head);
    munmap(raw + head + size, HUGE_BYTES - head);
    return raw + head;
}

/* As an atomic operation that changes nothing: somebody may be writing there. */
static void touch(char *base, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    for (size_t at = 0; at < size; at += page)
        __atomic_fetch_or(base + at, 0, __ATOMIC_RELAXED);
}

int er_pool_populate(struct er_pool *pool, size_t at, size_t n)
{
    int rc;

    if (at >= pool->size)
        return 0;
    n = n < pool->size - at ? n : pool->size - at;
    do {
        rc = madvise(pool->base + at, n, MADV_POPULATE_WRITE);
    } while (rc < 0 && (errno == EINTR || errno == EAGAIN));
    if (rc == 0)
        return 0;
    if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON)
        return -errno;
    touch(pool->base + at, n);
    pool->how = ER_POOL_TOUCHED;
    return 0;
}

static void free_pool(struct er_pool **pool)
{
    er_pool_free(*pool);
}

int er_pool_map(struct er_pool **ret, size_t bytes, struct er_error *err)
{
    ER_CLEANUP(free_pool) struct er_pool *pool = NULL;

    if (bytes == 0)
        return er_error_set(err, -EINVAL, "memory pool of 0 bytes");
    if (bytes > SIZE_MAX / 2)
        return er_error_set(err, -ENOMEM, "memory pool of %zu bytes: larger than any memory",
                            bytes);
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        return er_error_set(err, -ENOMEM, "memory pool: out of memory");
    pool->limit = bytes;
    pool->size = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    pool->base = map_aligned(pool->size);
    if (!pool->base)
        return er_error_errno(err, "memory pool of %zu bytes: map", bytes);
    madvise(pool->base, pool->size, MADV_HUGEPAGE); /* a wish: without it pages are merely small */
    *ret = ER_TAKE(pool);
    return 0;
}

int er_pool_new(struct er_pool **ret, size_t bytes, struct er_error *err)
{
    ER_CLEANUP(free_pool) struct er_pool *pool = NULL;
    int rc = er_pool_map(&pool, bytes, err);

    if (rc < 0)
        return rc;
    rc = er_pool_populate(pool, 0, pool->size);
    if (rc)
        return er_error_set(err, rc, "memory pool of %zu bytes: bring in its pages: %s", bytes,
                            er_error_name(rc));
    *ret = ER_TAKE(pool);
    return 0;
}

void er_pool_free(struct er_pool *pool)
{
    int saved = errno;

    if (!pool)
        return;
    if (pool->base)
        munmap(pool->base, pool->size);
    free(pool);
    errno = saved;
}

void *er_pool_alloc(struct er_pool *pool, size_t bytes, size_t align)
{
    size_t at;

    assert(align > 0 && (align & (align - 1)) == 0 && align <= HUGE_BYTES);
    at = (pool->used + align - 1) & ~(align - 1);
    if (at > pool->limit || bytes > pool->limit - at)
        return NULL;
    pool->used = at + bytes;
    return pool->base + at;
}

void er_pool_reset(struct er_pool *pool)
{
    pool->used = 0;
}

enum er_pool_how er_pool_how(const struct er_pool *pool)
{
    return pool->how;
}

size_t er_pool_used(const struct er_pool *pool)
{
    return pool->used;
}
