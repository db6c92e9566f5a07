#include "trainer/compress.h"

#include <errno.h>
#include <stdlib.h>

#include "trainer/engine_ops.h"

struct er_compress {
    struct er_engine *engine; /* borrowed */
    uint16_t *wire;           /* (count), in the engine's memory */
    size_t count;
};

int er_compress_open(struct er_compress **ret, const struct er_span *spans, size_t n,
                     struct er_error *err)
{
    return er_compress_open_on(ret, er_engine_cpu(), spans, n, err);
}

int er_compress_open_on(struct er_compress **ret, struct er_engine *engine,
                        const struct er_span *spans, size_t n, struct er_error *err)
{
    struct er_compress *compress = calloc(1, sizeof(*compress));
    void *wire = NULL;
    size_t count = 0;
    int rc;

    for (size_t i = 0; i < n; i++)
        count += spans[i].count;
    rc = compress ? er_engine_alloc(engine, (count + 1) * sizeof(uint16_t), &wire, err)
                  : er_error_set(err, -ENOMEM, "out of memory");
    if (rc < 0) {
        free(compress);
        return er_error_wrap(err, rc, "room for %zu gradients as bfloat16", count);
    }
    *compress = (struct er_compress){.engine = engine, .wire = wire, .count = count};
    *ret = compress;
    return 0;
}

void er_compress_close(struct er_compress *compress)
{
    int saved = errno;

    if (compress)
        er_engine_free(compress->engine, compress->wire);
    free(compress);
    errno = saved;
}

static int pack(void *user, const struct er_ddp_bucket *bucket, struct er_ddp_wire *wire,
                struct er_error *err)
{
    struct er_compress *compress = user;
    uint16_t *to = compress->wire + bucket->first;

    if (bucket->first + bucket->count > compress->count)
        return er_error_set(err, ER_E_USAGE,
                            "compression was opened for %zu gradients, this bucket ends at %zu",
                            compress->count, bucket->first + bucket->count);
    *wire = (struct er_ddp_wire){to, bucket->count, ER_BF16};
    return compress->engine->ops->convert(compress->engine, bucket->grads, ER_F32, to, ER_BF16,
                                          bucket->count, err);
}

static int unpack(void *user, const struct er_ddp_bucket *bucket, const struct er_ddp_wire *wire,
                  struct er_error *err)
{
    struct er_engine *engine = ((struct er_compress *)user)->engine;

    return engine->ops->convert(engine, wire->ptr, ER_BF16, bucket->grads, ER_F32, bucket->count,
                                err);
}

struct er_ddp_hook er_compress_hook(struct er_compress *compress)
{
    return (struct er_ddp_hook){.user = compress, .pack = pack, .unpack = unpack};
}
