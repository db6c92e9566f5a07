#include "tests/lib/golden.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAYS_MAX = 256, NAME_MAX_ = 64 };

struct array {
    char name[NAME_MAX_];
    struct er_shape shape;
    float *values;
};

struct golden {
    struct array arrays[ARRAYS_MAX];
    size_t n;
};

static void read_array(FILE *file, struct array *array)
{
    struct er_error err = ER_ERROR_INIT;
    size_t count;

    cr_assert_eq(fscanf(file, "%u", &array->shape.ndim), 1, "%s", array->name);
    cr_assert_leq(array->shape.ndim, ER_SHAPE_DIMS_MAX, "%s", array->name);
    for (uint32_t i = 0; i < array->shape.ndim; i++)
        cr_assert_eq(fscanf(file, "%zu", &array->shape.dim[i]), 1, "%s", array->name);
    cr_assert_eq(er_shape_check(&array->shape, array->name, &err), 0, "%s", err.text);
    count = er_shape_count(&array->shape);
    array->values = calloc(count, sizeof(float));
    cr_assert_not_null(array->values);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(fscanf(file, "%f", &array->values[i]), 1, "%s: value %zu", array->name, i);
}

struct golden *golden_open(const char *name)
{
    struct golden *golden = calloc(1, sizeof(*golden));
    char path[4096];
    FILE *file;

    cr_assert_not_null(golden);
    snprintf(path, sizeof(path), "%s/tests/golden/%s", ER_SOURCE_ROOT, name);
    file = fopen(path, "re");
    cr_assert_not_null(file, "%s", path);
    while (fscanf(file, "%63s", golden->arrays[golden->n].name) == 1) {
        read_array(file, &golden->arrays[golden->n++]);
        cr_assert_lt(golden->n, ARRAYS_MAX);
    }
    fclose(file);
    return golden;
}

void golden_close(struct golden *golden)
{
    for (size_t i = 0; i < golden->n; i++)
        free(golden->arrays[i].values);
    free(golden);
}

const float *golden_find(const struct golden *golden, const char *name, struct er_shape *ret_shape)
{
    for (size_t i = 0; i < golden->n; i++) {
        if (strcmp(golden->arrays[i].name, name) == 0) {
            *ret_shape = golden->arrays[i].shape;
            return golden->arrays[i].values;
        }
    }
    return NULL;
}

const float *golden_get(const struct golden *golden, const char *name, struct er_shape *ret_shape)
{
    const float *values = golden_find(golden, name, ret_shape);

    cr_assert_not_null(values, "'%s' is not in the golden file", name);
    return values;
}
