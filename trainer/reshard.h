#pragma once
/*
 * From the shards that ranks hold to those that they are to hold: who has what, whether all of it
 * is there, and which piece goes from whom to whom. Pure.
 *
 *   a unit of 9 lines, 2 shards     | 0 0 0 0 0 | 1 1 1 1   |
 *   the same, 3 shards              | 0 0 0 | 1 1 1 | 2 2 2 |
 *   who holds 0 of 2 gives          |   a   |  b |
 *
 * Shards of different divisions may be held at once: after a change that failed half-way, or of
 * somebody who was away meanwhile. Their contents are those of the same step, so every piece may
 * come from any holder.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_SHARD_LINE 16 /* elements of a cache line: shards are whole ones */

/* Part `index` of every unit, divided into `size` equal ones. */
struct er_shard {
    uint32_t size, index;
};
bool er_shard_same(struct er_shard a, struct er_shard b);
/* Elements of one of `size` shards of a unit of `elements`; all of them together cover the unit and
 * padding behind it. */
size_t er_shard_elements(size_t elements, uint32_t size);
/* Its part of the unit itself, without padding: *ret_first, and how many; 0: none. */
size_t er_shard_range(size_t elements, struct er_shard shard, size_t *ret_first);

/* A model's units, as elements of each. */
struct er_reshard_units {
    const size_t *elements; /* (n); borrowed */
    size_t n;
};

#define ER_RESHARD_HELD_MAX  16
#define ER_RESHARD_RANKS_MAX (1u << 20) /* of a division */
#define ER_RESHARD_SIZES_MAX 4 /* different divisions at once; what is of more is not used */
struct er_reshard_held {
    uint32_t n;
    struct er_shard shards[ER_RESHARD_HELD_MAX];
};

/* All that `ranks_n` ranks hold, of one step. */
struct er_reshard {
    struct er_reshard_units units;
    const struct er_reshard_held *held; /* (ranks_n); borrowed */
    int ranks_n;
    uint32_t sizes[ER_RESHARD_SIZES_MAX];
    size_t sizes_n;
    int32_t *first[ER_RESHARD_SIZES_MAX]; /* of each shard of a size: its first holder, -1 */
    int32_t *next;                        /* of each holder: another one of the same shard, -1 */
};

/* What a rank says may be anything; what is not like this must not reach the functions below. */
bool er_reshard_held_ok(const struct er_reshard_held *held);
/* Entries of `memory` for er_reshard_init() of `held`, or of any part of it. */
size_t er_reshard_memory_n(const struct er_reshard_held *held, int ranks_n);
/* `memory`: the caller's, for as long as `r` is used. */
void er_reshard_init(struct er_reshard *r, struct er_reshard_units units,
                     const struct er_reshard_held *held, int ranks_n, int32_t *memory);
/* Everything is there. Otherwise *ret_unit and *ret_element (may be NULL) say what is not. */
bool er_reshard_covers(const struct er_reshard *r, size_t *ret_unit, size_t *ret_element);

/*
 * Who keeps a second copy of whose shard: rank r that of rank (r + er_shadow_shift()) mod n, on
 * another node wherever there is one. `nodes` (n): of each rank; ranks of a node are neighbours. 0:
 * there is no other rank.
 */
int er_shadow_shift(const uint32_t *nodes, int n);

enum er_reshard_target { ER_RESHARD_OWN, ER_RESHARD_SHADOW };
/* Elements [first, first + count) of a unit. */
struct er_reshard_move {
    size_t unit, first, count;
    int from, to;          /* may be the same */
    struct er_shard shard; /* of `from`, that it is in */
    enum er_reshard_target target;
};
typedef int (*er_reshard_fn)(void *user, const struct er_reshard_move *move, struct er_error *err);
/*
 * The moves after which rank i of ranks_n holds shard i of ranks_n, and with `shift` > 0 a copy of
 * the shard of (i + shift) mod ranks_n: in the same order wherever it is called. What a rank holds
 * in any shard moves from itself (nothing is to do where it lies there already); the rest comes
 * from those who could give it by turns. Ends with the first result of `move` that is not 0. Only
 * where er_reshard_covers().
 */
int er_reshard_moves(const struct er_reshard *r, int shift, er_reshard_fn move, void *user,
                     struct er_error *err);

#ifdef __cplusplus
}
#endif
