#pragma once
/*
 * One checkpoint on its way. Made by the caller's thread, shared with background tasks; whoever
 * lets go last frees it, so that a task that hangs in the kernel finds its memory when it comes
 * back.
 *
 * Of one begun beside the steps (er_ckpt_begin()) the state is copied to an image, so that it may
 * change again at once:
 *
 *   caller   begin ─────────┬─ before_apply ── advance: rows ─┬───── advance: commit ─┬─ event
 *   copier                  ├ copy                            │                       │
 *   digester                ├ digests, behind the copy        │                       │
 *   writer                  └ shard: write, fsync             └ leader: manifest,     └ leader:
 *                                                               rename, fsync           retention
 *
 * While the caller waits (er_ckpt_save()), its own memory is the image: the copier fills two blocks
 * in turn, with digests, and the writer empties them (stage.c). No memory of the size of the state
 * is needed then, which counts most for the first one: fresh pages can be slower than the disk.
 *
 * A commit that is only asked for at that place (er_ckpt_group.commit_begin) is a stage of its own,
 * in which nothing runs: the outcome is what the next advance waits for.
 *
 * Where a rank could not write, or is gone, there are more rounds of "rows", before which others
 * write the copies that they have of its part (cover.h).
 */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/ckpt_internal.h"
#include "ckpt/cover.h"
#include "ckpt/safetensors.h"
#include "ckpt/shard_io.h"
#include "ckpt/snapshot.h"

enum er_save_stage { ER_SAVE_WRITING, ER_SAVE_PUBLISHING, ER_SAVE_COMMITTING };

struct er_save {
    atomic_int refs;
    /* Fixed when it begins. */
    char *dir, *temp, *final; /* owned */
    int rank, size;
    struct er_meta meta;
    struct er_ckpt_opts opts;
    struct er_chain_link *chain; /* owned */
    size_t chain_n;
    bool staged; /* the caller waits, nothing is copied as a whole */
    struct er_ckpt_worker *copier, *digester, *writer; /* the handle's */
    struct er_snapshot *snapshot; /* a reference: the image, or two blocks; NULL: absent */
    struct er_shard_plan plan;
    struct er_shard_plan spare; /* of `spare_rank`; its image follows this rank's own */
    int spare_rank;             /* -1: none */
    uint64_t nonce;
    uint64_t started_us, deadline_us; /* of the current stage */
    enum er_save_stage stage;
    uint64_t pause_us; /* the caller's thread's */
    uint64_t total_bytes;
    uint64_t fence; /* generation that publishes */
    bool absent;    /* this rank has no copy of the state (own_code says why), and no task */
    bool own_known; /* how its own part ended: */
    int own_code;
    struct er_error own_err;
    enum er_spare_state spare_state;
    struct er_error spare_err; /* FAILED: why */
    bool duty;                 /* a task of this rank belongs to the current round */
    bool leader;               /* goes on with the manifest, publishes and commits */
    uint32_t stood_in;         /* parts that others wrote for their ranks */
    char note[256];            /* for whom, and why */
    /* The leader, between the stages: what all ranks wrote; the writer's while it publishes. */
    struct er_manifest manifest;
    struct er_digest digest;
    /* The leader's, of a commit that is told later. */
    uint64_t asked_us;
    bool answered; /* then: */
    int answer;
    struct er_error answer_err;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    /* Under the lock. */
    uint64_t copied;  /* bytes of the image, or of the staged file, that are or were there */
    uint64_t taken;   /* staged: bytes that the writer needs no more */
    bool copy_done;   /* the caller may change its state */
    bool reading;     /* the copier is in the caller's memory */
    unsigned running; /* background tasks of the current stage */
    bool given_up;    /* nothing may become visible any more */
    bool exchanged;   /* `temp` now holds an older checkpoint of the same step */
    bool published;   /* `final` is this one */
    bool committed;   /* leader: the job's record has it */
    bool in_doubt;    /* leader: the job's record, or a reader, may have it: `final` stays */
    int rc;           /* first failure */
    struct er_error err;
    uint64_t cpu_us; /* of the copy */
};

