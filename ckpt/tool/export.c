/* A checkpoint as plain safetensors files, whole tensors under their own names. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/fetch.h"
#include "ckpt/safetensors.h"
#include "ckpt/slices.h"
#include "ckpt/tool/tool.h"

struct export
{
    struct er_ckpt_source source;
    struct tool_progress *progress;
    uint64_t done_bytes, total_bytes;
    char *piece; /* owned; room for the largest */
};

static uint64_t tensor_bytes(const struct er_manifest_tensor *t)
{
    return er_ckpt_elements(t->ndim, t->shape) * er_ckpt_dtype_size(t->dtype);
}

static uint64_t slice_bytes(const struct er_manifest *m, const struct er_manifest_slice *s)
{
    return s->count * er_ckpt_dtype_size(m->tensors[s->tensor].dtype);
}

static int copy_slice(struct export *x, int fd, uint64_t tensor_at,
                      const struct er_manifest_slice *s, struct er_error *err)
{
    const struct er_manifest *m = &x->source.m;
    uint64_t bytes = slice_bytes(m, s);
    size_t size = er_ckpt_dtype_size(m->tensors[s->tensor].dtype);
    int rc = er_ckpt_source_shard(&x->source, s->shard, err);

    if (rc < 0)
        return rc;
    rc = er_pread_all(x->source.fds[s->shard], x->piece, (size_t)bytes, (off_t)s->at);
    if (rc < 0)
        return er_error_set(err, rc, "read '%s': %s", m->shards[s->shard].name, er_error_name(rc));
    if (!er_digest_equal(er_hash(x->piece, (size_t)bytes), s->digest))
        return er_error_set(err, ER_E_CORRUPT, "tensor '%s': digest does not match (shard %u)",
                            m->tensors[s->tensor].name, s->shard);
    rc = er_pwrite_all(fd, x->piece, (size_t)bytes, (off_t)(tensor_at + s->offset * size));
    if (rc < 0)
        return er_error_set(err, rc, "write: %s", er_error_name(rc));
    x->done_bytes += bytes;
    tool_progress(x->progress, x->done_bytes, x->total_bytes);
    return 0;
}

/* Tensors [first, end) of the manifest into an open file. */
static int fill_file(struct export *x, int fd, size_t first, size_t end, struct er_error *err)
{
    const struct er_manifest *m = &x->source.m;
    ER_CLEANUP(er_cleanup_free)
    struct er_st_tensor *tensors = calloc(end - first + 1, sizeof(*tensors));
    ER_CLEANUP(er_buf_done) struct er_buf header;
    uint64_t at = 0;
    int rc;

    er_buf_init(&header, ER_ST_HEADER_MAX);
    if (!tensors)
        return er_error_set(err, -ENOMEM, "export: no memory");
    for (size_t i = first; i < end; i++) {
        const struct er_manifest_tensor *t = &m->tensors[i];
        struct er_st_tensor *to = &tensors[i - first];

        *to = (struct er_st_tensor){
            .dtype = t->dtype, .ndim = t->ndim, .begin = at, .end = at + tensor_bytes(t)};
        snprintf(to->name, sizeof(to->name), "%s", t->name);
        memcpy(to->shape, t->shape, sizeof(to->shape));
        at = to->end;
    }
    rc = er_st_format(&header, tensors, end - first, "{\"format\":\"pt\"}", err);
    if (rc == 0 && (rc = er_pwrite_all(fd, header.data, header.len, 0)) < 0)
        er_error_set(err, rc, "write: %s", er_error_name(rc));
    for (size_t i = first; rc == 0 && i < end; i++) {
        size_t slice = 0, n = er_manifest_slices_of(m, i, &slice);

        for (size_t j = slice; rc == 0 && j < slice + n; j++)
            rc = copy_slice(x, fd, header.len + tensors[i - first].begin, &m->slices[j], err);
    }
    return rc;
}

static int sync_parent(const char *path, struct er_error *err)
{
    char folder[PATH_MAX];

    snprintf(folder, sizeof(folder), "%s", path);
    return er_fsync_dir(dirname(folder), err);
}

/* Under a new name until it is whole: of two exports to one place each writes its own file, and a
 * link that lies there is not followed. */
static int write_file(struct export *x, const char *path, size_t first, size_t end,
                      struct er_error *err)
{
    char temp[PATH_MAX];
    int rc;

