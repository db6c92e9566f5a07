#pragma once
/*
 * Who holds which part of the parameter servers' state, and how it comes from the servers of one
 * generation to those of the next. Pure: every rank feeds the same gathered records and gets the
 * same plan.
 *
 *   3 servers                      |  0  |  1  |  2  |
 *   rank 2 leaves, 1 takes its     |  0  |  1  |  1  |
 *   2 servers                      |   0    |   1    |
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements of the flat parameters: whole cache lines. */
struct er_ps_extent {
    size_t first, count;
};
/* Of server `index`; all of them together are the whole. */
struct er_ps_extent er_ps_extent_of(size_t elements, int index, int servers);

/*
 * What a rank holds, values and optimizer state, all of one state. States of the same lineage and
 * number of updates are the same bits: every push counts on all servers or on none, and those that
 * were in flight are settled before anybody tells what he holds.
 */
#define ER_PS_PIECES_MAX 16
struct er_ps_held {
    uint64_t lineage; /* generation that began from first values or a checkpoint; 0: nothing held */
    uint64_t updates; /* of the optimizer, since then */
    uint32_t n;
    struct er_ps_extent piece[ER_PS_PIECES_MAX];
};

/* The lowest rank with the newest state, whose pieces the others of that state complete; -1: they
 * do not, so that nobody's state is of any use. */
int er_ps_plan_source(const struct er_ps_held *held, int n, size_t elements);

struct er_ps_move {
    int from, to; /* may be the same */
    struct er_ps_extent extent;
};
typedef int (*er_ps_move_fn)(void *user, const struct er_ps_move *move, struct er_error *err);
/*
 * The moves after which rank i < servers holds what server i is to hold, of the state of `source`
 * (which er_ps_plan_source() gave): each element once, in the same order wherever it is called.
 * What a rank holds itself moves from itself, the rest from those who could give it by turns. Ends
 * with the first result of `move` that is not 0.
 */
int er_ps_plan_moves(const struct er_ps_held *held, int n, int source, size_t elements, int servers,
                     er_ps_move_fn move, void *user, struct er_error *err);

/* Ranks that leave give their server's part to those that stay, by turns: rank from[i] to rank
 * to[i]; room for `size` each. How many; -1: somebody would hold too many, or nobody stays. */
int er_ps_plan_takers(const uint8_t *stays, int size, int servers, int *from, int *to);

#ifdef __cplusplus
}
#endif
