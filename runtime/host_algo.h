#pragma once
/*
 * The arithmetic of the host backend: who owns which elements, and reductions. Every element is
 * reduced in rank order, ((x0 + x1) + x2) + ..., whatever the size, segment or transport, so that
 * all ranks hold the same bits. Pure.
 */
#include <stdbool.h>
#include <stddef.h>

#include "runtime/comm.h"

struct er_segment {
    size_t begin, end; /* elements, [begin, end) */
};

/* The part of n elements that rank `owner` of `size` reduces. Parts are contiguous, in rank order,
 * cover [0, n) and begin at multiples of 64 elements (no cache line has two owners); some are empty
 * when n is small. */
struct er_segment er_algo_segment(size_t n, int size, int owner);

/*
 * dst[i] = src[0][i] op src[1][i] op ... op src[src_n - 1][i], from the left, n elements; an
 * average is divided by src_n. src_n >= 1; `dst` may be src[0] or src[1], and overlaps no other
 * source. Integer sums wrap; min and max keep the right operand when the operands do not compare
 * (NaN).
 */
void er_algo_reduce(void *dst, const void *const *src, int src_n, size_t n, enum er_dtype dtype,
                    enum er_reduce reduce);

/*
 * The same in two halves, for results that go from hand to hand: fold sources into an accumulator
 * (`first`: it has no value yet), and make the result of it; `size` is the number of all sources.
 * An accumulator's element has er_algo_acc_size() bytes: float32 for the 16-bit types, else the
 * type itself. It overlaps no source; `dst` may be `acc`.
 */
size_t er_algo_acc_size(enum er_dtype dtype);
void er_algo_fold(void *acc, bool first, const void *const *src, int src_n, size_t n,
                  enum er_dtype dtype, enum er_reduce reduce);
void er_algo_finish(void *dst, const void *acc, size_t n, enum er_dtype dtype,
                    enum er_reduce reduce, int size);

/* Fold `from` into `into`, as comm.h describes each field of the vote. */
void er_algo_vote(struct er_vote *into, const struct er_vote *from);
