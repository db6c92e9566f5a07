/* Loss scaling: when the scale changes, and what the optimizer makes of scaled gradients. */
#include <criterion/criterion.h>

#include <math.h>

#include "trainer/optim.h"
#include "trainer/scaler.h"

Test(scaler, overflow_halves_and_many_good_steps_double)
{
    struct er_scaler s;

    er_scaler_init(&s, 1);
    cr_assert_eq(er_scaler_scale(&s), 65536.0f);
    er_scaler_step(&s, false);
    cr_assert_eq(er_scaler_scale(&s), 32768.0f);
    for (int i = 0; i < ER_SCALER_GROW_EACH - 1; i++)
        er_scaler_step(&s, true);
    cr_assert_eq(er_scaler_scale(&s), 32768.0f);
    er_scaler_step(&s, true);
    cr_assert_eq(er_scaler_scale(&s), 65536.0f);
    for (int i = 0; i < ER_SCALER_GROW_EACH - 1; i++)
        er_scaler_step(&s, true);
    er_scaler_step(&s, false); /* the count begins anew */
    er_scaler_step(&s, true);
    cr_assert_eq(er_scaler_scale(&s), 32768.0f);
}

Test(scaler, it_stays_between_1_and_its_most)
{
    struct er_scaler s;

    er_scaler_init(&s, 1);
    for (int i = 0; i < 40; i++)
        er_scaler_step(&s, false);
    cr_assert_eq(er_scaler_scale(&s), 1.0f);
    cr_assert(!er_scaler_can_fall(&s));
    for (int i = 0; i < 40 * ER_SCALER_GROW_EACH; i++)
        er_scaler_step(&s, true);
    cr_assert_eq(er_scaler_scale(&s), 0x1p24f);
    cr_assert(er_scaler_can_fall(&s));
}

/* Gradients are sums, which are so many times as large as a mean. */
Test(scaler, a_sum_over_many_has_a_smaller_scale)
{
    static const struct {
        double weight;
        float scale;
    } cases[] = {{0, 65536}, {1, 65536}, {2, 32768}, {3, 16384}, {256, 256}, {1e6, 0x1p-4f}};
    struct er_scaler s = {0};

    cr_assert_eq(er_scaler_scale(&s), 1.0f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        er_scaler_init(&s, cases[i].weight);
        cr_assert_eq(er_scaler_scale(&s), cases[i].scale, "%g", cases[i].weight);
    }
    cr_assert_eq(er_scaler_clip(&s, 7.25 * 0x1p-8, 3, 0.01) * 0x1p-4, er_optim_clip(7.25, 3, 0.01));
}

/* Powers of two: the same bits as without. */
Test(scaler, the_optimizer_sees_unscaled_gradients)
{
    struct er_scaler s;
    double scale;

    er_scaler_init(&s, 1);
    scale = er_scaler_scale(&s);
    for (int i = 0; i < 3; i++) {
        double max_norm = i == 0 ? 0 : i == 1 ? 0.01 : 100;

        cr_assert_eq(er_scaler_clip(&s, 7.25 * scale * scale, 3, max_norm) * scale,
                     er_optim_clip(7.25, 3, max_norm));
    }
}

Test(scaler, its_state_is_a_tensor)
{
    struct er_scaler s, other;
    struct er_slice slice;

    er_scaler_init(&s, 1);
    er_scaler_step(&s, false);
    er_scaler_step(&s, true);
    slice = er_scaler_slice(&s);
    cr_assert_eq(slice.count * 8, sizeof(s.state));
    er_scaler_init(&other, 1);
    for (int i = 0; i < 2; i++)
        ((int64_t *)er_scaler_slice(&other).data)[i] = ((int64_t *)slice.data)[i];
    cr_assert_eq(er_scaler_scale(&other), 32768.0f);
    cr_assert_eq(other.state[1], 1);
}
