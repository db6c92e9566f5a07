/* Compiled at -O3 whatever the build type: these loops are the speed of every reduction. */
#pragma GCC optimize("O3")

#include "runtime/host_algo.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

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

/* Sum, minimum and maximum; an average is a sum until it is finished. */
#define ROW(suffix)                                                                                \
    {                                                                                              \
        [ER_SUM] = sum_##suffix, [ER_MIN] = min_##suffix, [ER_MAX] = max_##suffix,                 \
        [ER_AVG] = sum_##suffix                                                                    \
    }

static const kernel_fn kernels[ER_DTYPE_COUNT][ER_REDUCE_COUNT] = {
    [ER_F32] = ROW(f32), [ER_F64] = ROW(f64), [ER_I32] = ROW(i32),  [ER_I64] = ROW(i64),
    [ER_U8] = ROW(u8),   [ER_F16] = ROW(f32), [ER_BF16] = ROW(f32),
};

static const size_t dtype_bytes[ER_DTYPE_COUNT] = {
    [ER_F32] = 4, [ER_F64] = 8, [ER_I32] = 4, [ER_I64] = 8,
    [ER_U8] = 1,  [ER_F16] = 2, [ER_BF16] = 2};

size_t er_dtype_size(enum er_dtype dtype)
{
    return (unsigned)dtype < ER_DTYPE_COUNT ? dtype_bytes[dtype] : 0;
}

size_t er_algo_acc_size(enum er_dtype dtype)
{
    return dtype_bytes[dtype] == 2 ? sizeof(float) : dtype_bytes[dtype];
}

#define WIDEN(suffix)                                                                              \
    static void widen_##suffix(float *dst, const uint16_t *src, size_t n)                          \
    {                                                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            dst[i] = er_float_of_##suffix(src[i]);                                                 \
    }                                                                                              \
    static void narrow_##suffix(uint16_t *dst, const float *src, size_t n)                         \
    {                                                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            dst[i] = er_##suffix##_of_float(src[i]);                                               \
    }

WIDEN(f16)
WIDEN(bf16)

/* Towards zero for integers. */
#define DIVIDE(type)                                                                               \
    for (size_t i = 0; i < n; i++)                                                                 \
        ((type *)dst)[i] = (type)(((type *)dst)[i] / (type)size);

static void divide(void *dst, size_t n, enum er_dtype acc_type, int size)
{
    switch (acc_type) {
    case ER_F16:
    case ER_BF16: /* accumulated as float32 */
    case ER_F32:
        DIVIDE(float)
        break;
    case ER_F64:
        DIVIDE(double)
        break;
    case ER_I32:
        DIVIDE(int32_t)
        break;
    case ER_I64:
        DIVIDE(int64_t)
        break;
    case ER_U8: /* sums of bytes have wrapped already */
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)dst)[i] = (uint8_t)(((uint8_t *)dst)[i] / size);
        break;
    case ER_DTYPE_COUNT:
        break;
    }
}

/* One block of one source as accumulator elements: as it lies, or widened into `room`. */
static const void *operand(float *room, const void *src, size_t n, enum er_dtype dtype)
{
    if (dtype == ER_F16)
        widen_f16(room, src, n);
    else if (dtype == ER_BF16)
        widen_bf16(room, src, n);
    else
        return src;
    return room;
}

enum { BLOCK_ELEMENTS = BLOCK_BYTES / sizeof(float) };

static void fold_block(void *acc, bool first, const void *const *src, int src_n, size_t at,
                       size_t n, enum er_dtype dtype, enum er_reduce reduce)
{
    kernel_fn kernel = kernels[dtype][reduce];
    size_t width = dtype_bytes[dtype];
    float room[2][BLOCK_ELEMENTS];
    const void *left = acc;
    int i = 0;

    if (first)
        left = operand(room[0], (const char *)src[i++] + at * width, n, dtype);
    if (i == src_n && left != acc)
        memmove(acc, left, n * er_algo_acc_size(dtype));
    for (; i < src_n; i++) {
        kernel(acc, left, operand(room[1], (const char *)src[i] + at * width, n, dtype), n);
        left = acc;
    }
}

void er_algo_fold(void *acc, bool first, const void *const *src, int src_n, size_t n,
                  enum er_dtype dtype, enum er_reduce reduce)
{
    size_t width = er_algo_acc_size(dtype), step = BLOCK_BYTES / width;

    assert(src_n >= 1);
    for (size_t at = 0; at < n; at += step)
        fold_block((char *)acc + at * width, first, src, src_n, at, n - at < step ? n - at : step,
                   dtype, reduce);
}

void er_algo_finish(void *dst, const void *acc, size_t n, enum er_dtype dtype,
                    enum er_reduce reduce, int size)
{
    size_t width = er_algo_acc_size(dtype), step = BLOCK_BYTES / width;

    for (size_t at = 0; at < n; at += step) {
        size_t count = n - at < step ? n - at : step;
        const void *from = (const char *)acc + at * width;
        void *to = (char *)dst + at * dtype_bytes[dtype];
        float room[BLOCK_ELEMENTS];

        if (reduce == ER_AVG) {
            void *quotient = dtype_bytes[dtype] == 2 ? room : to;

            memmove(quotient, from, count * width);
            divide(quotient, count, dtype, size);
            from = quotient;
        }
        if (dtype == ER_F16)
            narrow_f16(to, from, count);
        else if (dtype == ER_BF16)
            narrow_bf16(to, from, count);
        else if (to != from)
            memmove(to, from, count * width);
    }
}

void er_algo_reduce(void *dst, const void *const *src, int src_n, size_t n, enum er_dtype dtype,
                    enum er_reduce reduce)
{
    size_t width = dtype_bytes[dtype], step = BLOCK_BYTES / er_algo_acc_size(dtype);

    for (size_t at = 0; at < n; at += step) {
        size_t count = n - at < step ? n - at : step;
        char *to = (char *)dst + at * width;
        float room[BLOCK_ELEMENTS];
        void *acc = width == 2 ? (void *)room : to;

        fold_block(acc, true, src, src_n, at, count, dtype, reduce);
        if (acc != to || reduce == ER_AVG)
            er_algo_finish(to, acc, count, dtype, reduce, src_n);
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
