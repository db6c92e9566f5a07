#pragma once
/*
 * The training loop: step, vote, progress, notices, checkpoint, resume. The program gives four
 * functions; the loop owns the communicator, the reducer and the checkpoints. Step t: grads -> all
 * buckets reduced -> vote -> apply; whatever leaves the process (log, progress, checkpoint) happens
 * after apply.
 */
#include <stdbool.h>

#include "ckpt/ckpt.h"
#include "trainer/ddp.h"
#include "trainer/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

struct er_fsdp;        /* trainer/fsdp.h */
struct er_scaler;      /* trainer/scaler.h */
struct er_train_clock; /* opaque: where the time of steps goes */

struct er_step {
    uint64_t step;         /* this step's number, from 1 over all epochs */
    struct er_range range; /* this rank's positions; range.count may be 0 */
    struct er_ddp *ddp;    /* call er_ddp_ready() as gradients become final; NULL with FSDP */
    struct er_train_clock *clock; /* for er_step_phase() */
};

/*
 * grads() may say what it is at: ER_PHASE_DATA, ER_PHASE_FORWARD or ER_PHASE_BACKWARD, from now on.
 * That stands in the lines, the result, the agent's status and metrics, and decides which deadline
 * applies. What says nothing counts as forward.
 */
ER_API void er_step_phase(const struct er_step *step, enum er_phase phase);

/* Where time went on this rank, microseconds. Communication that went on behind backward is in
 * backward; `communicate_us` is what was not hidden, and the vote. */
struct er_train_phases {
    uint64_t data_us, forward_us, backward_us, communicate_us, optimizer_us;
};

struct er_loss {
    double sum;         /* of the samples' losses */
    double weight;      /* samples (or tokens) that count */
    uint64_t nonfinite; /* gradient elements that are not finite, where the program counts them
                           (er_exact_fold() does) */
};

struct er_train_ops {
    /* Forward and backward of `step`: leaves the SUM of the samples' gradients in the spans. Called
     * also with an empty range. */
    int (*grads)(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err);
    /* One optimizer step with gradients / vote->weight; then clears the gradients. Never
     * interrupted. With `shadow` called again for the copy that this rank keeps, with the same
     * arguments: all that it may do is the update of er_fsdp_view() or er_fsdp_view_param(). */
    int (*apply)(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err);
    /* Gradient spans in forward order (NULL with `shard`), and the state to save (parameters,
     * optimizer); valid for the run. With `shard` the pieces of er_fsdp_slices(), asked for in each
     * call: they are others in each generation. */
    void (*spans)(void *user, const struct er_span **ret, size_t *ret_n);
    void (*state)(void *user, const struct er_slice **ret, size_t *ret_n);
    /* Optional; after the last step of an epoch and at the end, on every rank; again when a run
     * resumes there, since nothing tells whether it was done. */
    int (*epoch_end)(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                     struct er_error *err);
    /* Optional: FSDP instead of DDP. Called once, when the ranks are connected: opens, attaches and
     * fills the program's sharded parameters, which stay the program's; er_fsdp_fill() is to be
     * called, and is all that it may do together with the other ranks. `comm` carries the engine's
     * memory. */
    int (*shard)(void *user, struct er_comm *comm, struct er_fsdp **ret, struct er_error *err);
};

/* What becomes of a step whose loss or gradients are not finite. It is applied nowhere: all ranks
 * see it in the vote and do the same. */
enum er_train_nonfinite {
    ER_NONFINITE_STOP, /* the run ends with -EDOM */
    /* It counts as done: parameters and optimizer stay, its gradients are dropped, the next step
     * has the next samples. */
    ER_NONFINITE_SKIP,
    /* Back to the newest checkpoint; what follows it is computed again. A step that is not finite
     * when it comes again is skipped. */
    ER_NONFINITE_ROLL_BACK,
    ER_NONFINITE_COUNT
};

/* How newcomers get the state of a DDP run from those who have it. */
enum er_train_newcomers {
    /* While training goes on, where the state is large enough for that (16 MiB), else at once. */
    ER_NEWCOMERS_AUTO,
    ER_NEWCOMERS_COPY, /* at once: nobody steps until all have it */
    /* In slices between steps. Meanwhile newcomers have no samples: they make the updates of the
     * others, from the same sums of gradients, on what they have got. For optimizers that go
     * element by element; with any other the digests differ, and the state is copied at once after
     * all. */
    ER_NEWCOMERS_CATCH_UP,
    ER_NEWCOMERS_COUNT
};

enum er_train_event {
    ER_TRAIN_STEP,        /* every log_steps steps and the last one */
    ER_TRAIN_SKIPPED,     /* a checkpoint was passed over; text: why */
    ER_TRAIN_RESUMED,     /* text: from where */
    ER_TRAIN_SAVED,       /* text: folder */
    ER_TRAIN_STOOD_IN,    /* saved, though a rank could not write; text: which, why, who wrote */
    ER_TRAIN_SAVE_FAILED, /* training goes on; text: why */
    ER_TRAIN_NOT_FINITE,  /* text: what was not, and what is done about it */
    ER_TRAIN_LEFT_OUT,    /* the job leaves the step's samples out; text: why */
    ER_TRAIN_STOPPED,     /* text: which notice */
    ER_TRAIN_RECOVERED,   /* a rank was lost, and the others' memory kept; text: whose */
    ER_TRAIN_EVENT_COUNT
};

