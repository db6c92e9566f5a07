#pragma once
/*
 * Training with parameter servers: workers take parts of steps, pull parameters, push gradients,
 * and wait for nobody within the staleness bound. Parameters and the optimizer are the servers';
 * the first `servers` ranks run one beside their worker.
 *
 * Every process lives on when ranks are lost, leave or join (docs/elastic-training.md): a rank
 * without a server takes nothing along; who leaves as planned hands its server's part over first; a
 * server that is lost takes its part with it, and all go on from the newest checkpoint.
 *
 * Staleness 0 is synchronous SGD in other clothes: same sums in the same order, bit for bit, on any
 * number of ranks. Every part of every step counts exactly once, also when workers are lost.
 * Source: M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI
 * 2014.
 */
#include "trainer/flat.h"
#include "trainer/optim.h"
#include "trainer/ps_table.h"
#include "trainer/schedule.h"
#include "trainer/train.h"

#ifdef __cplusplus
extern "C" {
#endif

struct er_ps_opts {
    struct er_plan plan;
    uint64_t epochs;
    uint32_t parts;     /* of a step, each a worker's; 0: as many as ranks (from the next change on
                           that comes with whole steps) */
    int servers;        /* 0: one a rank; few of them: few ranks whose loss costs steps */
    uint64_t staleness; /* steps; ER_PS_UNBOUNDED */
    bool staleness_aware;
    struct er_optim optim;
    struct er_schedule schedule;
    uint64_t checkpoint_steps;  /* 0: as the job spec says, else at the end of epochs */
    const char *checkpoint_dir; /* NULL: the job's; "": none */
    bool restart_on_loss;       /* a change ends this process, instead of going on in it */
    struct er_comm_opts comm;
    /* Who computes gradients, with `flat` in its memory; NULL: the CPU. Servers and their optimizer
     * are on the host in any case; values and gradients go through pinned memory. */
    struct er_engine *engine;
    /* A line at the end of each epoch and with each checkpoint, from rank 0; or NULL. */
    void (*log)(void *user, const struct er_train_line *line);
};

/*
 * `flat`: bound, or placed in the engine's memory; its values are those to start with (rank 0's
 * count) and are overwritten by every pull. ops: `grads` (its er_step has no reducer) and
 * `epoch_end`, for which the newest parameters have been pulled; the rest is not used. Collective.
 * As er_train_run() returns and lives on; steps are counted in whole steps, whatever their order.
 */
int er_ps_run(struct er_ctx *ctx, struct er_flat *flat, const struct er_train_ops *ops, void *user,
              const struct er_ps_opts *opts, struct er_train_result *ret, struct er_error *err);

#ifdef __cplusplus
}
#endif
