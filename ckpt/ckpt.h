#pragma once
/* clang-format off */
/*
 * libelastic-ckpt: checkpoints that are complete, digest-checked and readable by any safetensors
 * tool, at any world size.
 *
 *   <dir>/step-<n, 12 digits>/               written under a temporary name, renamed when whole
 *       shard-<i>-of-<k>.safetensors
 *       manifest.json                        written last
 *   <dir>/LATEST                             text: name of the newest committed folder; a hint only
 *
 * The library knows neither agent nor communicator: the caller gives a `struct er_ckpt_group`
 * (rank, size, how to gather small records and how to commit). Format: docs/checkpoint-format.md.
 */
/* clang-format on */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_CKPT_API      __attribute__((visibility("default")))
#define ER_CKPT_DIMS_MAX 4
#define ER_CKPT_NAME_MAX 128

enum er_ckpt_dtype { ER_CKPT_F32, ER_CKPT_F64, ER_CKPT_I64, ER_CKPT_U8, ER_CKPT_F16, ER_CKPT_BF16 };

/* A contiguous piece [offset, offset + count) (elements, row-major) of the tensor `name` of shape
 * `shape`, held here. */
struct er_slice {
    const char *name; /* at most ER_CKPT_NAME_MAX - 1 bytes, printable, no '/' or ".." */
    enum er_ckpt_dtype dtype;
    uint32_t ndim;                    /* 1 .. ER_CKPT_DIMS_MAX */
    uint64_t shape[ER_CKPT_DIMS_MAX]; /* of the whole tensor */
    uint64_t offset, count;           /* elements */
    void *data;                       /* caller's */
    bool replicated; /* every rank holds the same: the writers divide it among them */
};

/* What else belongs to the state. Everything about data order is a function of `applied`. Text
 * fields are JSON or plain, "" allowed. */
struct er_meta {
    uint64_t applied; /* optimizer steps contained in the parameters: the checkpoint's step */
    uint64_t generation, seed, global_batch, samples;
    uint64_t first_step; /* first step of this generation */
    int world_size;
    uint32_t has_metric; /* 1: `metric` counts for keep_best */
    double metric;       /* of this state, for example the validation loss; finite */
    char run[64];
    char layout[2048]; /* bucket layout, er_ddp_layout(), or a digest of it when longer */
    char user[4096];   /* a JSON object of the program's own; "" = {} */
};

struct er_ckpt_done {
    uint64_t step, bytes, written_bytes;
    uint64_t pause_us; /* what the caller's thread of this rank waited for it so far */
    uint64_t duration_us;
    const char *path, *digest; /* valid during the call */
};

/* How the ranks of a job work together on one checkpoint; a NULL function means a world of one
 * without it. */
struct er_ckpt_group {
    int rank, size;
    void *user;
    /* all-gather: n bytes of each rank in rank order at `all`. */
    int (*gather)(void *user, const void *mine, size_t n, void *all, struct er_error *err);
    /* One rank (0, unless its own storage fails), after everything is durable and renamed: the
     * fenced commit. 0: recorded. ER_E_STALE:
     * superseded and certainly not recorded, the folder is withdrawn. Any other failure (a time
     * limit, an ambiguous answer): it may have been recorded all the same; the checkpoint is
     * reported as failed, but the folder stays and can be loaded. */
    int (*commit)(void *user, const struct er_ckpt_done *done, struct er_error *err);
    /* Instead of `commit`, so that nobody stands still while the record does not answer: the one
     * rank asks for the commit (0, or negative as above), and is told the outcome later: as above,
     * or ER_CKPT_COMMIT_OPEN after `wait_us`. A commit that was asked for and is not told is not
     * asked about any more once the next one is. */
    int (*commit_begin)(void *user, const struct er_ckpt_done *done, struct er_error *err);
    int (*commit_end)(void *user, uint64_t wait_us, struct er_error *err);
};
#define ER_CKPT_COMMIT_OPEN 1

/* What to do with a checkpoint that holds a NaN or an infinity where it is loaded. */
enum er_ckpt_nan {
    ER_CKPT_NAN_LOAD, /* load it */
    ER_CKPT_NAN_SKIP, /* pass it over, as if it were corrupt */
    ER_CKPT_NAN_FAIL  /* -EDOM */
};

