#include "tests/lib/toy_model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define RATE     0.05f
#define MOMENTUM 0.9f

/* Uniform in [-1, 1). */
static float noise(uint64_t seed, uint64_t a, uint32_t op, uint64_t i)
{
    return (float)((double)er_rng(seed, a, op, i) * 0x1p-63 - 1.0);
}

static void sample(uint64_t number, float x[ER_TOY_INPUTS], float *ret_y)
{
    float y = 0.1f;

    for (uint64_t i = 0; i < ER_TOY_INPUTS; i++) {
        x[i] = noise(99, number, 1, i);
        y += x[i] * (i % 2 ? 0.5f : -0.25f) + (i == 3 ? x[i] * x[i] : 0);
    }
    *ret_y = y;
}

static void add_tensor(struct er_toy *toy, const char *name, size_t *at, size_t count)
{
    static const char *const momentum_names[ER_TOY_SPANS_MAX] = {"momentum.0", "momentum.1",
                                                                 "momentum.2", "momentum.3"};
    size_t i = toy->spans_n++;
    struct er_slice slice = {.name = name,
                             .dtype = ER_CKPT_F32,
                             .ndim = 1,
                             .shape = {count},
                             .count = count,
                             .data = toy->params + *at,
                             .replicated = true};

    toy->spans[i] = (struct er_span){name, toy->grads + *at, count};
    toy->slices[2 * i] = slice;
    slice.name = momentum_names[i];
    slice.data = toy->momentum + *at;
    toy->slices[2 * i + 1] = slice;
    *at += count;
}

struct er_toy *er_toy_new(size_t hidden, const struct er_plan *plan, uint64_t seed)
{
    struct er_toy *toy = calloc(1, sizeof(*toy));
    size_t width = hidden ? hidden : 1, at = 0;

    assert(toy && hidden <= ER_TOY_HIDDEN_MAX && plan->global_batch <= ER_TOY_BATCH_MAX);
    toy->hidden = hidden;
    toy->plan = *plan;
    toy->skip_span = SIZE_MAX;
    toy->params_n = width * ER_TOY_INPUTS + width + (hidden ? hidden + 1 : 0);
    toy->params = calloc(toy->params_n, sizeof(float));
    toy->grads = calloc(toy->params_n, sizeof(float));
    toy->momentum = calloc(toy->params_n, sizeof(float));
    assert(toy->params && toy->grads && toy->momentum);
    add_tensor(toy, "w1", &at, width * ER_TOY_INPUTS);
    add_tensor(toy, "b1", &at, width);
    if (hidden) {
        add_tensor(toy, "w2", &at, hidden);
        add_tensor(toy, "b2", &at, 1);
    }
    for (size_t i = 0; i < toy->params_n; i++)
        toy->params[i] = 0.3f * noise(seed, 0, 2, i);
    return toy;
}

void er_toy_free(struct er_toy *toy)
{
    if (!toy)
        return;
    free(toy->params);
    free(toy->grads);
    free(toy->momentum);
    free(toy);
}

/* Output of one sample; hidden activations are kept for backward. */
static float forward(const struct er_toy *toy, const float *x, float *hidden_out)
{
    const float *w1 = toy->params, *b1 = w1 + (toy->hidden ? toy->hidden : 1) * ER_TOY_INPUTS;
    const float *w2 = b1 + toy->hidden, *b2 = w2 + toy->hidden;
    float out = toy->hidden ? *b2 : b1[0];

    for (size_t h = 0; h < (toy->hidden ? toy->hidden : 1); h++) {
        float sum = 0;

        for (size_t i = 0; i < ER_TOY_INPUTS; i++)
            sum += w1[h * ER_TOY_INPUTS + i] * x[i];
        if (!toy->hidden)
            return out + sum;
        hidden_out[h] = tanhf(sum + b1[h]);
        out += w2[h] * hidden_out[h];
    }
    return out;
}

static void ready(struct er_toy *toy, const struct er_step *step, size_t span)
{
    if (toy->before_ready)
        toy->before_ready(toy, step, span);
    if (step->ddp && toy->skip_span != span)
        er_ddp_ready(step->ddp, span);
}

/* The output layer, over all samples: its gradients are final before the first layer's begin. */
static void backward_output(struct er_toy *toy, size_t n)
{
    float *w2 = toy->spans[2].ptr, *b2 = toy->spans[3].ptr;

    for (size_t s = 0; s < n; s++) {
        for (size_t h = 0; h < toy->hidden; h++)
            w2[h] += toy->slope[s] * toy->hidden_out[s * toy->hidden + h];
        b2[0] += toy->slope[s];
    }
}

