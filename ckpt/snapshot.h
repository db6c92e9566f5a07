#pragma once
/*
 * The copy of a rank's state: an image of the shard file as it will stand on disk, header first, in
 * pooled memory that is made once and used again. And the plan of that file.
 */
#include "base/hash.h"
#include "base/pool.h"
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"

/* Which pieces of the state this rank writes, and where they stand in its file. */
struct er_shard_plan {
    struct er_slice *parts;       /* owned; names are copies within the plan */
    struct er_st_tensor *tensors; /* owned; how they stand in the file */
    struct er_digest *digests;    /* owned; of all pieces, part after part */
    char *names;                  /* owned */
    size_t n, piece_n;
    bool sole;                    /* some of it is held by no other rank */
    uint64_t header_bytes, bytes; /* of the header; of the file */
    struct er_digest header;
    char *header_text; /* owned; header_bytes */
};

/* What `rank` of `size` writes; `spare`: of that, what this rank holds as well when it is another
 * one. */
int er_shard_plan_make(struct er_shard_plan *plan, const struct er_slice *slices, size_t n,
                       int rank, int size, bool spare, struct er_error *err);
void er_shard_plan_done(struct er_shard_plan *plan);
/* Bytes in the file before part `i`'s data. */
uint64_t er_shard_plan_at(const struct er_shard_plan *plan, size_t i);

/* Memory for an image; counted references. Its pages come in when they are first written, or by
 * er_snapshot_populate(), which may take as long as it likes beside that. */
struct er_snapshot;
int er_snapshot_new(struct er_snapshot **ret, uint64_t bytes, struct er_error *err);
struct er_snapshot *er_snapshot_ref(struct er_snapshot *snapshot);
void er_snapshot_unref(struct er_snapshot *snapshot);
/* Somebody beside the holder of the first reference uses it. */
bool er_snapshot_shared(const struct er_snapshot *snapshot);
/* 4096-aligned; as long as asked for, rounded up to ER_SNAPSHOT_ALIGN. */
char *er_snapshot_data(struct er_snapshot *snapshot);
uint64_t er_snapshot_room(const struct er_snapshot *snapshot);
/* Pages of [at, at + n). Best effort. */
void er_snapshot_populate(struct er_snapshot *snapshot, uint64_t at, uint64_t n);

#define ER_SNAPSHOT_ALIGN 4096u
