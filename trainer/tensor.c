#include "trainer/tensor.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "trainer/half.h"

#define FIRST_BYTES ((size_t)2 << 20)
#define CHUNKS_MAX  32 /* each as large as all before it: enough for any address space */

/* Either a pool of the host's memory or a piece of a device's. */
struct chunk {
    struct er_pool *pool;
    char *at;
    size_t bytes, used;
};

struct er_arena {
    struct er_device *device; /* NULL: pools */
    enum er_memory_kind kind;
    struct chunk chunk[CHUNKS_MAX];
    size_t chunks_n;
    size_t total_bytes, max_bytes, growths;
};

static int add_chunk(struct er_arena *arena, size_t bytes, struct er_error *err)
{
    struct chunk chunk = {.bytes = bytes};
    int rc;

    if (arena->chunks_n == CHUNKS_MAX || bytes > arena->max_bytes - arena->total_bytes)
        return er_error_set(err, -ENOMEM, "arena: %zu bytes in use, %zu more exceed the limit %zu",
                            arena->total_bytes, bytes, arena->max_bytes);
    rc = arena->device ? er_device_alloc(arena->device, arena->kind, bytes, (void **)&chunk.at, err)
                       : er_pool_new(&chunk.pool, bytes, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "arena");
    arena->chunk[arena->chunks_n++] = chunk;
    arena->total_bytes += bytes;
    arena->growths++;
    return 0;
}

static void drop_chunks(struct er_arena *arena)
{
    while (arena->chunks_n > 0) {
        struct chunk *chunk = &arena->chunk[--arena->chunks_n];

        if (arena->device)
            er_device_free(arena->device, arena->kind, chunk->at);
        else
            er_pool_free(chunk->pool);
    }
    arena->total_bytes = 0;
}

static int make(struct er_arena **ret, const struct er_arena *as, size_t first_bytes,
                struct er_error *err)
{
    struct er_arena *arena = malloc(sizeof(*arena));
    int rc;

    if (!arena)
        return er_error_set(err, -ENOMEM, "arena: out of memory");
    *arena = *as;
    rc = add_chunk(arena, first_bytes ? first_bytes : FIRST_BYTES, err);
    if (rc < 0) {
        er_arena_free(arena);
        return rc;
    }
    *ret = arena;
    return 0;
}

int er_arena_new(struct er_arena **ret, size_t first_bytes, size_t max_bytes, struct er_error *err)
{
    const struct er_arena as = {.max_bytes = max_bytes ? max_bytes : SIZE_MAX};

    return make(ret, &as, first_bytes, err);
}

int er_arena_new_on(struct er_arena **ret, struct er_device *device, enum er_memory_kind kind,
                    size_t first_bytes, struct er_error *err)
{
    const struct er_arena as = {.max_bytes = SIZE_MAX, .device = device, .kind = kind};

    return make(ret, &as, first_bytes, err);
}

void er_arena_free(struct er_arena *arena)
{
    if (!arena)
        return;
    drop_chunks(arena);
    free(arena);
}

/* NULL: the newest chunk is spent, or there is none (a reset that failed). */
static void *take(struct er_arena *arena, size_t bytes)
{
    struct chunk *chunk;
    size_t from;

    if (arena->chunks_n == 0)
        return NULL;
    chunk = &arena->chunk[arena->chunks_n - 1];
    if (chunk->pool)
        return er_pool_alloc(chunk->pool, bytes, ER_TENSOR_ALIGN);
    from = (chunk->used + ER_TENSOR_ALIGN - 1) & ~(size_t)(ER_TENSOR_ALIGN - 1);
    if (from > chunk->bytes || bytes > chunk->bytes - from)
        return NULL;
    chunk->used = from + bytes;
    return chunk->at + from;
}

int er_arena_alloc(struct er_arena *arena, size_t bytes, void **ret, struct er_error *err)
{
    void *p = take(arena, bytes);
    size_t want;
    int rc;

    if (!p) {
        if (__builtin_add_overflow(bytes, (size_t)ER_TENSOR_ALIGN, &want))
            return er_error_set(err, -ENOMEM, "arena: %zu bytes asked for", bytes);
        if (want < arena->total_bytes && arena->total_bytes <= arena->max_bytes / 2)
            want = arena->total_bytes;
        rc = add_chunk(arena, want, err);
        if (rc < 0)
            return rc;
        p = take(arena, bytes);
        if (!p)
            return er_error_set(err, -ENOMEM, "arena: a fresh pool of %zu bytes is too small",
                                want);
    }
    *ret = p;
    return 0;
}

int er_arena_reset(struct er_arena *arena, struct er_error *err)
{
    size_t total = arena->total_bytes;

    if (arena->chunks_n == 1) {
        arena->chunk[0].used = 0;
        if (arena->chunk[0].pool)
            er_pool_reset(arena->chunk[0].pool);
        return 0;
    }
    drop_chunks(arena);
    return add_chunk(arena, total, err);
}

size_t er_arena_growths(const struct er_arena *arena)
{
    return arena->growths;
}

bool er_tensor_dtype_ok(enum er_dtype dtype)
{
    return dtype == ER_F32 || er_dtype_is_half(dtype);
}

int er_tensor_new(struct er_arena *arena, struct er_arena *data, const char *name,
                  const struct er_shape *shape, enum er_dtype dtype, bool with_grad,
                  struct er_tensor **ret, struct er_error *err)
{
    void *self, *value, *grad = NULL;
    struct er_tensor *tensor;
    size_t count, bytes;
    int rc;

    assert(er_tensor_dtype_ok(dtype));
    rc = er_shape_check(shape, name, err);
    if (rc < 0)
        return rc;
    count = er_shape_count(shape);
    bytes = count * er_dtype_size(dtype);
    rc = er_arena_alloc(arena, sizeof(*tensor), &self, err);
    if (rc == 0)
        rc = er_arena_alloc(data, bytes, &value, err);
    if (rc == 0 && with_grad)
        rc = er_arena_alloc(data, bytes, &grad, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "tensor '%s'", name);
    tensor = self;
    *tensor = (struct er_tensor){.name = name,
                                 .shape = *shape,
                                 .count = count,
                                 .dtype = dtype,
                                 .grad_dtype = dtype,
                                 .value = value,
                                 .grad = grad,
                                 .param = ER_TENSOR_NO_PARAM};
    *ret = tensor;
    return 0;
}
