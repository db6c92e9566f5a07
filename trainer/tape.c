#include "trainer/tape.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/engine_ops.h"

struct er_tape {
    const struct er_flat *flat; /* borrowed */
    struct er_tensor *leaves;   /* flat->params_n, owned */
    struct er_engine *engine;   /* borrowed */
    struct er_arena *arena;     /* owned; one step's nodes and tensors */
    struct er_arena *data;      /* what tensors hold: the same, or owned in the engine's memory */
    struct er_arena *staging;   /* owned; pinned, on the way there; NULL: not needed */
    struct er_node *last;
    er_leaf_fn hook;
    void *hook_user;
    er_use_fn use;
    void *use_user;
    bool renew;     /* parameters' gradients begin anew with each step */
    bool want_grad; /* from the next er_tape_begin() on */
    bool grad;      /* in this step */
    bool walked;    /* er_tape_backward() has run in this step */
};

static void init_leaf(struct er_tape *tape, size_t i)
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

static int make_arenas(struct er_tape *tape, size_t arena_bytes, struct er_error *err)
{
    struct er_device *device = tape->engine->device;
    int rc = er_arena_new(&tape->arena, device ? 0 : arena_bytes, 0, err);

    tape->data = tape->arena;
    if (rc < 0 || !device)
        return rc;
    tape->data = NULL;
    rc = er_arena_new_on(&tape->data, device, ER_MEMORY_DEVICE, arena_bytes, err);
    if (rc == 0)
        rc = er_arena_new_on(&tape->staging, device, ER_MEMORY_PINNED, 0, err);
    return rc;
}

int er_tape_new(struct er_tape **ret, const struct er_flat *flat, size_t arena_bytes,
                struct er_error *err)
{
    return er_tape_new_on(ret, flat, arena_bytes, er_engine_cpu(), err);
}

int er_tape_new_on(struct er_tape **ret, const struct er_flat *flat, size_t arena_bytes,
                   struct er_engine *engine, struct er_error *err)
{
    struct er_tape *tape = calloc(1, sizeof(*tape));
    int rc;

    if (!tape)
        return er_error_set(err, -ENOMEM, "tape: out of memory");
    tape->flat = flat;
    tape->engine = engine;
    tape->want_grad = true;
    tape->grad = true;
    tape->leaves = calloc(flat->params_n + 1, sizeof(*tape->leaves));
    rc = tape->leaves ? make_arenas(tape, arena_bytes, err)
                      : er_error_set(err, -ENOMEM, "tape: out of memory");
    if (rc < 0) {
        er_tape_free(tape);
        return rc;
    }
    for (size_t i = 0; i < flat->params_n; i++)
        init_leaf(tape, i);
    *ret = tape;
    return 0;
}

void er_tape_free(struct er_tape *tape)
{
    if (!tape)
        return;
    tape->engine->ops->forget(tape->engine);
    er_engine_wait(tape->engine, NULL); /* it may be at work on what goes now */
    if (tape->data != tape->arena)
        er_arena_free(tape->data);
    er_arena_free(tape->staging);
    er_arena_free(tape->arena);
    free(tape->leaves);
    free(tape);
}

struct er_engine *er_tape_engine(const struct er_tape *tape)
{
    return tape->engine;
}

void er_tape_hook(struct er_tape *tape, er_leaf_fn hook, void *user)
{
    tape->hook = hook;
    tape->hook_user = user;
}

void er_tape_use_hook(struct er_tape *tape, er_use_fn hook, void *user)
{
    tape->use = hook;
    tape->use_user = user;
}

void er_tape_grad(struct er_tape *tape, bool on)
{
    tape->want_grad = on;
}

void er_tape_renew(struct er_tape *tape, bool on)
{
    tape->renew = on;
}

/* What is on its way must have arrived before its memory is used again. */
static int begin_staged(struct er_tape *tape, struct er_error *err)
{
    int rc;

    tape->engine->ops->forget(tape->engine);
    rc = er_engine_wait(tape->engine, err);
    if (rc == 0)
        rc = er_arena_reset(tape->staging, err);
    if (rc == 0)
        rc = er_arena_reset(tape->data, err);
    return rc ? rc : er_arena_reset(tape->arena, err);
}

int er_tape_begin(struct er_tape *tape, struct er_error *err)
{
    for (size_t i = 0; i < tape->flat->params_n; i++)
        tape->leaves[i].grad_set = !tape->renew;
    tape->last = NULL;
    tape->walked = false;
    tape->grad = tape->want_grad;
    if (tape->staging)
        return begin_staged(tape, err);
    return er_arena_reset(tape->arena, err);
}

struct er_tensor *er_tape_param(struct er_tape *tape, size_t index)
{
    assert(index < tape->flat->params_n);
    return &tape->leaves[index];
}

