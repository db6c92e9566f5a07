/* What a tape works on: parameters and what they are stored as, inputs, memory of a step. */
#include <assert.h>
#include <string.h>

#include "trainer/tape_internal.h"

/* ---- parameters ---- */

void er_tape_init_leaf(struct er_tape *tape, size_t i)
{
    const struct er_flat_param *param = &tape->flat->params[i];
    bool bound = tape->flat->block[ER_FLAT_VALUE] != NULL;

    /* grad_set from the start: contributions add to what the flat memory holds. */
    tape->leaves[i] =
        (struct er_tensor){.name = param->name,
                           .shape = param->shape,
                           .count = param->count,
                           .value = bound ? er_flat_at(tape->flat, ER_FLAT_VALUE, i) : NULL,
                           .grad = bound ? er_flat_at(tape->flat, ER_FLAT_GRAD, i) : NULL,
                           .grad_set = true,
                           .param = i};
}

struct er_tensor *er_tape_param(struct er_tape *tape, size_t index)
{
    assert(index < tape->flat->params_n);
    return &tape->leaves[index];
}

int er_tape_store(struct er_tape *tape, enum er_dtype type, struct er_error *err)
{
    const struct er_flat *flat = tape->flat;
    void *halves = NULL;
    int rc = 0;

    if (!er_tensor_dtype_ok(type))
        return er_error_set(err, ER_E_UNSUPPORTED,
                            "parameters used as %s: float32, float16 and bfloat16 are offered",
                            er_dtype_name(type));
    if (tape->use || !flat->block[ER_FLAT_VALUE])
        return er_error_set(err, ER_E_USAGE,
                            "parameters of 16 bits: sharded ones have er_fsdp_opts.param_dtype");
    if (type != ER_F32 && !tape->halves)
        rc = er_engine_alloc(tape->engine, flat->total * sizeof(*tape->halves), &halves, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "parameters of 16 bits");
    tape->halves = halves ? halves : tape->halves;
    tape->stored = type;
    return 0;
}

void er_tape_begin_leaves(struct er_tape *tape)
{
    for (size_t i = 0; i < tape->flat->params_n; i++) {
        struct er_tensor *leaf = &tape->leaves[i];

        leaf->grad_set = !tape->renew;
        tape->rounded[i] = false;
        if (!tape->halves)
            continue;
        leaf->dtype = tape->stored;
        if (tape->stored == ER_F32)
            leaf->value = er_flat_at(tape->flat, ER_FLAT_VALUE, i);
        else
            leaf->half = tape->halves + tape->flat->params[i].first;
    }
}

/* The master values, rounded, once a step. */
static int round_param(struct er_tape *tape, struct er_tensor *leaf, struct er_error *err)
{
    size_t i = leaf->param;

    if (leaf->dtype == ER_F32 || tape->rounded[i])
        return 0;
    tape->rounded[i] = true;
    return tape->engine->ops->convert(tape->engine, er_flat_at(tape->flat, ER_FLAT_VALUE, i),
                                      ER_F32, leaf->half, leaf->dtype, leaf->count, err);
}

int er_tape_use_params(struct er_tape *tape, const struct er_node *node, bool backward,
                       struct er_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < node->op->inputs_n && rc == 0; i++) {
        struct er_tensor *in = node->in[i];

        if (!in || in->param == ER_TENSOR_NO_PARAM)
            continue;
        if (tape->use)
            rc = tape->use(tape->use_user, in->param, backward, err);
        else
            rc = round_param(tape, in, err);
    }
    return rc;
}

/* ---- inputs, memory ---- */

int er_tape_input(struct er_tape *tape, const char *name, const struct er_shape *shape,
                  const float *data, struct er_tensor **ret, struct er_error *err)
{
    return er_tape_input_as(tape, name, shape, ER_F32, data, ret, err);
}

int er_tape_input_as(struct er_tape *tape, const char *name, const struct er_shape *shape,
                     enum er_dtype dtype, const void *data, struct er_tensor **ret,
                     struct er_error *err)
{
    struct er_tensor *tensor;
    void *self;
    int rc;

    if (!er_tensor_dtype_ok(dtype))
        return er_error_set(err, ER_E_UNSUPPORTED,
                            "input '%s' of %s: float32, float16 and bfloat16 are offered", name,
                            er_dtype_name(dtype));
    rc = er_shape_check(shape, name, err);
    if (rc == 0)
        rc = er_arena_alloc(tape->arena, sizeof(*tensor), &self, err);
    if (rc < 0)
        return rc;
    tensor = self;
    /* Nothing writes to a tensor that is an operation's input. */
    *tensor = (struct er_tensor){.name = name,
                                 .shape = *shape,
                                 .count = er_shape_count(shape),
                                 .dtype = dtype,
                                 .grad_dtype = dtype,
                                 .value = (float *)(uintptr_t)data,
                                 .home = tape->staging ? ER_HOME_HOST : ER_HOME_ENGINE,
                                 .param = ER_TENSOR_NO_PARAM};
    *ret = tensor;
    return 0;
}

int er_tape_buffer(struct er_tape *tape, const char *name, const struct er_shape *shape,
                   struct er_tensor **ret, struct er_error *err)
{
    struct er_arena *data = tape->staging ? tape->staging : tape->data;
    int rc = er_tensor_new(tape->arena, data, name, shape, ER_F32, false, ret, err);

    if (rc == 0 && tape->staging)
        (*ret)->home = ER_HOME_STAGED;
    return rc;
}

int er_tape_scratch(struct er_tape *tape, size_t bytes, void **ret, struct er_error *err)
{
    return er_arena_alloc(tape->data, bytes, ret, err);
}

/* `from` is pinned. */
static int send(struct er_tape *tape, const void *from, size_t bytes, void **ret,
                struct er_error *err)
{
    void *to;
    int rc = er_tape_scratch(tape, bytes, &to, err);

    if (rc == 0)
        rc = er_stream_copy(tape->engine->stream, to, from, bytes, ER_COPY_TO_DEVICE, err);
    if (rc == 0)
        *ret = to;
    return rc;
}

int er_tape_upload(struct er_tape *tape, const void *from, size_t bytes, void **ret,
                   struct er_error *err)
{
    void *pinned;
    int rc = er_arena_alloc(tape->staging, bytes, &pinned, err);

    if (rc < 0)
        return rc;
    memcpy(pinned, from, bytes);
    return send(tape, pinned, bytes, ret, err);
}

int er_tape_bring_inputs(struct er_tape *tape, const struct er_node *node, struct er_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < node->op->inputs_n && rc == 0; i++) {
        struct er_tensor *in = node->in[i];
        size_t bytes = in ? in->count * er_dtype_size(in->dtype) : 0;
        void *at = NULL;

        if (!in || in->home == ER_HOME_ENGINE)
            continue;
        rc = in->home == ER_HOME_HOST ? er_tape_upload(tape, in->value, bytes, &at, err)
                                      : send(tape, in->value, bytes, &at, err);
        if (rc < 0)
            return er_error_wrap(err, rc, "input '%s'", in->name);
        in->value = at;
        in->home = ER_HOME_ENGINE;
    }
    return rc;
}