/* Retention: a checkpoint stays when any of the rules wants it; the last valid one always. */
struct er_ckpt_opts {
    uint32_t keep_last;    /* newest ones; 0: keep all */
    uint64_t keep_every;   /* one in every so many steps: the last up to each multiple; 0: none */
    uint32_t keep_best;    /* best by er_meta.metric; 0: none */
    bool more_is_better;   /* of the metric */
    uint64_t generation;   /* of this job's run; 0: none. Older ones are fenced off at load */
    uint64_t deadline_us;  /* storage that takes longer for one part has failed; 0: 10 minutes */
    uint32_t read_threads; /* of a load; 0: up to 4, as many as there are cores */
    bool buffered;         /* never direct I/O */
    bool no_stand_in;      /* keep no copy of another rank's part: less memory, but then one rank
                              that cannot write fails the checkpoint */
    enum er_ckpt_nan nan;
};

struct er_ckpt; /* opaque */

/* Makes `dir` when it is missing; checks that it can be written. `group` is copied (its `user` is
 * borrowed). */
ER_CKPT_API int er_ckpt_open(struct er_ckpt **ret, const char *dir,
                             const struct er_ckpt_group *group, const struct er_ckpt_opts *opts,
                             struct er_error *err);
/* Ends the background threads; a checkpoint in flight is given up. Storage that hangs keeps its
 * thread, and nobody waits for it. */
ER_CKPT_API void er_ckpt_close(struct er_ckpt *ckpt);

/*
 * Writing. The life of one checkpoint, the same calls on every rank:
 *
 *   er_ckpt_begin()         the state begins to be copied, beside the next forward and backward
 *   er_ckpt_before_apply()  waits for the copy; then parameters may change
 *   er_ckpt_local_done()    does not wait: is what this rank does in the background done?
 *   er_ckpt_advance()       collective, once it is done on ALL ranks (the step vote can carry that:
 *                           the maximum of "not yet"); exchanges small records; 1: goes on in the
 *                           background, call again at a later boundary
 *
 * er_ckpt_finish() blocks for the rest, er_ckpt_save() is begin and finish in one. Files are
 * written by a background thread, never by the caller's; storage that hangs, or a record that does
 * not answer (with commit_begin()), is a failed checkpoint after `deadline_us`, not a stalled step.
 * The functions of the group are called by the caller's thread only: commit_end() also from
 * er_ckpt_local_done(), the others from the collective calls.
 */
#define ER_CKPT_BUSY 1
/*
 * Quorum: parts that cover the whole state, not all ranks. Beside its own part each rank copies
 * that of one other rank, of the state that all hold (`replicated`), and writes it when that one
 * cannot: its disk is full, fails, does not answer within the deadline, or the rank is gone (see
 * er_ckpt_regroup()). Then the checkpoint is committed as ever, and its event says who stood in.
 * State that a rank holds alone is lost with it, and fails the checkpoint.
 */
/*
 * Collective. 0: begun. ER_CKPT_BUSY: one is in flight, nothing was done; it is counted, and the
 * caller asks again with the then newest state once that one is finished. Negative: failed at once
 * and on every rank alike, reported as an event too. `slices` themselves are copied; their data
 * must not change before er_ckpt_before_apply() returns.
 */
ER_CKPT_API int er_ckpt_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                              const struct er_meta *meta, struct er_error *err);
/* Before parameters change: waits until the state has been copied. */
ER_CKPT_API int er_ckpt_before_apply(struct er_ckpt *ckpt, struct er_error *err);
ER_CKPT_API bool er_ckpt_in_flight(const struct er_ckpt *ckpt);
/* True also when it failed, or has not ended within its deadline. True without one in flight. */
ER_CKPT_API bool er_ckpt_local_done(struct er_ckpt *ckpt);
/* Collective. 0: committed (or none in flight), 1: goes on; negative: it failed, the same code on
 * every rank, the text naming rank and path, older checkpoints untouched; the folder is there only
 * when it was the commit whose outcome is unknown. Failing to write is not fatal for training: the
 * caller decides. When it is the group's own exchange that failed, the checkpoint stays in flight
 * for er_ckpt_regroup() or er_ckpt_close(). */
ER_CKPT_API int er_ckpt_advance(struct er_ckpt *ckpt, struct er_error *err);
/*
 * Ranks were lost, and the others go on as the generation `generation` with `group`: it takes the
 * old group's place. Collective among its ranks, survivors and newcomers (which call it behind
 * er_ckpt_open()). A checkpoint in flight goes on when all of them have it in flight, ranks being
 * still numbered as they were when it began; else it is given up, with an event. 0, or the failure
 * of the exchange.
 */
ER_CKPT_API int er_ckpt_regroup(struct er_ckpt *ckpt, const struct er_ckpt_group *group,
                                uint64_t generation, struct er_error *err);
