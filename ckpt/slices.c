#include "ckpt/slices.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [ER_CKPT_F32] = {"F32", 4}, [ER_CKPT_F64] = {"F64", 8}, [ER_CKPT_I64] = {"I64", 8},
    [ER_CKPT_U8] = {"U8", 1},   [ER_CKPT_F16] = {"F16", 2}, [ER_CKPT_BF16] = {"BF16", 2},
};

#define PIECE_MIN_BYTES (256u << 10)
#define PIECES_MAX      256u /* at least half of it, once pieces are larger than the minimum */

#define DTYPE_N (sizeof(dtypes) / sizeof(dtypes[0]))

size_t er_ckpt_dtype_size(enum er_ckpt_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *er_ckpt_dtype_name(enum er_ckpt_dtype dtype)
{
    return dtypes[dtype].name;
}

int er_ckpt_dtype_parse(const char *text, enum er_ckpt_dtype *ret, struct er_error *err)
{
    for (size_t i = 0; i < DTYPE_N; i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            *ret = (enum er_ckpt_dtype)i;
            return 0;
        }
    }
    return er_error_set(err, ER_E_CORRUPT, "unknown data type '%.16s'", text);
}

uint64_t er_ckpt_elements(uint32_t ndim, const uint64_t *shape)
{
    uint64_t n = 1;
    if (ndim == 0 || ndim > ER_CKPT_DIMS_MAX)
        return 0;
    for (uint32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0 || shape[i] > ER_CKPT_ELEMENTS_MAX / n)
            return 0;
        n *= shape[i];
    }
    return n;
}

static int check_name(const char *name, struct er_error *err)
{
    size_t n = name ? strlen(name) : 0;
    if (n == 0 || n >= ER_CKPT_NAME_MAX)
        return er_error_set(err, -EINVAL, "a tensor's name has 1 to %d bytes, this one %zu",
                            ER_CKPT_NAME_MAX - 1, n);
    for (size_t i = 0; i < n; i++)
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '/' || name[i] == '@')
            return er_error_set(
                err, -EINVAL,
                "tensor name '%s': blanks, '/', '@' and bytes outside ASCII are not allowed", name);
    if (strstr(name, "..") || strcmp(name, "__metadata__") == 0)
        return er_error_set(err, -EINVAL, "tensor name '%s' is not allowed", name);
    return 0;
}

int er_slice_check(const struct er_slice *slice, struct er_error *err)
{
    int rc = check_name(slice->name, err);
    if (rc < 0)
        return rc;
    if ((size_t)slice->dtype >= DTYPE_N)
        return er_error_set(err, -EINVAL, "tensor '%s': unknown data type %d", slice->name,
                            (int)slice->dtype);
    uint64_t total = er_ckpt_elements(slice->ndim, slice->shape);
    if (total == 0)
        return er_error_set(err, -EINVAL, "tensor '%s': impossible shape", slice->name);
    if (slice->count > total || slice->offset > total - slice->count)
        return er_error_set(err, -EINVAL,
                            "tensor '%s': slice [%llu, +%llu) is outside its %llu elements",
                            slice->name, (unsigned long long)slice->offset,
                            (unsigned long long)slice->count, (unsigned long long)total);
    return 0;
}

static uint64_t row_elements(const struct er_slice *slice)
{
    return er_ckpt_elements(slice->ndim, slice->shape) / slice->shape[0];
}

struct er_slice er_slice_part(const struct er_slice *slice, int part, int parts)
{
    struct er_slice out = *slice;
    if (!slice->replicated)
        return out;
    uint64_t row = row_elements(slice),
             unit = slice->offset % row == 0 && slice->count % row == 0 ? row : 1;
    uint64_t units = slice->count / unit, i = (uint64_t)part, k = (uint64_t)parts;
    uint64_t first = units / k * i + (i < units % k ? i : units % k);
    uint64_t n = units / k + (i < units % k ? 1 : 0);
    out.offset = slice->offset + first * unit;
    out.count = n * unit;
    out.data = (char *)slice->data + first * unit * er_ckpt_dtype_size(slice->dtype);
    return out;
}

uint32_t er_slice_shape(const struct er_slice *slice, uint64_t ret_shape[ER_CKPT_DIMS_MAX])
{
    uint64_t row = row_elements(slice);
    if (slice->offset % row || slice->count % row) {
        ret_shape[0] = slice->count;
        return 1;
    }
    memcpy(ret_shape, slice->shape, slice->ndim * sizeof(*ret_shape));
    ret_shape[0] = slice->count / row;
    return slice->ndim;
}

uint64_t er_overlap(uint64_t a, uint64_t an, uint64_t b, uint64_t bn, uint64_t *ret_first)
{
    uint64_t first = a > b ? a : b, a_end = a + an, b_end = b + bn;
    uint64_t end = a_end < b_end ? a_end : b_end;
    *ret_first = first;
    return end > first ? end - first : 0;
}

uint64_t er_piece_bytes(uint64_t bytes)
{
    uint64_t piece = PIECE_MIN_BYTES;
    while (piece < bytes / PIECES_MAX + 1)
        piece *= 2;
    return piece;
}

uint64_t er_piece_n(uint64_t bytes)
{
    uint64_t piece = er_piece_bytes(bytes);
    return bytes / piece + (bytes % piece ? 1 : 0);
}
