#pragma once
/*
 * One run of the training loop, and its parts:
 *   train.c        the step, the vote, what follows
 *   train_setup.c  options, communicator, reducer, checkpoints
 *   train_begin.c  where to begin: a checkpoint, or the first values
 *   train_bad.c    steps that are not finite
 *   train_recover.c  where a generation begins: what survivors hold, else a checkpoint
 *   train_shards.c   the same of states that are divided over the ranks
 *   train_catchup.c  newcomers that get the state while training goes on
 *   train_save.c   writing a checkpoint and telling the job
 *   train_clock.c  where the time of steps goes
 *   train_device.c   a GPU's state: its copy on the host
 *   train_scaler.c   losses that are scaled
 *   train_ledger.c which steps each generation used
 *   train_log.c    lines for the program; train_text.c what they look like
 */
#include "ckpt/ledger.h"
#include "trainer/shards.h"
#include "trainer/sync.h"
#include "trainer/train.h"
#include "trainer/train_catchup.h"
#include "trainer/train_policy.h"

/* When to save and what to keep: the program's options, else the job's. */
struct er_train_saving {
    uint64_t steps, every_us, keep, keep_every, failures_max; /* 0: no, not, all, none, never */
};

/* What this process holds from one generation to the next. */
struct er_train_held {
    bool state;          /* parameters and optimizer state, whole, of `applied` */
    uint64_t grads_of;   /* step whose reduced gradients are in the spans; 0: none */
    uint64_t saved_step; /* newest checkpoint that this process knows to be on disk; 0: none */
    struct er_vote vote; /* agreed, of `applied` */
    bool owed;           /* a checkpoint was given up when the generation ended */
};

/* One for a run. */
struct er_train_clock {
    struct er_train *train;
    enum er_phase phase;
    uint64_t since_us;              /* when it began */
    struct er_train_phases step;    /* of the step that runs */
    uint64_t rate_us, rate_samples; /* when the rates on the page were made, and of which sum */
    struct er_pace pace;            /* what is on the page */
    uint64_t busy_us;               /* of the last step: without waiting for others */
};

struct er_train {
    struct er_ctx *ctx;
    const struct er_train_ops *ops;
    void *user;
    const struct er_train_opts *opts;
    struct er_engine *engine;
    struct er_comm *comm;      /* of host memory: everything but gradients */
    struct er_comm *wire;      /* of gradients: the same, or a GPU's */
    struct er_ddp *ddp;        /* NULL: fsdp */
    struct er_fsdp *fsdp;      /* the program's; NULL: ddp */
    struct er_shards shards;   /* of `fsdp` */
    int shift;                 /* who keeps copies: er_shadow_shift(); 0: nobody */
    const char *layout;        /* of the reducer, which owns it */
    struct er_ddp_times times; /* of the last step */
    struct er_ckpt *ckpt;      /* NULL: no checkpoints */
    struct er_train_saving saving;
    bool rejoins; /* this process can live on in another generation */
    bool leaving; /* the last one ended at a boundary that all agreed on */
    int rank, size;
    const struct er_slice *state; /* the program's, or its copy on the host */
    size_t state_n;
    uint64_t snapshot; /* step whose state is on its way to the host, to be saved; 0: none */
    struct er_train_mirror *mirror; /* NULL: the program's state is on the host */
    struct er_slice *with_scale;    /* owned: `state`, where the loss scale is part of it */
    uint64_t epoch_steps, total_steps, applied;
    uint64_t began; /* `applied` when this generation began */
    struct er_train_held held;
    struct er_train_catchup catchup;
    struct er_train_policy policy;
    struct er_train_bad bad;
    struct er_train_clock clock;
    struct er_train_result result;
    /* The line before: rates are taken from there. */
    uint64_t line_us, line_samples, samples;
    uint64_t pace_us, pace_step; /* when this process was at which step; 0: never */
};

/* Options, then communicator, reducer and checkpoint folder. After a failure er_train_close() takes
 * what is there. */
int er_train_open(struct er_train *train, struct er_error *err);
/* The same in parts, for loops with another reducer: options that all have and the communicator;
 * collective: the checkpoint folder, NULL when there is none, in this generation. */
int er_train_open_comm(struct er_train *train, struct er_error *err);
int er_train_join_checkpoints(struct er_train *train, struct er_error *err);
/* The state to begin with, and `applied`: what ranks hold from the generation before, else the
 * newest checkpoint, else rank 0's. */
int er_train_restore(struct er_train *train, struct er_error *err);
/* The same in parts: where nobody holds a state; then, once there is one, what follows. */
int er_train_begin_anew(struct er_train *train, struct er_error *err);
int er_train_begun(struct er_train *train, bool anew, struct er_error *err);
/* Runs `generation` (0: the run is over) in this one, and in each that this process lives on in.
 * Its failure is told when there is no other; `result.stopped`: it left as it was told. */
int er_train_outlive(struct er_train *train, int (*generation)(void *user, struct er_error *err),
                     void *user, struct er_error *err);
