/* Writing one checkpoint: every rank its shard, rank 0 the manifest and the publication. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/retain.h"
#include "ckpt/safetensors.h"
#include "ckpt/slices.h"

#define WRITE_BYTES (4u << 20)

/* What rank 0 must know of a slice that another rank wrote. */
struct row {
    char name[ER_CKPT_NAME_MAX];
    uint64_t dtype, ndim, shape[ER_CKPT_DIMS_MAX], offset, count, at;
    struct er_digest digest;
};

struct write {
    struct er_ckpt *ckpt;
    const struct er_meta *meta;
    char temp[PATH_MAX], final[PATH_MAX];
    struct er_slice *parts;       /* owned: this rank's pieces, those without elements left out */
    struct er_st_tensor *tensors; /* owned: how they stand in the shard */
    struct row *rows;             /* owned */
    size_t n;
    struct er_manifest_shard shard; /* this rank's */
    uint64_t total_bytes;
    bool exchanged; /* the temporary folder now holds an older checkpoint of the same step */
    struct er_digest digest;
};

static void write_done(struct write *w)
{
    free(w->parts);
    free(w->tensors);
    free(w->rows);
}

static void describe(const struct er_slice *part, struct er_st_tensor *t, uint64_t begin)
{
    uint64_t total = er_ckpt_elements(part->ndim, part->shape);
    *t = (struct er_st_tensor){.dtype = part->dtype,
                               .begin = begin,
                               .end = begin + part->count * er_ckpt_dtype_size(part->dtype)};
    t->ndim = er_slice_shape(part, t->shape);
    if (part->count == total)
        snprintf(t->name, sizeof(t->name), "%s", part->name);
    else
        snprintf(t->name, sizeof(t->name), "%s@%llu", part->name, (unsigned long long)part->offset);
}

/* Which pieces this rank writes, and where they stand. */
static int plan(struct write *w, const struct er_slice *slices, size_t n, struct er_error *err)
{
    w->parts = calloc(n + 1, sizeof(*w->parts));
    w->tensors = calloc(n + 1, sizeof(*w->tensors));
    w->rows = calloc(n + 1, sizeof(*w->rows));
    if (!w->parts || !w->tensors || !w->rows)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int rc = er_slice_check(&slices[i], err);
        if (rc < 0)
            return rc;
        struct er_slice part = er_slice_part(&slices[i], w->ckpt->group.rank, w->ckpt->group.size);
        if (part.count == 0)
            continue;
        describe(&part, &w->tensors[w->n], at);
        at = w->tensors[w->n].end;
        w->parts[w->n++] = part;
    }
    return 0;
}

static int write_part(int fd, const struct er_slice *part, const struct er_st_tensor *t,
                      uint64_t data_at, struct row *row)
{
    uint64_t bytes = t->end - t->begin;
    for (uint64_t done = 0; done < bytes; done += WRITE_BYTES) {
        size_t n = bytes - done < WRITE_BYTES ? (size_t)(bytes - done) : WRITE_BYTES;
        int rc = er_pwrite_all(fd, (const char *)part->data + done, n,
                               (off_t)(data_at + t->begin + done));
        if (rc < 0)
            return rc;
    }
    *row = (struct row){.dtype = part->dtype,
                        .ndim = part->ndim,
                        .offset = part->offset,
                        .count = part->count,
                        .at = data_at + t->begin,
                        .digest = er_hash(part->data, bytes)};
    memcpy(row->name, part->name, strlen(part->name) + 1);
    memcpy(row->shape, part->shape, sizeof(row->shape));
    return 0;
}

static int write_data(struct write *w, int fd, const struct er_buf *header)
{
    int rc = er_pwrite_all(fd, header->data, header->len, 0);
    for (size_t i = 0; rc == 0 && i < w->n; i++)
        rc = write_part(fd, &w->parts[i], &w->tensors[i], header->len, &w->rows[i]);
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    return rc;
}

static int write_shard(struct write *w, struct er_error *err)
{
    char name[64], path[PATH_MAX];
    ER_CLEANUP(er_buf_done) struct er_buf header;
    er_buf_init(&header, ER_ST_HEADER_MAX);
    int rc = er_st_format(&header, w->tensors, w->n, "{\"format\":\"elastic-ckpt\"}", err);
    if (rc < 0)
        return rc;
    er_manifest_shard_name((uint32_t)w->ckpt->group.rank, (uint32_t)w->ckpt->group.size, name,
                           sizeof(name));
    rc = er_ckpt_join(w->temp, name, path, err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0)
        return er_error_errno(err, "create '%s'", path);
    w->shard.bytes = header.len + (w->n ? w->tensors[w->n - 1].end : 0);
    w->shard.header = er_hash(header.data, header.len);
    rc = write_data(w, fd, &header);
    return rc < 0 ? er_error_set(err, rc, "write '%s': %s", path, er_error_name(rc)) : 0;
}

