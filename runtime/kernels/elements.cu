/* Operations of trainer/ops/ that go element by element. The definitions are in their files there;
 * the arithmetic is the same. */
#include "runtime/kernels/parts.cuh"

ER_KERNEL(rows, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n) ER_PUT(y, i, ER_GET(w, i % a.cols));
}

ER_KERNEL(add, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n) ER_PUT(y, i, ER_ADD(ER_GET(x, i), ER_GET(w, i % a.cols)));
}

ER_KERNEL(mul, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n) ER_PUT(y, i, ER_MUL(ER_GET(x, i), ER_GET(w, i % a.cols)));
}

ER_KERNEL(accumulate, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    ER_PUT(y, i, ER_ADD(ER_OLD(a.beta, ER_GET(y, i)), ER_GET(d, i)));
}

ER_KERNEL(mul_back, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    ER_PUT(y, i, ER_ADD(ER_OLD(a.beta, ER_GET(y, i)), ER_MUL(ER_GET(d, i), ER_GET(w, i % a.cols))));
}

ER_KERNEL(relu, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        float x = ER_GET(x, i);

        ER_PUT(y, i, x < 0.0f ? 0.0f : x);
    }
}

ER_KERNEL(relu_back, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    ER_PUT(y, i, ER_ADD(ER_OLD(a.beta, ER_GET(y, i)), ER_GET(x, i) > 0.0f ? ER_GET(d, i) : 0.0f));
}

#define GELU_TWO_ROOT 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_CUBE     0.044715f

ER_INLINE float gelu_gate(float x)
{
    float cube = ER_MUL(GELU_CUBE, ER_MUL(ER_MUL(x, x), x));

    return ER_DIV(1.0f, ER_ADD(1.0f, exp_of(ER_MUL(-GELU_TWO_ROOT, ER_ADD(x, cube)))));
}

ER_KERNEL(gelu, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        float x = ER_GET(x, i);

        ER_PUT(y, i, ER_MUL(x, gelu_gate(x)));
    }
}

ER_KERNEL(gelu_back, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        float x = ER_GET(x, i), s = gelu_gate(x);
        float slope = ER_MUL(GELU_TWO_ROOT, ER_ADD(1.0f, ER_MUL(3.0f * GELU_CUBE, ER_MUL(x, x))));
        float bend = ER_MUL(ER_MUL(x, ER_MUL(s, ER_ADD(1.0f, -s))), slope);

        ER_PUT(y, i, ER_ADD(ER_OLD(a.beta, ER_GET(y, i)), ER_MUL(ER_GET(d, i), ER_ADD(s, bend))));
    }
}

/* at: ids (rows) */
ER_KERNEL(embedding, er_kernel_op_args)
{
    const int32_t *ids = (const int32_t *)a.at;

    ER_THREADS ER_EACH(i, a.n)
    ER_PUT(y, i, ER_GET(x, (uint64_t)ids[i / a.cols] * a.cols + i % a.cols));
}

/* ---- dropout: the same draws as trainer/sampler.c, er_rng() ---- */

ER_INLINE uint64_t high_of(uint64_t x, uint64_t y)
{
#if defined(__CUDACC__)
    return __umul64hi(x, y);
#else
    __extension__ typedef unsigned __int128 wide;

    return (uint64_t)((wide)x * y >> 64);
#endif
}

ER_INLINE uint64_t draw(uint64_t seed, uint64_t sample, uint32_t op, uint64_t i)
{
    const uint64_t m0 = 0xd2e7470ee14c6c93ull, m1 = 0xca5a826395121157ull;
    uint64_t c0 = sample, c1 = i, c2 = 0, c3 = 0, k0 = seed, k1 = op;

    for (int round = 0; round < 10; round++) {
        uint64_t h0 = high_of(m0, c0), l0 = m0 * c0, h1 = high_of(m1, c2), l1 = m1 * c2;

        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9e3779b97f4a7c15ull;
        k1 += 0xbb67ae8584caa73bull;
    }
    return c0;
}

/* f where element i is kept. at: samples; cols: elements of one; inner: the seed; k: the place;
 * flag: of 65536 draws so many drop. */
ER_INLINE float kept(const struct er_kernel_op_args &a, uint64_t i)
{
    uint64_t sample = ((const uint64_t *)a.at)[i / a.cols], at = i % a.cols;
    uint64_t level = draw(a.inner, sample, a.k, at / 4) >> 16 * (at % 4) & 0xffffu;

    return level >= a.flag ? a.f : 0.0f;
}

ER_KERNEL(dropout, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n) ER_PUT(y, i, ER_MUL(ER_GET(x, i), kept(a, i)));
}

ER_KERNEL(dropout_back, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    ER_PUT(y, i, ER_ADD(ER_OLD(a.beta, ER_GET(y, i)), ER_MUL(ER_GET(d, i), kept(a, i))));
}

/* ---- transposition ---- */

ER_INLINE uint64_t walked(const struct er_kernel_walk_args &a, uint64_t i)
{
    uint64_t at = 0;

    for (int d = 3; d >= 0; d--) {
        at += i % a.dim[d] * a.stride[d];
        i /= a.dim[d];
    }
    return at;
}

ER_KERNEL(transpose, er_kernel_walk_args)
{
    ER_THREADS ER_EACH(i, a.n) ER_PUT(y, i, ER_GET(x, walked(a, i)));
}

/* x: the gradient of the output. */
ER_KERNEL(transpose_back, er_kernel_walk_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        uint64_t to = walked(a, i);

        ER_PUT(y, to, ER_ADD(ER_OLD(a.beta, ER_GET(y, to)), ER_GET(x, i)));
    }
}
