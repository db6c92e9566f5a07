/* Every kernel, compiled as C++ through the shim, against a plain loop. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/rand.h"
#include "runtime/kernels.h"
#include "trainer/exact.h"
#include "trainer/optim.h"

#define DECLARE(name, args)                                                                        \
    void er_shim_##name(const void *args, unsigned blocks, unsigned threads);
ER_KERNELS(DECLARE)
#undef DECLARE

enum { N = 4099, BLOCKS = 3 };

static float x[N], y[N], want[N];
static int64_t acc[N];

static void fill(float *at, uint64_t salt)
{
    for (uint64_t i = 0; i < N; i++)
        at[i] = (float)((double)(int32_t)er_rand_mix(i ^ salt << 32) * 1e-7);
}

Test(kernels, scale_and_sgd)
{
    struct er_kernel_args scale = {.y = y, .n = N, .a = 0.3f};
    struct er_kernel_args sgd = {.y = y, .x = x, .n = N, .a = 0.1f, .b = 0.25f};

    fill(x, 1);
    fill(y, 2);
    for (int i = 0; i < N; i++) {
        want[i] = y[i] * 0.3f;
        want[i] -= 0.1f * (x[i] * 0.25f);
    }
    er_shim_scale_f32(&scale, BLOCKS, ER_KERNEL_THREADS);
    er_shim_sgd_f32(&sgd, 1, 7); /* any grid */
    cr_assert_eq(memcmp(y, want, sizeof(y)), 0);
}

/* All 65536 values there and back, and floats next to every rounding border. */
Test(kernels, halves)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    struct er_kernel_args to_f32 = {.y = wide, .x = all, .n = 65536};
    struct er_kernel_args of_f32 = {.y = back, .x = wide, .n = 65536};

    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    er_shim_f16_to_f32(&to_f32, BLOCKS, ER_KERNEL_THREADS);
    er_shim_f32_to_f16(&of_f32, BLOCKS, ER_KERNEL_THREADS);
    for (int i = 0; i < 65536; i++)
        if (!isnan(wide[i]))
            cr_assert(back[i] == i && wide[i] == er_float_of_f16(all[i]), "f16 %x", i);
    for (uint64_t i = 0; i < 65536; i++) {
        uint32_t bits = (uint32_t)er_rand_mix(i) & 0x8fffffffu;

        bits += 0x30000000u;
        bits = i % 3 ? bits & 0xfffff000u : bits; /* many halfway cases */
        memcpy(&wide[i], &bits, sizeof(bits));
    }
    er_shim_f32_to_f16(&of_f32, BLOCKS, ER_KERNEL_THREADS);
    for (int i = 0; i < 65536; i++)
        cr_assert(back[i] == er_f16_of_float(wide[i]), "%a", (double)wide[i]);
    er_shim_f32_to_bf16(&of_f32, BLOCKS, ER_KERNEL_THREADS);
    for (int i = 0; i < 65536; i++)
        cr_assert(back[i] == er_bf16_of_float(wide[i]), "%a", (double)wide[i]);
    er_shim_bf16_to_f32(&to_f32, BLOCKS, ER_KERNEL_THREADS);
    for (int i = 0; i < 65536; i++)
        cr_assert(isnan(wide[i]) || wide[i] == er_float_of_bf16(all[i]), "bf16 %x", i);
    wide[0] = NAN;
    er_shim_f32_to_bf16(&of_f32, 1, 1);
    cr_assert(isnan(er_float_of_bf16(back[0])));
    er_shim_f32_to_f16(&of_f32, 1, 1);
    cr_assert(isnan(er_float_of_f16(back[0])));
}

