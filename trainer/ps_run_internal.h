#pragma once
/* One run with parameter servers: ps_run.c the loop, ps_begin.c where a generation begins. */
#include "trainer/ps.h"
#include "trainer/ps_client.h"
#include "trainer/ps_keep.h"
#include "trainer/train_internal.h"

/* The common parts of a run (options, checkpoints, lines) are those of the training loop. */
struct er_ps_loop {
    struct er_train train;
    struct er_train_opts train_opts;
    struct er_train_ops train_ops;
    const struct er_ps_opts *opts;
    struct er_engine *engine;
    struct er_flat *flat; /* the program's */
    struct er_flat host;  /* the same where servers and sockets can reach it */
    void *pinned;         /* values and gradients, on their way to and from a GPU; NULL: the CPU */
    float *first;         /* the values to start with, until a checkpoint is on disk; owned */
    struct er_ps_keep keep;
    /* Of this generation: */
    struct er_ps_server *server; /* NULL: none on this rank */
    bool holds;                  /* the server's part is there */
    struct er_ps_client *client;
    int servers;
    uint32_t parts;
    uint64_t lineage;        /* of the state, as in er_ps_held */
    bool whole;              /* it began with whole steps */
    struct er_slice *slices; /* owned; of our server */
    double loss, weight;     /* of the parts since the last line */
};

/* Collective: everything up to the first step, with what the ranks hold, else with the newest
 * checkpoint, else with rank 0's first values. Its failure is the generation's:
 * er_ps_loop_leave() follows in any case. */
int er_ps_loop_begin(struct er_ps_loop *run, struct er_error *err);
/* The generation is over for this rank; its server's part is kept. */
void er_ps_loop_leave(struct er_ps_loop *run);
void er_ps_loop_close(struct er_ps_loop *run);

/* Of all ranks, up to the end of `step`. */
uint64_t er_ps_loop_samples(const struct er_ps_loop *run, uint64_t step);
/* A checkpoint is on disk: the first values are of no more use. */
void er_ps_loop_forget_first(struct er_ps_loop *run);
