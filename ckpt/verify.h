#pragma once
/* Every byte of a checkpoint against its digests. */
#include "ckpt/fetch.h"
#include "ckpt/safetensors.h"

/* Headers of the shards too. ER_E_CORRUPT and ER_E_UNSUPPORTED: the answer is no; else it could not
 * be read. */
int er_ckpt_verify_folder(const char *folder, const struct er_fetch_opts *opts,
                          struct er_error *err);
/* Header of an open shard, checked against its digest and length; *ret malloc'ed, sorted by begin.
 */
int er_ckpt_shard_header(const struct er_ckpt_source *source, uint32_t shard,
                         struct er_st_tensor **ret, size_t *ret_n, uint64_t *ret_data_at,
                         struct er_error *err);
