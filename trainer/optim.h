#pragma once
/*
 * Optimizers over flat memory: one pass that reads gradient sums, scales them by 1/N, updates
 * parameters and state, and clears the gradients. Element by element, IEEE operations only, no
 * contraction: the same bits on every rank and for any split of the range. Pure.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum er_optim_kind {
    ER_OPTIM_SGD,   /* g += wd p; m = momentum m + g; p -= lr m */
    ER_OPTIM_ADAMW, /* Loshchilov & Hutter, Decoupled Weight Decay, ICLR 2019, algorithm 2 */
    ER_OPTIM_COUNT
};

struct er_optim {
    enum er_optim_kind kind;
    float momentum;     /* SGD: [0, 1) */
    float beta1, beta2; /* AdamW: [0, 1) */
    float eps;          /* AdamW: > 0 */
    float weight_decay; /* >= 0 */
};

/* momentum 0.9, no decay; beta 0.9 and 0.999, eps 1e-8, decay 0.01. */
struct er_optim er_optim_sgd(void);
struct er_optim er_optim_adamw(void);
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
/* All of a bound flat memory. */
struct er_optim_view er_optim_view_flat(const struct er_flat *flat);

/* Step `step` (from 1) at rate `lr`, with gradient = scale * view->grad, which becomes 0. */
void er_optim_apply(const struct er_optim *optim, const struct er_optim_view *view, uint64_t step,
                    double lr, double scale);

#ifdef __cplusplus
}
#endif
