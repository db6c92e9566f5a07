#pragma once
/*
 * One checkpoint on its way. Made by the caller's thread, shared with background tasks; whoever
 * lets go last frees it, so that a task that hangs in the kernel finds its memory when it comes
 * back.
 *
 *   caller   begin ─────────┬─ before_apply ── advance: rows ─┬───── advance: commit ─┬─ event
 *   copier                  ├ copy                            │                       │
 *   digester                ├ digests, behind the copy        │                       │
 *   writer                  └ shard: write, fsync             └ rank 0: manifest,     └ rank 0:
 *                                                               rename, fsync           retention
 */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/ckpt_internal.h"
#include "ckpt/safetensors.h"
#include "ckpt/snapshot.h"

enum er_save_stage { ER_SAVE_WRITING, ER_SAVE_PUBLISHING };

struct er_save {
    atomic_int refs;
    /* Fixed when it begins. */
    char *dir, *temp, *final; /* owned */
    int rank, size;
    struct er_meta meta;
    struct er_ckpt_opts opts;
    struct er_chain_link *chain; /* owned */
    size_t chain_n;
    struct er_snapshot *snapshot; /* a reference */
    struct er_shard_plan plan;
    uint64_t started_us, deadline_us; /* of the current stage */
    enum er_save_stage stage;
    uint64_t pause_us; /* the caller's thread's */
    uint64_t total_bytes;
    /* Rank 0, between the stages: what all ranks wrote; the writer's while it publishes. */
    struct er_manifest manifest;
    struct er_digest digest;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    /* Under the lock. */
    uint64_t copied;  /* bytes of the image that are there */
    bool copy_done;   /* the caller may change its state */
    unsigned running; /* background tasks of the current stage */
    bool given_up;    /* nothing may become visible any more */
    bool exchanged;   /* `temp` now holds an older checkpoint of the same step */
    bool published;   /* `final` is this one */
    bool committed;   /* rank 0: the job's record has it */
    bool in_doubt;    /* rank 0: the job's record may have it: `final` stays */
    int rc;           /* first failure */
    struct er_error err;
    uint64_t cpu_us; /* of the copy */
};

/* Takes over nothing of `slices` but their description. */
int er_save_new(struct er_save **ret, struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                const struct er_meta *meta, struct er_error *err);
void er_save_unref(struct er_save *save);

/* Starts a background task of this stage; the task ends with er_save_task_end(). */
int er_save_start(struct er_save *save, struct er_ckpt_worker *worker, er_work_fn fn,
                  struct er_error *err);
/* `rc` < 0: the stage failed, `err` says why (the first one counts). Lets go of `save`. */
void er_save_task_end(struct er_save *save, int rc, const struct er_error *err);
/* Nothing of the current stage runs. Waits until `deadline_us`. */
bool er_save_wait(struct er_save *save, uint64_t deadline_us);
bool er_save_given_up(struct er_save *save);
/* Waits until the image is there up to `end` bytes; false: given up. An er_ready_fn. */
bool er_save_copied_to(void *save, uint64_t end);

/* Background tasks (er_work_fn), argument struct er_save. */
void er_task_copy(void *save);    /* all ranks, copier: memory -> image */
void er_task_digest(void *save);  /* all ranks, digester: of the pieces of the image */
void er_task_shard(void *save);   /* all ranks, writer: image -> file */
void er_task_publish(void *save); /* rank 0, writer: manifest, rename */
void er_task_settle(void *save); /* rank 0, writer: after the outcome; removes what is not wanted */

/* Exchange of what the ranks wrote, and whether they could (`rc`): fills `save->manifest` on rank
 * 0. Collective: the same result everywhere, but for *ret_mine, which is rank 0's own trouble with
 * what it got. */
int er_save_collect(struct er_save *save, const struct er_ckpt *ckpt, int rc, int *ret_mine,
                    struct er_error *err);

/* The handle's checkpoint in flight is over for this rank, without an outcome: nothing of it will
 * become visible. */
void er_save_drop(struct er_ckpt *ckpt);
