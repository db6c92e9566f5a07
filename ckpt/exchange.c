/* What the ranks tell each other before rank 0 writes the manifest. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ckpt/save.h"
#include "ckpt/slices.h"

/* One part of the state as it stands in a rank's file. Digests of its pieces follow after all
 * parts. */
struct row {
    char name[ER_CKPT_NAME_MAX];
    uint64_t dtype, ndim, shape[ER_CKPT_DIMS_MAX], offset, count, at;
};

/* What each rank says first. */
struct report {
    int64_t code;
    uint64_t rows, digests, bytes; /* bytes: of the file */
    struct er_digest header;
    char text[448];
};

static size_t blob_bytes(const struct report *r)
{
    return (size_t)r->rows * sizeof(struct row) + (size_t)r->digests * sizeof(struct er_digest);
}

static void put_blob(const struct er_save *save, char *blob)
{
    const struct er_shard_plan *plan = &save->plan;

    for (size_t i = 0; i < plan->n; i++) {
        const struct er_slice *part = &plan->parts[i];
        struct row row = {.dtype = part->dtype,
                          .ndim = part->ndim,
                          .offset = part->offset,
                          .count = part->count,
                          .at = er_shard_plan_at(plan, i)};

        memcpy(row.name, part->name, strlen(part->name) + 1);
        memcpy(row.shape, part->shape, sizeof(row.shape));
        memcpy(blob + i * sizeof(row), &row, sizeof(row));
    }
    memcpy(blob + plan->n * sizeof(struct row), plan->digests,
           plan->piece_n * sizeof(*plan->digests));
}

/* A part becomes as many slices of the manifest as it has pieces. */
static int add_row(struct er_manifest *m, const struct row *row, uint32_t shard,
                   const char *digests, size_t digest_n, size_t *used, struct er_error *err)
{
    struct er_slice slice = {.name = row->name,
                             .dtype = (enum er_ckpt_dtype)row->dtype,
                             .ndim = (uint32_t)row->ndim,
                             .offset = row->offset,
                             .count = row->count};
    uint64_t size, piece, bytes;
    int rc;

    memcpy(slice.shape, row->shape, sizeof(slice.shape));
    rc = er_slice_check(&slice, err);
    if (rc < 0)
        return rc;
    size = er_ckpt_dtype_size(slice.dtype);
    bytes = row->count * size;
    piece = er_piece_bytes(bytes);
    for (uint64_t at = 0; at < bytes; at += piece) {
        struct er_digest digest;

        if (*used == digest_n)
            return er_error_set(err, ER_E_PROTOCOL, "rank %u sent too few digests", shard);
        memcpy(&digest, digests + *used * sizeof(digest), sizeof(digest));
        ++*used;
        slice.offset = row->offset + at / size;
        slice.count = (bytes - at < piece ? bytes - at : piece) / size;
        rc = er_manifest_add(m, &slice, shard, row->at + at, digest, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int add_rank(struct er_manifest *m, const struct report *report, const char *blob,
                    uint32_t rank, struct er_error *err)
{
    const char *digests = blob + report->rows * sizeof(struct row);
    size_t used = 0;
    int rc = 0;

    m->shards[rank].bytes = report->bytes;
    m->shards[rank].header = report->header;
    for (uint64_t i = 0; rc == 0 && i < report->rows; i++) {
        struct row row;

        memcpy(&row, blob + i * sizeof(row), sizeof(row));
        row.name[sizeof(row.name) - 1] = 0;
        rc = add_row(m, &row, rank, digests, (size_t)report->digests, &used, err);
    }
    return rc;
}

static int build_manifest(struct er_save *save, const struct report *reports, const char *blobs,
                          size_t most, struct er_error *err)
{
    struct er_manifest *m = &save->manifest;
    int rc = er_manifest_shards(m, (uint32_t)save->size, err);

    m->meta = save->meta;
    if (rc == 0)
        rc = er_manifest_set_chain(m, save->chain, save->chain_n, err);
    for (int i = 0; rc == 0 && i < save->size; i++) {
        save->total_bytes += reports[i].bytes;
        rc = add_rank(m, &reports[i], blobs + (size_t)i * most, (uint32_t)i, err);
    }
    return rc == 0 ? er_manifest_finish(m, err) : rc;
}

static int gather_reports(struct er_save *save, const struct er_ckpt *ckpt, int rc,
                          struct report *reports, struct er_error *err)
{
    struct report mine = {.code = rc,
                          .rows = save->plan.n,
                          .digests = save->plan.piece_n,
                          .bytes = save->plan.bytes,
                          .header = save->plan.header};
    int gathered;

    if (rc < 0)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1, err->text);
    gathered = er_ckpt_gather(ckpt, &mine, sizeof(mine), reports, err);
    if (gathered < 0)
        return gathered;
    for (int i = 0; i < save->size; i++) {
        reports[i].text[sizeof(reports[i].text) - 1] = 0;
        if (reports[i].code < 0)
            return er_error_set(err, (int)reports[i].code, "rank %d: %s", i, reports[i].text);
    }
    return 0;
}

int er_save_collect(struct er_save *save, const struct er_ckpt *ckpt, int rc, int *ret_mine,
                    struct er_error *err)
{
    size_t size = (size_t)save->size, most = 0;
    ER_CLEANUP(er_cleanup_free) struct report *reports = calloc(size, sizeof(*reports));
    ER_CLEANUP(er_cleanup_free) char *mine = NULL;
    ER_CLEANUP(er_cleanup_free) char *all = NULL;

    if (!reports)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    rc = gather_reports(save, ckpt, rc, reports, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < size; i++)
        most = blob_bytes(&reports[i]) > most ? blob_bytes(&reports[i]) : most;
    mine = calloc(1, most + 1);
    all = calloc(size, most + 1);
    if (!mine || !all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    put_blob(save, mine);
    rc = er_ckpt_gather(ckpt, mine, most, all, err);
    if (rc == 0 && save->rank == 0)
        *ret_mine = build_manifest(save, reports, all, most, err);
    return rc;
}
