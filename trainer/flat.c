#include "trainer/flat.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

_Static_assert(ER_CKPT_DIMS_MAX >= ER_SHAPE_DIMS_MAX, "a slice holds any shape");

static size_t padded(size_t count)
{
    const size_t unit = ER_FLAT_ALIGN / sizeof(float);

    return (count + unit - 1) / unit * unit;
}

void er_flat_init(struct er_flat *flat, struct er_flat_param *table, size_t table_n,
                  const char *const *state_names, size_t states_n)
{
    assert(states_n <= ER_FLAT_STATES_MAX);
    *flat = (struct er_flat){.params = table, .params_max = table_n, .states_n = states_n};
    for (size_t i = 0; i < states_n; i++)
        flat->state_names[i] = state_names[i];
}

static int check_name(const struct er_flat *flat, const char *name, struct er_error *err)
{
    size_t n = strlen(name);

    if (n == 0 || n >= ER_FLAT_NAME_MAX)
        return er_error_set(err, -EINVAL, "parameter name '%.*s': %zu bytes, expected 1 to %d",
                            ER_FLAT_NAME_MAX, name, n, ER_FLAT_NAME_MAX - 1);
    for (size_t i = 0; i < n; i++) {
        if (name[i] <= ' ' || name[i] > '~' || strchr("/+|", name[i]))
            return er_error_set(err, -EINVAL,
                                "parameter name '%s': blanks, '/', '+', '|' and control "
                                "characters are not allowed",
                                name);
    }
    if (strstr(name, ".."))
        return er_error_set(err, -EINVAL, "parameter name '%s': \"..\" is not allowed", name);
    for (size_t i = 0; i < flat->params_n; i++) {
        if (strcmp(flat->params[i].name, name) == 0)
            return er_error_set(err, -EINVAL, "parameter '%s' is there already", name);
    }
    return 0;
}

int er_flat_add(struct er_flat *flat, const char *name, const struct er_shape *shape,
                size_t *ret_index, struct er_error *err)
{
    struct er_flat_param *param;
    int rc;

    assert(!flat->block[ER_FLAT_VALUE]);
    rc = check_name(flat, name, err);
    if (rc == 0)
        rc = er_shape_check(shape, name, err);
    if (rc < 0)
        return rc;
    if (flat->params_n == flat->params_max)
        return er_error_set(err, -ENOSPC, "parameter '%s': the table of %zu is full", name,
                            flat->params_max);
    param = &flat->params[flat->params_n];
    memset(param, 0, sizeof(*param));
    memcpy(param->name, name, strlen(name) + 1);
    for (size_t i = 0; i < flat->states_n; i++)
        snprintf(param->state_name[i], ER_CKPT_NAME_MAX, "optim.%.16s.%.95s", flat->state_names[i],
                 name);
    param->shape = *shape;
    param->first = flat->total;
    param->count = er_shape_count(shape);
    flat->total += padded(param->count);
    if (ret_index)
        *ret_index = flat->params_n;
    flat->params_n++;
    return 0;
}

size_t er_flat_bytes(const struct er_flat *flat)
{
    return (ER_FLAT_STATE + flat->states_n) * flat->total * sizeof(float);
}

void er_flat_bind(struct er_flat *flat, void *memory)
{
    memset(memory, 0, er_flat_bytes(flat));
    er_flat_place(flat, memory);
}

void er_flat_place(struct er_flat *flat, void *memory)
{
    assert((uintptr_t)memory % ER_FLAT_ALIGN == 0);
    for (size_t i = 0; i < ER_FLAT_STATE + flat->states_n; i++)
        flat->block[i] = (float *)memory + i * flat->total;
}

float *er_flat_at(const struct er_flat *flat, size_t block, size_t index)
{
    assert(block < ER_FLAT_STATE + flat->states_n && index < flat->params_n);
    return flat->block[block] + flat->params[index].first;
}

void er_flat_spans(const struct er_flat *flat, size_t block, struct er_span *ret)
{
    for (size_t i = 0; i < flat->params_n; i++) {
        ret[i] = (struct er_span){.name = flat->params[i].name,
                                  .ptr = er_flat_at(flat, block, i),
                                  .count = padded(flat->params[i].count)};
    }
}

size_t er_flat_slices_n(const struct er_flat *flat)
{
    return flat->params_n * (1 + flat->states_n);
}

static struct er_slice slice_of(const struct er_flat_param *param, const char *name, float *data)
{
    struct er_slice slice = {.name = name,
                             .dtype = ER_CKPT_F32,
                             .ndim = param->shape.ndim,
                             .count = param->count,
                             .data = data,
                             .replicated = true};

    for (uint32_t i = 0; i < param->shape.ndim; i++)
        slice.shape[i] = param->shape.dim[i];
    return slice;
}

size_t er_flat_slices(const struct er_flat *flat, struct er_slice *ret)
{
    size_t n = 0;

    for (size_t i = 0; i < flat->params_n; i++)
        ret[n++] =
            slice_of(&flat->params[i], flat->params[i].name, er_flat_at(flat, ER_FLAT_VALUE, i));
    for (size_t s = 0; s < flat->states_n; s++) {
        for (size_t i = 0; i < flat->params_n; i++)
            ret[n++] = slice_of(&flat->params[i], flat->params[i].state_name[s],
                                er_flat_at(flat, ER_FLAT_STATE + s, i));
    }
    return n;
}

struct er_slice er_flat_piece(const struct er_flat *flat, size_t which, size_t param, size_t offset,
                              size_t count, float *data)
{
    const struct er_flat_param *p = &flat->params[param];
    struct er_slice slice = slice_of(p, which == 0 ? p->name : p->state_name[which - 1], data);

    slice.offset = offset;
    slice.count = count;
    slice.replicated = false;
    return slice;
}
