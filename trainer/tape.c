#include "trainer/tape.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/tape_internal.h"
#include "trainer/wide.h"

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
    tape->scale = 1.0f;
    tape->want_grad = true;
    tape->grad = true;
    tape->leaves = calloc(flat->params_n + 1, sizeof(*tape->leaves));
    tape->rounded = calloc(flat->params_n + 1, sizeof(*tape->rounded));
    rc = tape->leaves && tape->rounded ? make_arenas(tape, arena_bytes, err)
                                       : er_error_set(err, -ENOMEM, "tape: out of memory");
    if (rc < 0) {
        er_tape_free(tape);
        return rc;
    }
    for (size_t i = 0; i < flat->params_n; i++)
        er_tape_init_leaf(tape, i);
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
    er_wide_free(tape->wide);
    er_engine_free(tape->engine, tape->halves);
    free(tape->rounded);
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

void er_tape_scale(struct er_tape *tape, float scale)
{
    tape->scale = scale;
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
    er_tape_begin_leaves(tape);
    if (tape->wide)
        er_wide_forget(tape->wide);
    tape->last = NULL;
    tape->walked = false;
    tape->grad = tape->want_grad;
    if (tape->staging)
        return begin_staged(tape, err);
    return er_arena_reset(tape->arena, err);
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

/* Whether the engine's loops for `node` want copies of float32; if so, they can be made. */
static int wants_wide(struct er_tape *tape, const struct er_node *node, bool *ret,
                      struct er_error *err)
{
    *ret = tape->engine->ops->of_host && !node->op->of_any_type && er_wide_wanted(node);
    return *ret && !tape->wide ? er_wide_new(&tape->wide, err) : 0;
}

static int run_forward(struct er_tape *tape, struct er_node *node, struct er_error *err)
{
    bool wide;
    int rc = wants_wide(tape, node, &wide, err);

    if (rc == 0 && wide)
        return er_wide_forward(tape->wide, node, err);
    return rc ? rc : tape->engine->ops->forward(tape->engine, node, err);
}

static int run_backward(struct er_tape *tape, struct er_node *node, uint32_t input, float beta,
                        struct er_error *err)
{
    bool wide;
    int rc = wants_wide(tape, node, &wide, err);

    if (rc == 0 && wide)
        return er_wide_backward(tape->wide, node, input, beta, err);
    return rc ? rc : tape->engine->ops->backward(tape->engine, node, input, beta, err);
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
    rc = er_tensor_new(tape->arena, tape->data, op->name, &shape,
                       op->type ? op->type(node) : node->in[0]->dtype, record, &node->out, err);
    if (rc == 0 && saved_n > 0)
        rc = er_arena_alloc(tape->data, saved_n * sizeof(float), &saved, err);
    if (rc < 0)
        return rc;
    node->saved = saved;
    rc = er_tape_use_params(tape, node, false, err);
    if (rc == 0 && tape->staging)
        rc = er_tape_bring_inputs(tape, node, err);
    if (rc == 0)
        rc = run_forward(tape, node, err);
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
        rc = run_backward(tape, node, i, in->grad_set ? 1.0f : 0.0f, err);
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
    if (loss->dtype != ER_F32)
        return er_error_set(err, ER_E_USAGE,
                            "backward: '%s' is of %s, expected float32: er_cast() it", loss->name,
                            er_dtype_name(loss->dtype));
    if (!loss->grad || loss->param != ER_TENSOR_NO_PARAM)
        return er_error_set(err, ER_E_USAGE, "backward: '%s' depends on no parameter", loss->name);
    tape->walked = true;
    count_uses(tape, loss);
    rc = tape->engine->ops->fill(tape->engine, loss->grad, tape->scale, 1, err);
    loss->grad_set = true;
    for (struct er_node *node = tape->last; node && rc == 0; node = node->prev) {
        if (!node->live)
            continue;
        rc = er_tape_use_params(tape, node, true, err);
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
    return tape->wide ? n + er_wide_growths(tape->wide) : n;
}
