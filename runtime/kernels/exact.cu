/* Exact mode: gradients as 64-bit fixed-point sums. Double precision and integers, each operation
 * rounded as on the CPU, so that the bits are those of trainer/exact.c. */
#include "runtime/kernels/parts.cuh"

/* 0, and counted, for what does not count. */
ER_INLINE int64_t fixed_of(const er_kernel_exact_args &a, float g, unsigned long long *outside)
{
    double x = (double)g;

    if (x <= a.limit && x >= -a.limit) /* a NaN is neither */
        return (int64_t)ER_RINT(ER_DMUL(x, a.unit));
    *outside += 1;
    return 0;
}

ER_KERNEL(exact_put, er_kernel_exact_args)
{
    ER_SHARED unsigned long long outside[ER_KERNEL_THREADS];

    ER_THREADS
    {
        unsigned long long mine = 0;

        ER_EACH(i, a.n) a.sums[i] = (a.adds ? a.sums[i] : 0) + fixed_of(a, a.g[i], &mine);
        outside[tid] = mine;
    }
    ER_SUM_UP(outside);
    ER_THREADS
    {
        if (tid == 0 && outside[0] > 0)
            ER_COUNT(a.words, outside[0]);
    }
}

ER_KERNEL(exact_sum, er_kernel_exact_args)
{
    ER_THREADS ER_EACH(i, a.n) a.sums[i] += a.from[i];
}

ER_KERNEL(exact_take, er_kernel_exact_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        a.g[i] = (float)ER_DDIV(ER_DMUL((double)a.sums[i], a.unit), a.weight);
        a.sums[i] = 0;
    }
}

/* ---- the squared norm, in units of 2^-64: a 128-bit sum, so any order gives the same ---- */

struct wide {
    uint64_t low;
    int64_t high;
};

ER_INLINE struct wide wide_sum(struct wide x, struct wide y)
{
    struct wide sum = {x.low + y.low, x.high + y.high};

    sum.high += sum.low < x.low ? 1 : 0;
    return sum;
}

/* As square_block() of trainer/exact.c: multiples of 2^-24, and the rest. */
ER_INLINE struct wide square_of(int64_t sum, double step)
{
    double x = ER_DMUL((double)sum, step), square = ER_DMUL(x, x);
    int64_t coarse = (int64_t)ER_RINT(ER_DMUL(square, 0x1p24));
    int64_t fine = (int64_t)ER_RINT(ER_DMUL(square - ER_DMUL((double)coarse, 0x1p-24), 0x1p64));
    struct wide a = {(uint64_t)coarse << 40, coarse >> 24}, b = {(uint64_t)fine, fine < 0 ? -1 : 0};

    return wide_sum(a, b);
}

ER_KERNEL(exact_norm, er_kernel_exact_args)
{
    ER_SHARED struct wide sum[ER_KERNEL_THREADS];

    ER_THREADS
    {
        struct wide mine = {0, 0};

        ER_EACH(i, a.n) mine = wide_sum(mine, square_of(a.sums[i], a.unit));
        sum[tid] = mine;
    }
    for (unsigned half = ER_KERNEL_THREADS / 2; half > 0; half /= 2) {
        ER_TOGETHER;
        ER_THREADS
        {
            if (tid < half)
                sum[tid] = wide_sum(sum[tid], sum[tid + half]);
        }
    }
    ER_TOGETHER;
    ER_THREADS
    {
        if (tid == 0) { /* words that add up over blocks without a carry */
            a.words[ER_BLOCK] = sum[0].low & 0xffffffffu;
            a.words[ER_BLOCKS + ER_BLOCK] = sum[0].low >> 32;
            a.words[2 * ER_BLOCKS + ER_BLOCK] = (uint64_t)sum[0].high;
        }
    }
}
