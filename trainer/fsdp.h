#pragma once
/*
 * Fully sharded data parallelism: each rank holds its shard of parameters, gradients and optimizer
 * state; a unit (a layer, say) is gathered just before it is used and freed behind.
 *
 *   forward    gather 0 | use 0, gather 1 | use 1, gather 2 | ...
 *   backward   ... | use 2, gather 1 | use 1, gather 0, reduce-scatter 2 | ...
 *
 * The tape says when a parameter is used, so a model needs no change: open with the units in the
 * order in which forward uses them, attach the tape, finish each step, and update the shard. Every
 * rank gathers and reduces the same units in the same order, also one without samples. On the wire
 * are sums, in rank order: the same bits as with DDP. Source: S. Rajbhandari et al., "ZeRO", SC
 * 2020; Y. Zhao et al., "PyTorch FSDP", VLDB 2023.
 *
 * Memory of a rank with P parameters, W ranks, two optimizer states: 16 P / W bytes, and two
 * neighbouring units' values and gradients (of their types); in exact mode 8 P / W and two units'
 * sums more.
 */
#include <stdbool.h>

#include "trainer/ddp.h"
#include "trainer/engine.h"
#include "trainer/fsdp_plan.h"
#include "trainer/optim.h"
#include "trainer/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

enum er_fsdp_strategy {
    ER_FSDP_FULL,      /* values are sharded, too (ZeRO stage 3) */
    ER_FSDP_GRAD_OPTIM /* every rank keeps all values, gathered once a step (ZeRO stage 2) */
};

struct er_fsdp_opts {
    enum er_fsdp_strategy strategy;
    uint32_t passes; /* forward and backward passes of a step, the same on all ranks (those without
                        samples make none, and the rest is made for them); 0: 1. See
                        er_fsdp_passes() */
    bool count_nonfinite, norm2; /* as in er_ddp_opts, of this rank's shard of the sums */
    /*
     * Exact mode (trainer/exact.h), the bits of DDP's: so many shards of a step, 0: not exact. Each
     * shard is a pass, so `passes` stays 0; a pass's gradients are reduced as 64-bit integers;
     * those that do not fit are counted in the vote; er_fsdp_take() before the optimizer.
     */
    uint32_t exact_shards;
    uint64_t exact_weight_max; /* as in er_exact_bind() */
    /*
     * Mixed precision, as PyTorch's MixedPrecision policy: ER_F32 (0), ER_F16 or ER_BF16 each. The
     * shard's values, gradients and optimizer states stay float32 (the master weights).
     * `param_dtype`: values are rounded when they are gathered, and operations work with tensors
     * of this type: half the bytes on the wire and of gathered memory. `reduce_dtype`: what
     * backward makes of a unit's gradients and what is reduced; sums are added up in float32 by
     * the host's communicators, rounded once, and kept in float32. The same on all ranks. Not with
     * exact mode. With float16, losses are scaled: trainer/scaler.h.
     */
    enum er_dtype param_dtype, reduce_dtype;
    /* Where shards and gathered units are, and who computes; NULL: the CPU. With a GPU's, the
     * communicator is of backend nccl on the same device (er_train_run() gives such a one), and
     * the host waits for no unit: kernels do. */
    struct er_engine *engine;
};

struct er_fsdp; /* opaque */

/* `flat`: its table, not bound; it, the names of `units` (n; name, first, params_n, keep are read)
 * and `comm` are borrowed. All memory is taken here. ER_E_USAGE: units that do not cover the
 * parameters, more ranks than shards, 16 bits with exact mode; -EINVAL: exact mode's settings;
 * ER_E_UNSUPPORTED: other types; -ENOMEM. */
int er_fsdp_open(struct er_fsdp **ret, struct er_comm *comm, const struct er_flat *flat,
                 const struct er_fsdp_unit *units, size_t n, const struct er_fsdp_opts *opts,
                 struct er_error *err);
/* Not while a step is under way, unless the communicator has failed. NULL is fine. */
void er_fsdp_close(struct er_fsdp *fsdp);
/* The communicator was aborted: nothing of it is waited for any more. What is left is closing, or
 * another generation, to which er_train_run() takes it.
 * Before the tape goes, where a step was under way on a GPU; er_train_run() does it. */
