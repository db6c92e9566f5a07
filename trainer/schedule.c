#include "trainer/schedule.h"

#include <assert.h>
#include <errno.h>

typedef double (*rate_fn)(const struct er_schedule *s, uint64_t step);

/*
 * cos(pi x) for x in [0, 1] by its power series around the nearer zero-slope end; within 1e-15.
 * Not the library's: that one is compiled several times and chosen by CPU, so its last bit differs
 * between hosts, and ranks that step with different rates drift apart.
 */
static double cos_pi(double x)
{
    double near = x > 0.5 ? 1.0 - x : x;
    double y2 = near * near * 9.86960440108935861883;
    double term = 1.0, sum = 1.0;

    for (int i = 1; i <= 11; i++) {
        term *= -y2 / (double)((2 * i - 1) * (2 * i));
        sum += term;
    }
    return x > 0.5 ? -sum : sum;
}

static double constant(const struct er_schedule *s, uint64_t step)
{
    return s->lr;
}

static double cosine(const struct er_schedule *s, uint64_t step)
{
    double x;

    if (step >= s->total_steps)
        return s->lr_end;
    x = (double)(step - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
    return s->lr_end + 0.5 * (s->lr - s->lr_end) * (1.0 + cos_pi(x));
}

static double step_wise(const struct er_schedule *s, uint64_t step)
{
    uint64_t n = step > s->warmup_steps ? (step - 1 - s->warmup_steps) / s->every_steps : 0;
    double rate = s->lr, factor = s->factor;

    for (; n > 0; n >>= 1) {
        if (n & 1)
            rate *= factor;
        factor *= factor;
    }
    return rate;
}

static const rate_fn rates[ER_SCHEDULE_COUNT] = {
    [ER_SCHEDULE_CONSTANT] = constant,
    [ER_SCHEDULE_COSINE] = cosine,
    [ER_SCHEDULE_STEP] = step_wise,
};

int er_schedule_check(const struct er_schedule *s, struct er_error *err)
{
    if (!(s->lr >= 0 && s->lr <= 1e30) || !(s->lr_end >= 0 && s->lr_end <= 1e30))
        return er_error_set(err, -EINVAL, "learning rate %g to %g: expected finite, not negative",
                            s->lr, s->lr_end);
    if (s->kind == ER_SCHEDULE_COSINE && s->total_steps < s->warmup_steps)
        return er_error_set(err, -EINVAL, "learning rate: warm-up of %llu steps in a run of %llu",
                            (unsigned long long)s->warmup_steps,
                            (unsigned long long)s->total_steps);
    if (s->kind == ER_SCHEDULE_STEP && (s->every_steps == 0 || !(s->factor >= 0 && s->factor <= 1)))
        return er_error_set(err, -EINVAL,
                            "learning rate: times %g every %llu steps, expected 0 to 1, and 1 or "
                            "more steps",
                            s->factor, (unsigned long long)s->every_steps);
    return 0;
}

double er_schedule_lr(const struct er_schedule *s, uint64_t step)
{
    assert(s->kind < ER_SCHEDULE_COUNT && step >= 1);
    if (step < s->warmup_steps)
        return s->lr * (double)step / (double)s->warmup_steps;
    return rates[s->kind](s, step);
}
