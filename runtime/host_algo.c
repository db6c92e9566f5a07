/* Compiled at -O3 whatever the build type: these loops are the speed of every reduction. */
#pragma GCC optimize("O3")

#include "runtime/host_algo.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

enum {
    SEGMENT_UNIT = 64,  /* elements */
    BLOCK_BYTES = 16384 /* of each source at a time, so that the running result stays in L1 */
};

struct er_segment er_algo_segment(size_t n, int size, int owner)
{
    size_t units = (n + SEGMENT_UNIT - 1) / SEGMENT_UNIT;
    size_t begin = units * (size_t)owner / (size_t)size * SEGMENT_UNIT;
    size_t end = units * (size_t)(owner + 1) / (size_t)size * SEGMENT_UNIT;

    return (struct er_segment){.begin = begin < n ? begin : n, .end = end < n ? end : n};
}

typedef void (*kernel_fn)(void *dst, const void *a, const void *b, size_t n);

/* dst may be a itself: iterations are independent, which ivdep tells the vectoriser. */
#define KERNEL(name, type, expression)                                                             \
    static void name(void *dst_v, const void *a_v, const void *b_v, size_t n)                      \
    {                                                                                              \
        type *dst = dst_v;                                                                         \
        const type *a = a_v, *b = b_v;                                                             \
        _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)                                        \
        {                                                                                          \
            type x = a[i], y = b[i];                                                               \
            dst[i] = (type)(expression);                                                           \
        }                                                                                          \
    }

/* Signed sums are made unsigned, where overflow wraps by definition: the bits are the same. */
#define KERNELS(suffix, type, sum_type)                                                            \
    KERNEL(sum_##suffix, sum_type, x + y)                                                          \
    KERNEL(min_##suffix, type, x < y ? x : y)                                                      \
    KERNEL(max_##suffix, type, x > y ? x : y)

KERNELS(f32, float, float)
KERNELS(f64, double, double)
KERNELS(i32, int32_t, uint32_t)
KERNELS(i64, int64_t, uint64_t)
KERNELS(u8, uint8_t, uint8_t)

#define ROW(suffix)                                                                                \
    {                                                                                              \
        [ER_SUM] = sum_##suffix, [ER_MIN] = min_##suffix, [ER_MAX] = max_##suffix                  \
    }

static const kernel_fn kernels[ER_DTYPE_COUNT][ER_REDUCE_COUNT] = {
    [ER_F32] = ROW(f32), [ER_F64] = ROW(f64), [ER_I32] = ROW(i32),
    [ER_I64] = ROW(i64), [ER_U8] = ROW(u8),
};

static const size_t dtype_bytes[ER_DTYPE_COUNT] = {
    [ER_F32] = 4, [ER_F64] = 8, [ER_I32] = 4, [ER_I64] = 8, [ER_U8] = 1};

size_t er_dtype_size(enum er_dtype dtype)
{
    return (unsigned)dtype < ER_DTYPE_COUNT ? dtype_bytes[dtype] : 0;
}

void er_algo_reduce(void *dst, const void *const *src, int src_n, size_t n, enum er_dtype dtype,
                    enum er_reduce reduce)
{
    kernel_fn kernel = kernels[dtype][reduce];
    size_t width = dtype_bytes[dtype], step = BLOCK_BYTES / width;

    assert(src_n >= 1);
    if (src_n == 1 && n > 0)
        memcpy(dst, src[0], n * width);
    for (size_t at = 0; at < n && src_n > 1; at += step) {
        size_t count = n - at < step ? n - at : step;
        char *to = (char *)dst + at * width;

        kernel(to, (const char *)src[0] + at * width, (const char *)src[1] + at * width, count);
        for (int i = 2; i < src_n; i++)
            kernel(to, to, (const char *)src[i] + at * width, count);
    }
}

#define LARGER(a, b) ((a) > (b) ? (a) : (b))

void er_algo_vote(struct er_vote *into, const struct er_vote *from)
{
    into->ok += from->ok;
    into->notice = LARGER(into->notice, from->notice);
    into->target = LARGER(into->target, from->target);
    into->loss += from->loss;
    into->weight += from->weight;
    into->norm2 += from->norm2;
    into->nonfinite += from->nonfinite;
    into->durable = into->durable < from->durable ? into->durable : from->durable;
    into->flags |= from->flags;
    for (int i = 0; i < 2; i++)
        into->user[i] = LARGER(into->user[i], from->user[i]);
}
