#pragma once
/*
 * A model small enough to be written by hand, with gradients that are right: y = w2 tanh(w1 x + b1)
 * + b2, or y = w1 x + b1 when there is no hidden layer; squared error, SGD with momentum. Data are
 * a pure function of the sample's number. Serves the reducer's and the training loop's tests.
 */
#include <stdbool.h>

#include "trainer/train.h"

#define ER_TOY_INPUTS     12
#define ER_TOY_HIDDEN_MAX 64
#define ER_TOY_BATCH_MAX  512
#define ER_TOY_STEPS_MAX  1024
#define ER_TOY_SPANS_MAX  4

struct er_toy {
    size_t hidden; /* 0: linear regression */
    struct er_plan plan;
    size_t params_n, spans_n;
    float *params, *grads, *momentum; /* flat: w1 b1 w2 b2 */
    struct er_span spans[ER_TOY_SPANS_MAX];
    struct er_slice slices[2 * ER_TOY_SPANS_MAX];
    double losses[ER_TOY_STEPS_MAX]; /* agreed sum of step s at [s] */
    uint64_t epochs_ended, lines;
    struct er_train_line last_line;
    char last_text[512];
    /* Optional, for tests that interfere. */
    int (*after_backward)(struct er_toy *toy, const struct er_step *step, struct er_loss *loss);
    void (*before_ready)(struct er_toy *toy, const struct er_step *step, size_t span);
    void (*before_apply)(struct er_toy *toy, uint64_t step, const struct er_vote *vote);
    void *test;
    size_t skip_span; /* this one is never marked ready (its gradient stays zero); SIZE_MAX: none */
    bool mark_twice;  /* span 0 is marked ready twice */
    int micro_steps;  /* > 1: the range is worked off in so many parts, accumulating */
    float hidden_out[ER_TOY_BATCH_MAX * ER_TOY_HIDDEN_MAX], slope[ER_TOY_BATCH_MAX];
};

/* Parameters from `seed`; ends the process without memory. */
struct er_toy *er_toy_new(size_t hidden, const struct er_plan *plan, uint64_t seed);
void er_toy_free(struct er_toy *toy);

/* er_train_ops over `struct er_toy *`; .log fits er_train_opts. */
extern const struct er_train_ops er_toy_ops;
void er_toy_log(void *user, const struct er_train_line *line);
/* Gradients of one step by hand, without a loop around: as er_toy_ops.grads and .apply. */
int er_toy_grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err);
int er_toy_apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err);
