#include "trainer/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"

#define FIRST_BYTES ((size_t)2 << 20)
#define CHUNKS_MAX  32 /* each as large as all before it: enough for any address space */

struct er_arena {
    struct er_pool *chunk[CHUNKS_MAX];
    size_t chunk_bytes[CHUNKS_MAX];
    size_t chunks_n;
    size_t total_bytes, max_bytes, growths;
};

static int add_chunk(struct er_arena *arena, size_t bytes, struct er_error *err)
{
    struct er_pool *pool;
    int rc;

    if (arena->chunks_n == CHUNKS_MAX || bytes > arena->max_bytes - arena->total_bytes)
        return er_error_set(err, -ENOMEM, "arena: %zu bytes in use, %zu more exceed the limit %zu",
                            arena->total_bytes, bytes, arena->max_bytes);
    rc = er_pool_new(&pool, bytes, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "arena");
    arena->chunk[arena->chunks_n] = pool;
    arena->chunk_bytes[arena->chunks_n++] = bytes;
    arena->total_bytes += bytes;
    arena->growths++;
    return 0;
}

static void drop_chunks(struct er_arena *arena)
{
    while (arena->chunks_n > 0)
        er_pool_free(arena->chunk[--arena->chunks_n]);
    arena->total_bytes = 0;
}

int er_arena_new(struct er_arena **ret, size_t first_bytes, size_t max_bytes, struct er_error *err)
{
    struct er_arena *arena = calloc(1, sizeof(*arena));
    int rc;

    if (!arena)
        return er_error_set(err, -ENOMEM, "arena: out of memory");
    arena->max_bytes = max_bytes ? max_bytes : SIZE_MAX;
    rc = add_chunk(arena, first_bytes ? first_bytes : FIRST_BYTES, err);
    if (rc < 0) {
        er_arena_free(arena);
        return rc;
    }
    *ret = arena;
    return 0;
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
    if (arena->chunks_n == 0)
        return NULL;
    return er_pool_alloc(arena->chunk[arena->chunks_n - 1], bytes, ER_TENSOR_ALIGN);
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
        er_pool_reset(arena->chunk[0]);
        return 0;
    }
    drop_chunks(arena);
    return add_chunk(arena, total, err);
}

size_t er_arena_growths(const struct er_arena *arena)
{
    return arena->growths;
}

int er_tensor_new(struct er_arena *arena, const char *name, const struct er_shape *shape,
                  bool with_grad, struct er_tensor **ret, struct er_error *err)
{
    void *self, *value, *grad = NULL;
    struct er_tensor *tensor;
    size_t bytes;
    int rc;

    rc = er_shape_check(shape, name, err);
    if (rc < 0)
        return rc;
    bytes = er_shape_count(shape) * sizeof(float);
    rc = er_arena_alloc(arena, sizeof(*tensor), &self, err);
    if (rc == 0)
        rc = er_arena_alloc(arena, bytes, &value, err);
    if (rc == 0 && with_grad)
        rc = er_arena_alloc(arena, bytes, &grad, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "tensor '%s'", name);
    tensor = self;
    *tensor = (struct er_tensor){.name = name,
                                 .shape = *shape,
                                 .count = bytes / sizeof(float),
                                 .value = value,
                                 .grad = grad,
                                 .param = ER_TENSOR_NO_PARAM};
    *ret = tensor;
    return 0;
}
