#pragma once
/* Ranks as forked processes of one test, on the fake world. */
#include <stddef.h>

#include "tests/lib/fake_world.h"

/* Zeroed memory that forked ranks write and the test reads; never freed. */
void *er_ranks_shared(size_t bytes);

typedef int (*er_rank_fn)(struct er_ctx *ctx, void *user);
/* Runs `main` on each rank of a new world and waits for all. The exit status is what it returned,
 * or 128 + signal; `ret_status` (per rank) may be NULL. */
void er_ranks_run(int size, er_rank_fn main, void *user, int *ret_status);
/* The same in a world of the caller's, of which it can send notices. */
void er_ranks_run_in(struct er_fake_world *world, int size, er_rank_fn main, void *user,
                     int *ret_status);
