#pragma once
/*
 * A double of libelastic for tests of what stands on it: many ranks as forked processes or threads
 * of one test, without an agent. Implements the functions of runtime/elastic.h on a context (all
 * but er_open(), er_commit() and er_loaded()) and er_ctx_page(); list its object before the library
 * when linking, as test_fake_dep does.
 *
 * The key-value store lies in shared memory: make the world before forking. A process may be killed
 * at any instant. Generations are kept apart as in the real store.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"
#include "runtime/elastic.h"

#define ER_FAKE_RANKS_MAX 64
#define ER_FAKE_VALUE_MAX 4096

struct er_fake_world; /* opaque */

/* Ends the process when there is no memory. */
struct er_fake_world *er_fake_world_new(void);
void er_fake_world_free(struct er_fake_world *world);

/* A context of `rank`; `nnodes` 1: all on one host, else each rank is a node of its own. Free with
 * er_close(). */
struct er_ctx *er_fake_ctx(struct er_fake_world *world, int rank, int size, int nnodes,
                           uint64_t generation);
/* What er_rejoin() does, set before ranks are forked; NULL: ER_E_UNSUPPORTED. */
extern int (*er_fake_rejoin)(struct er_ctx *ctx);
/* This rank's place in a later generation. */
void er_fake_move(struct er_ctx *ctx, int rank, int size, uint64_t generation);

/* er_commit_begin() is the test's er_commit(); while commits are held, nobody is told how one went
 * (er_commit_end()). */
void er_fake_hold_commits(struct er_fake_world *world, bool hold);
/* What an agent would write into the page of a rank (as created: er_fake_move() keeps the page). */
void er_fake_notice(struct er_fake_world *world, int rank, uint64_t generation,
                    enum er_notice notice);
const struct er_page *er_fake_page(const struct er_fake_world *world, int rank);
/* A value of the store as any rank of `generation` sees it: its length, or -1. */
int er_fake_peek(struct er_fake_world *world, uint64_t generation, const char *key, void *ret,
                 size_t cap);