/* Takes over nothing of `slices` but their description. */
int er_save_new(struct er_save **ret, struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                const struct er_meta *meta, bool staged, struct er_error *err);
/* er_ckpt_begin(), or the begin of er_ckpt_save(). */
int er_save_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                  const struct er_meta *meta, bool staged, struct er_error *err);
void er_save_unref(struct er_save *save);

/* Starts a background task of this stage; the task ends with er_save_task_end(). */
int er_save_start(struct er_save *save, struct er_ckpt_worker *worker, er_work_fn fn,
                  struct er_error *err);
/* The tasks that bring this rank's own part, or its copy of another's, to the disk. */
void er_save_start_part(struct er_save *save, bool spare);
/* `rc` < 0: the stage failed, `err` says why (the first one counts). Lets go of `save`. */
void er_save_task_end(struct er_save *save, int rc, const struct er_error *err);
/* Nothing of the current stage runs. Waits until `deadline_us`. */
bool er_save_wait(struct er_save *save, uint64_t deadline_us);
bool er_save_given_up(struct er_save *save);
/* Waits until the image is there up to `end` bytes; false: given up. */
bool er_save_copied_to(struct er_save *save, uint64_t end);

/* ---- staged (stage.c) ---- */

/* Memory for the two blocks. */
#define ER_STAGE_BYTES (2ull * ER_SHARD_WRITE_BYTES)
/* Copier, argument struct er_save: the caller's memory -> blocks, and digests on the way. */
void er_task_fill(void *save);
void er_task_fill_spare(void *save);
/* An er_bytes_fn for the writer. */
const char *er_stage_take(void *save, uint64_t at, uint64_t end);

/* Digests of the pieces of an image that is there. */
void er_save_digest(struct er_save *save, const struct er_shard_plan *plan, const char *image);

/* Background tasks (er_work_fn), argument struct er_save. */
void er_task_copy(void *save);     /* all ranks, copier: memory -> image */
void er_task_digest(void *save);   /* all ranks, digester: of the pieces of the image */
void er_task_shard(void *save);    /* all ranks, writer: image -> file */
void er_task_stand_in(void *save); /* asked ranks, writer: the other rank's image -> file */
void er_task_publish(void *save);  /* leader, writer: manifest, rename */
void er_task_settle(void *save); /* leader, writer: after the outcome; removes what is not wanted */

/* Bytes of both images in the snapshot, and where the spare one begins. */
uint64_t er_save_image_bytes(const struct er_save *save);
uint64_t er_save_spare_at(const struct er_save *save);

/*
 * One round of telling each other what is durable. Collective: the same result everywhere.
 * WHOLE: the leader's `manifest` is filled; *ret_mine is its own trouble with what it got.
 * GOES_ON: `duty` says whether this rank is to write its copy. LOST is a negative result instead.
 * *ret_together false: the exchange itself failed.
 */
int er_save_round(struct er_save *save, const struct er_ckpt *ckpt, enum er_cover *ret,
                  int *ret_mine, bool *ret_together, struct er_error *err);
/* The outcome as an event; `save` may be NULL. */
void er_save_tell(struct er_ckpt *ckpt, const struct er_save *save, uint64_t step, int rc,
                  const char *text);
/* A commit was asked for here, and the record is known to have it. */
bool er_save_is_recorded(struct er_ckpt *ckpt);
/* Ends the checkpoint in flight with this outcome. Returns `rc`. */
int er_save_conclude(struct er_ckpt *ckpt, int rc, struct er_error *err);

/* The handle's checkpoint in flight is over for this rank, without an outcome, and this rank makes
 * nothing of it visible. `all`: for the others as well, so that its files may go. Else they may go
 * on with what was written, as if this process had died. */
void er_save_drop(struct er_ckpt *ckpt, bool all);
