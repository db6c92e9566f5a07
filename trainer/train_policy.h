#pragma once
/*
 * The decisions of the training loop: is this step good, when to save, when to end. Pure: every
 * rank feeds the same agreed record and takes the same decision; only rank 0's clock counts, and
 * what it says travels in the vote.
 */
#include <stdbool.h>
#include <stdint.h>

#include "trainer/train.h"

#define ER_VOTE_SAVE_DUE  1u /* vote.flags: rank 0's clock says that a checkpoint is due */
#define ER_VOTE_NONFINITE 2u /* vote.flags: << policy of a rank for steps that are not finite */
/* vote.flags: any rank has not been told yet that the membership changes; any that was told is to
 * come back (the others end for good); the state is to be on disk first. */
#define ER_VOTE_UNTOLD     16u
#define ER_VOTE_STAYS      32u
#define ER_VOTE_SAVE_FIRST 64u
#define ER_VOTE_SCALED     128u /* vote.flags: a rank scales its losses; */
#define ER_VOTE_UNSCALED   256u /* one does not */
/* vote.flags: the samples of this step are left out, as the job says to all ranks. */
#define ER_VOTE_LEFT_OUT 512u
/* vote.user[]: the maximum of all ranks. [0]: whose loss is not finite; [1]: 1 while this rank's
 * part of a checkpoint is still being written. */

struct er_train_policy_opts {
    uint64_t total_steps, epoch_steps;
    bool checkpoints; /* there is a directory */
    uint64_t checkpoint_steps, checkpoint_every_us;
    uint32_t failures_max; /* 0: never fatal */
    bool rejoins;          /* this process can live on in another generation */
};

/* What this rank is told, as read once for its vote. */
struct er_train_told {
    enum er_notice notice;
    bool save_first; /* er_notice_saves() */
};

struct er_train_policy {
    struct er_train_policy_opts opts;
    uint64_t saved_step;  /* newest step that is on disk; 0: none */
    uint64_t flight_step; /* step of the checkpoint that is being written; 0: none */
    bool owed;            /* one was due while another was being written: then, the newest state */
    uint64_t tried_us;    /* when a checkpoint was last begun, or failed */
    uint32_t failures;    /* in a row */
    bool request_taken;   /* the CHECKPOINT notice in force has been put into a vote */
    enum er_notice told;  /* this rank, in the last vote */
};

/* `resumed_from`: step of the loaded checkpoint, 0: none. */
void er_train_policy_init(struct er_train_policy *policy, const struct er_train_policy_opts *opts,
                          uint64_t resumed_from, uint64_t now_us);

/* This rank's part of the vote of `step`: notice, flags, loss, weight, and where a loss is not
 * finite. A CHECKPOINT notice that stays in force is asked for once. */
void er_train_policy_fill_vote(struct er_train_policy *policy, struct er_vote *vote, uint64_t step,
                               int rank, int size, struct er_train_told told, uint64_t now_us);

/* `done`: this rank's part of the checkpoint in flight is done; true without one. */
void er_train_policy_fill_saving(struct er_vote *vote, bool done);

enum er_train_verdict {
    ER_TRAIN_VERDICT_APPLY,
    ER_TRAIN_VERDICT_REFUSED, /* not every rank is ready to apply */
    ER_TRAIN_VERDICT_LEFT_OUT,
    ER_TRAIN_VERDICT_NONFINITE, /* a loss or gradient */
    ER_TRAIN_VERDICT_EMPTY      /* no sample counts: there is nothing to divide by */
};
enum er_train_verdict er_train_policy_judge(const struct er_vote *vote, int size);
/* NONFINITE: the lowest rank whose own loss is not finite, or -1 (a gradient, or the sum). */
int er_train_policy_culprit(const struct er_vote *vote, int size);

bool er_train_policy_finite(const struct er_vote *vote);
/* Whether its gradients may be used; the rest of a step is the same either way. */
bool er_train_policy_usable(const struct er_vote *vote);

/* What steps that are not finite have led to, from generation to generation. */
struct er_train_bad {
    uint64_t skipped, rolled_back;
    uint64_t back_from; /* last step that was rolled back from: up to there, steps are skipped */
    uint64_t good;      /* furthest step that was finite */
    uint32_t row;       /* since then */
};
enum er_train_remedy { ER_REMEDY_STOP, ER_REMEDY_SKIP, ER_REMEDY_ROLL_BACK };
void er_train_policy_good(struct er_train_bad *bad, uint64_t step);
/* `step` is not finite. `max`: so many in a row; 0: 8. */
enum er_train_remedy er_train_policy_bad(struct er_train_bad *bad, enum er_train_nonfinite policy,
                                         uint32_t max, uint64_t step);
/* All ranks have the same policy for such steps; all of them scale losses, or none. */
bool er_train_policy_same(const struct er_vote *vote);
bool er_train_policy_scaled_alike(const struct er_vote *vote);
/* Gradients overflowed, and the loss did not. */
bool er_train_policy_overflowed(const struct er_vote *vote);

/*
 * STOPPED: this process ends; REJOIN: it goes over to the next generation. A change of the
 * membership (notices REJOIN and DRAIN) happens at the first step in whose vote every rank had been
 * told; nobody saves for it while somebody stays who has the state in memory, unless asked to.
 */
enum er_train_ending { ER_GO_ON, ER_END_DONE, ER_END_STOPPED, ER_END_REJOIN };
struct er_train_policy_todo {
    bool advance; /* first: all ranks are done with their part of the checkpoint in flight */
    bool save, epoch_end;
    bool owe; /* one is due: where it is not written now, the next generation begins with it */
    enum er_train_ending ending;
};
/* After step `applied` with its agreed vote. */
struct er_train_policy_todo er_train_policy_after(const struct er_train_policy *policy,
                                                  uint64_t applied, const struct er_vote *vote);

/* A checkpoint of `step` is on its way. */
void er_train_policy_begun(struct er_train_policy *policy, uint64_t step, uint64_t now_us);

enum er_train_after_save { ER_SAVE_FINE, ER_SAVE_TOLERATED, ER_SAVE_TOO_MANY, ER_SAVE_FATAL };
/* A checkpoint of `step` ended with `rc`. FATAL: the generation is over (peer lost, superseded
 * ...), or the run ends here and its state is not saved. */
enum er_train_after_save er_train_policy_saved(struct er_train_policy *policy, uint64_t step,
                                               int rc, enum er_train_ending ending,
                                               uint64_t now_us);
