#include "trainer/optim.h"

#include <assert.h>
#include <errno.h>

#include "trainer/flat.h"
#include "trainer/width.h"

typedef void (*apply_fn)(const struct er_optim *o, const struct er_optim_view *view, uint64_t step,
                         double lr, double scale);

struct er_optim er_optim_sgd(void)
{
    return (struct er_optim){.kind = ER_OPTIM_SGD, .momentum = 0.9f};
}

struct er_optim er_optim_adamw(void)
{
    return (struct er_optim){.kind = ER_OPTIM_ADAMW,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .eps = 1e-8f,
                             .weight_decay = 0.01f};
}

struct er_optim er_optim_adam(void)
{
    struct er_optim o = er_optim_adamw();

    o.kind = ER_OPTIM_ADAM;
    o.weight_decay = 0.0f;
    return o;
}

ER_EACH_WIDTH static void apply_sgd(const struct er_optim *o, const struct er_optim_view *view,
                                    uint64_t step, double lr_wide, double scale_wide)
{
    float *restrict p = view->value, *restrict g = view->grad, *restrict m = view->state[0];
    const float momentum = o->momentum, decay = o->weight_decay;
    const float lr = (float)lr_wide, scale = (float)scale_wide;
    const bool nesterov = o->nesterov;

    for (size_t i = 0; i < view->count; i++) {
        float grad = g[i] * scale + decay * p[i];

        m[i] = momentum * m[i] + grad;
        p[i] -= lr * (nesterov ? grad + momentum * m[i] : m[i]);
        g[i] = 0.0f;
    }
}

/* base^n by squaring: exact rules instead of a library function that differs between hosts. */
static double power(double base, uint64_t n)
{
    double result = 1.0;

    for (; n > 0; n >>= 1) {
        if (n & 1)
            result *= base;
        base *= base;
    }
    return result;
}

struct er_optim_adam er_optim_adam_of(const struct er_optim *o, uint64_t step, double lr,
                                      double scale)
{
    const double correct1 = 1.0 - power((double)o->beta1, step);
    const double correct2 = 1.0 - power((double)o->beta2, step);

    return (struct er_optim_adam){.scale = (float)scale,
                                  .beta1 = o->beta1,
                                  .rest1 = (float)(1.0 - (double)o->beta1),
                                  .beta2 = o->beta2,
                                  .rest2 = (float)(1.0 - (double)o->beta2),
                                  .eps = o->eps,
                                  .keep = (float)(1.0 - lr * (double)o->weight_decay),
                                  .rate = (float)(lr / correct1),
                                  .inverse2 = (float)(1.0 / correct2),
                                  .decay = o->weight_decay};
}

/* Adam and AdamW: with `coupled`, decay is part of the gradient. */
ER_IN_LOOP void adam(const struct er_optim *o, const struct er_optim_view *view, uint64_t step,
                     double lr, double scale_wide, bool coupled)
{
    const struct er_optim_adam a = er_optim_adam_of(o, step, lr, scale_wide);
    float *restrict p = view->value, *restrict g = view->grad;
    float *restrict m = view->state[0], *restrict v = view->state[1];
    const float scale = a.scale, eps = a.eps, decay = a.decay, keep = a.keep;
    const float b1 = a.beta1, rest1 = a.rest1, b2 = a.beta2, rest2 = a.rest2;
    const float rate = a.rate, inverse2 = a.inverse2;

    for (size_t i = 0; i < view->count; i++) {
        float grad = coupled ? g[i] * scale + decay * p[i] : g[i] * scale;
        float kept = coupled ? p[i] : keep * p[i];

        m[i] = b1 * m[i] + rest1 * grad;
        v[i] = b2 * v[i] + rest2 * (grad * grad);
        p[i] = kept - rate * m[i] / (__builtin_sqrtf(v[i] * inverse2) + eps);
        g[i] = 0.0f;
    }
}

ER_EACH_WIDTH static void apply_adamw(const struct er_optim *o, const struct er_optim_view *view,
                                      uint64_t step, double lr, double scale)
{
    adam(o, view, step, lr, scale, false);
}

ER_EACH_WIDTH static void apply_adam(const struct er_optim *o, const struct er_optim_view *view,
                                     uint64_t step, double lr, double scale)
{
    adam(o, view, step, lr, scale, true);
}

