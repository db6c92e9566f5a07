#pragma once
/*
 * Which part of a tensor is where: pure arithmetic on slices (contiguous pieces of a row-major
 * tensor, in elements).
 */
#include "ckpt/ckpt.h"

#define ER_CKPT_ELEMENTS_MAX (1ull << 50) /* of one tensor: sizes in bytes never overflow */

size_t er_ckpt_dtype_size(enum er_ckpt_dtype dtype);
/* safetensors' name: "F32", "F64", "I64", "U8". */
const char *er_ckpt_dtype_name(enum er_ckpt_dtype dtype);
int er_ckpt_dtype_parse(const char *text, enum er_ckpt_dtype *ret, struct er_error *err);

/* Elements of a shape, or 0 when it is empty, has a zero, or exceeds ER_CKPT_ELEMENTS_MAX. */
uint64_t er_ckpt_elements(uint32_t ndim, const uint64_t *shape);

/* Name, type, shape and range make sense. The text names the tensor. */
int er_slice_check(const struct er_slice *slice, struct er_error *err);

/* The part of `slice` that writer `part` of `parts` stores: whole rows of a replicated slice that
 * covers its tensor, an even share of elements of any other replicated one, everything of one that
 * is not replicated. count may be 0. */
struct er_slice er_slice_part(const struct er_slice *slice, int part, int parts);

/* Shape under which a slice stands in a shard: whole rows keep the trailing dimensions, anything
 * else is flat. */
uint32_t er_slice_shape(const struct er_slice *slice, uint64_t ret_shape[ER_CKPT_DIMS_MAX]);

/* Overlap of [a, a + an) and [b, b + bn): its start in *ret_first; length, 0 when there is none. */
uint64_t er_overlap(uint64_t a, uint64_t an, uint64_t b, uint64_t bn, uint64_t *ret_first);

/* Bytes of one piece of a slice of `bytes`: pieces have digests of their own, so that a part of a
 * slice can be read and verified alone. A power of two; at most 256 pieces, the last one shorter.
 */
uint64_t er_piece_bytes(uint64_t bytes);
uint64_t er_piece_n(uint64_t bytes);
