#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/rand.h"
#include "trainer/optim.h"
#include "trainer/schedule.h"

enum { N = 37, STEPS = 60 };

static float uniform(struct er_rand *r)
{
    return (float)er_rand_below(r, 20001) / 10000.0f - 1.0f;
}

/* The textbook, in double, one parameter at a time. */
static void reference_step(const struct er_optim *o, double *p, double *m, double *v, double grad,
                           int step, double lr)
{
    double b1 = (double)o->beta1, b2 = (double)o->beta2;

    if (o->kind == ER_OPTIM_SGD) {
        grad += (double)o->weight_decay * *p;
        *m = (double)o->momentum * *m + grad;
        *p -= lr * (o->nesterov ? grad + (double)o->momentum * *m : *m);
        return;
    }
    grad += o->kind == ER_OPTIM_ADAM ? (double)o->weight_decay * *p : 0;
    *m = b1 * *m + (1 - b1) * grad;
    *v = b2 * *v + (1 - b2) * grad * grad;
    *p -= o->kind == ER_OPTIM_ADAM ? 0 : lr * (double)o->weight_decay * *p;
    *p -= lr * (*m / (1 - pow(b1, step))) / (sqrt(*v / (1 - pow(b2, step))) + (double)o->eps);
}

static void compare(const struct er_optim *o)
{
    float p[N], g[N], m[N] = {0}, v[N] = {0};
    double rp[N], rm[N] = {0}, rv[N] = {0};
    struct er_optim_view view = {.value = p, .grad = g, .state = {m, v}, .count = N};
    struct er_rand r;

    er_rand_init(&r, 7);
    for (int i = 0; i < N; i++) {
        p[i] = uniform(&r);
        rp[i] = (double)p[i];
    }
    for (int step = 1; step <= STEPS; step++) {
        double lr = 0.01 / step;

        for (int i = 0; i < N; i++) {
            g[i] = uniform(&r) * 64;
            reference_step(o, &rp[i], &rm[i], &rv[i], (double)g[i] / 64, step, lr);
        }
        er_optim_apply(o, &view, (uint64_t)step, lr, 1.0 / 64);
        for (int i = 0; i < N; i++) {
            cr_assert_eq(g[i], 0.0f, "gradients are cleared");
            cr_assert_lt(fabs((double)p[i] - rp[i]), 2e-6, "step %d element %d: %g, want %g", step,
                         i, (double)p[i], rp[i]);
        }
    }
}

Test(optim, sgd_equals_its_reference)
{
    struct er_optim o = er_optim_sgd();

    compare(&o);
    o.weight_decay = 0.05f;
    compare(&o);
    o.nesterov = true;
    compare(&o);
    o.nesterov = false;
    o.momentum = 0;
    compare(&o);
}

Test(optim, adamw_equals_its_reference)
{
    struct er_optim o = er_optim_adamw();

    compare(&o);
    o.weight_decay = 0;
    compare(&o);
}

Test(optim, adam_equals_its_reference)
{
    struct er_optim o = er_optim_adam();

    compare(&o);
    o.weight_decay = 0.05f;
    compare(&o);
}

/* However gradients are divided over ranks, the sum of the parts' norms clips as the whole does. */
Test(optim, clipping_is_right_for_divided_gradients)
{
    float grad[N];
    double whole = 0, parts, max_norm = 0.25, weight = 8;
    struct er_rand r;

    er_rand_init(&r, 5);
    for (int i = 0; i < N; i++) {
        grad[i] = uniform(&r);
        whole += (double)grad[i] * (double)grad[i];
    }
    for (size_t ranks = 1; ranks <= 5; ranks++) {
        parts = 0;
        for (size_t rank = 0; rank < ranks; rank++)
            parts +=
                er_optim_norm2(grad + N * rank / ranks, N * (rank + 1) / ranks - N * rank / ranks);
        cr_assert_float_eq(parts, whole, 1e-12 * whole);
        /* the norm of the mean gradient is what it may be */
        cr_assert_float_eq(er_optim_clip(parts, weight, max_norm) * sqrt(whole), max_norm, 1e-5);
    }
    cr_assert_eq(er_optim_clip(whole, weight, 1e6), 1 / weight);
    cr_assert_eq(er_optim_clip(whole, weight, 0), 1 / weight);
}

Test(optim, any_split_of_the_range_gives_the_same_bits)
{
    const struct er_optim kinds[] = {er_optim_sgd(), er_optim_adamw(), er_optim_adam()};

    for (size_t k = 0; k < 3; k++) {
        float whole[4][N], parts[4][N];
        struct er_rand r;

        er_rand_init(&r, 3);
        for (int i = 0; i < 4 * N; i++)
            whole[i / N][i % N] = fabsf(uniform(&r));
        memcpy(parts, whole, sizeof(whole));
        er_optim_apply(&kinds[k],
                       &(struct er_optim_view){whole[0], whole[1], {whole[2], whole[3]}, N}, 5,
                       1e-3, 0.25);
        for (size_t at = 0, n = 1; at < N; at += n, n += 2) {
            size_t some = n < N - at ? n : N - at;

            er_optim_apply(&kinds[k],
                           &(struct er_optim_view){
                               parts[0] + at, parts[1] + at, {parts[2] + at, parts[3] + at}, some},
                           5, 1e-3, 0.25);
        }
        cr_assert_eq(memcmp(whole, parts, sizeof(whole)), 0);
    }
}

