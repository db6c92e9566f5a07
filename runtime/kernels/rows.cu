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
        return ER_MUL(ER_GET(d, at), ER_GET(x, at));
    case ER_COLUMNS_CENTRED:
    case ER_COLUMNS_SCALED:
        return ER_MUL(ER_GET(d, at), ER_MUL(ER_ADD(ER_GET(x, at), -s[0]), s[1]));
    default:
        return ER_GET(d, at);
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
                ER_PUT(y, c, ER_ADD(ER_OLD(a.beta, ER_GET(y, c)), sum[tid]));
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
            uint64_t to = (uint64_t)id[segment] * a.cols + j;
            float s = ER_GET(y, to);

            for (int32_t i = start[segment]; i < start[segment + 1]; i++)
                s = ER_ADD(s, ER_GET(d, (uint64_t)position[i] * a.cols + j));
            ER_PUT(y, to, s);
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
        const uint64_t row = r * a.cols;

        ER_THREADS
        {
            float s = 0.0f;

            if (!a.flag)
                ER_EACH_OF_ROW(j, a.cols) s = ER_ADD(s, ER_GET(x, row + j));
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
                float off = ER_ADD(ER_GET(x, row + j), -stat[0]);

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
            float xhat = ER_MUL(ER_ADD(ER_GET(x, row + j), -stat[0]), stat[1]);
            float v = ER_MUL(xhat, ER_GET(w, c));

            ER_PUT(y, row + j, a.flag ? v : ER_ADD(v, ER_GET(b, c)));
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
        const uint64_t row = r * a.cols;
        const float mean = a.s[2 * r], inverse = a.s[2 * r + 1];

        ER_THREADS
        {
            float g = 0.0f, gx = 0.0f;

            ER_EACH_OF_ROW(j, a.cols)
            {
                float one = ER_MUL(ER_GET(d, row + j), ER_GET(w, channel(a, r, j)));
                float xhat = ER_MUL(ER_ADD(ER_GET(x, row + j), -mean), inverse);

                g = ER_ADD(g, one);
                gx = ER_ADD(gx, ER_MUL(one, xhat));
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
                float xhat = ER_MUL(ER_ADD(ER_GET(x, row + j), -mean), inverse);
                float weighed = ER_MUL(ER_GET(d, row + j), ER_GET(w, channel(a, r, j)));
                float off = ER_ADD(ER_ADD(weighed, -g), -ER_MUL(xhat, gx));

                ER_PUT(y, row + j,
                       ER_ADD(ER_OLD(a.beta, ER_GET(y, row + j)), ER_MUL(off, inverse)));
            }
        }
        ER_TOGETHER;
    }
}

/* ---- softmax ---- */

/* Keys that the query of row r may see: of `inner` queries a head, the last of the `cols` keys. */
ER_INLINE uint64_t seen_by(const er_kernel_op_args &a, uint64_t r)
{
    return a.cols - a.inner + r % a.inner + 1;
}

/* The logarithm of a row's sum of exponentials, s (heads, n). */
ER_INLINE float *log_sum_of(const er_kernel_op_args &a, uint64_t r)
{
    return a.s + r / a.inner * a.n + r % a.inner;
}

/* y (rows, cols): softmax of f y over the keys that a row may see, 0 behind. */
ER_KERNEL(causal, er_kernel_op_args)
{
    ER_SHARED float part[ER_KERNEL_THREADS];
    ER_SHARED float most;

    ER_EACH_ROW(r, a.rows)
    {
        float *y = (float *)a.y + r * a.cols;
        const uint64_t n = seen_by(a, r);

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
        ER_THREADS
        {
            if (tid == 0)
                *log_sum_of(a, r) = ER_ADD(most, (float)log((double)part[0]));
            ER_EACH_OF_ROW(j, a.cols) y[j] = j < n ? ER_DIV(y[j], part[0]) : 0.0f;
        }
        ER_TOGETHER;
    }
}

ER_KERNEL(causal_again, er_kernel_op_args)
{
    ER_EACH_ROW(r, a.rows)
    {
        float *y = (float *)a.y + r * a.cols;
        const uint64_t n = seen_by(a, r);
        const float log_sum = *log_sum_of(a, r);

        ER_THREADS ER_EACH_OF_ROW(j, a.cols)
        y[j] = j < n ? exp_of(ER_ADD(ER_MUL(y[j], a.f), -log_sum)) : 0.0f;
    }
}

/* y: the gradient of the probabilities x becomes that of the scores before scaling by f. */
ER_KERNEL(causal_back, er_kernel_op_args)
{
    ER_SHARED float part[ER_KERNEL_THREADS];

    ER_EACH_ROW(r, a.rows)
    {
        float *y = (float *)a.y + r * a.cols;
        const float *p = (const float *)a.x + r * a.cols;
        const uint64_t n = seen_by(a, r);

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
        const uint64_t row = r * a.cols;
        const int32_t label = ((const int32_t *)a.at)[r];
        float *p = a.s + r * a.cols;

        ER_THREADS
        {
            float m = ER_GET(x, row);

            ER_EACH_OF_ROW(j, a.cols)
            {
                float x = ER_GET(x, row + j);

                m = x > m ? x : m;
            }
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
                p[j] = exp_of(ER_ADD(ER_GET(x, row + j), -most));
                s = ER_ADD(s, p[j]);
            }
            part[tid] = s;
        }
        ER_SUM_UP(part);
        ER_THREADS
        {
            ER_EACH_OF_ROW(j, a.cols) p[j] = ER_DIV(p[j], part[0]);
            if (tid == 0)
                a.z[r] = label < 0 ? 0.0
                                   : log((double)part[0]) + (double)most -
                                         (double)ER_GET(x, row + (uint64_t)label);
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
        float d = ER_GET(d, 0), off = ER_MUL(d, ER_GET(x, i));

        if (label >= 0 && i % a.cols == (uint64_t)label)
            off = ER_ADD(off, -d);
        ER_PUT(y, i, ER_ADD(ER_OLD(a.beta, ER_GET(y, i)), label < 0 ? 0.0f : off));
    }
}
