#include "trainer/scaler.h"

#include "trainer/optim.h"

enum { WEIGHT_MOST = 62 };

static double power_of_two(int64_t n)
{
    double power = (double)((uint64_t)1 << (n < 0 ? -n : n));

    return n < 0 ? 1.0 / power : power;
}

void er_scaler_init(struct er_scaler *s, double weight)
{
    *s = (struct er_scaler){.state = {ER_SCALER_FIRST}};
    while (s->weight < WEIGHT_MOST && power_of_two(s->weight) < weight)
        s->weight++;
}

static double scale_of(const struct er_scaler *s)
{
    return power_of_two(s->state[0] - s->weight);
}

float er_scaler_scale(const struct er_scaler *s)
{
    return (float)scale_of(s);
}

void er_scaler_step(struct er_scaler *s, bool finite)
{
    int64_t was = s->state[0];

    if (!finite)
        s->state[0] -= was > 0;
    else if (++s->state[1] >= ER_SCALER_GROW_EACH)
        s->state[0] += was < ER_SCALER_MOST;
    if (!finite || s->state[1] >= ER_SCALER_GROW_EACH)
        s->state[1] = 0;
}

bool er_scaler_can_fall(const struct er_scaler *s)
{
    return s->state[0] > 0;
}

double er_scaler_clip(const struct er_scaler *s, double norm2, double weight, double max_norm)
{
    double scale = scale_of(s);

    return er_optim_clip(norm2 / (scale * scale), weight, max_norm) / scale;
}

struct er_slice er_scaler_slice(struct er_scaler *s)
{
    return (struct er_slice){.name = "loss_scale",
                             .dtype = ER_CKPT_I64,
                             .ndim = 1,
                             .shape = {2},
                             .count = 2,
                             .data = s->state,
                             .replicated = true};
}
