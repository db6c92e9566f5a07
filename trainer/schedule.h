#pragma once
/* Learning rates as functions of the step: nothing to save, the same bits on every rank. Pure. */
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum er_schedule_kind {
    ER_SCHEDULE_CONSTANT, /* lr, after the warm-up */
    ER_SCHEDULE_COSINE,   /* half a cosine from lr (end of the warm-up) to lr_end (total_steps) */
    ER_SCHEDULE_STEP,     /* lr * factor^n, n = steps since the warm-up / every_steps, whole */
    ER_SCHEDULE_COUNT
};

struct er_schedule {
    enum er_schedule_kind kind;
    double lr, lr_end;
    uint64_t warmup_steps; /* linear from lr / warmup_steps at step 1 to lr at step warmup_steps */
    uint64_t total_steps;  /* cosine only; from there on lr_end */
    uint64_t every_steps;  /* step only, >= 1 */
    double factor;         /* step only, [0, 1] */
};

/* -EINVAL: a rate that is negative or not finite, a cosine that ends within its warm-up,
 * steps of length 0 or a factor outside [0, 1]. */
int er_schedule_check(const struct er_schedule *schedule, struct er_error *err);
/* `step` from 1. Source of the cosine: Loshchilov & Hutter, SGDR, ICLR 2017, equation 5. */
double er_schedule_lr(const struct er_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
