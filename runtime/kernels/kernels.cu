/* Conversions, optimizers, sums: what flat memory needs. */
#include "runtime/kernels/parts.cuh"

/* ---- conversions, in integers: the same on every compiler ---- */

/* To nearest even; a NaN stays one. */
ER_INLINE uint16_t bf16_of(float x)
{
    union bits b = {x};

    if ((b.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(b.u >> 16 | 0x40u);
    return (uint16_t)((b.u + 0x7fffu + (b.u >> 16 & 1u)) >> 16);
}

ER_INLINE float of_bf16(uint16_t h)
{
    union bits b;

    b.u = (uint32_t)h << 16;
    return b.f;
}

/* `m` shifted right by `n` (1 to 31), to nearest even. */
ER_INLINE uint32_t round_shift(uint32_t m, uint32_t n)
{
    uint32_t half = 1u << (n - 1), rest = m & ((half << 1) - 1), q = m >> n;

    return q + (rest > half || (rest == half && (q & 1u)) ? 1u : 0u);
}

ER_INLINE uint16_t f16_of(float x)
{
    union bits b = {x};
    uint32_t sign = b.u >> 16 & 0x8000u, exponent = b.u >> 23 & 0xffu, m = b.u & 0x7fffffu;

    if (exponent == 0xffu)
        return (uint16_t)(sign | 0x7c00u | (m ? 0x200u | m >> 13 : 0u));
    if (exponent >= 143u)
        return (uint16_t)(sign | 0x7c00u);
    if (exponent >= 113u) /* a carry goes on into the exponent, up to infinity */
        return (uint16_t)(sign + (((exponent - 112u) << 10) + round_shift(m, 13u)));
    if (exponent < 102u)
        return (uint16_t)sign;
    return (uint16_t)(sign | round_shift(m | 0x800000u, 126u - exponent));
}

ER_INLINE float of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1fu, m = h & 0x3ffu;
    union bits b;

    if (exponent == 0x1fu)
        b.u = sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0u);
    else if (exponent)
        b.u = sign | (exponent + 112u) << 23 | m << 13;
    else { /* m * 2^-24, exact in float */
        b.f = (float)m * 5.9604644775390625e-8f;
        b.u |= sign;
    }
    return b.f;
}

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

ER_KERNEL(fixed_add_f32, er_kernel_args)
{
    int64_t *y = (int64_t *)a.y;
    const float *x = (const float *)a.x;

    ER_THREADS ER_EACH(i, a.n) y[i] += (int64_t)ER_RINT(ER_DMUL(x[i], a.s));
}

ER_KERNEL(fixed_take, er_kernel_args)
{
    ER_THREADS ER_EACH(i, a.n)
    ((float *)a.y)[i] = (float)ER_DMUL((double)((const int64_t *)a.x)[i], a.s);
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