/* Collective: the newest checkpoint, and `applied`. Nothing may be in flight. 1: there is none. */
int er_train_go_back(struct er_train *train, struct er_error *err);
/* 1: no rank holds a state. Else every rank has the newest one, with the same bits. */
int er_train_recover(struct er_train *train, struct er_error *err);
/* Applies step `applied` + 1 with its agreed vote. */
int er_train_apply(struct er_train *train, const struct er_vote *vote, struct er_error *err);
/* Sharded parameters, the program's: opened, or taken along to this generation's communicator. */
int er_train_shards_open(struct er_train *train, struct er_error *err);
/* They are those of this generation, with nothing in them: something is to be loaded. */
int er_train_shards_empty(struct er_train *train, struct er_error *err);
/* Collective: second copies of them, where they are asked for, once all ranks have a state. */
int er_train_shards_shadow(struct er_train *train, struct er_error *err);
/* The update of the copy that this rank keeps, behind that of its own shard. */
int er_train_shards_apply(struct er_train *train, uint64_t step, const struct er_vote *vote,
                          struct er_error *err);
/* Collective, at the end of a generation that some ranks stay behind: those who leave give their
 * shards to those who stay. */
int er_train_shards_hand_over(struct er_train *train, enum er_train_ending ending,
                              struct er_error *err);
/* This rank's part of the next step: none of a newcomer that has not got the state yet. */
struct er_range er_train_range(const struct er_train *train);
/* The replicated slices of the state as parts; freed by the caller. -ENOMEM. */
int er_train_parts(const struct er_train *train, struct er_sync_part **ret, size_t *ret_n,
                   struct er_error *err);
/* Communicators of gradients, where they are not in host memory; once `comm` is ready. */
int er_train_open_wire(struct er_train *train, struct er_error *err);
/* The copy on the host of a state that is not: `train->state` becomes the copy. Nothing to do, and
 * 0 from all of these, where it is. */
int er_train_mirror_open(struct er_train *train, struct er_error *err);
void er_train_mirror_close(struct er_train *train);
/* The whole state to the host, or back from there; they wait. */
int er_train_pull(struct er_train *train, struct er_error *err);
int er_train_push(struct er_train *train, struct er_error *err);
/* Begins to bring the state to the host beside the next step; until it is there. */
int er_train_pull_begin(struct er_train *train, struct er_error *err);
int er_train_pull_end(struct er_train *train, struct er_error *err);
/* The generation is over for this rank, and no peer waits for it: all but the checkpoints, which
 * may go on in the next one. */
void er_train_leave(struct er_train *train);
void er_train_close(struct er_train *train);

/* Collective: begins to write `applied`, or writes it where the run ends here or waits for its
 * checkpoints. Negative: the run ends here. */
int er_train_save(struct er_train *train, enum er_train_ending ending, struct er_error *err);

/* Collective, before the state changes: a checkpoint whose state is on its way to the host begins
 * to be written, else its copy is waited for. */
int er_train_save_copied(struct er_train *train, struct er_error *err);

/* Collective, in each generation before its state is restored: what was being written when the one
 * before ended goes on, or is given up and owed. */
int er_train_save_regroup(struct er_train *train, const struct er_ckpt_group *group,
                          uint64_t generation, struct er_error *err);

/* Collective, when all ranks are done with their part of the checkpoint in flight. */
int er_train_save_advance(struct er_train *train, struct er_error *err);

/* Collective, where the ranks part and nobody is lost: a commit that was asked for is waited for.
 */
int er_train_save_settle(struct er_train *train, struct er_error *err);

/* Collective: what is in flight, to the disk. Negative: the run ends here. */
int er_train_save_finish(struct er_train *train, struct er_error *err);

/* Rank 0 notes in the ledger that steps after `applied` follow, that one was dropped, that
 * `applied` is the last. Nothing elsewhere, or without a folder of checkpoints. ER_E_STALE:
 * superseded. */
int er_train_ledger_begin(struct er_train *train, enum er_ledger_source from, struct er_error *err);
int er_train_ledger_skip(struct er_train *train, uint64_t step, struct er_error *err);
int er_train_ledger_end(struct er_train *train, struct er_error *err);

/* The loss scale becomes part of the state; nothing to do without one. ER_E_USAGE: what it does not
 * go with. */
int er_train_scaler_open(struct er_train *train, struct er_error *err);
void er_train_scaler_close(struct er_train *train);
/* Of a step that is not finite: 1: the scale was too high, the step is skipped; 0: it was not. */
int er_train_scaler_judge(struct er_train *train, const struct er_vote *vote, struct er_error *err);
/* A step has been applied, or skipped. */
void er_train_scaler_step(struct er_train *train, bool finite);

#define ER_TRAIN_ROLLED_BACK 1
/* The agreed vote is not finite; `why` says what is not. 0: the step counts as done without its
 * gradients, which er_train_drop() clears; ER_TRAIN_ROLLED_BACK: it does not count, and `applied`
 * is that of a checkpoint; negative: the run ends. */
int er_train_bad_step(struct er_train *train, const struct er_vote *vote,
                      const struct er_error *why, struct er_error *err);
void er_train_drop(struct er_train *train);

/* Tells the agent; the time until now was the phase before's. */
void er_train_phase(struct er_train *train, enum er_phase phase);
/* A step begins: its first phase is forward, unless grads() says otherwise. */
void er_train_clock_begin(struct er_train *train);
/* It was applied: times and rates, to the result and the agent's page. */
void er_train_clock_end(struct er_train *train);
/* Rank 0 only; nothing on the others. `text` may be NULL. */
void er_train_tell(struct er_train *train, enum er_train_event event, uint64_t step,
                   const char *text);
void er_train_tell_step(struct er_train *train, const struct er_range *range);
/* A callback's result: positive is a mistake of the program. */
int er_train_callback_rc(int rc, const char *callback, struct er_error *err);
