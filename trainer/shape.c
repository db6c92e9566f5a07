#include "trainer/shape.h"

#include <errno.h>
#include <stdio.h>

struct er_shape er_shape_1d(size_t a)
{
    return (struct er_shape){.ndim = 1, .dim = {a}};
}

struct er_shape er_shape_2d(size_t a, size_t b)
{
    return (struct er_shape){.ndim = 2, .dim = {a, b}};
}

bool er_shape_equal(const struct er_shape *a, const struct er_shape *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (uint32_t i = 0; i < a->ndim; i++) {
        if (a->dim[i] != b->dim[i])
            return false;
    }
    return true;
}

size_t er_shape_count(const struct er_shape *shape)
{
    size_t count = 1;

    for (uint32_t i = 0; i < shape->ndim; i++)
        count *= shape->dim[i];
    return count;
}

int er_shape_check(const struct er_shape *shape, const char *name, struct er_error *err)
{
    size_t bytes = sizeof(float);

    if (shape->ndim == 0 || shape->ndim > ER_SHAPE_DIMS_MAX)
        return er_error_set(err, -EINVAL, "tensor '%s': %u dimensions, expected 1 to %d", name,
                            shape->ndim, ER_SHAPE_DIMS_MAX);
    for (uint32_t i = 0; i < shape->ndim; i++) {
        char text[ER_SHAPE_TEXT_MAX];

        if (shape->dim[i] != 0 && !__builtin_mul_overflow(bytes, shape->dim[i], &bytes) &&
            bytes <= PTRDIFF_MAX)
            continue;
        er_shape_format(shape, text);
        return er_error_set(err, -EINVAL, "tensor '%s': shape %s is %s", name, text,
                            shape->dim[i] == 0 ? "empty" : "too large");
    }
    return 0;
}

void er_shape_format(const struct er_shape *shape, char ret_text[ER_SHAPE_TEXT_MAX])
{
    uint32_t ndim = shape->ndim < ER_SHAPE_DIMS_MAX ? shape->ndim : ER_SHAPE_DIMS_MAX;
    size_t at = 0;

    /* 4 dimensions of at most 20 digits with ", " between always fit. */
    ret_text[at++] = '(';
    for (uint32_t i = 0; i < ndim; i++)
        at += (size_t)snprintf(ret_text + at, ER_SHAPE_TEXT_MAX - at, "%s%zu", i ? ", " : "",
                               shape->dim[i]);
    ret_text[at++] = ')';
    ret_text[at] = '\0';
}
