#pragma once
/*
 * Dense tensors, row-major, over an arena that is given back whole at the start of each step: after
 * one step of the largest size (a dry run) nothing allocates any more. Stored as float32, or in 16
 * bits as float16 or bfloat16; what is computed with them is float32 everywhere.
 */
#include "runtime/comm.h"
#include "trainer/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_TENSOR_ALIGN    64       /* bytes: a cache line, and the widest vector */
#define ER_TENSOR_NO_PARAM SIZE_MAX /* `param` of a tensor that is not a parameter */

/* Where a value is, when an engine has memory of its own. */
enum er_tensor_home {
    ER_HOME_ENGINE, /* where the engine computes */
    ER_HOME_HOST,   /* in memory of the program's, until an operation uses it */
    ER_HOME_STAGED  /* in pinned memory of the tape's, until then */
};

struct er_tensor {
    const char *name; /* for error texts; borrowed, lives as long as the tensor */
    struct er_shape shape;
    size_t count;             /* elements */
    enum er_dtype dtype;      /* of `value`: ER_F32, ER_F16 or ER_BF16 */
    enum er_dtype grad_dtype; /* of `grad`: the same, but parameters' may stay float32 */
    union {                   /* shape; arena's, or borrowed (inputs, parameters) */
        float *value;         /* ER_F32 */
        uint16_t *half;       /* ER_F16, ER_BF16 */
    };
    union { /* same shape; NULL: no gradient wanted */
        float *grad;
        uint16_t *half_grad;
    };
    bool grad_set; /* `grad` holds something: the next contribution is added, not written */
    size_t param;  /* index of the parameter, or ER_TENSOR_NO_PARAM */
    size_t uses;   /* backward: contributions still to come */
    enum er_tensor_home home; /* of `value` */
};

/* A bump allocator over er_pool. When it is spent it takes another pool; the next reset puts one
 * pool of the whole size in their place. Not thread-safe. */
struct er_arena; /* opaque */

/* `first_bytes`: size to start with (0: 2 MiB); more than `max_bytes` is refused (0: no limit but
 * memory). */
int er_arena_new(struct er_arena **ret, size_t first_bytes, size_t max_bytes, struct er_error *err);
/* The same in a device's memory, or in pinned memory. */
int er_arena_new_on(struct er_arena **ret, struct er_device *device, enum er_memory_kind kind,
                    size_t first_bytes, struct er_error *err);
void er_arena_free(struct er_arena *arena);
/* Aligned to ER_TENSOR_ALIGN, content undefined, valid until the next reset. -ENOMEM: no memory, or
 * beyond the limit. */
int er_arena_alloc(struct er_arena *arena, size_t bytes, void **ret, struct er_error *err);
int er_arena_reset(struct er_arena *arena, struct er_error *err);
/* How often memory was taken from the system since er_arena_new(): a constant once sizes have
 * settled. */
size_t er_arena_growths(const struct er_arena *arena);

/* A tensor whose struct comes from `arena`, its value and, with `with_grad`, gradient from `data`
 * (the same, unless an engine has memory of its own). -EINVAL: bad shape; -ENOMEM. */
int er_tensor_new(struct er_arena *arena, struct er_arena *data, const char *name,
                  const struct er_shape *shape, enum er_dtype dtype, bool with_grad,
                  struct er_tensor **ret, struct er_error *err);
/* Types a tensor is stored as. */
bool er_tensor_dtype_ok(enum er_dtype dtype);

#ifdef __cplusplus
}
#endif