Test(optim, zero_padding_stays_zero)
{
    const struct er_optim kinds[] = {er_optim_sgd(), er_optim_adamw(), er_optim_adam()};

    for (size_t k = 0; k < 3; k++) {
        float zero[4][16] = {0}, want[4][16] = {0};

        for (uint64_t step = 1; step < 10; step++)
            er_optim_apply(&kinds[k],
                           &(struct er_optim_view){zero[0], zero[1], {zero[2], zero[3]}, 16}, step,
                           0.1, 0.5);
        for (int i = 0; i < 64; i++)
            cr_assert_eq(zero[i / 16][i % 16], want[i / 16][i % 16]);
    }
}

Test(optim, wrong_settings_are_named)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_optim o = er_optim_adamw();

    cr_assert_eq(er_optim_check(&o, &err), 0);
    o.beta2 = 1.0f;
    cr_assert_eq(er_optim_check(&o, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "beta2"));
    o = er_optim_adamw();
    o.eps = 0;
    cr_assert_eq(er_optim_check(&o, &err), -EINVAL);
    o = er_optim_sgd();
    cr_assert_eq(er_optim_check(&o, &err), 0);
    o.momentum = NAN;
    cr_assert_eq(er_optim_check(&o, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "momentum"));
    o = er_optim_sgd();
    o.nesterov = true;
    cr_assert_eq(er_optim_check(&o, &err), 0);
    o.momentum = 0;
    cr_assert_eq(er_optim_check(&o, &err), -EINVAL);
    o = er_optim_sgd();
    o.kind = ER_OPTIM_COUNT;
    cr_assert_eq(er_optim_check(&o, &err), -EINVAL);
}

Test(schedule, constant_rate_after_a_linear_warm_up)
{
    struct er_schedule s = {.kind = ER_SCHEDULE_CONSTANT, .lr = 0.5, .warmup_steps = 10};

    cr_assert_eq(er_schedule_check(&s, NULL), 0);
    cr_assert_float_eq(er_schedule_lr(&s, 1), 0.05, 1e-15);
    cr_assert_float_eq(er_schedule_lr(&s, 9), 0.45, 1e-15);
    cr_assert_eq(er_schedule_lr(&s, 10), 0.5);
    cr_assert_eq(er_schedule_lr(&s, 1000000), 0.5);
}

Test(schedule, cosine_falls_from_lr_to_lr_end)
{
    struct er_schedule s = {.kind = ER_SCHEDULE_COSINE,
                            .lr = 1.0,
                            .lr_end = 0.1,
                            .warmup_steps = 100,
                            .total_steps = 1100};

    cr_assert_eq(er_schedule_check(&s, NULL), 0);
    cr_assert_eq(er_schedule_lr(&s, 100), 1.0);
    for (uint64_t step = 100; step <= 1100; step++) {
        double x = (double)(step - 100) / 1000.0;
        double want = 0.1 + 0.45 * (1 + cos(acos(-1.0) * x));

        cr_assert_float_eq(er_schedule_lr(&s, step), want, 2e-15, "step %d", (int)step);
    }
    cr_assert_eq(er_schedule_lr(&s, 5000), 0.1);
}

Test(schedule, steps_fall_by_a_factor_after_the_warm_up)
{
    struct er_schedule s = {
        .kind = ER_SCHEDULE_STEP, .lr = 1.0, .warmup_steps = 10, .every_steps = 100, .factor = 0.1};

    cr_assert_eq(er_schedule_check(&s, NULL), 0);
    cr_assert_float_eq(er_schedule_lr(&s, 5), 0.5, 1e-15);
    cr_assert_eq(er_schedule_lr(&s, 10), 1.0);
    cr_assert_eq(er_schedule_lr(&s, 110), 1.0);
    cr_assert_float_eq(er_schedule_lr(&s, 111), 0.1, 1e-15);
    cr_assert_float_eq(er_schedule_lr(&s, 511), 1e-5, 1e-19);
    s.every_steps = 0;
    cr_assert_eq(er_schedule_check(&s, NULL), -EINVAL);
    s.every_steps = 1;
    s.factor = 1.5;
    cr_assert_eq(er_schedule_check(&s, NULL), -EINVAL);
}

Test(schedule, wrong_settings_are_refused)
{
    struct er_schedule s = {.kind = ER_SCHEDULE_COSINE, .lr = 1, .warmup_steps = 5};

    cr_assert_eq(er_schedule_check(&s, NULL), -EINVAL);
    s.total_steps = 5;
    cr_assert_eq(er_schedule_check(&s, NULL), 0);
    cr_assert_eq(er_schedule_lr(&s, 5), 0.0);
    s.lr = NAN;
    cr_assert_eq(er_schedule_check(&s, NULL), -EINVAL);
    s.lr = -1;
    cr_assert_eq(er_schedule_check(&s, NULL), -EINVAL);
}