static void backward_input(struct er_toy *toy, const struct er_order *order, uint64_t first,
                           size_t n)
{
    float *w1 = toy->spans[0].ptr, *b1 = toy->spans[1].ptr;
    const float *w2 = toy->params + toy->hidden * ER_TOY_INPUTS + toy->hidden;
    size_t width = toy->hidden ? toy->hidden : 1;

    for (size_t s = 0; s < n; s++) {
        float x[ER_TOY_INPUTS], y;

        sample(er_order_at(order, first + s), x, &y);
        for (size_t h = 0; h < width; h++) {
            float out = toy->hidden ? toy->hidden_out[s * width + h] : 0;
            float slope = toy->hidden ? toy->slope[s] * w2[h] * (1 - out * out) : toy->slope[s];

            for (size_t i = 0; i < ER_TOY_INPUTS; i++)
                w1[h * ER_TOY_INPUTS + i] += slope * x[i];
            b1[h] += slope;
        }
    }
}

static void micro_step(struct er_toy *toy, const struct er_step *step, struct er_order *order,
                       uint64_t first, size_t n, struct er_loss *loss)
{
    for (size_t s = 0; s < n; s++) {
        float x[ER_TOY_INPUTS], y, off;

        sample(er_order_at(order, first + s), x, &y);
        off = forward(toy, x, toy->hidden_out + s * toy->hidden) - y;
        toy->slope[s] = 2 * off;
        loss->sum += (double)(off * off);
    }
    loss->weight += (double)n;
    if (toy->hidden) {
        backward_output(toy, n);
        ready(toy, step, 3);
        ready(toy, step, 2);
    }
    backward_input(toy, order, first, n);
    ready(toy, step, 1);
    ready(toy, step, 0);
    if (toy->mark_twice)
        ready(toy, step, 0);
}

int er_toy_grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    static struct er_order order;
    struct er_toy *toy = user;
    struct er_loss loss = {0};
    uint64_t parts = toy->micro_steps > 1 ? (uint64_t)toy->micro_steps : 1;
    uint64_t first = step->range.first;

    if (order.n != toy->plan.samples || order.seed != toy->plan.seed ||
        order.epoch != step->range.epoch)
        er_order_init(&order, toy->plan.samples, toy->plan.seed, step->range.epoch);
    for (uint64_t part = 0; part < parts; part++) {
        uint64_t end = step->range.first + step->range.count * (part + 1) / parts;

        if (step->ddp)
            er_ddp_accumulate(step->ddp, part + 1 < parts);
        micro_step(toy, step, &order, first, (size_t)(end - first), &loss);
        first = end;
    }
    *ret = loss;
    if (toy->after_backward && toy->after_backward(toy, step, ret) < 0)
        return er_error_set(err, ER_E_USAGE, "the test made this step fail");
    return 0;
}

int er_toy_apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct er_toy *toy = user;
    float scale = (float)(1.0 / vote->weight);

    if (toy->before_apply)
        toy->before_apply(toy, step, vote);
    if (step < ER_TOY_STEPS_MAX)
        toy->losses[step] = vote->loss;
    for (size_t i = 0; i < toy->params_n; i++) {
        toy->momentum[i] = MOMENTUM * toy->momentum[i] + toy->grads[i] * scale;
        toy->params[i] -= RATE * toy->momentum[i];
        toy->grads[i] = 0;
    }
    return 0;
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    struct er_toy *toy = user;

    *ret = toy->spans;
    *ret_n = toy->spans_n;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    struct er_toy *toy = user;

    *ret = toy->slices;
    *ret_n = 2 * toy->spans_n;
}

static int epoch_end(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                     struct er_error *err)
{
    struct er_toy *toy = user;

    toy->epochs_ended++;
    return 0;
}

void er_toy_log(void *user, const struct er_train_line *line)
{
    struct er_toy *toy = user;

    toy->lines++;
    toy->last_line = *line;
    snprintf(toy->last_text, sizeof(toy->last_text), "%s", line->text);
}

const struct er_train_ops er_toy_ops = {
    .grads = er_toy_grads,
    .apply = er_toy_apply,
    .spans = spans,
    .state = state,
    .epoch_end = epoch_end,
};