void er_fsdp_abandon(struct er_fsdp *fsdp);
/* The tape's leaves and its hook of uses are the sharded parameters from now on. The tape is made
 * over the same `flat` and goes first. */
void er_fsdp_attach(struct er_fsdp *fsdp, struct er_tape *tape);

/* Writes the first values of one parameter (its whole count). */
typedef void (*er_fsdp_fill_fn)(void *user, size_t param, float *value);
/* Collective: unit by unit, rank 0's values for everybody. In a generation to which survivors bring
 * the state, nobody is asked for values. `fill` and `user` stay valid as long as `fsdp`: where
 * survivors lost the state and there is no checkpoint, training begins with them again. */
int er_fsdp_fill(struct er_fsdp *fsdp, er_fsdp_fill_fn fill, void *user, struct er_error *err);

/* Forward passes without backward, from now on (evaluation): the same ones on all ranks. */
void er_fsdp_eval(struct er_fsdp *fsdp, bool on);
/* From the next step on it has so many passes (er_fsdp_opts.passes), on all ranks. Where that
 * depends on how many ranks there are, to be said before each step's first pass: ranks come and go.
 * Not in exact mode, which counts its shards itself. */
void er_fsdp_passes(struct er_fsdp *fsdp, uint32_t passes);
/* After the step's last backward: reduces what is left, waits, holds the vote. As er_ddp_finish();
 * then gradient sums are in the shard until the optimizer clears them. */
int er_fsdp_finish(struct er_fsdp *fsdp, struct er_vote *vote, struct er_error *err);
/* Exact mode: the shard's gradients become the agreed sums / weight, rounded once (the optimizer's
 * scale is 1). Between er_fsdp_finish() and the optimizer. */
int er_fsdp_take(struct er_fsdp *fsdp, double weight, struct er_error *err);
/* Gradients that are not finite are told in the vote. */
bool er_fsdp_counts_nonfinite(const struct er_fsdp *fsdp);
/* 0: not exact. */
uint32_t er_fsdp_exact_shards(const struct er_fsdp *fsdp);
struct er_engine *er_fsdp_engine(const struct er_fsdp *fsdp);
/* Gradients become 0: the step is not applied. */
void er_fsdp_drop(struct er_fsdp *fsdp);

/*
 * A second copy of every shard, on another rank: this one keeps that of rank + `shift` (modulo the
 * ranks), with optimizer states. Collective, between two steps. From then on er_fsdp_finish()
 * forwards reduced gradients to whoever keeps them, and each update is made twice: once as ever,
 * and once between two er_fsdp_turn(), with which views and er_fsdp_take() are those of the copy.
 * er_train_opts.shadow does all that. ER_E_USAGE: 0, or as many as ranks. Memory: 16 P / W bytes
 * more (24 P / W in exact mode); on the wire 4 P / W more a step (8 P / W).
 */
int er_fsdp_shadow(struct er_fsdp *fsdp, int shift, struct er_error *err);
/* False: there is no copy, and nothing is turned. */
bool er_fsdp_turn(struct er_fsdp *fsdp);

/* This rank's shard for the optimizer: all of it, or its part of one parameter (count may be 0). */
struct er_optim_view er_fsdp_view(const struct er_fsdp *fsdp);
struct er_optim_view er_fsdp_view_param(const struct er_fsdp *fsdp, size_t param);

/* This rank's pieces of values and optimizer states, as a checkpoint holds them; they load at any
 * world size and with any strategy. `ret`: er_flat_slices_n() entries; returns how many are set.
 * They are others in every generation: er_train_ops.state() asks anew each time it is called. */
size_t er_fsdp_slices(struct er_fsdp *fsdp, struct er_slice *ret);
/* Units and sizes as text, for the checkpoint's description; owned by `fsdp`. */
const char *er_fsdp_layout(const struct er_fsdp *fsdp);
/* Of values, gradients, optimizer states and gathered units, all that is ever taken. */
size_t er_fsdp_bytes(const struct er_fsdp *fsdp);
/* Of the last finished step; `exposed_us` counts waits for gathers as well (on a GPU only those at
 * the end, since kernels wait for them, not the host). */
struct er_ddp_times er_fsdp_last_times(const struct er_fsdp *fsdp);

#ifdef __cplusplus
}
#endif