/* Rank 0: an empty temporary folder, no leftovers of dead writers. */
static int prepare(struct write *w, struct er_error *err)
{
    if (w->ckpt->group.rank != 0)
        return 0;
    int rc = er_ckpt_clean(w->ckpt->dir, w->meta->generation, err);
    return rc == 0 ? er_mkdir_all(w->temp, 0777, err) : rc;
}

static int add_rows(struct er_manifest *m, const struct row *rows, size_t n, uint32_t shard,
                    struct er_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct row *row = &rows[i];
        struct er_slice slice = {.name = row->name,
                                 .dtype = (enum er_ckpt_dtype)row->dtype,
                                 .ndim = (uint32_t)row->ndim,
                                 .offset = row->offset,
                                 .count = row->count};
        memcpy(slice.shape, row->shape, sizeof(slice.shape));
        int rc = er_manifest_add(m, &slice, shard, row->at, row->digest, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

struct shard_size {
    uint64_t rows;
    struct er_manifest_shard shard;
};

/* Every rank's rows come together (on all ranks; rank 0 makes the manifest). */
static int collect(struct write *w, struct er_manifest *m, struct er_error *err)
{
    size_t size = (size_t)w->ckpt->group.size, most = 0;
    struct shard_size mine = {w->n, w->shard}, *sizes = calloc(size, sizeof(*sizes));
    struct row *sent = NULL, *all = NULL;
    int rc = sizes ? er_ckpt_gather(w->ckpt, &mine, sizeof(mine), sizes, err) : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < size; i++)
        most = sizes[i].rows > most ? (size_t)sizes[i].rows : most;
    if (rc == 0) {
        sent = calloc(most + 1, sizeof(*sent));
        all = calloc(most * size + 1, sizeof(*all));
        rc = sent && all ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        memcpy(sent, w->rows, w->n * sizeof(*sent));
        rc = er_ckpt_gather(w->ckpt, sent, most * sizeof(*sent), all, err);
    }
    if (rc == 0)
        rc = er_manifest_shards(m, (uint32_t)size, err);
    for (size_t i = 0; rc == 0 && i < size; i++) {
        m->shards[i] = sizes[i].shard;
        w->total_bytes += sizes[i].shard.bytes;
        rc = add_rows(m, all + i * most, (size_t)sizes[i].rows, (uint32_t)i, err);
    }
    free(sizes);
    free(sent);
    free(all);
    return rc == -ENOMEM ? er_error_set(err, rc, "checkpoint: no memory") : rc;
}

static int write_manifest(struct write *w, struct er_manifest *m, struct er_error *err)
{
    char path[PATH_MAX];
    ER_CLEANUP(er_buf_done) struct er_buf text;
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    m->meta = *w->meta;
    int rc = er_manifest_finish(m, err);
    if (rc == 0)
        rc = er_manifest_format(m, &text, &w->digest, err);
    if (rc == 0)
        rc = er_ckpt_join(w->temp, "manifest.json", path, err);
    if (rc == 0)
        rc = er_file_replace(path, text.data, text.len, 0666,
                             err); /* also makes the folder's entries durable */
    return rc;
}

/* Give the temporary folder its final name, or take it back (the same move once more). */
static int swap_names(struct write *w, bool back, struct er_error *err)
{
    const char *from = back ? w->final : w->temp, *to = back ? w->temp : w->final;
    if (!back)
        w->exchanged = access(to, F_OK) == 0; /* a checkpoint of this step that did not verify */
    int rc =
        renameat2(AT_FDCWD, from, AT_FDCWD, to, w->exchanged ? RENAME_EXCHANGE : RENAME_NOREPLACE);
    if (rc < 0 && !w->exchanged && errno == EINVAL) /* file systems without RENAME_NOREPLACE */
        rc = rename(from, to);
    if (rc < 0)
        return er_error_errno(err, "rename '%s' to '%s'", from, to);
    return er_fsync_dir(w->ckpt->dir, err);
}

static int commit(struct write *w, uint64_t duration_us, struct er_error *err)
{
    char hex[ER_DIGEST_HEX_MAX];
    er_digest_format(w->digest, hex);
    const struct er_ckpt_done done = {.step = w->meta->applied,
                                      .bytes = w->total_bytes,
                                      .written_bytes = w->total_bytes,
                                      .pause_us = duration_us,
                                      .duration_us = duration_us,
                                      .path = w->final,
                                      .digest = hex};
    return w->ckpt->group.commit ? w->ckpt->group.commit(w->ckpt->group.user, &done, err) : 0;
}

static int write_latest(struct write *w, struct er_error *err)
{
    char path[PATH_MAX], text[64];
    int rc = er_ckpt_join(w->ckpt->dir, "LATEST", path, err);
    int n = snprintf(text, sizeof(text), "step-%012llu\n", (unsigned long long)w->meta->applied);
    return rc == 0 ? er_file_replace(path, text, (size_t)n, 0666, err) : rc;
}

/* Rank 0. A failure leaves no trace but the error; the older checkpoints are untouched. */
static int publish(struct write *w, struct er_manifest *m, uint64_t started_us,
                   struct er_error *err)
{
    int rc = write_manifest(w, m, err);
    if (rc < 0)
        return rc;
    rc = swap_names(w, false, err);
    if (rc < 0)
        return rc;
    rc = commit(w, er_now_us() - started_us, err);
    if (rc < 0) {
        (void)swap_names(w, true, NULL);
        return rc;
    }
    (void)write_latest(w, NULL); /* a hint for people; loading looks at the folders */
    return 0;
}

static int remove_old(struct write *w, struct er_error *err)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    int rc = er_ckpt_list(w->ckpt->dir, &steps, &n, err);
    uint64_t *gone = calloc(n + 1, sizeof(*gone));
    size_t gone_n =
        rc == 0 && gone ? er_retain(steps, n, w->meta->applied, w->ckpt->opts.keep_last, gone) : 0;
    for (size_t i = 0; rc == 0 && i < gone_n; i++) {
        char path[PATH_MAX], temp[PATH_MAX];
        rc = er_ckpt_step_path(w->ckpt->dir, gone[i], path, err);
        if (rc == 0)
            rc = er_ckpt_temp_path(w->ckpt->dir, gone[i], w->meta->generation, temp, err);
        if (rc == 0 && rename(path, temp) < 0) /* first out of sight, whole; then the files */
            rc = er_error_errno(err, "rename '%s'", path);
        if (rc == 0)
            rc = er_remove_all(temp, err);
    }
    free(steps);
    free(gone);
    return rc;
}

