#pragma once
/* One model's shards and the schedule of its units: fsdp.c what the program sees, fsdp_memory.c
 * memory, fsdp_pass.c gathering and reducing, fsdp_keep.c from one generation to the next. */
#include "base/pool.h"
#include "trainer/engine_ops.h"
#include "trainer/exact.h"
#include "trainer/fsdp.h"

struct er_shadow; /* trainer/shadow.h */

/* On a GPU: operations that kernels wait for, and of which the host does not know yet whether they
 * went well. Well below the communicator's ring, whose handles are reused. */
#define ER_FSDP_FLIGHT_MAX (ER_COMM_OPS_MAX / 4)

struct er_fsdp_flight {
    struct er_op *op;
    size_t unit;
    const char *what;
};

enum er_fsdp_state { ER_FSDP_AWAY, ER_FSDP_GATHERING, ER_FSDP_HERE };

/* A unit's gathered memory; with ER_FSDP_FULL every other unit has the same. */
struct er_fsdp_gathered {
    void *value, *grad; /* count elements of opts.param_dtype, reduce_dtype */
    int64_t *sums;      /* likewise, of one pass on their way; NULL: not exact */
    enum er_fsdp_state state;
    struct er_op *gather;
    struct er_op *scatter; /* under way; NULL: none */
    uint32_t pass;         /* whose gradients it reduces, from 1 */
};

/*
 * The schedule of one pass over the n units that do not stay: position p of 0 .. 2n - 1 is forward
 * of unit p, then backward of unit 2n - 1 - p. It only moves on, and skips nothing, so that all
 * ranks do the same.
 */
struct er_fsdp {
    struct er_comm *comm;     /* borrowed */
    struct er_engine *engine; /* borrowed */
    int rank;
    struct er_fsdp_plan plan;
    struct er_fsdp_opts opts, asked; /* in force; as they were given */
    struct er_tape *tape;            /* NULL until attached */
    float *memory, *next;            /* all of it, in the engine's memory; what is not taken yet */
    struct er_pool *pool;            /* NULL: on a GPU */
    void *notes;                     /* pinned, see struct er_sync_place; NULL: on the CPU */
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

    struct er_fsdp_flight
        flight[ER_FSDP_FLIGHT_MAX]; /* on a GPU: [done, begun), each modulo size */
    size_t flight_done, flight_begun;
    struct er_engine_guard guard;

    struct er_shadow *shadow; /* NULL: none */
    bool turned;              /* blocks and rank are those of the shadow */
    er_fsdp_fill_fn fill;     /* the program's, and its user */
    void *fill_user;
    bool listed;  /* the program has asked for its pieces since they were moved */
    bool kept;    /* survivors bring values along: er_fsdp_fill() asked nobody */
    bool reduced; /* all of a step is here, and nothing of the next one has begun */

    bool evaluating, in_pass;
    size_t position;
    uint32_t passes; /* begun in this step */
    struct er_error failure;
    uint64_t first_us, exposed_us, wire_bytes;
    struct er_ddp_times times;
};

/* fsdp_memory.c */
size_t er_fsdp_blocks_n(const struct er_fsdp *fsdp);
/* Element `at` of an array of such. */
void *er_fsdp_at(void *array, enum er_dtype type, size_t at);
int er_fsdp_make_plan(struct er_fsdp *fsdp, const struct er_flat *flat,
                      const struct er_fsdp_unit *units, size_t n, struct er_error *err);
int er_fsdp_take_memory(struct er_fsdp *fsdp, struct er_error *err);
void er_fsdp_free_memory(struct er_fsdp *fsdp);

/* On a GPU: what kernels wait for has come. */
int er_fsdp_arrived(void *user, struct er_error *err);
/* The tape's hook: brings the parameter's unit. */
int er_fsdp_use(void *user, size_t param, bool backward, struct er_error *err);
/* The step's passes to their end, every reduction done. */
int er_fsdp_complete(struct er_fsdp *fsdp, struct er_error *err);
/* fsdp_keep.c: a handle that outlives its communicator. Its shard stays that of the old one. */
bool er_fsdp_fits(const struct er_fsdp *fsdp); /* it is that of the communicator in force */
/* Collective, with those who open theirs anew: the communicator of the next generation. */
int er_fsdp_rejoin(struct er_fsdp *fsdp, struct er_comm *comm, struct er_error *err);
/* The same model, empty, in the division of the communicator in force. */
int er_fsdp_renew(struct er_fsdp **ret, const struct er_fsdp *fsdp, struct er_error *err);
/* `next` (taken) becomes what `fsdp` is; what that was goes, its shadow too. */
void er_fsdp_replace(struct er_fsdp *fsdp, struct er_fsdp *next);
/* Collective, in a generation with survivors, none of whom has a state: the first values again,
 * optimizer states 0. Nothing in another one. ER_E_USAGE: er_fsdp_fill() was never called. */
int er_fsdp_fill_again(struct er_fsdp *fsdp, struct er_error *err);
/* Gradients of a step are whole in this rank's shard, and in the copies that it is in. */
bool er_fsdp_reduced(const struct er_fsdp *fsdp);

/* First values of all units, as the program's function has them. */
int er_fsdp_fill_units(struct er_fsdp *fsdp, struct er_error *err);
/* Values have changed: what was gathered is old. */
void er_fsdp_forget(struct er_fsdp *fsdp);