/* Bit for bit what the trainer computes. */
Test(kernels, exact_sums)
{
    static float means[N];
    static int64_t sums[N];
    uint64_t words[ER_EXACT_WORDS * BLOCKS] = {0}, joined[ER_EXACT_WORDS] = {0};
    struct er_kernel_exact_args put = {.sums = acc, .g = x, .words = words, .n = N, .adds = 1};
    struct er_kernel_exact_args take = {.sums = acc, .g = y, .n = N, .weight = 37};
    struct er_kernel_exact_args norm = {.sums = acc, .words = words, .n = N};
    struct er_exact_norm of_cpu, got;
    struct er_exact_scale scale;

    cr_assert_eq(er_exact_scale(&scale, 4, 100, NULL), 0);
    put.unit = scale.unit;
    put.limit = scale.limit;
    take.unit = 1 / scale.unit;
    norm.unit = 1 / (scale.unit * scale.whole);
    fill(x, 3);
    x[7] = NAN;
    x[8] = -1e30f;
    memset(acc, 0, sizeof(acc));
    er_shim_exact_put(&put, BLOCKS, ER_KERNEL_THREADS);
    er_shim_exact_put(&put, 1, ER_KERNEL_THREADS);
    cr_assert_eq(er_exact_add(&scale, sums, x, N), 2);
    er_exact_sum(sums, sums, N);
    cr_assert_eq(words[0], 4);
    cr_assert_arr_eq(acc, sums, N * sizeof(*sums));
    er_shim_exact_norm(&norm, BLOCKS, ER_KERNEL_THREADS);
    for (int i = 0; i < ER_EXACT_WORDS * BLOCKS; i++)
        joined[i / BLOCKS] += words[i];
    of_cpu = er_exact_norm_of(&scale, sums, N);
    got = er_exact_norm_join(joined);
    cr_assert(of_cpu.low == got.low && of_cpu.high == got.high);
    er_shim_exact_take(&take, BLOCKS, 32);
    er_exact_mean(&scale, sums, means, N, 37);
    cr_assert_arr_eq(y, means, sizeof(means));
    cr_assert_arr_eq(acc, sums, N * sizeof(*sums)); /* 0 */
}

/* Bit for bit what the trainer's optimizer computes. */
Test(kernels, adamw)
{
    static float p[N], g[N], m[N], v[N], p2[N], g2[N], m2[N], v2[N];
    struct er_optim o = er_optim_adamw();
    struct er_optim_view view = {.value = p2, .grad = g2, .state = {m2, v2}, .count = N};
    double lr = 0.01, b1 = 1, b2 = 1;

    fill(p, 4);
    memcpy(p2, p, sizeof(p));
    for (uint64_t step = 1; step <= 3; step++) {
        struct er_kernel_adam_args a = {.p = p, .m = m, .v = v, .g = g, .n = N, .scale = 0.125f};

        b1 *= (double)o.beta1;
        b2 *= (double)o.beta2;
        a.beta1 = o.beta1;
        a.rest1 = (float)(1.0 - (double)o.beta1);
        a.beta2 = o.beta2;
        a.rest2 = (float)(1.0 - (double)o.beta2);
        a.eps = o.eps;
        a.keep = (float)(1.0 - lr * (double)o.weight_decay);
        a.rate = (float)(lr / (1.0 - b1));
        a.inverse2 = (float)(1.0 / (1.0 - b2));
        fill(g, 5 + step);
        memcpy(g2, g, sizeof(g));
        er_shim_adamw_f32(&a, BLOCKS, ER_KERNEL_THREADS);
        er_optim_apply(&o, &view, step, lr, 0.125);
        for (int i = 0; i < N; i++)
            cr_assert(p[i] == p2[i] && g[i] == 0.0f, "%d: %a %a", i, (double)p[i], (double)p2[i]);
    }
}

Test(kernels, norm_and_nonfinite)
{
    static double sums[BLOCKS];
    static uint64_t bad[BLOCKS];
    struct er_kernel_args a = {.y = sums, .x = x, .z = bad, .n = N};
    double near = 0, sum = 0;

    fill(x, 9);
    x[7] = INFINITY;
    x[4000] = NAN;
    for (int i = 0; i < N; i++)
        near += isfinite(x[i]) ? (double)x[i] * (double)x[i] : 0;
    er_shim_norm2_f32(&a, BLOCKS, ER_KERNEL_THREADS);
    for (int i = 0; i < BLOCKS; i++)
        sum += sums[i];
    cr_assert(fabs(sum - near) <= 1e-9 * near);
    cr_assert_eq(bad[0] + bad[1] + bad[2], 2);
}
