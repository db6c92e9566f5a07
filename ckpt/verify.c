#include "ckpt/verify.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/slices.h"

#define HEADER_TRY_BYTES (64u << 10)

int er_ckpt_shard_header(const struct er_ckpt_source *source, uint32_t shard,
                         struct er_st_tensor **ret, size_t *ret_n, uint64_t *ret_data_at,
                         struct er_error *err)
{
    const struct er_manifest_shard *s = &source->m.shards[shard];
    size_t wanted = s->bytes < HEADER_TRY_BYTES ? (size_t)s->bytes : HEADER_TRY_BYTES;

    for (;;) {
        ER_CLEANUP(er_cleanup_free) char *data = malloc(wanted + 1);
        struct er_st_tensor *tensors = NULL;
        int rc;

        if (!data)
            return er_error_set(err, -ENOMEM, "safetensors header: no memory");
        rc = er_pread_all(source->fds[shard], data, wanted, 0);
        if (rc < 0)
            return er_error_set(err, rc, "read '%s': %s", s->name, er_error_name(rc));
        rc = er_st_parse(data, wanted, s->bytes, &tensors, ret_n, ret_data_at, err);
        if (rc == 0 && !er_digest_equal(er_hash(data, (size_t)*ret_data_at), s->header)) {
            free(tensors);
            return er_error_set(err, ER_E_CORRUPT, "'%s': digest of the header does not match",
                                s->name);
        }
        if (rc < 0 && rc != -EAGAIN)
            return er_error_wrap(err, rc, "'%s'", s->name);
        if (rc == 0) {
            *ret = tensors;
            return 0;
        }
        wanted = (size_t)*ret_data_at;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct er_manifest_slice *x = *(const struct er_manifest_slice *const *)a,
                                   *y = *(const struct er_manifest_slice *const *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool fits(const struct er_manifest *m, const struct er_manifest_slice *s,
                 const struct er_st_tensor *t, uint64_t data_at)
{
    uint64_t bytes = s->count * er_ckpt_dtype_size(t->dtype);

    return m->tensors[s->tensor].dtype == t->dtype && s->at >= data_at + t->begin &&
           s->at + bytes <= data_at + t->end;
}

/* The file speaks for itself too: slices of the manifest lie within tensors of its header, one
 * behind the other. `slices` are this shard's, sorted by place. Returns how many. */
static int verify_header(const struct er_ckpt_source *source, uint32_t shard,
                         const struct er_manifest_slice *const *slices, size_t n, size_t *ret_used,
                         struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_st_tensor *tensors = NULL;
    size_t tensor_n = 0, t = 0, used = 0;
    uint64_t data_at = 0, end = 0;
    int rc = er_ckpt_shard_header(source, shard, &tensors, &tensor_n, &data_at, err);

    for (; rc == 0 && used < n && slices[used]->shard == shard; used++) {
        const struct er_manifest_slice *s = slices[used];

        while (t < tensor_n && s->at >= data_at + tensors[t].end)
            t++;
        if (t == tensor_n || !fits(&source->m, s, &tensors[t], data_at) || s->at < end)
            return er_error_set(err, ER_E_CORRUPT, "header of '%s' does not match the manifest",
                                source->m.shards[shard].name);
        end = s->at + s->count * er_ckpt_dtype_size(tensors[t].dtype);
    }
    *ret_used = used;
    return rc;
}

static int verify_headers(struct er_ckpt_source *source, struct er_error *err)
{
    const struct er_manifest *m = &source->m;
    ER_CLEANUP(er_cleanup_free)
    const struct er_manifest_slice **slices = calloc(m->slice_n + 1, sizeof(*slices));
    size_t at = 0;
    int rc = 0;

    if (!slices)
        return er_error_set(err, -ENOMEM, "verify: no memory");
    for (size_t i = 0; i < m->slice_n; i++)
        slices[i] = &m->slices[i];
    if (m->slice_n > 0)
        qsort(slices, m->slice_n, sizeof(*slices), by_place);
    for (uint32_t shard = 0; rc == 0 && shard < m->shard_n; shard++) {
        size_t used = 0;

        rc = er_ckpt_source_shard(source, shard, err);
        if (rc == 0)
            rc = verify_header(source, shard, slices + at, m->slice_n - at, &used, err);
        at += used;
    }
    return rc;
}

int er_ckpt_verify_folder(const char *folder, const struct er_fetch_opts *opts,
                          struct er_error *err)
{
    struct er_ckpt_source source;
    struct er_fetch_list list = {0};
    int rc = er_ckpt_source_open(&source, folder, err);

    if (rc < 0)
        return rc;
    rc = verify_headers(&source, err);
    if (rc == 0)
        rc = er_fetch_all(&list, &source, err);
    if (rc == 0)
        rc = er_fetch_run(&list, &source, opts, NULL, err);
    er_fetch_done(&list);
    er_ckpt_source_close(&source);
    return rc;
}

int er_ckpt_verify(const char *dir, uint64_t step, struct er_error *err)
{
    const struct er_fetch_opts opts = {0};
    char folder[PATH_MAX];
    int rc = er_ckpt_step_path(dir, step, folder, err);

    return rc == 0 ? er_ckpt_verify_folder(folder, &opts, err) : rc;
}
