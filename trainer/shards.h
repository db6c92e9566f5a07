#pragma once
/*
 * The shards of a sharded state that a process holds from one generation to the next, and how those
 * that it is to hold come to it (trainer/reshard.h has the plan). What is held is given up only
 * when all ranks have what they need: at any failure before, everything is as it was, and what has
 * come already is held as well.
 *
 *   list -> (everybody's lists, a plan) -> bring -> switch
 */
#include "trainer/shadow.h"

#define ER_SHARDS_SPARES_MAX (ER_RESHARD_HELD_MAX - 2) /* beside the own one and the shadow */

/* One of the two is there, owned: a rank's whole memory, or a shard alone. */
struct er_shards_spare {
    struct er_fsdp *handle;
    struct er_shard_copy *copy;
};

struct er_shards {
    struct er_fsdp *fsdp; /* the program's; NULL: state is not sharded */
    struct er_shards_spare spare[ER_SHARDS_SPARES_MAX];
    size_t spares_n;
    /* Of a bringing that failed: its communicator may write there until it is aborted. */
    struct er_shards_spare spoilt[2];
};

/* What is held, the own shard first, then the shadow: these two are the live ones. */
struct er_reshard_held er_shards_list(const struct er_shards *shards, uint32_t *ret_live);
/* Elements of each unit; allocated. -ENOMEM. */
int er_shards_units(const struct er_fsdp *fsdp, struct er_reshard_units *ret, struct er_error *err);
/* All but the own shard is given up. */
void er_shards_drop(struct er_shards *shards);

/*
 * Collective on the handle's communicator: brings this rank's shard of it, and with `shift` > 0 a
 * copy of that of rank + shift, as er_reshard_moves() of `plan` says; a list in `plan` is what
 * er_shards_list() gave, or empty. Each rank has checked what it got against the sender's digest.
 * ER_E_CORRUPT: it is not what was sent; -ENOMEM; the communicator's failure.
 */
int er_shards_bring(struct er_shards *shards, const struct er_reshard *plan, int shift,
                    struct er_error *err);
/* Collective, behind it: when all ranks are that far, the handle is of its communicator's division
 * and everything else is given up. Slices and layout are others now. */
int er_shards_switch(struct er_shards *shards, int shift, struct er_error *err);
/* Not collective: the handle is of its communicator's division, with nothing in it; everything
 * else is given up. */
int er_shards_empty(struct er_shards *shards, struct er_error *err);
/* Collective, when everybody has the own shard of a step: copies of them. */
int er_shards_shadow(struct er_shards *shards, int shift, struct er_error *err);

/* Collective: the own shard of rank from[i] is held by rank to[i] as well, one after another (`n`
 * of them; nobody both gives and takes). ER_E_LIMIT: somebody cannot hold as many. */
int er_shards_hand_over(struct er_shards *shards, const int *from, const int *to, size_t n,
                        struct er_error *err);
