#pragma once
/* One model's shards and the schedule of its units: fsdp.c memory and what the program sees,
 * fsdp_pass.c gathering and reducing. */
#include "base/pool.h"
#include "trainer/exact.h"
#include "trainer/fsdp.h"

enum er_fsdp_state { ER_FSDP_AWAY, ER_FSDP_GATHERING, ER_FSDP_HERE };

/* A unit's gathered memory; with ER_FSDP_FULL every other unit has the same. */
struct er_fsdp_gathered {
    float *value, *grad; /* count elements */
    int64_t *sums;       /* likewise, of one pass on their way; NULL: not exact */
    enum er_fsdp_state state;
    struct er_op *gather;
    struct er_op *scatter; /* under way; NULL: none */
};

/*
 * The schedule of one pass over the n units that do not stay: position p of 0 .. 2n - 1 is forward
 * of unit p, then backward of unit 2n - 1 - p. It only moves on, and skips nothing, so that all
 * ranks do the same.
 */
struct er_fsdp {
    struct er_comm *comm; /* borrowed */
    int rank;
    struct er_fsdp_plan plan;
    struct er_fsdp_opts opts;
    struct er_tape *tape; /* NULL until attached */
    struct er_pool *pool;
    size_t bytes;
    float *block[ER_FLAT_BLOCK_MAX]; /* this rank's shards, plan.total elements each */
    int64_t *sums;                   /* likewise, over the passes of a step; NULL: not exact */
    struct er_exact_scale scale;
    uint64_t outside; /* gradient elements of this step that did not fit */
    struct er_fsdp_gathered *units;
    size_t *ring; /* units that come and go, in order */
    size_t ring_n;
    size_t *place;     /* of a unit in the ring; SIZE_MAX: it stays */
    uint32_t *unit_of; /* of a parameter */
    size_t owner[2];   /* ER_FSDP_FULL: unit in each of the two memories, SIZE_MAX: none */
    char *layout;
    uint64_t order_hash;

    bool evaluating, in_pass;
    size_t position;
    uint32_t passes; /* begun in this step */
    struct er_error failure;
    uint64_t first_us, exposed_us;
    struct er_ddp_times times;
};

/* The tape's hook: brings the parameter's unit. */
int er_fsdp_use(void *user, size_t param, bool backward, struct er_error *err);
/* The step's passes to their end, every reduction done. */
int er_fsdp_complete(struct er_fsdp *fsdp, struct er_error *err);
/* Values have changed: what was gathered is old. */
void er_fsdp_forget(struct er_fsdp *fsdp);
