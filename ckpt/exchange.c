/* What the ranks tell each other before one of them writes the manifest. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ckpt/save.h"
#include "ckpt/slices.h"

/* One part of the state as it stands in a rank's file. Digests of the pieces follow after all
 * parts of a file. */
struct row {
    char name[ER_CKPT_NAME_MAX];
    uint64_t dtype, ndim, shape[ER_CKPT_DIMS_MAX], offset, count, at;
};

/* What each rank says first. */
struct report {
    int64_t rank, code, spare; /* rank: as numbered when it began; code: of its own part */
    int64_t spare_code;        /* FAILED: of the copy; `text` is about that */
    uint8_t empty, sole, spare_state;
    struct file_report {
        uint64_t rows, digests, bytes; /* bytes: of the file */
        struct er_digest header;
    } own, copy;
    char text[400];
};

static struct file_report describe_file(const struct er_shard_plan *plan)
{
    return (struct file_report){plan->n, plan->piece_n, plan->bytes, plan->header};
}

static size_t file_bytes(const struct file_report *f)
{
    return (size_t)f->rows * sizeof(struct row) + (size_t)f->digests * sizeof(struct er_digest);
}

static size_t blob_bytes(const struct report *r)
{
    return file_bytes(&r->own) + file_bytes(&r->copy);
}

static char *put_file(const struct er_shard_plan *plan, char *blob)
{
    for (size_t i = 0; i < plan->n; i++) {
        const struct er_slice *part = &plan->parts[i];
        struct row row = {.dtype = part->dtype,
                          .ndim = part->ndim,
                          .offset = part->offset,
                          .count = part->count,
                          .at = er_shard_plan_at(plan, i)};

        memcpy(row.name, part->name, strlen(part->name) + 1);
        memcpy(row.shape, part->shape, sizeof(row.shape));
        memcpy(blob, &row, sizeof(row));
        blob += sizeof(row);
    }
    memcpy(blob, plan->digests, plan->piece_n * sizeof(*plan->digests));
    return blob + plan->piece_n * sizeof(*plan->digests);
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

static int add_file(struct er_manifest *m, const struct file_report *file, const char *blob,
                    uint32_t shard, struct er_error *err)
{
    const char *digests = blob + file->rows * sizeof(struct row);
    size_t used = 0;
    int rc = 0;

    m->shards[shard].bytes = file->bytes;
    m->shards[shard].header = file->header;
    for (uint64_t i = 0; rc == 0 && i < file->rows; i++) {
        struct row row;

        memcpy(&row, blob + i * sizeof(row), sizeof(row));
        row.name[sizeof(row.name) - 1] = 0;
        rc = add_row(m, &row, shard, digests, (size_t)file->digests, &used, err);
    }
    return rc;
}

struct round {
    size_t n;                        /* members */
    struct report *reports;          /* owned */
    struct er_cover_member *members; /* owned */
    bool *write;                     /* owned */
};

static void done(struct round *round)
{
    free(round->reports);
    free(round->members);
    free(round->write);
}

/* Files of ranks that had something to write, in the order of ranks, whoever wrote them. */
static int build_manifest(struct er_save *save, const struct round *round, const char *blobs,
                          size_t most, struct er_error *err)
{
    struct er_manifest *m = &save->manifest;
    uint32_t shard = 0;
    int rc = er_manifest_shards(m, (uint32_t)save->size, err);

    m->meta = save->meta;
    if (rc == 0)
        rc = er_manifest_set_chain(m, save->chain, save->chain_n, err);
    for (int rank = 0; rc == 0 && rank < save->size; rank++) {
        bool spare = false;
        int holder = er_cover_holder(round->members, round->n, rank, &spare);
        const struct report *r = &round->reports[holder < 0 ? 0 : holder];
        const struct file_report *file = spare ? &r->copy : &r->own;

        if (holder < 0 || file->rows == 0)
            continue;
        er_manifest_shard_name((uint32_t)rank, (uint32_t)save->size, m->shards[shard].name,
                               sizeof(m->shards[shard].name));
        save->total_bytes += file->bytes;
        rc = add_file(m, file, blobs + (size_t)holder * most + (spare ? file_bytes(&r->own) : 0),
                      shard++, err);
    }
    if (rc == 0 && shard == 0)
        return er_error_set(err, -EINVAL, "the state is empty");
    m->shard_n = shard;
    if (rc == 0)
        rc = er_manifest_finish(m, err);
    if (rc == ER_E_CORRUPT && (int)round->n < save->size) /* nobody knows what they held alone */
        rc = er_error_wrap(err, -ENODATA, "a part of the state is lost with its rank");
    return rc;
}

static struct report describe(const struct er_save *save)
{
    struct report mine = {.rank = save->rank,
                          .code = save->own_code,
                          .spare = save->spare_rank,
                          .spare_state = (uint8_t)save->spare_state,
                          .spare_code = save->spare_err.code,
                          .empty = save->plan.n == 0,
                          .sole = save->plan.sole};

    if (save->own_code == 0)
        mine.own = describe_file(&save->plan);
    if (save->spare_state == ER_SPARE_WRITTEN)
        mine.copy = describe_file(&save->spare);
    if (save->own_code < 0)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1,
                 save->own_err.text);
    else if (save->spare_state == ER_SPARE_FAILED)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1,
                 save->spare_err.text);
    return mine;
}

