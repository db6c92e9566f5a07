#pragma once
/*
 * Dynamic loss scaling. float16 has no numbers between 0 and 6e-8, where many gradients are: the
 * loss is multiplied by a power of two, its gradients are so many times as large, and the optimizer
 * divides by it. A step whose gradients overflow is skipped and the scale halved; after many good
 * ones it is doubled. bfloat16 has float32's range and needs none. Pure.
 *
 *     er_scaler_init(&scaler, tokens_of_a_step);                   the same on all ranks
 *     grads:  er_tape_scale(tape, er_scaler_scale(&scaler));
 *     apply:  scale = er_scaler_clip(&scaler, vote->norm2, vote->weight, max_norm);
 *     opts:   er_train_opts.scaler = &scaler;                      or er_scaler_step() after each
 * step
 *
 * Every rank has the same scale, since all take the same steps: er_train_run() judges a step by the
 * agreed vote. It saves `state` with a checkpoint and gives it to ranks that join. Sources:
 * P. Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2; PyTorch's GradScaler,
 * whose settings these are.
 */
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_SCALER_FIRST     16   /* scale 2^16 */
#define ER_SCALER_MOST      24   /* 2^24 */
#define ER_SCALER_GROW_EACH 2000 /* good steps */

/* Zeroed it is a scale of 1, for losses that are not scaled. */
struct er_scaler {
    int64_t state[2]; /* [0] the exponent of the mean loss's scale, 0 to ER_SCALER_MOST; [1] good
                         steps since it last changed */
    int32_t weight;   /* exponent of what a step's sum is divided by, about */
};

/* `weight`: about what er_vote.weight will be, samples or tokens of a step. Gradients are sums over
 * so many, and their scale is so much smaller than that of a mean. */
ER_CKPT_API void er_scaler_init(struct er_scaler *scaler, double weight);
/* What the sum of losses is multiplied by. */
ER_CKPT_API float er_scaler_scale(const struct er_scaler *scaler);
/* A step is over, on every rank with the same verdict. Overflow at exponent 0 changes nothing. */
ER_CKPT_API void er_scaler_step(struct er_scaler *scaler, bool finite);
/* The scale can fall further: overflow may be its fault alone. */
ER_CKPT_API bool er_scaler_can_fall(const struct er_scaler *scaler);
/* er_optim_clip() of gradients that are scaled: what the optimizer multiplies them by. */
ER_CKPT_API double er_scaler_clip(const struct er_scaler *scaler, double norm2, double weight,
                                  double max_norm);
/* `state` as a tensor of a checkpoint, "loss_scale". */
ER_CKPT_API struct er_slice er_scaler_slice(struct er_scaler *scaler);

#ifdef __cplusplus
}
#endif