static void remember(struct er_ckpt *ckpt, const struct er_ckpt_event *event)
{
    if (ckpt->event_n == ER_CKPT_EVENTS_MAX) {
        ckpt->event_first = (ckpt->event_first + 1) % ER_CKPT_EVENTS_MAX;
        ckpt->event_n--;
    }
    ckpt->events[(ckpt->event_first + ckpt->event_n++) % ER_CKPT_EVENTS_MAX] = *event;
}

static int run(struct write *w, const struct er_slice *slices, size_t n, uint64_t started_us,
               struct er_error *err)
{
    struct er_manifest m;
    int rc = plan(w, slices, n, err);
    if (rc == 0)
        rc = prepare(w, err);
    rc = er_ckpt_agree(w->ckpt, rc, err);
    if (rc < 0)
        return rc;
    rc = er_ckpt_agree(w->ckpt, write_shard(w, err), err);
    if (rc < 0)
        return rc;
    er_manifest_init(&m);
    rc = collect(w, &m, err);
    if (rc == 0 && w->ckpt->group.rank == 0)
        rc = publish(w, &m, started_us, err);
    er_manifest_done(&m);
    return er_ckpt_agree(w->ckpt, rc, err);
}

int er_ckpt_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                  const struct er_meta *meta, struct er_error *err)
{
    struct er_error local = ER_ERROR_INIT;
    err = err ? err : &local; /* the text travels to the other ranks */
    uint64_t started_us = er_now_us();
    struct write w = {.ckpt = ckpt, .meta = meta};
    int rc = er_ckpt_step_path(ckpt->dir, meta->applied, w.final, err);
    if (rc == 0)
        rc = er_ckpt_temp_path(ckpt->dir, meta->applied, meta->generation, w.temp, err);
    if (rc < 0)
        return rc;
    rc = run(&w, slices, n, started_us, err);
    if (ckpt->group.rank == 0) {
        (void)er_remove_all(w.temp, NULL); /* what failed, or the folder that was replaced */
        if (rc == 0)
            (void)remove_old(&w, NULL); /* the next checkpoint tries again */
    }
    struct er_ckpt_event event = {
        .kind = rc < 0 ? ER_CKPT_FAILED : ER_CKPT_COMMITTED, .step = meta->applied, .code = rc};
    event.bytes = event.written_bytes = rc < 0 ? 0 : w.total_bytes;
    event.duration_us = event.pause_us = er_now_us() - started_us;
    snprintf(event.text, sizeof(event.text), "%.*s", (int)sizeof(event.text) - 1,
             rc < 0 ? err->text : w.final);
    remember(ckpt, &event);
    write_done(&w);
    return rc;
}
