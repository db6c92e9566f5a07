#pragma once
/*
 * How newcomers come to the state of the others while these go on: which bytes of it travel in
 * which step. Pure.
 *
 *   values    | slice 0 | slice 1 | slice 2 | ...      all parameters, one after another
 *   momentum  | slice 0 | slice 1 | slice 2 | ...      of the same ones
 *   step T+1    sent                                    beside the computation
 *   step T+2    compared   sent
 *   step T+3               compared   sent
 *
 * The state does not change between two updates, so a slice is sent from where it lies. A newcomer
 * takes part in every step, without samples: it gets the sums of all gradients, makes each update
 * as the others do, and so keeps what it has got up to date. What an update makes of an element
 * depends on its value and optimizer states, so these come together: a state is looked at as blocks
 * of equal parts. An update that goes element by element does not care what lies in slices that
 * have not come yet. Each slice is compared on all ranks one step later, after an update: that it
 * has come, and that it is kept up to date, is shown at once.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ER_CATCHUP_SLICES      16  /* a state comes in so many steps, where its parts allow it */
#define ER_CATCHUP_OPS_MAX     120 /* transfers of a rank in one step */
#define ER_CATCHUP_STRIPES_MAX 4   /* ranks that send parts of one slice */
#define ER_CATCHUP_ALIGN       64  /* bytes, of stripes */
#define ER_CATCHUP_MIN_BYTES   (16u << 20) /* less is copied in less time than it saves */

/* A state as the sizes of its parts: (blocks, n), every block with the same ones. */
struct er_catchup_state {
    const size_t *bytes; /* (n) of a block; borrowed */
    size_t n, blocks;
};
/*
 * `parts_n` parts as blocks: values, then each optimizer state of them, in the same order, as
 * er_flat_slices() has them. How many there are say the names: what has that of the first part in
 * it ("fc1.weight", "optim.exp_avg.fc1.weight"), or begins with it ("w", "w.momentum"), is of the
 * same elements. Parts that are in no such order are one block.
 */
struct er_catchup_state er_catchup_state_of(const char *const *names, const size_t *bytes,
                                            size_t parts_n);
/* Bytes of a block. */
uint64_t er_catchup_total(const struct er_catchup_state *state);
/* Whether it pays to send a state in slices to so many newcomers (else it is copied at once): not
 * where it is small, unless `always`, or where the transfers of a step would be too many. */
bool er_catchup_pays(const struct er_catchup_state *state, int learners, bool always);

/* Bytes [first, first + bytes) of part `part` of each block. */
struct er_catchup_piece {
    size_t part, first, bytes;
};
/* The piece that begins at byte `at` of a block, up to `end` or the part's. */
struct er_catchup_piece er_catchup_piece_at(const struct er_catchup_state *state, uint64_t at,
                                            uint64_t end);
/* Where the slice that begins at `at` ends, for so many newcomers. */
uint64_t er_catchup_slice_end(const struct er_catchup_state *state, uint64_t at, int learners);
/* Stripe `which` of `stripes` of the bytes [at, end): its end; the first one begins at `at`, each
 * other one where the one before ends. May be empty. */
uint64_t er_catchup_stripe_end(uint64_t at, uint64_t end, int which, int stripes);
