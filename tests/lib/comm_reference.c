#include "tests/lib/comm_reference.h"

#include <string.h>

#include "base/half.h"
#include "base/rand.h"

/* One element as the type, from 64 random bits. */
static void make(void *at, enum er_dtype dtype, uint64_t x)
{
    double scale = (double)(1ull << (x >> 59));
    float f = (float)((double)(int32_t)x * 1e-6 * scale),
          small = (float)((double)(int32_t)x * 1e-8);
    double d = (double)(int64_t)x * 1e-9 * scale;
    uint16_t h = dtype == ER_F16 ? er_f16_of_float(small) : er_bf16_of_float(f);

    switch (dtype) {
    case ER_F32:
        memcpy(at, &f, sizeof(f));
        break;
    case ER_F64:
        memcpy(at, &d, sizeof(d));
        break;
    case ER_F16:
    case ER_BF16:
        memcpy(at, &h, sizeof(h));
        break;
    case ER_I32:
    case ER_I64:
    case ER_U8:
    case ER_DTYPE_COUNT:
        memcpy(at, &x, er_dtype_size(dtype));
        break;
    }
}

static uint64_t bits_of(size_t i, int rank, uint64_t salt)
{
    return er_rand_mix(salt ^ ((uint64_t)rank << 40) ^ i);
}

void reference_fill(void *buf, size_t n, enum er_dtype dtype, int rank, uint64_t salt)
{
    size_t width = er_dtype_size(dtype);

    for (size_t i = 0; i < n; i++)
        make((char *)buf + i * width, dtype, bits_of(i, rank, salt));
}

/* `sum_type`: in which sums are made and rounded; `wide`: how an element is read. */
#define FOLD(type, sum_type, read, write)                                                          \
    {                                                                                              \
        type raw;                                                                                  \
        sum_type acc, x;                                                                           \
                                                                                                   \
        make(&raw, dtype, bits_of(i, 0, salt));                                                    \
        acc = read(raw);                                                                           \
        for (int r = 1; r < size; r++) {                                                           \
            make(&raw, dtype, bits_of(i, r, salt));                                                \
            x = read(raw);                                                                         \
            acc = reduce == ER_MIN   ? (acc < x ? acc : x)                                         \
                  : reduce == ER_MAX ? (acc > x ? acc : x)                                         \
                                     : add_##sum_type(acc, x);                                     \
        }                                                                                          \
        if (reduce == ER_AVG)                                                                      \
            acc = (sum_type)(acc / (sum_type)size);                                                \
        raw = write(acc);                                                                          \
        memcpy(at, &raw, sizeof(raw));                                                             \
        break;                                                                                     \
    }

#define ADD(type, sum_type)                                                                        \
    static type add_##type(type a, type b)                                                         \
    {                                                                                              \
        return (type)((sum_type)a + (sum_type)b);                                                  \
    }

ADD(float, float)
ADD(double, double)
ADD(int32_t, uint32_t)
ADD(int64_t, uint64_t)
ADD(uint8_t, uint8_t)

#define AS_IT_IS(x) (x)

void reference_reduce(void *want, size_t n, enum er_dtype dtype, enum er_reduce reduce, int size,
                      uint64_t salt)
{
    for (size_t i = 0; i < n; i++) {
        char *at = (char *)want + i * er_dtype_size(dtype);

        switch (dtype) {
        case ER_F32:
            FOLD(float, float, AS_IT_IS, AS_IT_IS)
        case ER_F64:
            FOLD(double, double, AS_IT_IS, AS_IT_IS)
        case ER_I32:
            FOLD(int32_t, int32_t, AS_IT_IS, AS_IT_IS)
        case ER_I64:
            FOLD(int64_t, int64_t, AS_IT_IS, AS_IT_IS)
        case ER_F16:
            FOLD(uint16_t, float, er_float_of_f16, er_f16_of_float)
        case ER_BF16:
            FOLD(uint16_t, float, er_float_of_bf16, er_bf16_of_float)
        case ER_U8:
        case ER_DTYPE_COUNT:
            FOLD(uint8_t, uint8_t, AS_IT_IS, AS_IT_IS)
        }
    }
}
