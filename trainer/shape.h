#pragma once
/* Shapes of dense row-major tensors: 1 to 4 dimensions, none of them 0. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_SHAPE_DIMS_MAX 4
#define ER_SHAPE_TEXT_MAX 96

struct er_shape {
    uint32_t ndim;
    size_t dim[ER_SHAPE_DIMS_MAX]; /* outermost first; those from `ndim` on are 0 */
};

/* (a), and (a, b): not checked yet, see er_shape_check(). */
struct er_shape er_shape_1d(size_t a);
struct er_shape er_shape_2d(size_t a, size_t b);
/* The same number of dimensions, and the same dimensions: (7) is not (7, 1). */
bool er_shape_equal(const struct er_shape *a, const struct er_shape *b);
/* Product of the dimensions. The shape has been checked. */
size_t er_shape_count(const struct er_shape *shape);
/* -EINVAL: no dimensions, too many, one of them 0, or more bytes of float32 than a size_t counts;
 * the text names `name`. */
int er_shape_check(const struct er_shape *shape, const char *name, struct er_error *err);
/* "(128, 784)"; "(7)" for one dimension. */
void er_shape_format(const struct er_shape *shape, char ret_text[ER_SHAPE_TEXT_MAX]);

#ifdef __cplusplus
}
#endif
