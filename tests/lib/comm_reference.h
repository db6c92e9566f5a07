#pragma once
/* What a reduction over ranks must give, bit for bit: a plain loop in rank order. */
#include <stddef.h>
#include <stdint.h>

#include "runtime/comm.h"

/* The array of a rank: values whose float sums depend on the order. */
void reference_fill(void *buf, size_t n, enum er_dtype dtype, int rank, uint64_t salt);
/* The reduction of those arrays of ranks 0 to size - 1. */
void reference_reduce(void *want, size_t n, enum er_dtype dtype, enum er_reduce reduce, int size,
                      uint64_t salt);