static int tell_each_other(struct er_save *save, const struct er_ckpt *ckpt, struct round *round,
                           struct er_error *err)
{
    const struct report mine = describe(save);
    int rc;

    round->n = (size_t)ckpt->group.size;
    round->reports = calloc(round->n, sizeof(*round->reports));
    round->members = calloc(round->n, sizeof(*round->members));
    round->write = calloc(round->n, sizeof(*round->write));
    if (!round->reports || !round->members || !round->write)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    rc = er_ckpt_gather(ckpt, &mine, sizeof(mine), round->reports, err);
    for (size_t i = 0; rc == 0 && i < round->n; i++) {
        struct report *r = &round->reports[i];

        r->text[sizeof(r->text) - 1] = 0;
        round->members[i] = (struct er_cover_member){.rank = (int)r->rank,
                                                     .code = (int)r->code,
                                                     .empty = r->empty,
                                                     .sole = r->sole,
                                                     .spare = (int)r->spare,
                                                     .spare_state = r->spare_state};
    }
    return rc;
}

/* The words of a rank that could not write, or is not here. */
static int why(const struct round *round, int rank, struct er_error *err)
{
    for (size_t i = 0; i < round->n; i++)
        if (round->members[i].rank == rank)
            return er_error_set(err, round->members[i].code, "rank %d: %s", rank,
                                round->reports[i].text);
    return er_error_set(err, -ENODATA, "rank %d is gone, and nobody has its part of the state",
                        rank);
}

static int lost(const struct round *round, int rank, struct er_error *err)
{
    int rc = why(round, rank, err);

    for (size_t i = 0; i < round->n; i++) {
        const struct er_cover_member *m = &round->members[i];

        if (m->rank == rank && m->sole)
            return er_error_wrap(err, rc, "a part of the state that no other rank has is lost");
        if (m->spare == rank && m->spare_state == ER_SPARE_FAILED && m->code == 0)
            return er_error_set(err, (int)round->reports[i].spare_code, "rank %d, for rank %d: %s",
                                m->rank, rank, round->reports[i].text);
    }
    return rc;
}

/* For the event: for whom others wrote. */
static void note_stand_ins(struct er_save *save, const struct round *round)
{
    struct er_error err = ER_ERROR_INIT;

    save->stood_in = 0;
    for (int rank = save->size; rank-- > 0;) {
        bool spare = false;
        int holder = er_cover_holder(round->members, round->n, rank, &spare);

        if (holder < 0 || !spare || round->reports[holder].copy.rows == 0)
            continue;
        save->stood_in++;
        (void)why(round, rank, &err);
        snprintf(save->note, sizeof(save->note), "%.180s; rank %d wrote its part", err.text,
                 round->members[holder].rank);
    }
}

static int exchange_rows(struct er_save *save, const struct er_ckpt *ckpt,
                         const struct round *round, int *ret_mine, struct er_error *err)
{
    const struct report *me = &round->reports[ckpt->group.rank];
    ER_CLEANUP(er_cleanup_free) char *mine = NULL;
    ER_CLEANUP(er_cleanup_free) char *all = NULL;
    size_t most = 0;
    char *end;
    int rc;

    for (size_t i = 0; i < round->n; i++)
        most = blob_bytes(&round->reports[i]) > most ? blob_bytes(&round->reports[i]) : most;
    mine = calloc(1, most + 1);
    all = calloc(round->n, most + 1);
    if (!mine || !all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    end = me->own.rows ? put_file(&save->plan, mine) : mine;
    if (me->copy.rows)
        put_file(&save->spare, end);
    rc = er_ckpt_gather(ckpt, mine, most, all, err);
    if (rc == 0 && save->leader)
        *ret_mine = build_manifest(save, round, all, most, err);
    return rc;
}

int er_save_round(struct er_save *save, const struct er_ckpt *ckpt, enum er_cover *ret,
                  int *ret_mine, bool *ret_together, struct er_error *err)
{
    struct round round = {0};
    int rank = 0, rc = tell_each_other(save, ckpt, &round, err);

    *ret_together = rc == 0;
    if (rc == 0) {
        *ret = er_cover_judge(round.members, round.n, save->size, round.write, &rank);
        save->leader = er_cover_leader(round.members, round.n) == (size_t)ckpt->group.rank;
        save->duty = round.write[ckpt->group.rank];
        if (*ret == ER_COVER_LOST)
            rc = lost(&round, rank, err);
    }
    if (rc == 0 && *ret == ER_COVER_WHOLE) {
        note_stand_ins(save, &round);
        rc = exchange_rows(save, ckpt, &round, ret_mine, err);
        *ret_together = rc == 0;
    }
    done(&round);
    return rc;
}
