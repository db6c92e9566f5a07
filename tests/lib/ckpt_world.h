#pragma once
/*
 * Threads that play the ranks of a job with checkpoints: a matrix and a counter that all hold, and
 * a flat vector that all hold or each its part of. What they hold is a function of one seed.
 */
#include <pthread.h>
#include <stdbool.h>

#include "ckpt/ckpt.h"
#include "tests/lib/tempdir.h"

#define ER_CW_RANKS_MAX 8
#define ER_CW_ROWS      37
#define ER_CW_COLS      11
#define ER_CW_FLAT      101

struct er_cw_rank {
    struct er_cw *world;
    struct er_ckpt *ckpt; /* open while the rank's function runs */
    int rank, rc;
    float w[ER_CW_ROWS * ER_CW_COLS], b[ER_CW_FLAT];
    int64_t count;
    uint64_t asked; /* a commit of that step */
    struct er_meta meta;
    struct er_slice slices[3];
    int skipped;
    char why[512];
    struct er_error err;
    void *user;
};

/* What the ranks of one world share; zero-initialise, then set what the test wants. */
struct er_cw {
    char dir[ER_TEST_PATH_MAX];
    bool sharded;              /* the flat vector */
    bool beside;               /* saves copy the state, which changes while it is written */
    struct er_ckpt_opts opts;  /* generation goes into the meta as well */
    int commit_rc;             /* what the commit returns */
    bool later;                /* commits are asked for, and told later: */
    bool hold;                 /* ... not before this is false */
    void (*on_commit)(void *); /* called by the commit before it returns */
    void *user;
    uint64_t step;
    float seed;
    /* Results. */
    int size, commits; /* asked for, or made */
    struct er_cw_rank ranks[ER_CW_RANKS_MAX];
    /* Its own. */
    pthread_barrier_t barrier;
    char *blobs[ER_CW_RANKS_MAX];
    void (*fn)(struct er_cw_rank *rank);
};

/* An empty folder, in generation 1 without other options. */
void er_cw_begin(struct er_cw *world);
/* Runs fn as `size` ranks, each with its handle open; rank->rc is er_ckpt_open()'s result, or what
 * fn makes of it. */
void er_cw_run(struct er_cw *world, int size, void (*fn)(struct er_cw_rank *rank));
/* The rank's group, as its handle was opened with. */
struct er_ckpt_group er_cw_group(struct er_cw_rank *rank);
/* The meta of a save of world->step. */
struct er_meta er_cw_meta(const struct er_cw_rank *rank);
void er_cw_fill(struct er_cw_rank *rank, float seed);
/* Fills with world->seed, then begin and finish, with a step applied between (world->beside), or
 * er_ckpt_save(). */
int er_cw_save_rank(struct er_cw_rank *rank, const struct er_meta *meta);
/* The state is that of seed `rank->count`. */
bool er_cw_is_whole(const struct er_cw_rank *rank);
/* True on all ranks when `mine` is true on all. */
bool er_cw_all(struct er_cw_rank *rank, bool mine);
void er_cw_skip(void *rank, uint64_t step, const char *why);

/* A world that saves (world->step and seed), one that loads: the result, the same on all ranks. */
int er_cw_save(struct er_cw *world, int size, uint64_t step, float seed);
int er_cw_load(struct er_cw *world, int size, float *ret_seed);
/* How many checkpoints the folder lists. */
size_t er_cw_listed(const struct er_cw *world);
/* Removes `name` from all folders, those that are still written as well: how many. */
size_t er_cw_remove_file(const struct er_cw *world, const char *name);