/* What rank 0 tells about a run. Valid during the call. */
struct er_train_line {
    enum er_train_event event;
    uint64_t step, total_steps, epoch; /* epoch from 0 */
    double loss;                       /* STEP: mean over the step's weight */
    double samples_per_s;              /* STEP: of all ranks, since the line before */
    double tokens_per_s;               /* STEP: where opts.tokens_per_sample is given, else 0 */
    uint64_t eta_us; /* STEP: to the end, at the mean pace of this process; 0: not known */
    struct er_ddp_times times;     /* STEP: of this step, on rank 0 */
    struct er_train_phases phases; /* likewise */
    const char *text;              /* "" when there is nothing to say */
};

struct er_train_opts {
    struct er_plan plan;
    uint64_t epochs; /* >= 1 */
    /* 0 in the next four and in checkpoint_failures_max means: as the job spec says (the variables
     * ELASTIC_CHECKPOINT_*); where nothing says it, what stands here. */
    uint64_t checkpoint_steps;    /* every N steps and at the end. 0: only by time and at the end */
    uint64_t checkpoint_every_us; /* 0: not by time */
    uint32_t checkpoint_keep;     /* 0: all */
    uint64_t checkpoint_keep_every;   /* one in every so many steps stays for ever; 0: none */
    const char *checkpoint_dir;       /* NULL: the job's; "" : none */
    uint32_t checkpoint_failures_max; /* consecutive failures before -EIO, on which the program
                                         exits with ER_WORKER_EXIT_CHECKPOINTS. 0: never fatal */
    bool checkpoint_wait; /* no step before a checkpoint is on disk; else it is written beside */
    bool restart_on_loss; /* a lost rank ends this process as well, instead of going on in it */
    /* With `shard`: every shard is kept twice, on two nodes wherever there are two, so that a lost
     * rank costs nothing (docs/elastic-training.md says what this does). apply() is then called
     * twice a step. The same on all ranks, else ER_E_MISMATCH. */
    bool shadow;
    enum er_train_newcomers newcomers; /* the same on all ranks, else ER_E_MISMATCH */
    uint64_t tokens_per_sample;        /* of a language model, for the lines; 0: none */
    uint64_t log_steps;                /* a line every N steps from rank 0; 0: none */
    /* Other than STOP: float32 gradients of a reducer are looked at as well (count_nonfinite), and
     * after nonfinite_max such steps (0: 8) without a good new one between them the run ends all
     * the same: the parameters are spoilt. The same on all ranks, else ER_E_MISMATCH. */
    enum er_train_nonfinite nonfinite;
    uint32_t nonfinite_max;
    /* Of losses that are scaled (float16), or NULL; the program's, for the run. A step whose
     * gradients alone are not finite is skipped and the scale halved, on all ranks, whatever
     * `nonfinite` says, until the scale is 1. The loop changes it after each step, saves it with
     * checkpoints ("loss_scale") and gives it to ranks that join. Not with plan.shards. */
    struct er_scaler *scaler;
    /* Who computes: parameters, gradients and optimizer states, all of `state`, are in its memory.
     * NULL: the CPU. A GPU's reduces over NCCL (comm.backend AUTO or NCCL); the loop has a copy of
     * the state in pinned memory for checkpoints. With `shard` it is er_fsdp_opts.engine too.
     * er_engine_apply() is its optimizer. */
    struct er_engine *engine;
    struct er_comm_opts comm;
    struct er_ddp_opts ddp;
    /* Rank 0's lines, or NULL; `user` is er_train_run()'s. er_train_log_stdout() and
     * er_train_log_json() serve programs. */
    void (*log)(void *user, const struct er_train_line *line);
};

struct er_train_result {
    uint64_t steps, resumed_from;  /* step that this process began with; 0: from the start */
    uint64_t recoveries;           /* generations that it outlived */
    uint64_t skipped, rolled_back; /* steps; times: see er_train_nonfinite */
    double loss;                   /* mean of the last step that was finite */
    bool stopped;                  /* ended early by a DRAIN or STOP notice, state saved */
    struct er_train_phases phases; /* of all steps of this process */
};

/*
 * Runs to the end, or until a notice. When a rank is lost, this process goes on: it leaves the
 * generation, meets the others in the next one, where lost ranks are started anew (er_rejoin()),
 * and all have the state of the newest step that any of them applied, bit for bit, before the next
 * step begins. What a callback may rely on across that: er_step.range is always that of the rank
 * and world size of the moment; er_step.ddp and the communicator of epoch_end() are new; nothing of
 * a step that was not applied is left in the gradients. With `shard` (FSDP) a shard that is lost
 * with its only copy takes all back to the newest checkpoint, in their processes. With
 * `restart_on_loss`, or without an agent that does it: ER_E_PEER_LOST, ER_E_ABORTED and the like,
 * the generation is over; the program exits non-zero and its agent starts it again from the newest
 * checkpoint. -EDOM: the loss is not finite (see er_train_nonfinite), or no sample counts; -EIO:
 * checkpoints cannot be written; ER_E_CORRUPT: there are checkpoints and none verifies;
 * ER_E_CONFIG: the newest one belongs to another plan (samples, batch or seed); ER_E_USAGE: wrong
 * options; ER_E_MISMATCH: with plan.shards (exact mode), a rank that computes with another build,
 * OpenBLAS or core type.
 */
ER_API int er_train_run(struct er_ctx *ctx, const struct er_train_ops *ops, void *user,
                        const struct er_train_opts *opts, struct er_train_result *ret,
                        struct er_error *err);

/* For programs, `.log = er_train_log_stdout`: a progress bar where stdout is a terminal (drawn at
 * most ten times a second), else a line of text. */
ER_API void er_train_log_stdout(void *user, const struct er_train_line *line);
/* One JSON object a line on stdout: docs/training-lines.md. */
ER_API void er_train_log_json(void *user, const struct er_train_line *line);

#ifdef __cplusplus
}
#endif
