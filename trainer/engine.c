#include "trainer/engine.h"

#include <errno.h>

#include "trainer/engine_ops.h"

int er_engine_open(struct er_engine **ret, const struct er_device_opts *opts, struct er_error *err)
{
    int rc = 0;

    if (opts->kind == ER_DEVICE_CUDA)
        rc = er_engine_gpu_open(ret, opts, err);
    else
        *ret = er_engine_cpu();
    return rc;
}

void er_engine_close(struct er_engine *engine)
{
    int saved = errno;

    if (engine)
        engine->ops->close(engine);
    errno = saved;
}

struct er_device *er_engine_device(const struct er_engine *engine)
{
    return engine->device;
}

struct er_stream *er_engine_stream(const struct er_engine *engine)
{
    return engine->stream;
}

const char *er_engine_describe(const struct er_engine *engine)
{
    return engine->describe;
}

int er_engine_products(struct er_engine *engine, enum er_dtype type, struct er_error *err)
{
    if (type == ER_F32 || type == ER_BF16)
        return engine->ops->products(engine, type, err);
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "matrix products of %s: float32 and bfloat16 are offered",
                        er_dtype_name(type));
}

int er_engine_alloc(struct er_engine *engine, size_t bytes, void **ret, struct er_error *err)
{
    return engine->ops->alloc(engine, bytes, ret, err);
}

void er_engine_free(struct er_engine *engine, void *memory)
{
    if (memory)
        engine->ops->free(engine, memory);
}

int er_engine_put(struct er_engine *engine, void *to, const void *from, size_t bytes,
                  struct er_error *err)
{
    return engine->ops->put(engine, to, from, bytes, err);
}

int er_engine_get(struct er_engine *engine, void *to, const void *from, size_t bytes,
                  struct er_error *err)
{
    return engine->ops->get(engine, to, from, bytes, err);
}

int er_engine_apply(struct er_engine *engine, const struct er_optim *optim,
                    const struct er_optim_view *view, uint64_t step, double lr, double scale,
                    struct er_error *err)
{
    return engine->ops->apply(engine, optim, view, step, lr, scale, err);
}

int er_engine_wait(struct er_engine *engine, struct er_error *err)
{
    return engine->ops->wait(engine, err);
}