int er_tape_input(struct er_tape *tape, const char *name, const struct er_shape *shape,
                  const float *data, struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *tensor;
    void *self;
    int rc;

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
    int rc = er_tensor_new(tape->arena, data, name, shape, false, ret, err);

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

/* Inputs of `node` that are not where the engine computes go there now. */
static int bring_inputs(struct er_tape *tape, const struct er_node *node, struct er_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < node->op->inputs_n && rc == 0; i++) {
        struct er_tensor *in = node->in[i];
        size_t bytes = in ? in->count * sizeof(float) : 0;
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

static int new_node(struct er_tape *tape, const struct er_tape_op *op, struct er_tensor *const *in,
                    const void *attr, struct er_node **ret, struct er_error *err)
{
    struct er_node *node;
    void *self, *copy = NULL;
    int rc;

    rc = er_arena_alloc(tape->arena, sizeof(*node), &self, err);
    if (rc == 0 && op->attr_bytes > 0)
        rc = er_arena_alloc(tape->arena, op->attr_bytes, &copy, err);
    if (rc < 0)
        return rc;
    node = self;
    *node = (struct er_node){.op = op, .attr = copy, .tape = tape, .prev = tape->last};
    for (uint32_t i = 0; i < op->inputs_n; i++)
        node->in[i] = in[i];
    if (copy)
        memcpy(copy, attr, op->attr_bytes);
    *ret = node;
    return 0;
}

/* Some input that backward can go on to. */
static bool differentiable(const struct er_node *node)
{
    for (uint32_t i = 0; i < node->op->inputs_n; i++) {
        if (node->op->backward[i] && node->in[i] && node->in[i]->grad)
            return true;
    }
    return false;
}

static int use_params(struct er_tape *tape, const struct er_node *node, bool backward,
                      struct er_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; tape->use && i < node->op->inputs_n && rc == 0; i++) {
        if (node->in[i] && node->in[i]->param != ER_TENSOR_NO_PARAM)
            rc = tape->use(tape->use_user, node->in[i]->param, backward, err);
    }
    return rc;
}

int er_tape_apply(struct er_tape *tape, const struct er_tape_op *op, struct er_tensor *const *in,
                  const void *attr, struct er_tensor **ret, struct er_error *err)
{
    struct er_node *node;
    struct er_shape shape;
    size_t saved_n = 0;
    void *saved = NULL;
    bool record;
    int rc;

    rc = new_node(tape, op, in, attr, &node, err);
    if (rc == 0)
        rc = op->infer(node, &shape, &saved_n, err);
    if (rc < 0)
        return rc;
    record = tape->grad && differentiable(node);
    saved_n = tape->engine->ops->saved(tape->engine, node, saved_n);
    rc = er_tensor_new(tape->arena, tape->data, op->name, &shape, record, &node->out, err);
    if (rc == 0 && saved_n > 0)
        rc = er_arena_alloc(tape->data, saved_n * sizeof(float), &saved, err);
    if (rc < 0)
        return rc;
    node->saved = saved;
    rc = use_params(tape, node, false, err);
    if (rc == 0 && tape->staging)
        rc = bring_inputs(tape, node, err);
    if (rc == 0)
        rc = tape->engine->ops->forward(tape->engine, node, err);
    if (rc < 0)
        return rc;
    if (record)
        tape->last = node;
    *ret = node->out;
    return 0;
}

/* Which nodes the loss depends on, and how many contributions each gradient will get: a branch
 * that does not lead to the loss must not hold back a parameter's hook. */
static void count_uses(struct er_tape *tape, struct er_tensor *loss)
{
    for (size_t i = 0; i < tape->flat->params_n; i++)
        tape->leaves[i].uses = 0;
    loss->uses = 1;
    for (struct er_node *node = tape->last; node; node = node->prev) {
        node->live = node->out->uses > 0;
        if (!node->live)
            continue;
        for (uint32_t i = 0; i < node->op->inputs_n; i++) {
            if (node->op->backward[i] && node->in[i] && node->in[i]->grad)
                node->in[i]->uses++;
        }
    }
}

static int walk_node(struct er_tape *tape, struct er_node *node, struct er_error *err)
{
    int rc;

    for (uint32_t i = node->op->inputs_n; i-- > 0;) {
        struct er_tensor *in = node->in[i];

        if (!node->op->backward[i] || !in || !in->grad)
            continue;
        rc = tape->engine->ops->backward(tape->engine, node, i, in->grad_set ? 1.0f : 0.0f, err);
        if (rc < 0)
            return rc;
        in->grad_set = true;
        assert(in->uses > 0);
        if (--in->uses == 0 && in->param != ER_TENSOR_NO_PARAM && tape->hook)
            tape->hook(tape->hook_user, in->param);
    }
    return 0;
}

int er_tape_backward(struct er_tape *tape, struct er_tensor *loss, struct er_error *err)
{
    int rc = 0;

    if (!tape->grad)
        return er_error_set(err, ER_E_USAGE, "backward: gradients are off in this step");
    if (tape->walked)
        return er_error_set(err, ER_E_USAGE, "backward: this step has been walked already");
    if (loss->count != 1) {
        char text[ER_SHAPE_TEXT_MAX];

        er_shape_format(&loss->shape, text);
        return er_error_set(err, ER_E_USAGE, "backward: '%s' has shape %s, expected (1)",
                            loss->name, text);
    }
    if (!loss->grad || loss->param != ER_TENSOR_NO_PARAM)
        return er_error_set(err, ER_E_USAGE, "backward: '%s' depends on no parameter", loss->name);
    tape->walked = true;
    count_uses(tape, loss);
    rc = tape->engine->ops->fill(tape->engine, loss->grad, 1.0f, 1, err);
    loss->grad_set = true;
    for (struct er_node *node = tape->last; node && rc == 0; node = node->prev) {
        if (!node->live)
            continue;
        rc = use_params(tape, node, true, err);
        if (rc == 0)
            rc = walk_node(tape, node, err);
    }
    return rc ? rc : tape->engine->ops->wait(tape->engine, err);
}

size_t er_tape_growths(const struct er_tape *tape)
{
    size_t n = er_arena_growths(tape->arena);

    if (tape->staging)
        n += er_arena_growths(tape->data) + er_arena_growths(tape->staging);
    return n;
}
