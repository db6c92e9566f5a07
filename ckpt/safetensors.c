#include "ckpt/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/field.h"
#include "ckpt/slices.h"

static int format_tensor(struct er_buf *buf, const struct er_st_tensor *t, bool first)
{
    int rc = er_buf_add_str(buf, first ? "" : ",");
    if (rc == 0)
        rc = er_json_quote(buf, t->name, strlen(t->name));
    if (rc == 0)
        rc = er_buf_printf(buf, ":{\"dtype\":\"%s\",\"shape\":[", er_ckpt_dtype_name(t->dtype));
    for (uint32_t i = 0; rc == 0 && i < t->ndim; i++)
        rc = er_buf_printf(buf, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    if (rc == 0)
        rc = er_buf_printf(buf, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->begin,
                           (unsigned long long)t->end);
    return rc;
}

static int format_json(struct er_buf *buf, const struct er_st_tensor *tensors, size_t n,
                       const char *metadata)
{
    int rc = er_buf_add_str(buf, "{");
    if (rc == 0 && metadata)
        rc = er_buf_printf(buf, "\"__metadata__\":%s", metadata);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = format_tensor(buf, &tensors[i], i == 0 && !metadata);
    if (rc == 0)
        rc = er_buf_add_str(buf, "}");
    return rc;
}

int er_st_format(struct er_buf *buf, const struct er_st_tensor *tensors, size_t n,
                 const char *metadata, struct er_error *err)
{
    static const char length_field[8];
    size_t start = buf->len;
    int rc = er_buf_add(buf, length_field, sizeof(length_field));
    if (rc == 0)
        rc = format_json(buf, tensors, n, metadata);
    while (rc == 0 && (buf->len - start) % ER_ST_ALIGN)
        rc = er_buf_add(buf, " ", 1);
    if (rc < 0)
        return er_error_set(err, rc, "safetensors header of %zu tensors: %s", n, er_error_name(rc));
    uint64_t length = buf->len - start - 8;
    for (int i = 0; i < 8; i++)
        buf->data[start + (size_t)i] = (char)(length >> (8 * i));
    return 0;
}

static int corrupt(struct er_error *err, const char *name, const char *what)
{
    return er_error_set(err, ER_E_CORRUPT, "safetensors header: tensor '%.64s': %s", name, what);
}

static bool get_u64(const json_t *value, uint64_t *ret)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(value);
    return true;
}

static int parse_tensor(const char *name, const json_t *item, struct er_st_tensor *ret,
                        struct er_error *err)
{
    const json_t *dtype = json_object_get(item, "dtype"), *shape = json_object_get(item, "shape"),
                 *offsets = json_object_get(item, "data_offsets");
    if (strlen(name) >= sizeof(ret->name))
        return corrupt(err, name, "name too long");
    if (!json_is_string(dtype) || !json_is_array(shape) || json_array_size(offsets) != 2)
        return corrupt(err, name, "dtype, shape or data_offsets missing");
    if (json_array_size(shape) == 0 || json_array_size(shape) > ER_CKPT_DIMS_MAX)
        return corrupt(err, name, "more dimensions than supported");
    *ret = (struct er_st_tensor){.ndim = (uint32_t)json_array_size(shape)};
    memcpy(ret->name, name, strlen(name) + 1);
    for (uint32_t i = 0; i < ret->ndim; i++)
        if (!get_u64(json_array_get(shape, i), &ret->shape[i]))
            return corrupt(err, name, "shape is not a list of counts");
    if (!get_u64(json_array_get(offsets, 0), &ret->begin) ||
        !get_u64(json_array_get(offsets, 1), &ret->end))
        return corrupt(err, name, "data_offsets are not counts");
    int rc = er_ckpt_dtype_parse(json_string_value(dtype), &ret->dtype, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "safetensors header: tensor '%.64s'", name);
    uint64_t n = er_ckpt_elements(ret->ndim, ret->shape);
    if (n == 0 || ret->end < ret->begin ||
        ret->end - ret->begin != n * er_ckpt_dtype_size(ret->dtype))
        return corrupt(err, name, "data_offsets do not fit the shape");
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct er_st_tensor *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int parse_tensors(json_t *root, uint64_t data_bytes, struct er_st_tensor *tensors,
                         size_t *ret_n, struct er_error *err)
{
    const char *name;
    json_t *item;
    size_t n = 0;
    json_object_foreach(root, name, item)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        int rc = parse_tensor(name, item, &tensors[n], err);
        if (rc < 0)
            return rc;
        n++;
    }
    qsort(tensors, n, sizeof(*tensors), by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < n; at = tensors[i++].end)
        if (tensors[i].begin != at)
            return corrupt(err, tensors[i].name, "overlaps its neighbour or leaves a hole");
    if (at != data_bytes)
        return er_error_set(err, ER_E_CORRUPT,
                            "safetensors file: %llu bytes of data, the header speaks of %llu",
                            (unsigned long long)data_bytes, (unsigned long long)at);
    *ret_n = n;
    return 0;
}

static int header_length(const unsigned char *data, size_t n, uint64_t file_bytes, uint64_t *ret,
                         struct er_error *err)
{
    uint64_t length = 0;
    if (file_bytes < 8)
        return er_error_set(err, ER_E_CORRUPT, "safetensors file of %llu bytes is truncated",
                            (unsigned long long)file_bytes);
    for (int i = 0; i < 8 && n >= 8; i++)
        length |= (uint64_t)data[i] << (8 * i);
    if (n >= 8 && (length > ER_ST_HEADER_MAX || length > file_bytes - 8))
        return er_error_set(err, ER_E_CORRUPT,
                            "safetensors header claims %llu bytes in a file of %llu",
                            (unsigned long long)length, (unsigned long long)file_bytes);
    *ret = length;
    return 0;
}

int er_st_parse(const void *data, size_t n, uint64_t file_bytes, struct er_st_tensor **ret,
                size_t *ret_n, uint64_t *ret_data_at, struct er_error *err)
{
    uint64_t length = 0;
    int rc = header_length(data, n, file_bytes, &length, err);
    if (rc < 0)
        return rc;
    *ret_data_at = 8 + length;
    if (n < 8 + length)
        return -EAGAIN;
    json_error_t why;
    json_t *root = json_loadb((const char *)data + 8, length, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root) || json_object_size(root) > ER_ST_TENSORS_MAX) {
        json_decref(root);
        return er_error_set(err, ER_E_CORRUPT,
                            "safetensors header is not a JSON object of tensors: %s", why.text);
    }
    struct er_st_tensor *tensors = calloc(json_object_size(root) + 1, sizeof(*tensors));
    rc = tensors ? parse_tensors(root, file_bytes - 8 - length, tensors, ret_n, err)
                 : er_error_set(err, -ENOMEM, "safetensors header: no memory");
    json_decref(root);
    if (rc < 0) {
        free(tensors);
        return rc;
    }
    *ret = tensors;
    return 0;
}
