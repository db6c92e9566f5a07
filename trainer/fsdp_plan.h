#pragma once
/*
 * How parameters are divided into units that are gathered and freed together, and units into one
 * shard per rank. Pure: the memory is the caller's.
 *
 *   unit (its parameters one after another, padded)  | w0 ........ | b0 | pad |
 *   shards of 3 ranks                                |   0   |   1   |   2   |
 *   a rank's memory                                  | shard of unit 0 | shard of unit 1 | ...
 *
 * A shard is a whole number of cache lines, so a unit's count is padded to a multiple of that.
 */
#include "trainer/flat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters [first, first + params_n) of the flat table. */
struct er_fsdp_unit {
    const char *name;
    size_t first, params_n;
    bool keep; /* stays gathered during a whole pass: parameters used at both ends of a model */
    size_t elements; /* without the padding behind it */
    size_t count;    /* elements, padding included: size shards */
    size_t shard;    /* elements of one rank */
    size_t mine;     /* where a rank's shard begins in its own memory */
};

struct er_fsdp_plan {
    const struct er_flat *flat; /* borrowed: its table, not its memory */
    struct er_fsdp_unit *units; /* the caller's; name, first, params_n, keep are given */
    size_t units_n;
    int size;     /* ranks */
    size_t total; /* elements of a rank's memory */
};

/* Fills in the rest. ER_E_USAGE: units that do not cover the table one after another, or one
 * without parameters or name. */
int er_fsdp_plan_make(struct er_fsdp_plan *plan, struct er_error *err);
/* Unit of a parameter. */
size_t er_fsdp_unit_of(const struct er_fsdp_plan *plan, size_t param);
/* Where a parameter begins in its gathered unit. */
size_t er_fsdp_param_at(const struct er_fsdp_plan *plan, size_t param);

/* The part of a parameter that a rank holds: elements [offset, offset + count) of it, at `mine` in
 * the rank's memory; count may be 0. */
struct er_fsdp_piece {
    size_t offset, count, mine;
};
struct er_fsdp_piece er_fsdp_piece_of(const struct er_fsdp_plan *plan, size_t param, int rank);

#ifdef __cplusplus
}
#endif
