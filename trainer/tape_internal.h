#pragma once
/* The tape and its parts: tape.c records and walks; tape_data.c parameters, inputs and memory of a
 * step. Internal to trainer/. */
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
    bool renew;           /* parameters' gradients begin anew with each step */
    bool want_grad;       /* from the next er_tape_begin() on */
    bool grad;            /* in this step */
    bool walked;          /* er_tape_backward() has run in this step */
    float scale;          /* the loss's own gradient */
    struct er_wide *wide; /* owned; NULL: not needed yet */
    enum er_dtype stored; /* what parameters are used as */
    uint16_t *halves;     /* owned, the engine's: flat->total of them; NULL: float32 */
    bool *rounded;        /* flat->params_n: in this step */
};

void er_tape_init_leaf(struct er_tape *tape, size_t param);
/* A step begins: leaves are what the tape uses them as. */
void er_tape_begin_leaves(struct er_tape *tape);
/* Before `node` reads its parameters: they come, or are rounded. */
int er_tape_use_params(struct er_tape *tape, const struct er_node *node, bool backward,
                       struct er_error *err);
/* Inputs of `node` that are not where the engine computes go there now. */
int er_tape_bring_inputs(struct er_tape *tape, const struct er_node *node, struct er_error *err);