    if (snprintf(temp, sizeof(temp), "%s.XXXXXX.tmp", path) >= PATH_MAX)
        return er_error_set(err, -ENAMETOOLONG, "'%s': path too long", path);
    ER_CLEANUP(er_cleanup_fd) int fd = mkostemps(temp, sizeof(".tmp") - 1, O_CLOEXEC);
    if (fd < 0)
        return er_error_errno(err, "create '%s'", temp);
    rc = fill_file(x, fd, first, end, err);
    if (rc < 0)
        rc = er_error_wrap(err, rc, "export to '%s'", path);
    else if (fchmod(fd, 0644) < 0 || fsync(fd) < 0 || rename(temp, path) < 0)
        rc = er_error_errno(err, "finish '%s'", path);
    if (rc < 0)
        unlink(temp);
    return rc < 0 ? rc : sync_parent(path, err);
}

/* Where the file that begins with tensor `first` ends: as many as fit, at least one. */
static size_t file_end(const struct er_manifest *m, size_t first, uint64_t limit)
{
    uint64_t bytes = tensor_bytes(&m->tensors[first]);
    size_t end = first + 1;

    while (end < m->tensor_n && bytes + tensor_bytes(&m->tensors[end]) <= limit)
        bytes += tensor_bytes(&m->tensors[end++]);
    return end;
}

static int write_index(struct export *x, json_t *map, const char *folder, struct er_error *err)
{
    char path[PATH_MAX];
    json_t *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)x->total_bytes,
                              "weight_map", map);
    ER_CLEANUP(er_cleanup_free) char *text = json_dumps(index, JSON_INDENT(2));
    int rc;

    json_decref(index);
    if (!text)
        return er_error_set(err, -ENOMEM, "export: no memory");
    rc = er_ckpt_join(folder, "model.safetensors.index.json", path, err);
    return rc == 0 ? er_file_replace(path, text, strlen(text), 0644, err) : rc;
}

static int write_folder(struct export *x, const char *folder, uint64_t limit, size_t *ret_files,
                        struct er_error *err)
{
    const struct er_manifest *m = &x->source.m;
    size_t files = 0, n = 0;
    json_t *map;
    int rc = er_mkdir_all(folder, 0777, err);

    for (size_t i = 0; i < m->tensor_n; i = file_end(m, i, limit))
        files++;
    map = json_object();
    for (size_t i = 0, end; rc == 0 && i < m->tensor_n; i = end) {
        char name[64], path[PATH_MAX];

        end = file_end(m, i, limit);
        snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", ++n, files);
        rc = er_ckpt_join(folder, name, path, err);
        if (rc == 0)
            rc = write_file(x, path, i, end, err);
        for (size_t j = i; j < end; j++)
            json_object_set_new(map, m->tensors[j].name, json_string(name));
    }
    if (rc == 0)
        rc = write_index(x, map, folder, err);
    json_decref(map);
    *ret_files = files;
    return rc;
}

static bool is_file_name(const char *out)
{
    static const char tail[] = ".safetensors";
    size_t n = strlen(out);

    return n > sizeof(tail) - 1 && strcmp(out + n - (sizeof(tail) - 1), tail) == 0;
}

int tool_export_step(const char *dir, uint64_t step, const char *out, uint64_t shard_bytes,
                     struct tool_progress *progress, size_t *ret_files, struct er_error *err)
{
    struct export x = {.progress = progress};
    char folder[PATH_MAX];
    uint64_t largest = 0;
    int rc = er_ckpt_step_path(dir, step, folder, err);

    if (rc == 0)
        rc = er_ckpt_source_open(&x.source, folder, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < x.source.m.slice_n; i++) {
        uint64_t bytes = slice_bytes(&x.source.m, &x.source.m.slices[i]);

        x.total_bytes += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    x.piece = malloc((size_t)largest + 1);
    *ret_files = 1;
    if (!x.piece)
        rc = er_error_set(err, -ENOMEM, "export: no memory");
    else if (is_file_name(out))
        rc = write_file(&x, out, 0, x.source.m.tensor_n, err);
    else
        rc = write_folder(&x, out, shard_bytes, ret_files, err);
    free(x.piece);
    er_ckpt_source_close(&x.source);
    return rc;
}
