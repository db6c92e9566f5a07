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

ER_EACH_WIDTH static void apply_sgd(const struct er_optim *o, const struct er_optim_view *view,
                                    uint64_t step, double lr_wide, double scale_wide)
{
    float *restrict p = view->value, *restrict g = view->grad, *restrict m = view->state[0];
    const float momentum = o->momentum, decay = o->weight_decay;
    const float lr = (float)lr_wide, scale = (float)scale_wide;

    for (size_t i = 0; i < view->count; i++) {
        float grad = g[i] * scale + decay * p[i];

        m[i] = momentum * m[i] + grad;
        p[i] -= lr * m[i];
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

ER_EACH_WIDTH static void apply_adamw(const struct er_optim *o, const struct er_optim_view *view,
                                      uint64_t step, double lr_wide, double scale_wide)
{
    float *restrict p = view->value, *restrict g = view->grad;
    float *restrict m = view->state[0], *restrict v = view->state[1];
    const double correct1 = 1.0 - power((double)o->beta1, step);
    const double correct2 = 1.0 - power((double)o->beta2, step);
    const float scale = (float)scale_wide, eps = o->eps;
    const float b1 = o->beta1, rest1 = (float)(1.0 - (double)o->beta1);
    const float b2 = o->beta2, rest2 = (float)(1.0 - (double)o->beta2);
    const float keep = (float)(1.0 - lr_wide * (double)o->weight_decay);
    const float rate = (float)(lr_wide / correct1);
    const float inverse2 = (float)(1.0 / correct2);

    for (size_t i = 0; i < view->count; i++) {
        float grad = g[i] * scale;

        m[i] = b1 * m[i] + rest1 * grad;
        v[i] = b2 * v[i] + rest2 * (grad * grad);
        p[i] = keep * p[i] - rate * m[i] / (__builtin_sqrtf(v[i] * inverse2) + eps);
        g[i] = 0.0f;
    }
}

static const struct {
    apply_fn apply;
    size_t states_n;
    const char *state_names[ER_FLAT_STATES_MAX];
} kinds[ER_OPTIM_COUNT] = {
    [ER_OPTIM_SGD] = {apply_sgd, 1, {"momentum"}},
    [ER_OPTIM_ADAMW] = {apply_adamw, 2, {"exp_avg", "exp_avg_sq"}},
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
        {"eps", (double)o->eps, o->kind == ER_OPTIM_ADAMW ? 1e-30 : 0, 1},
        {"weight_decay", (double)o->weight_decay, 0, 1e30},
    };

    if (o->kind >= ER_OPTIM_COUNT)
        return er_error_set(err, -EINVAL, "optimizer: unknown kind %d", (int)o->kind);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!(fields[i].value >= fields[i].min && fields[i].value < fields[i].below))
            return er_error_set(err, -EINVAL, "optimizer: %s = %g, expected %g or more, below %g",
                                fields[i].name, fields[i].value, fields[i].min, fields[i].below);
    }
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
    struct er_optim_view view = {.value = flat->block[ER_FLAT_VALUE],
                                 .grad = flat->block[ER_FLAT_GRAD],
                                 .count = flat->total};

    for (size_t i = 0; i < flat->states_n; i++)
        view.state[i] = flat->block[ER_FLAT_STATE + i];
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
