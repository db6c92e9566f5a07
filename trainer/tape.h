#pragma once
/*
 * Reverse-mode automatic differentiation on a tape. Forward calls record operations in order;
 * er_tape_backward() walks them in reverse. Parameters are leaves in flat memory: their gradients
 * ADD UP there until somebody clears them (the optimizer does), so micro-steps accumulate;
 * er_tape_renew() makes each backward pass begin anew.
 *
 * The hook is called the moment a parameter's gradient is complete in this backward pass: once per
 * parameter that the loss depends on, in backward order, before work that does not concern it (a
 * layer's weight before the gradient of its input). Parameters the loss does not depend on get no
 * call.
 *
 *     er_tape_begin(tape, err);                            one step: forgets the one before
 *     er_tape_input(tape, "images", &shape, data, &x, err);
 *     er_linear(tape, x, er_tape_param(tape, 0), er_tape_param(tape, 1), &y, err); ...
 *     er_tape_backward(tape, loss, err);
 *
 * One thread per tape.
 */
#include "trainer/flat.h"
#include "trainer/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_TAPE_INPUTS_MAX 4

typedef void (*er_leaf_fn)(void *user, size_t param);
/* A parameter is about to be read, by an operation's forward or backward. */
typedef int (*er_use_fn)(void *user, size_t param, bool backward, struct er_error *err);

struct er_engine; /* trainer/engine.h */
struct er_tape;   /* opaque */
struct er_tape_op;

/* One recorded call of an operation; lives in the step's arena. */
struct er_node {
    const struct er_tape_op *op;
    struct er_tensor *in[ER_TAPE_INPUTS_MAX]; /* NULL: one that the operation can do without */
    struct er_tensor *out;
    void *attr;   /* copy of the call's attributes, op->attr_bytes */
    float *saved; /* what backward needs from forward, as `infer` asked */
    void *side;   /* what the engine keeps beside it, for its backward */
    struct er_tape *tape;
    struct er_node *prev;
    bool live; /* the loss depends on `out` */
};

/* An operation: an entry of the table in trainer/ops/ops.h. */
struct er_tape_op {
    const char *name;
    uint32_t inputs_n;
    size_t attr_bytes;
    /* Check in[] and attr, give the output's shape and the elements of `saved`. -EINVAL names the
     * tensors and shapes. */
    int (*infer)(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err);
    void (*forward)(const struct er_node *node);
    /* Per input: in[i]->grad = beta * in[i]->grad + (share of out->grad); beta is 0 or 1, and with
     * 0 the old content is not read. NULL: not differentiable. Called from the last input to the
     * first. */
    void (*backward[ER_TAPE_INPUTS_MAX])(const struct er_node *node, float beta);
    /* The output's type; NULL: that of the first input. */
    enum er_dtype (*type)(const struct er_node *node);
    /* The functions above take tensors of 16 bits as they are. Without it they see float32: copies
     * of their inputs, and what they write is rounded once. */
    bool of_any_type;
    /* Values that backward does not read: then it gets no copies of them, but NULL. */
    bool inputs_unread, output_unread;
};

/* `flat` outlives the tape; it may have no parameters. It is bound, or er_fsdp_attach() gives the
 * leaves their memory. `arena_bytes`: first size of the step's memory, 0: 2 MiB. */
int er_tape_new(struct er_tape **ret, const struct er_flat *flat, size_t arena_bytes,
                struct er_error *err);
/* The same with an engine, which outlives the tape and in whose memory the flat memory is. */
int er_tape_new_on(struct er_tape **ret, const struct er_flat *flat, size_t arena_bytes,
                   struct er_engine *engine, struct er_error *err);
void er_tape_free(struct er_tape *tape);
struct er_engine *er_tape_engine(const struct er_tape *tape);
/* NULL: none. */
void er_tape_hook(struct er_tape *tape, er_leaf_fn hook, void *user);
/* Called before each use of a parameter, for those whose memory comes and goes (FSDP); its failure
 * is the operation's, or backward's. NULL: none. */
void er_tape_use_hook(struct er_tape *tape, er_use_fn hook, void *user);
/* Off: nothing is recorded, no gradient memory is taken (evaluation). On at first. Takes effect
 * with the next er_tape_begin(). */
void er_tape_grad(struct er_tape *tape, bool on);
/* On: a backward pass writes the gradients of parameters anew, whatever was there, instead of
 * adding to it (those the loss does not depend on stay). Off at first. From the next
 * er_tape_begin() on; not with FSDP, which clears gradients itself. */
void er_tape_renew(struct er_tape *tape, bool on);
/*
 * What parameters are used as, from the next er_tape_begin() on: ER_F32 at first, or ER_F16 or
 * ER_BF16. Flat memory keeps the float32 values that the optimizer changes (the master weights): a
 * step rounds each parameter to nearest even when it first uses it, 2 bytes an element more, and
 * what is computed with it is stored in 16 bits as well. Gradients of parameters stay float32 in
 * flat memory. Not with FSDP, which has a policy of its own. -ENOMEM; ER_E_UNSUPPORTED: other
 * types.
 */
int er_tape_store(struct er_tape *tape, enum er_dtype type, struct er_error *err);
/* What er_tape_backward() begins with as the loss's own gradient, from now on; 1 at first.
 * Gradients are so many times as large: see trainer/scaler.h. */
void er_tape_scale(struct er_tape *tape, float scale);
/* A new step: every tensor of the one before is gone. */
int er_tape_begin(struct er_tape *tape, struct er_error *err);

/* The leaf of parameter `index`; the tape's, valid for its life. */
struct er_tensor *er_tape_param(struct er_tape *tape, size_t index);
/* A constant; `data` (shape, float32) is borrowed until the next er_tape_begin(), `name` too. */
int er_tape_input(struct er_tape *tape, const char *name, const struct er_shape *shape,
                  const float *data, struct er_tensor **ret, struct er_error *err);
/* The same of any type that a tensor is stored as. */
int er_tape_input_as(struct er_tape *tape, const char *name, const struct er_shape *shape,
                     enum er_dtype dtype, const void *data, struct er_tensor **ret,
                     struct er_error *err);
/* Memory of this step for an input to be filled by the caller (its `value`), before an operation
 * uses it. */
int er_tape_buffer(struct er_tape *tape, const char *name, const struct er_shape *shape,
                   struct er_tensor **ret, struct er_error *err);
/* Run `op` now and record it. `attr`: op->attr_bytes, copied. Programs call the functions of
 * trainer/ops/ops.h. */
int er_tape_apply(struct er_tape *tape, const struct er_tape_op *op, struct er_tensor *const *in,
                  const void *attr, struct er_tensor **ret, struct er_error *err);
/* For engines with memory of their own: memory of this step where they compute, and a copy of
 * `bytes` from the host there, made in the order of the engine's work. */
int er_tape_scratch(struct er_tape *tape, size_t bytes, void **ret, struct er_error *err);
int er_tape_upload(struct er_tape *tape, const void *from, size_t bytes, void **ret,
                   struct er_error *err);
/* `loss` has one element, of float32. ER_E_USAGE: more elements, another type, gradients are off,
 * no parameter reached, or this step has been walked already; or what the hook of uses says. */
int er_tape_backward(struct er_tape *tape, struct er_tensor *loss, struct er_error *err);

/* See er_arena_growths(). */
size_t er_tape_growths(const struct er_tape *tape);

#ifdef __cplusplus
}
#endif
