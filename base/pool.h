#pragma once
/*
 * Memory pools for anything large or timed. First touch of fresh pages can be as slow as 0.3 GB/s,
 * so a pool is one 2 MiB-aligned mapping, MADV_HUGEPAGE, populated at once (MADV_POPULATE_WRITE,
 * else by touching), and is handed out by bumping a pointer. Nothing allocates in a step. Not
 * thread-safe.
 */
#include <stddef.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum er_pool_how { ER_POOL_POPULATED, ER_POOL_TOUCHED }; /* how the pages were brought in */

struct er_pool; /* opaque */

/* -ENOMEM when there is not as much memory or address space, -EINVAL for 0 bytes. */
int er_pool_new(struct er_pool **ret, size_t bytes, struct er_error *err);
/* The same without the pages: they come in when they are touched first, or by er_pool_populate().
 */
int er_pool_map(struct er_pool **ret, size_t bytes, struct er_error *err);
/* Brings in the pages of [at, at + n), cut off at the pool's end; may run beside threads that use
 * them. 0, or -errno when the kernel has no pages to give. */
int er_pool_populate(struct er_pool *pool, size_t at, size_t n);
void er_pool_free(struct er_pool *pool);
/* `align` a power of two, at most 2 MiB. NULL when the pool is spent. Zeroed (fresh pages). */
void *er_pool_alloc(struct er_pool *pool, size_t bytes, size_t align);
/* Give everything back at once; content stays as it was. */
void er_pool_reset(struct er_pool *pool);
enum er_pool_how er_pool_how(const struct er_pool *pool);
size_t er_pool_used(const struct er_pool *pool);

#ifdef __cplusplus
}
#endif
