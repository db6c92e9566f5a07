#pragma once
/*
 * libelastic-ckpt: checkpoints that are complete, digest-checked and readable by any safetensors
 * tool, at any world size.
 *
 *   <dir>/step-<n, 12 digits>/shard-<i>-of-<k>.safetensors, manifest.json     written under a
 * temporary name, renamed when whole <dir>/LATEST text: name of the newest committed folder; a hint
 * only
 *
 * The library knows neither agent nor communicator: the caller gives a `struct er_ckpt_group`
 * (rank, size, how to gather small records and how to commit). Format: docs/checkpoint-format.md.
 */
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

enum er_ckpt_dtype { ER_CKPT_F32, ER_CKPT_F64, ER_CKPT_I64, ER_CKPT_U8 };

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
    char run[64];
    char layout[2048]; /* bucket layout, er_ddp_layout(), or a digest of it when longer */
    char user[4096];   /* a JSON object of the program's own; "" = {} */
};

struct er_ckpt_done {
    uint64_t step, bytes, written_bytes, pause_us, duration_us;
    const char *path, *digest; /* valid during the call */
};

/* How the ranks of a job work together on one checkpoint; a NULL function means a world of one
 * without it. */
struct er_ckpt_group {
    int rank, size;
    void *user;
    /* all-gather: n bytes of each rank in rank order at `all`. */
    int (*gather)(void *user, const void *mine, size_t n, void *all, struct er_error *err);
    /* Rank 0, after everything is durable and renamed: the fenced commit. ER_E_STALE: superseded,
     * the folder is withdrawn. */
    int (*commit)(void *user, const struct er_ckpt_done *done, struct er_error *err);
};

struct er_ckpt_opts {
    uint32_t keep_last; /* 0: keep all; the last valid one is never removed */
};

struct er_ckpt; /* opaque */

/* Makes `dir` when it is missing; checks that it can be written. `group` is copied (its `user` is
 * borrowed). */
ER_CKPT_API int er_ckpt_open(struct er_ckpt **ret, const char *dir,
                             const struct er_ckpt_group *group, const struct er_ckpt_opts *opts,
                             struct er_error *err);
ER_CKPT_API void er_ckpt_close(struct er_ckpt *ckpt);

/*
 * Collective. Writes a checkpoint of `slices`; all ranks agree on the outcome: 0 on every rank when
 * it is committed, else the same kind of negative code everywhere, the text naming rank and path,
 * and the older checkpoints untouched. Failing to write is not fatal for training: the caller
 * decides. Today the call returns when the checkpoint is durable; er_ckpt_poll() then reports it.
 */
ER_CKPT_API int er_ckpt_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                              const struct er_meta *meta, struct er_error *err);
/* Before parameters change: waits until the state has been copied. */
ER_CKPT_API int er_ckpt_before_apply(struct er_ckpt *ckpt, struct er_error *err);

enum er_ckpt_event_kind { ER_CKPT_NOTHING, ER_CKPT_COMMITTED, ER_CKPT_FAILED };
struct er_ckpt_event {
    enum er_ckpt_event_kind kind;
    uint64_t step, bytes, written_bytes, pause_us, duration_us;
    int code;       /* FAILED: negative */
    char text[512]; /* FAILED: why; COMMITTED: path */
};
/* Takes the oldest event that has not been taken. */
ER_CKPT_API void er_ckpt_poll(struct er_ckpt *ckpt, struct er_ckpt_event *ret);

/* Why a checkpoint was passed over; called during load, newest first. */
typedef void (*er_ckpt_skip_fn)(void *user, uint64_t step, const char *why);
/*
 * Fill `slices` from the newest checkpoint that verifies, at any world size; digests of everything
 * read are checked. Collective: all ranks load the same step (rank 0 chooses by verifying whole,
 * the others follow). 0 loaded, 1 none yet, ER_E_CORRUPT: there are checkpoints, none verifies.
 * Slices that the checkpoint lacks, or of another shape or type, are an error that names the
 * tensor.
 */
ER_CKPT_API int er_ckpt_load(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                             struct er_meta *ret_meta, er_ckpt_skip_fn skip, void *user,
                             struct er_error *err);
/* Every byte of one checkpoint against its digests. */
ER_CKPT_API int er_ckpt_verify(const char *dir, uint64_t step, struct er_error *err);
/* Steps that have a manifest, ascending; *ret is malloc'ed, the caller's. */
ER_CKPT_API int er_ckpt_list(const char *dir, uint64_t **ret, size_t *ret_n, struct er_error *err);

#ifdef __cplusplus
}
#endif
