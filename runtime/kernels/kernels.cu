/* Conversions, optimizers, sums: what flat memory needs. */
#include "runtime/kernels/parts.cuh"

/* ---- element by element ---- */

ER_KERNEL(scale_f32, er_kernel_args)
{
    float *y = (float *)a.y;

    ER_THREADS ER_EACH(i, a.n) y[i] = ER_MUL(y[i], a.a);
}

ER_KERNEL(sgd_f32, er_kernel_args)
{
    float *p = (float *)a.y;
    const float *g = (const float *)a.x;

    ER_THREADS ER_EACH(i, a.n) p[i] = ER_ADD(p[i], -ER_MUL(a.a, ER_MUL(g[i], a.b)));
}

ER_KERNEL(f32_to_bf16, er_kernel_args)
{
    ER_THREADS ER_EACH(i, a.n)((uint16_t *)a.y)[i] = bf16_of(((const float *)a.x)[i]);
}

ER_KERNEL(bf16_to_f32, er_kernel_args)
{
    ER_THREADS ER_EACH(i, a.n)((float *)a.y)[i] = of_bf16(((const uint16_t *)a.x)[i]);
}

ER_KERNEL(f32_to_f16, er_kernel_args)
{
    ER_THREADS ER_EACH(i, a.n)((uint16_t *)a.y)[i] = f16_of(((const float *)a.x)[i]);
}

ER_KERNEL(f16_to_f32, er_kernel_args)
{
    ER_THREADS ER_EACH(i, a.n)((float *)a.y)[i] = of_f16(((const uint16_t *)a.x)[i]);
}

ER_KERNEL(fill_f32, er_kernel_args)
{
    ER_THREADS ER_EACH(i, a.n)((float *)a.y)[i] = a.a;
}

/* ---- optimizers ---- */

ER_INLINE void adam_one(const struct er_kernel_adam_args &a, uint64_t i, float g, float kept)
{
    float m = ER_ADD(ER_MUL(a.beta1, a.m[i]), ER_MUL(a.rest1, g));
    float v = ER_ADD(ER_MUL(a.beta2, a.v[i]), ER_MUL(a.rest2, ER_MUL(g, g)));
    float root = ER_ADD(ER_SQRT(ER_MUL(v, a.inverse2)), a.eps);

    a.m[i] = m;
    a.v[i] = v;
    a.p[i] = ER_ADD(kept, -ER_DIV(ER_MUL(a.rate, m), root));
    a.g[i] = 0.0f;
}

ER_KERNEL(adamw_f32, er_kernel_adam_args)
{
    ER_THREADS ER_EACH(i, a.n) adam_one(a, i, ER_MUL(a.g[i], a.scale), ER_MUL(a.keep, a.p[i]));
}

ER_KERNEL(adam_f32, er_kernel_adam_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        float p = a.p[i];

        adam_one(a, i, ER_ADD(ER_MUL(a.g[i], a.scale), ER_MUL(a.decay, p)), p);
    }
}

ER_KERNEL(momentum_f32, er_kernel_sgd_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        float g = ER_ADD(ER_MUL(a.g[i], a.scale), ER_MUL(a.decay, a.p[i]));
        float m = ER_ADD(ER_MUL(a.momentum, a.m[i]), g);

        a.m[i] = m;
        a.p[i] = ER_ADD(a.p[i], -ER_MUL(a.rate, a.nesterov ? ER_ADD(g, ER_MUL(a.momentum, m)) : m));
        a.g[i] = 0.0f;
    }
}

/* ---- over a block ---- */

ER_KERNEL(norm2_f32, er_kernel_args)
{
    ER_SHARED double sum[ER_KERNEL_THREADS];
    ER_SHARED unsigned long long bad[ER_KERNEL_THREADS];
    const float *x = (const float *)a.x;

    ER_THREADS
    {
        double s = 0;
        unsigned long long b = 0;

        ER_EACH(i, a.n)
        {
            union bits v = {x[i]};

            if ((v.u & 0x7f800000u) == 0x7f800000u)
                b++;
            else
                s += ER_DMUL(v.f, v.f);
        }
        sum[tid] = s;
        bad[tid] = b;
    }
    ER_SUM_UP(sum);
    ER_SUM_UP(bad);
    ER_THREADS
    {
        if (tid == 0) {
            ((double *)a.y)[ER_BLOCK] = sum[0];
            ((unsigned long long *)a.z)[ER_BLOCK] = bad[0];
        }
    }
}

ER_KERNEL(sum_f64, er_kernel_args)
{
    ER_SHARED double sum[ER_KERNEL_THREADS];
    const double *x = (const double *)a.x;

    ER_THREADS
    {
        double s = 0;

        ER_EACH(i, a.n) s += x[i];
        sum[tid] = s;
    }
    ER_SUM_UP(sum);
    ER_THREADS
    {
        if (tid == 0) {
            ((float *)a.y)[0] = (float)sum[0];
            ((double *)a.z)[0] = sum[0];
        }
    }
}
