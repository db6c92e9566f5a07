#pragma once
/*
 * Reading pieces of one checkpoint's shards, several threads at once, each piece checked against
 * its digest before it counts.
 */
#include <stdbool.h>

#include "ckpt/ckpt.h"
#include "ckpt/manifest.h"

/* A checkpoint's folder open for reading. */
struct er_ckpt_source {
    const char *folder; /* the caller's */
    struct er_manifest m;
    int *fds; /* owned, one a shard; -1: not opened yet */
};

/* Reads the manifest; files are opened when they are needed. `folder` is borrowed. On failure there
 * is nothing to close. */
int er_ckpt_source_open(struct er_ckpt_source *source, const char *folder, struct er_error *err);
void er_ckpt_source_close(struct er_ckpt_source *source);
/* Opens a shard that is not open yet; its length must be the manifest's. */
int er_ckpt_source_shard(struct er_ckpt_source *source, uint32_t shard, struct er_error *err);

/* One piece: into `to` as a whole, or of it [from, from + bytes) only; to NULL: check alone. */
struct er_fetch {
    size_t slice; /* index in the manifest */
    char *to;
    uint64_t from, bytes;
    bool mapped; /* `to` is there, in a mapping of the file: check alone */
};

struct er_fetch_list {
    struct er_fetch *items; /* owned */
    size_t n, cap;
};
/* Index of the tensor that `want` is of. ER_E_MISMATCH names it: missing, another shape or type. */
int er_fetch_find(const struct er_ckpt_source *source, const struct er_slice *want, size_t *ret,
                  struct er_error *err);
/* What `want` needs; opens the shards. `mapped`: its data is a mapping of the one shard that holds
 * it. Errors as er_fetch_find(). */
int er_fetch_want(struct er_fetch_list *list, struct er_ckpt_source *source,
                  const struct er_slice *want, bool mapped, struct er_error *err);
/* Every piece, for checking. */
int er_fetch_all(struct er_fetch_list *list, struct er_ckpt_source *source, struct er_error *err);
void er_fetch_done(struct er_fetch_list *list);

/* Told by the calling thread now and then, and at the end. */
typedef void (*er_fetch_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

struct er_fetch_opts {
    uint32_t threads;      /* 0: up to 4, as many as there are cores */
    bool refuse_nonfinite; /* -EDOM names the tensor */
    er_fetch_progress_fn progress;
    void *user;
};
/* The first failure in order of time; ER_E_CORRUPT names tensor and shard. *ret_read (may be NULL):
 * bytes read. */
int er_fetch_run(const struct er_fetch_list *list, const struct er_ckpt_source *source,
                 const struct er_fetch_opts *opts, uint64_t *ret_read, struct er_error *err);
