#include "trainer/tape.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct er_tape {
    const struct er_flat *flat; /* borrowed */
    struct er_tensor *leaves;   /* flat->params_n, owned */
    struct er_arena *arena;     /* owned; one step's nodes and tensors */
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

int er_tape_new(struct er_tape **ret, const struct er_flat *flat, size_t arena_bytes,
                struct er_error *err)
{
    struct er_tape *tape = calloc(1, sizeof(*tape));
    int rc;

    if (!tape)
        return er_error_set(err, -ENOMEM, "tape: out of memory");
    tape->flat = flat;
    tape->want_grad = true;
    tape->grad = true;
    tape->leaves = calloc(flat->params_n + 1, sizeof(*tape->leaves));
    rc = tape->leaves ? er_arena_new(&tape->arena, arena_bytes, 0, err)
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
    er_arena_free(tape->arena);
    free(tape->leaves);
    free(tape);
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

int er_tape_begin(struct er_tape *tape, struct er_error *err)
{
    for (size_t i = 0; i < tape->flat->params_n; i++)
        tape->leaves[i].grad_set = !tape->renew;
    tape->last = NULL;
    tape->walked = false;
    tape->grad = tape->want_grad;
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
                                 .param = ER_TENSOR_NO_PARAM};
    *ret = tensor;
    return 0;
}

int er_tape_buffer(struct er_tape *tape, const char *name, const struct er_shape *shape,
                   struct er_tensor **ret, struct er_error *err)
{
    return er_tensor_new(tape->arena, name, shape, false, ret, err);
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
    *node = (struct er_node){.op = op, .attr = copy, .prev = tape->last};
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
    rc = er_tensor_new(tape->arena, op->name, &shape, record, &node->out, err);
    if (rc == 0 && saved_n > 0)
        rc = er_arena_alloc(tape->arena, saved_n * sizeof(float), &saved, err);
    if (rc < 0)
        return rc;
    node->saved = saved;
    rc = use_params(tape, node, false, err);
    if (rc < 0)
        return rc;
    op->forward(node);
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

static void walk_node(struct er_tape *tape, struct er_node *node)
{
    for (uint32_t i = node->op->inputs_n; i-- > 0;) {
        struct er_tensor *in = node->in[i];

        if (!node->op->backward[i] || !in || !in->grad)
            continue;
        node->op->backward[i](node, in->grad_set ? 1.0f : 0.0f);
        in->grad_set = true;
        assert(in->uses > 0);
        if (--in->uses == 0 && in->param != ER_TENSOR_NO_PARAM && tape->hook)
            tape->hook(tape->hook_user, in->param);
    }
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
    loss->grad[0] = 1.0f;
    loss->grad_set = true;
    for (struct er_node *node = tape->last; node && rc == 0; node = node->prev) {
        if (!node->live)
            continue;
        rc = use_params(tape, node, true, err);
        if (rc == 0)
            walk_node(tape, node);
    }
    return rc;
}

size_t er_tape_growths(const struct er_tape *tape)
{
    return er_arena_growths(tape->arena);
}
