/* Operations of trainer/ops/ that sum over rows or columns: fixed trees, no atomics, so the same bits
 * every time. Sums of many numbers are made in another order than the CPU's. */
#include "runtime/kernels/parts.cuh"

/* ---- sums over rows ---- */

enum { TILE = 32, LANES = ER_KERNEL_THREADS / TILE };

/* What `columns` sums of channel c, element `at`. */
ER_INLINE float column_term(const struct er_kernel_op_args &a, uint64_t r, uint64_t c, uint64_t at)
{
    const float *s = a.s + 2 * (r * a.k + c / (a.cols / a.k));

    switch (a.flag) {
    case ER_COLUMNS_DX:
        return ER_MUL(a.d[at], a.x[at]);
    case ER_COLUMNS_CENTRED:
    case ER_COLUMNS_SCALED:
        return ER_MUL(a.d[at], ER_MUL(ER_ADD(a.x[at], -s[0]), s[1]));
    default:
        return a.d[at];
    }
}

/* d and x (rows, cols, inner) -> y (cols). A block takes TILE columns, LANES threads each. */
ER_KERNEL(columns, er_kernel_op_args)
{
    ER_SHARED float sum[ER_KERNEL_THREADS];
    const uint64_t tiles = (a.cols + TILE - 1) / TILE, per = a.inner * a.rows;

    ER_EACH_ROW(tile, tiles)
    {
        ER_THREADS
        {
            uint64_t c = tile * TILE + tid % TILE;
            float s = 0.0f;

            for (uint64_t i = tid / TILE; c < a.cols && i < per; i += LANES) {
                uint64_t r = i / a.inner;

                s = ER_ADD(s, column_term(a, r, c, (r * a.cols + c) * a.inner + i % a.inner));
            }
            sum[tid] = s;
        }
        for (unsigned half = LANES / 2; half > 0; half /= 2) {
            ER_TOGETHER;
            ER_THREADS
            {
                if (tid < half * TILE)
                    sum[tid] += sum[tid + half * TILE];
            }
        }
        ER_TOGETHER;
        ER_THREADS
        {
            uint64_t c = tile * TILE + tid;

            if (tid < TILE && c < a.cols)
                a.y[c] = ER_ADD(ER_OLD(a.beta, a.y[c]), sum[tid]);
        }
        ER_TOGETHER;
    }
}

/* at: segments + 1 starts, then the id of each segment, then all positions in their order; k:
 * segments. A block adds up one segment: no two writers to a row. */
ER_KERNEL(embedding_back, er_kernel_op_args)
{
    const int32_t *start = (const int32_t *)a.at, *id = start + a.k + 1, *position = id + a.k;

    ER_EACH_ROW(segment, a.k)
    {
        ER_THREADS ER_EACH_OF_ROW(j, a.cols)
        {
            float *y = a.y + (uint64_t)id[segment] * a.cols + j, s = *y;

            for (int32_t i = start[segment]; i < start[segment + 1]; i++)
                s = ER_ADD(s, a.d[(uint64_t)position[i] * a.cols + j]);
            *y = s;
        }
    }
}

/* ---- norms ---- */

/* Channel of element j of row r. */
ER_INLINE uint64_t channel(const struct er_kernel_op_args &a, uint64_t r, uint64_t j)
{
    return r % a.k * (a.cols / a.inner) + j / a.inner;
}

/* y = (x - mean) inverse w + b; s: mean and inverse of each row. flag: RMS, with mean 0 and no b. f:
 * eps. */
ER_KERNEL(norm, er_kernel_op_args)
{
    ER_SHARED float sum[ER_KERNEL_THREADS];
    ER_SHARED float stat[2];

    ER_EACH_ROW(r, a.rows)
    {
        const float *x = a.x + r * a.cols;

        ER_THREADS
        {
            float s = 0.0f;

            if (!a.flag)
                ER_EACH_OF_ROW(j, a.cols) s = ER_ADD(s, x[j]);
            sum[tid] = s;
        }
        ER_SUM_UP(sum);
        ER_THREADS
        {
            if (tid == 0)
                stat[0] = ER_DIV(sum[0], (float)a.cols);
        }
        ER_TOGETHER;
        ER_THREADS
        {
            float s = 0.0f;

            ER_EACH_OF_ROW(j, a.cols)
            {
                float off = ER_ADD(x[j], -stat[0]);

                s = ER_ADD(s, ER_MUL(off, off));
            }
            sum[tid] = s;
        }
        ER_SUM_UP(sum);
        ER_THREADS
        {
            if (tid == 0) {
                stat[1] = ER_DIV(1.0f, ER_SQRT(ER_ADD(ER_DIV(sum[0], (float)a.cols), a.f)));
                a.s[2 * r] = stat[0];
                a.s[2 * r + 1] = stat[1];
            }
        }
        ER_TOGETHER;
        ER_THREADS ER_EACH_OF_ROW(j, a.cols)
        {
            uint64_t c = channel(a, r, j);
            float v = ER_MUL(ER_MUL(ER_ADD(x[j], -stat[0]), stat[1]), a.w[c]);

            a.y[r * a.cols + j] = a.flag ? v : ER_ADD(v, a.b[c]);
        }
        ER_TOGETHER;
    }
}

