#pragma once
/* clang-format off */
/*
 * manifest.json: what a checkpoint holds and where, with digests. Written last, so a folder without
 * one is not a checkpoint.
 *
 *   {"format":"elastic-ckpt","version":1,"digest":"<XXH3-128 of body>","body":{
 *      "step":.., "generation":.., "run":"..", "world_size":.., "seed":"..", "global_batch":..,
 *      "samples":.., "layout":"..", "user":"..", "metric":"..",
 *      "chain":[{"generation":..,"first_step":..}],
 *      "shards":[{"file":"shard-0-of-2.safetensors","bytes":..,"header":"<digest>"}],
 *      "tensors":[{"name":"..","dtype":"F32","shape":[..],
 *                  "slices":[{"offset":..,"count":..,"shard":0,"at":..,"digest":".."}]}]}}
 *
 * The digest is over the body written with sorted keys and without blanks; numbers are integers.
 * Pure.
 */
/* clang-format on */
#include "base/buf.h"
#include "base/hash.h"
#include "ckpt/ckpt.h"

#define ER_MANIFEST_VERSION     1
#define ER_MANIFEST_BYTES_MAX   (64u << 20)
#define ER_MANIFEST_SHARDS_MAX  16384u
#define ER_MANIFEST_TENSORS_MAX 20000u
#define ER_MANIFEST_SLICES_MAX  1000000u
#define ER_MANIFEST_CHAIN_MAX   65536u
#define ER_MANIFEST_NAME_MAX    64 /* of a shard's file */

/* A generation of the job and the first step that it trained. */
struct er_chain_link {
    uint64_t generation, first_step;
};

struct er_manifest_slice {
    uint32_t tensor, shard;
    uint64_t offset, count; /* elements */
    uint64_t at;            /* byte offset in the shard file */
    struct er_digest digest;
};

struct er_manifest_shard {
    char name[ER_MANIFEST_NAME_MAX];
    uint64_t bytes;          /* of the file */
    struct er_digest header; /* of the safetensors header, length field included */
};

struct er_manifest_tensor {
    char name[ER_CKPT_NAME_MAX];
    enum er_ckpt_dtype dtype;
    uint32_t ndim;
    uint64_t shape[ER_CKPT_DIMS_MAX];
};

struct er_manifest {
    struct er_meta meta;
    struct er_chain_link *chain; /* owned: generations before meta.generation, oldest first */
    size_t chain_n;
    uint32_t shard_n;
    struct er_manifest_shard *shards;   /* owned, shard_n */
    struct er_manifest_tensor *tensors; /* owned, sorted by name after er_manifest_finish() */
    size_t tensor_n, tensor_cap;
    struct er_manifest_slice
        *slices; /* owned, sorted by tensor and offset after er_manifest_finish() */
    size_t slice_n, slice_cap;
    size_t hint; /* tensor found last: slices come tensor by tensor */
};

void er_manifest_init(struct er_manifest *m);
void er_manifest_done(struct er_manifest *m);

/* File name of a shard; `cap` at least 64. */
void er_manifest_shard_name(uint32_t shard, uint32_t shards, char *ret_name, size_t cap);

/* "shard-<i>-of-<k>.safetensors", or "shard-<i>-of-<k>.from-<step>.safetensors" for a file that
 * another checkpoint shares with this one; nothing else, so no name leads out of the folder. */
bool er_manifest_shard_name_ok(const char *name);

/* Generations before this checkpoint's; copied. */
int er_manifest_set_chain(struct er_manifest *m, const struct er_chain_link *chain, size_t n,
                          struct er_error *err);
/* Makes room for so many shards, named as a writer names them. */
int er_manifest_shards(struct er_manifest *m, uint32_t shards, struct er_error *err);
/* One slice as it stands in a shard; the tensor is added when it is new; a tensor of another shape
 * or type is ER_E_MISMATCH. */
int er_manifest_add(struct er_manifest *m, const struct er_slice *slice, uint32_t shard,
                    uint64_t at, struct er_digest digest, struct er_error *err);
/* Sorts, and checks that the slices cover every tensor exactly once and lie within their files.
 * ER_E_CORRUPT names the tensor. */
int er_manifest_finish(struct er_manifest *m, struct er_error *err);

/* Index of a tensor after er_manifest_finish(), or -1. */
long er_manifest_find(const struct er_manifest *m, const char *name);
/* Slices of tensor t are [*ret_first, *ret_first + result). */
size_t er_manifest_slices_of(const struct er_manifest *m, size_t tensor, size_t *ret_first);

/* The text of manifest.json, appended; *ret_digest is the body's. -EINVAL: a text of the metadata
 * is not UTF-8. */
int er_manifest_format(const struct er_manifest *m, struct er_buf *buf,
                       struct er_digest *ret_digest, struct er_error *err);
/* Parses, checks the digest and finishes. An unknown newer version is ER_E_UNSUPPORTED. */
int er_manifest_parse(const char *text, size_t n, struct er_manifest *ret, struct er_error *err);
