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
    int rc;

    if (type == ER_F32 || type == ER_BF16) {
        rc = engine->ops->products(engine, type, err);
        if (rc == 0 && engine->products != type) /* the CPU's is one for all threads */
            engine->products = type;
        return rc;
    }
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

int er_engine_fold(struct er_engine *engine, struct er_exact *exact, const struct er_flat *flat,
                   size_t param, uint64_t *outside, struct er_error *err)
{
    const struct er_flat_param *p = &flat->params[param];

    return engine->ops->exact_put(engine, &exact->scale, exact->sums + p->first,
                                  er_flat_at(flat, ER_FLAT_GRAD, param), p->count, true, outside,
                                  err);
}

int er_engine_exact_norm2(struct er_engine *engine, const struct er_exact *exact,
                          const struct er_flat *flat, double *ret, struct er_error *err)
{
    uint64_t words[ER_EXACT_WORDS] = {0};
    struct er_exact_norm norm;
    int rc = engine->ops->exact_norm(engine, &exact->scale, exact->sums, flat->total, words, err);
    int waited = er_engine_wait(engine, rc ? NULL : err); /* in any case: for words of ours */

    if (rc < 0 || waited < 0)
        return rc ? rc : waited;
    norm = er_exact_norm_join(words);
    *ret = er_exact_norm_value(&exact->scale, &norm);
    return 0;
}

int er_engine_take(struct er_engine *engine, struct er_exact *exact, const struct er_flat *flat,
                   double weight, struct er_error *err)
{
    return engine->ops->exact_take(engine, &exact->scale, exact->sums, flat->block[ER_FLAT_GRAD],
                                   flat->total, weight, err);
}

int er_engine_wait(struct er_engine *engine, struct er_error *err)
{
    return engine->ops->wait(engine, err);
}

void er_engine_guard_add(struct er_engine *engine, struct er_engine_guard *guard)
{
    guard->next = engine->guards;
    engine->guards = guard;
}

void er_engine_guard_remove(struct er_engine *engine, struct er_engine_guard *guard)
{
    struct er_engine_guard **at = &engine->guards;

    while (*at && *at != guard)
        at = &(*at)->next;
    if (*at)
        *at = guard->next;
}

int er_engine_guards_ask(struct er_engine *engine, struct er_error *err)
{
    int rc = 0;

    for (struct er_engine_guard *g = engine->guards; g && rc == 0; g = g->next)
        rc = g->arrived(g->user, err);
    return rc;
}