/* y = old + (g - mean(g) - xhat mean(g xhat)) inverse, g = d w; RMS: without the first mean. */
ER_KERNEL(norm_back, er_kernel_op_args)
{
    ER_SHARED float sum_g[ER_KERNEL_THREADS];
    ER_SHARED float sum_gx[ER_KERNEL_THREADS];

    ER_EACH_ROW(r, a.rows)
    {
        const float *x = a.x + r * a.cols, *d = a.d + r * a.cols;
        const float mean = a.s[2 * r], inverse = a.s[2 * r + 1];

        ER_THREADS
        {
            float g = 0.0f, gx = 0.0f;

            ER_EACH_OF_ROW(j, a.cols)
            {
                float one = ER_MUL(d[j], a.w[channel(a, r, j)]);

                g = ER_ADD(g, one);
                gx = ER_ADD(gx, ER_MUL(one, ER_MUL(ER_ADD(x[j], -mean), inverse)));
            }
            sum_g[tid] = g;
            sum_gx[tid] = gx;
        }
        ER_SUM_UP(sum_g);
        ER_SUM_UP(sum_gx);
        ER_THREADS
        {
            float g = a.flag ? 0.0f : ER_DIV(sum_g[0], (float)a.cols);
            float gx = ER_DIV(sum_gx[0], (float)a.cols);

            ER_EACH_OF_ROW(j, a.cols)
            {
                float *y = a.y + r * a.cols + j;
                float xhat = ER_MUL(ER_ADD(x[j], -mean), inverse);
                float one = ER_ADD(ER_MUL(d[j], a.w[channel(a, r, j)]), -g);

                *y = ER_ADD(ER_OLD(a.beta, *y), ER_MUL(ER_ADD(one, -ER_MUL(xhat, gx)), inverse));
            }
        }
        ER_TOGETHER;
    }
}

/* ---- softmax ---- */

/* Row r is query r % cols of some head: y (rows, cols) becomes the softmax of f y over the keys up
 * to it, 0 behind. */
ER_KERNEL(causal, er_kernel_op_args)
{
    ER_SHARED float part[ER_KERNEL_THREADS];
    ER_SHARED float most;

    ER_EACH_ROW(r, a.rows)
    {
        float *y = a.y + r * a.cols;
        const uint64_t n = r % a.cols + 1;

        ER_THREADS
        {
            float m = y[0];

            ER_EACH_OF_ROW(j, n) m = y[j] > m ? y[j] : m;
            part[tid] = m;
        }
        ER_LARGEST(part);
        ER_THREADS
        {
            if (tid == 0)
                most = ER_MUL(part[0], a.f);
        }
        ER_TOGETHER;
        ER_THREADS
        {
            float s = 0.0f;

            ER_EACH_OF_ROW(j, n)
            {
                y[j] = exp_of(ER_ADD(ER_MUL(y[j], a.f), -most));
                s = ER_ADD(s, y[j]);
            }
            part[tid] = s;
        }
        ER_SUM_UP(part);
        ER_THREADS ER_EACH_OF_ROW(j, a.cols) y[j] = j < n ? ER_DIV(y[j], part[0]) : 0.0f;
        ER_TOGETHER;
    }
}

/* y: the gradient of the probabilities x becomes that of the scores before scaling by f. */
ER_KERNEL(causal_back, er_kernel_op_args)
{
    ER_SHARED float part[ER_KERNEL_THREADS];

    ER_EACH_ROW(r, a.rows)
    {
        float *y = a.y + r * a.cols;
        const float *p = a.x + r * a.cols;
        const uint64_t n = r % a.cols + 1;

        ER_THREADS
        {
            float s = 0.0f;

            ER_EACH_OF_ROW(j, n) s = ER_ADD(s, ER_MUL(p[j], y[j]));
            part[tid] = s;
        }
        ER_SUM_UP(part);
        ER_THREADS ER_EACH_OF_ROW(j, a.cols)
        y[j] = j < n ? ER_MUL(ER_MUL(p[j], ER_ADD(y[j], -part[0])), a.f) : 0.0f;
        ER_TOGETHER;
    }
}

/* s (rows, cols) = softmax(x), z (rows): each row's loss. at: labels (rows); below 0: the row counts
 * nothing. */
ER_KERNEL(entropy, er_kernel_op_args)
{
    ER_SHARED float part[ER_KERNEL_THREADS];
    ER_SHARED float most;

    ER_EACH_ROW(r, a.rows)
    {
        const float *x = a.x + r * a.cols;
        const int32_t label = ((const int32_t *)a.at)[r];
        float *p = a.s + r * a.cols;

        ER_THREADS
        {
            float m = x[0];

            ER_EACH_OF_ROW(j, a.cols) m = x[j] > m ? x[j] : m;
            part[tid] = m;
        }
        ER_LARGEST(part);
        ER_THREADS
        {
            if (tid == 0)
                most = part[0];
        }
        ER_TOGETHER;
        ER_THREADS
        {
            float s = 0.0f;

            ER_EACH_OF_ROW(j, a.cols)
            {
                p[j] = exp_of(ER_ADD(x[j], -most));
                s = ER_ADD(s, p[j]);
            }
            part[tid] = s;
        }
        ER_SUM_UP(part);
        ER_THREADS
        {
            ER_EACH_OF_ROW(j, a.cols) p[j] = ER_DIV(p[j], part[0]);
            if (tid == 0)
                a.z[r] = label < 0 ? 0.0 : log((double)part[0]) + (double)most - (double)x[label];
        }
        ER_TOGETHER;
    }
}

/* y = old + d[0] (x - one at the label): x the softmax. */
ER_KERNEL(entropy_back, er_kernel_op_args)
{
    ER_THREADS ER_EACH(i, a.n)
    {
        int32_t label = ((const int32_t *)a.at)[i / a.cols];
        float off = ER_MUL(a.d[0], a.x[i]);

        if (label >= 0 && i % a.cols == (uint64_t)label)
            off = ER_ADD(off, -a.d[0]);
        a.y[i] = ER_ADD(ER_OLD(a.beta, a.y[i]), label < 0 ? 0.0f : off);
    }
}
