#pragma once
/*
 * Numbers that another program made: tests/golden/NAME, lines of "name dimensions dims values".
 * For Criterion programs; anything missing ends the test.
 */
#include "trainer/shape.h"

struct golden; /* opaque */

struct golden *golden_open(const char *name);
void golden_close(struct golden *golden);
/* er_shape_count() values, owned by `golden`. golden_find(): NULL when there is no such array. */
const float *golden_find(const struct golden *golden, const char *name, struct er_shape *ret_shape);
const float *golden_get(const struct golden *golden, const char *name, struct er_shape *ret_shape);
