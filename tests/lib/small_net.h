#pragma once
/* What programs have in common that train a small network by hand on ranks of the fake world: its
 * memory, the data, and a libelastic that takes every commit and hears of nothing. */
#include "trainer/engine.h"
#include "trainer/flat.h"

/* One number of many in -1 to 1; `op` tells parameters, samples and so on apart. */
float er_test_noise(uint64_t a, uint32_t op, uint64_t i);
