#pragma once
/*
 * One flat parameter memory: named parameters in forward order, each at a multiple of 64 bytes, in
 * equal blocks for values, gradients and each optimizer state, so that the optimizer is one loop,
 * gradients are views into communication buckets, and a checkpoint is a list of pieces. Padding is
 * 0 in every block and stays so. Pure: the caller gives table and memory and owns both.
 *
 *     struct er_flat_param table[4];
 *     er_flat_init(&flat, table, 4, er_optim_state_names(ER_OPTIM_ADAMW), 2);
 *     er_flat_add(&flat, "fc1.weight", &shape, NULL, err); ...
 *     er_flat_bind(&flat, er_pool_alloc(pool, er_flat_bytes(&flat), 64));
 */
#include "ckpt/ckpt.h"
#include "trainer/ddp.h"
#include "trainer/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_FLAT_STATES_MAX 2
#define ER_FLAT_ALIGN      64 /* bytes, of each parameter in each block */
#define ER_FLAT_NAME_MAX   96 /* leaves room for "optim.<state>." within ER_CKPT_NAME_MAX */

enum er_flat_block {
    ER_FLAT_VALUE,
    ER_FLAT_GRAD,
    ER_FLAT_STATE, /* ER_FLAT_STATE + i: the optimizer's i-th state */
    ER_FLAT_BLOCK_MAX = ER_FLAT_STATE + ER_FLAT_STATES_MAX
};

struct er_flat_param {
    char name[ER_FLAT_NAME_MAX];
    char state_name[ER_FLAT_STATES_MAX][ER_CKPT_NAME_MAX]; /* "optim.exp_avg.fc1.weight" */
    struct er_shape shape;
    size_t first; /* element in each block */
    size_t count; /* elements without padding */
};

struct er_flat {
    struct er_flat_param *params; /* caller's table */
    size_t params_n, params_max;
    size_t states_n;
    const char *state_names[ER_FLAT_STATES_MAX];
    size_t total;                    /* elements of one block, padding included */
    float *block[ER_FLAT_BLOCK_MAX]; /* NULL until bound */
};

/* `states_n` at most ER_FLAT_STATES_MAX; the state names live as long as the flat memory. */
void er_flat_init(struct er_flat *flat, struct er_flat_param *table, size_t table_n,
                  const char *const *state_names, size_t states_n);
/* Before er_flat_bind(). *ret_index (may be NULL): 0, 1, ... in order. -EINVAL: name empty, too
 * long, not fit for a file or taken; bad shape; -ENOSPC: the table is full. */
int er_flat_add(struct er_flat *flat, const char *name, const struct er_shape *shape,
                size_t *ret_index, struct er_error *err);
/* Of all blocks together. */
size_t er_flat_bytes(const struct er_flat *flat);
/* `memory`: er_flat_bytes() bytes, aligned to ER_FLAT_ALIGN; all blocks become 0. */
void er_flat_bind(struct er_flat *flat, void *memory);
/* The same for memory that is 0 already, and that the host may be unable to touch (a GPU's). */
void er_flat_place(struct er_flat *flat, void *memory);

/* Parameter `index` in block `block`. */
float *er_flat_at(const struct er_flat *flat, size_t block, size_t index);
/* One span per parameter, in order. A span's count includes its padding, so that span i ends where
 * span i + 1 begins and any run of them is one bucket. `ret`: params_n entries. */
void er_flat_spans(const struct er_flat *flat, size_t block, struct er_span *ret);
/* Values, then each optimizer state: what a checkpoint holds. Replicated on every rank.
 * Fills and returns er_flat_slices_n() entries. */
size_t er_flat_slices_n(const struct er_flat *flat);
size_t er_flat_slices(const struct er_flat *flat, struct er_slice *ret);
/* A rank's own part of one of those: elements [offset, offset + count) at `data`. `which`: 0 the
 * values, 1 + i the optimizer's i-th state. */
struct er_slice er_flat_piece(const struct er_flat *flat, size_t which, size_t param, size_t offset,
                              size_t count, float *data);

#ifdef __cplusplus
}
#endif
