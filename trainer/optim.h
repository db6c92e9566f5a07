#pragma once
/*
 * Optimizers over flat memory: one pass that reads gradient sums, scales them by 1/N, updates
 * parameters and state, and clears the gradients. Element by element, IEEE operations only, no
 * contraction: the same bits on every rank and for any split of the range. Pure.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum er_optim_kind {
    ER_OPTIM_SGD,   /* g += wd p; m = momentum m + g; p -= lr m (nesterov: lr (g + momentum m)) */
    ER_OPTIM_ADAMW, /* Loshchilov & Hutter, Decoupled Weight Decay, ICLR 2019, algorithm 2 */
    ER_OPTIM_ADAM,  /* Kingma & Ba, Adam, ICLR 2015, algorithm 1, after g += wd p */
    ER_OPTIM_COUNT
};

struct er_optim {
    enum er_optim_kind kind;
    float momentum;     /* SGD: [0, 1) */
    bool nesterov;      /* SGD: needs a momentum. Sutskever et al., ICML 2013, as PyTorch has it */
    float beta1, beta2; /* Adam, AdamW: [0, 1) */
    float eps;          /* Adam, AdamW: > 0 */
    float weight_decay; /* >= 0 */
};

/* momentum 0.9, no decay; beta 0.9 and 0.999, eps 1e-8, decay 0.01; the same without decay. */
struct er_optim er_optim_sgd(void);
struct er_optim er_optim_adamw(void);
struct er_optim er_optim_adam(void);
/* -EINVAL names the field. */
int er_optim_check(const struct er_optim *optim, struct er_error *err);

/* Arrays of state beside the parameters, and their names ("momentum"; "exp_avg", "exp_avg_sq"). */
size_t er_optim_states_n(enum er_optim_kind kind);
const char *const *er_optim_state_names(enum er_optim_kind kind);

/* `count` elements of each array, none overlapping another; state[i] NULL from states_n on. */
struct er_optim_view {
    float *value, *grad;
    float *state[2];
    size_t count;
};
struct er_flat;
/* All of a bound flat memory, or parameters [first, first + n) of it: for a decay of some only. */
struct er_optim_view er_optim_view_flat(const struct er_flat *flat);
struct er_optim_view er_optim_view_params(const struct er_flat *flat, size_t first, size_t n);

/* What Adam and AdamW make of step, rate and scale before they go over the elements. */
struct er_optim_adam {
    float scale, beta1, rest1, beta2, rest2, eps;
    float keep;     /* AdamW: of the parameter */
    float rate;     /* lr / (1 - beta1^step) */
    float inverse2; /* 1 / (1 - beta2^step) */
    float decay;    /* Adam: part of the gradient */
};
struct er_optim_adam er_optim_adam_of(const struct er_optim *optim, uint64_t step, double lr,
                                      double scale);

/* Step `step` (from 1) at rate `lr`, with gradient = scale * view->grad, which becomes 0. */
void er_optim_apply(const struct er_optim *optim, const struct er_optim_view *view, uint64_t step,
                    double lr, double scale);

/* Sum of squares, in double precision and in an order that depends on n alone. Of gradients that
 * are divided over ranks each takes its part, and the vote adds the parts up. */
double er_optim_norm2(const float *grad, size_t n);
/*
 * `scale` for er_optim_apply() that keeps the norm of the mean gradient at most `max_norm` (0: as
 * it is). `norm2`: sum of squares of the SUMS of gradients, over all ranks; `weight`: what they are
 * divided by. The vote brings both. Source: R. Pascanu et al., "On the difficulty of training
 * recurrent neural networks", ICML 2013.
 */
double er_optim_clip(double norm2, double weight, double max_norm);

#ifdef __cplusplus
}
#endif