static const struct {
    apply_fn apply;
    size_t states_n;
    const char *state_names[ER_FLAT_STATES_MAX];
} kinds[ER_OPTIM_COUNT] = {
    [ER_OPTIM_SGD] = {apply_sgd, 1, {"momentum"}},
    [ER_OPTIM_ADAMW] = {apply_adamw, 2, {"exp_avg", "exp_avg_sq"}},
    [ER_OPTIM_ADAM] = {apply_adam, 2, {"exp_avg", "exp_avg_sq"}},
};

int er_optim_check(const struct er_optim *o, struct er_error *err)
{
    const struct {
        const char *name;
        double value, min, below;
    } fields[] = {
        {"momentum", (double)o->momentum, 0, 1},
        {"beta1", (double)o->beta1, 0, 1},
        {"beta2", (double)o->beta2, 0, 1},
        {"eps", (double)o->eps, o->kind != ER_OPTIM_SGD ? 1e-30 : 0, 1},
        {"weight_decay", (double)o->weight_decay, 0, 1e30},
    };

    if (o->kind >= ER_OPTIM_COUNT)
        return er_error_set(err, -EINVAL, "optimizer: unknown kind %d", (int)o->kind);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!(fields[i].value >= fields[i].min && fields[i].value < fields[i].below))
            return er_error_set(err, -EINVAL, "optimizer: %s = %g, expected %g or more, below %g",
                                fields[i].name, fields[i].value, fields[i].min, fields[i].below);
    }
    if (o->kind == ER_OPTIM_SGD && o->nesterov && o->momentum == 0.0f)
        return er_error_set(err, -EINVAL, "optimizer: nesterov without a momentum");
    return 0;
}

size_t er_optim_states_n(enum er_optim_kind kind)
{
    assert(kind < ER_OPTIM_COUNT);
    return kinds[kind].states_n;
}

const char *const *er_optim_state_names(enum er_optim_kind kind)
{
    assert(kind < ER_OPTIM_COUNT);
    return kinds[kind].state_names;
}

struct er_optim_view er_optim_view_flat(const struct er_flat *flat)
{
    return er_optim_view_params(flat, 0, flat->params_n);
}

struct er_optim_view er_optim_view_params(const struct er_flat *flat, size_t first, size_t n)
{
    size_t end = first + n;
    size_t at = first < flat->params_n ? flat->params[first].first : flat->total;
    struct er_optim_view view = {.value = flat->block[ER_FLAT_VALUE] + at,
                                 .grad = flat->block[ER_FLAT_GRAD] + at};

    assert(end <= flat->params_n);
    view.count = (end < flat->params_n ? flat->params[end].first : flat->total) - at;
    for (size_t i = 0; i < flat->states_n; i++)
        view.state[i] = flat->block[ER_FLAT_STATE + i] + at;
    return view;
}

void er_optim_apply(const struct er_optim *optim, const struct er_optim_view *view, uint64_t step,
                    double lr, double scale)
{
    assert(optim->kind < ER_OPTIM_COUNT && step >= 1);
    for (size_t i = 0; i < kinds[optim->kind].states_n; i++)
        assert(view->state[i]);
    kinds[optim->kind].apply(optim, view, step, lr, scale);
}

ER_EACH_WIDTH double er_optim_norm2(const float *grad, size_t n)
{
    double lanes[ER_LANES] = {0}, sum = 0;
    size_t i = 0;

    for (; i + ER_LANES <= n; i += ER_LANES) {
        for (size_t l = 0; l < ER_LANES; l++)
            lanes[l] += (double)grad[i + l] * (double)grad[i + l];
    }
    for (; i < n; i++)
        sum += (double)grad[i] * (double)grad[i];
    for (size_t l = 0; l < ER_LANES; l++)
        sum += lanes[l];
    return sum;
}

double er_optim_clip(double norm2, double weight, double max_norm)
{
    double norm = __builtin_sqrt(norm2) / weight;

    /* The small term is PyTorch's; "not greater" also keeps a NaN, which others stop at. */
    if (max_norm == 0.0 || !(norm + 1e-6 > max_norm))
        return 1.0 / weight;
    return max_norm / (norm + 1e-6) / weight;
}
