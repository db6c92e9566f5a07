#pragma once
/*
 * Headers of safetensors files: 8 bytes little-endian length, then JSON {"name": {"dtype", "shape",
 * "data_offsets"}, "__metadata__": {...}}, then the data without holes. Every limit is checked
 * before anything is allocated by it. Source: the format's own description
 * (huggingface/safetensors, README "Format").
 */
#include "base/buf.h"
#include "ckpt/ckpt.h"

#define ER_ST_HEADER_MAX  (16u << 20)
#define ER_ST_TENSORS_MAX 100000u
#define ER_ST_ALIGN                                                                                \
    4096u /* of the data in the file, for direct I/O: the header is padded with blanks */

struct er_st_tensor {
    char name[ER_CKPT_NAME_MAX + 24]; /* "tensor" or "tensor@offset" */
    enum er_ckpt_dtype dtype;
    uint32_t ndim;
    uint64_t shape[ER_CKPT_DIMS_MAX];
    uint64_t begin, end; /* bytes, relative to the data */
};

/* The whole header, length field included, appended to `buf`. Tensors must lie one after the other
 * from 0 on. `metadata` is a JSON object of strings, or NULL. */
int er_st_format(struct er_buf *buf, const struct er_st_tensor *tensors, size_t n,
                 const char *metadata, struct er_error *err);

/* `data` holds the first n bytes of a file of `file_bytes`; *ret_data_at: where its data begin.
 * *ret is malloc'ed, sorted by begin. ER_E_CORRUPT with the reason; -EAGAIN: n is too small,
 * *ret_data_at says how many bytes are needed. */
int er_st_parse(const void *data, size_t n, uint64_t file_bytes, struct er_st_tensor **ret,
                size_t *ret_n, uint64_t *ret_data_at, struct er_error *err);