/* Collective: advance to the end. Returns as er_ckpt_advance(), never 1. The outcome of a commit
 * (commit_begin()) is waited for at most 10 s. */
ER_CKPT_API int er_ckpt_finish(struct er_ckpt *ckpt, struct er_error *err);
/* Collective, before ranks part that do not wait for a checkpoint to be written: when its commit
 * has been asked for, waits for that as er_ckpt_finish() does. Returns as er_ckpt_advance(); 1:
 * something else of it goes on. */
ER_CKPT_API int er_ckpt_settle(struct er_ckpt *ckpt, struct er_error *err);
/* Collective: finish what is in flight, then begin and finish this one. */
ER_CKPT_API int er_ckpt_save(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                             const struct er_meta *meta, struct er_error *err);
/* Optional, before the first step: makes the memory that holds the copy, and the threads, so that
 * the first er_ckpt_begin() needs not. */
ER_CKPT_API int er_ckpt_reserve(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                                struct er_error *err);

struct er_ckpt_stats {
    uint64_t begun, committed, failed, busy; /* busy: times that one was in flight already */
    uint64_t stood_in;                       /* parts that others wrote for a rank that could not */
    uint64_t snapshot_cpu_us;                /* of the copies made so far, CPU time */
    uint64_t read_bytes, needed_bytes;       /* of loads: from files, and of that asked for */
};
ER_CKPT_API void er_ckpt_stats(const struct er_ckpt *ckpt, struct er_ckpt_stats *ret);

enum er_ckpt_event_kind { ER_CKPT_NOTHING, ER_CKPT_COMMITTED, ER_CKPT_FAILED };
struct er_ckpt_event {
    enum er_ckpt_event_kind kind;
    uint64_t step, bytes, written_bytes, pause_us, duration_us;
    int code;          /* FAILED: negative */
    uint32_t stood_in; /* parts that others wrote for their ranks; `note` says for whom, and why */
    char text[512];    /* FAILED: why; COMMITTED: path */
    char note[256];
};
/* Takes the oldest event that has not been taken. */
ER_CKPT_API void er_ckpt_poll(struct er_ckpt *ckpt, struct er_ckpt_event *ret);

/* Why a checkpoint was passed over; called during load, newest first. */
typedef void (*er_ckpt_skip_fn)(void *user, uint64_t step, const char *why);
/*
 * Fill `slices` from the newest checkpoint that verifies, at any world size. Each rank reads what
 * it needs, several threads at once, and checks the digest of all that it reads; when any rank
 * finds one wrong, all go on to the next older one (rank 0's `skip` is told). Collective: all ranks
 * load the same step. 0 loaded, 1 none yet, ER_E_CORRUPT: there are checkpoints, none verifies;
 * `slices` then hold garbage. Slices that the checkpoint lacks, or of another shape or type, are an
 * error that names the tensor. Not while one is in flight.
 */
ER_CKPT_API int er_ckpt_load(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                             struct er_meta *ret_meta, er_ckpt_skip_fn skip, void *user,
                             struct er_error *err);
/*
 * The same without a copy, for programs that only read a state (evaluation, export): sets the
 * `data` of each slice. What lies in one piece in a shard is the file itself, mapped; a slice that
 * several ranks wrote lies in several files, and is put together in memory. Everything has been
 * checked when it returns. The memory is the program's own (writing to it changes no file) until
 * er_ckpt_unmap(), also behind er_ckpt_close() and when retention removes the checkpoint. As with
 * any mapping, pages that the system dropped are read again, unchecked, and a file that somebody
 * cuts, or storage that fails then, is a SIGBUS: where that matters, load. On failure *ret is
 * untouched, and the data of `slices` are NULL.
 */
struct er_ckpt_views; /* opaque */
ER_CKPT_API int er_ckpt_map(struct er_ckpt *ckpt, struct er_slice *slices, size_t n,
                            struct er_meta *ret_meta, er_ckpt_skip_fn skip, void *user,
                            struct er_ckpt_views **ret, struct er_error *err);
/* NULL is fine. */
ER_CKPT_API void er_ckpt_unmap(struct er_ckpt_views *views);
/* Every byte of one checkpoint against its digests. */
ER_CKPT_API int er_ckpt_verify(const char *dir, uint64_t step, struct er_error *err);
/* Steps that have a manifest, ascending; *ret is malloc'ed, the caller's. */
ER_CKPT_API int er_ckpt_list(const char *dir, uint64_t **ret, size_t *ret_n, struct er_error *err);

#ifdef __cplusplus
}
#endif
