/* Finding, verifying and loading checkpoints. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/safetensors.h"
#include "ckpt/slices.h"

#define READ_BYTES       (4u << 20)
#define HEADER_TRY_BYTES (64u << 10)

int er_ckpt_read_manifest(const char *folder, struct er_manifest *ret, struct er_error *err)
{
    char path[PATH_MAX];
    ER_CLEANUP(er_buf_done) struct er_buf text;
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    int rc = er_ckpt_join(folder, "manifest.json", path, err);
    if (rc == 0)
        rc = er_file_read(path, &text, err);
    return rc == 0 ? er_manifest_parse(er_buf_str(&text), text.len, ret, err) : rc;
}

/* Opens a shard; its length must be the manifest's. Returns the descriptor or a failure. */
static int open_shard(const char *folder, const struct er_manifest *m, uint32_t shard,
                      struct er_error *err)
{
    char name[64], path[PATH_MAX];
    struct stat st;
    er_manifest_shard_name(shard, m->shard_n, name, sizeof(name));
    int rc = er_ckpt_join(folder, name, path, err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_errno(err, "open '%s'", path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != m->shards[shard].bytes)
        return er_error_set(err, ER_E_CORRUPT, "'%s' has %lld bytes, the manifest says %llu", path,
                            (long long)st.st_size, (unsigned long long)m->shards[shard].bytes);
    return ER_TAKE_FD(fd);
}

static int read_header(int fd, const struct er_manifest_shard *shard, struct er_st_tensor **ret,
                       size_t *ret_n, uint64_t *ret_data_at, struct er_error *err)
{
    size_t wanted = shard->bytes < HEADER_TRY_BYTES ? (size_t)shard->bytes : HEADER_TRY_BYTES;
    for (;;) {
        ER_CLEANUP(er_cleanup_free) char *data = malloc(wanted + 1);
        if (!data)
            return er_error_set(err, -ENOMEM, "safetensors header: no memory");
        int rc = er_pread_all(fd, data, wanted, 0);
        if (rc < 0)
            return er_error_set(err, rc, "read: %s", er_error_name(rc));
        rc = er_st_parse(data, wanted, shard->bytes, ret, ret_n, ret_data_at, err);
        if (rc == 0 && !er_digest_equal(er_hash(data, (size_t)*ret_data_at), shard->header)) {
            free(*ret);
            return er_error_set(err, ER_E_CORRUPT, "safetensors header: digest does not match");
        }
        if (rc != -EAGAIN)
            return rc;
        wanted = (size_t)*ret_data_at;
    }
}

/* The file speaks for itself too: every slice of the manifest must be a tensor of its header. */
static int verify_header(int fd, const struct er_manifest *m, uint32_t shard, struct er_error *err)
{
    struct er_st_tensor *tensors = NULL;
    size_t n = 0, found = 0;
    uint64_t data_at = 0;
    int rc = read_header(fd, &m->shards[shard], &tensors, &n, &data_at, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0, at; i < m->slice_n; i++) {
        const struct er_manifest_slice *s = &m->slices[i];
        if (s->shard != shard)
            continue;
        for (at = 0; at < n && data_at + tensors[at].begin != s->at; at++)
            ;
        found +=
            at < n && tensors[at].dtype == m->tensors[s->tensor].dtype &&
            tensors[at].end - tensors[at].begin == s->count * er_ckpt_dtype_size(tensors[at].dtype);
    }
    free(tensors);
    return found == n ? 0
                      : er_error_set(err, ER_E_CORRUPT,
                                     "header of shard %u does not match the manifest", shard);
}

static int digest_differs(const struct er_manifest *m, const struct er_manifest_slice *s,
                          struct er_error *err)
{
    return er_error_set(err, ER_E_CORRUPT,
                        "tensor '%s', elements from %llu: digest does not match (shard %u)",
                        m->tensors[s->tensor].name, (unsigned long long)s->offset, s->shard);
}

static int verify_slice(int fd, const struct er_manifest *m, const struct er_manifest_slice *s,
                        char *scratch, struct er_error *err)
{
    uint64_t bytes = s->count * er_ckpt_dtype_size(m->tensors[s->tensor].dtype);
    struct er_hasher *hasher = er_hasher_new();
    if (!hasher)
        return er_error_set(err, -ENOMEM, "verify: no memory");
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < bytes; done += READ_BYTES) {
        size_t n = bytes - done < READ_BYTES ? (size_t)(bytes - done) : READ_BYTES;
        rc = er_pread_all(fd, scratch, n, (off_t)(s->at + done));
        if (rc == 0)
            er_hasher_add(hasher, scratch, n);
    }
    bool equal = er_digest_equal(er_hasher_get(hasher), s->digest);
    er_hasher_free(hasher);
    if (rc < 0)
        return er_error_set(err, rc, "read shard %u: %s", s->shard, er_error_name(rc));
    return equal ? 0 : digest_differs(m, s, err);
}

static int verify_folder(const char *folder, struct er_error *err)
{
    struct er_manifest m;
    int rc = er_ckpt_read_manifest(folder, &m, err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(er_cleanup_free) char *scratch = malloc(READ_BYTES);
    if (!scratch)
        rc = er_error_set(err, -ENOMEM, "verify: no memory");
    for (uint32_t shard = 0; rc == 0 && shard < m.shard_n; shard++) {
        ER_CLEANUP(er_cleanup_fd) int fd = open_shard(folder, &m, shard, err);
        rc = fd < 0 ? fd : verify_header(fd, &m, shard, err);
        for (size_t i = 0; rc == 0 && i < m.slice_n; i++)
            if (m.slices[i].shard == shard)
                rc = verify_slice(fd, &m, &m.slices[i], scratch, err);
    }
    er_manifest_done(&m);
    return rc;
}

int er_ckpt_verify(const char *dir, uint64_t step, struct er_error *err)
{
    char folder[PATH_MAX];
    int rc = er_ckpt_step_path(dir, step, folder, err);
    return rc == 0 ? verify_folder(folder, err) : rc;
}

/* Read one stored slice whole, check it, and copy what `want` needs of it. */
static int load_stored(int fd, const struct er_manifest *m, const struct er_manifest_slice *s,
                       const struct er_slice *want, struct er_error *err)
{
    size_t size = er_ckpt_dtype_size(want->dtype), bytes = (size_t)s->count * size;
    uint64_t first, n = er_overlap(s->offset, s->count, want->offset, want->count, &first);
    char *to = (char *)want->data + (first - want->offset) * size;
    ER_CLEANUP(er_cleanup_free) char *scratch = n == s->count ? NULL : malloc(bytes);
    char *into = n == s->count ? to : scratch;
    if (!into)
        return er_error_set(err, -ENOMEM, "load '%s': no memory", want->name);
    int rc = er_pread_all(fd, into, bytes, (off_t)s->at);
    if (rc < 0)
        return er_error_set(err, rc, "read shard %u: %s", s->shard, er_error_name(rc));
    if (!er_digest_equal(er_hash(into, bytes), s->digest))
        return digest_differs(m, s, err);
    if (scratch)
        memcpy(to, scratch + (first - s->offset) * size, (size_t)n * size);
    return 0;
}

static int load_slice(const int *fds, const struct er_manifest *m, const struct er_slice *want,
                      struct er_error *err)
{
    int rc = er_slice_check(want, err);
    if (rc < 0)
        return rc;
    long tensor = er_manifest_find(m, want->name);
    if (tensor < 0)
        return er_error_set(err, ER_E_MISMATCH, "the checkpoint has no tensor '%s'", want->name);
    const struct er_manifest_tensor *t = &m->tensors[tensor];
    if (t->dtype != want->dtype || t->ndim != want->ndim ||
        memcmp(t->shape, want->shape, t->ndim * sizeof(*t->shape)) != 0)
        return er_error_set(err, ER_E_MISMATCH,
                            "tensor '%s' has another shape or type in the checkpoint", want->name);
    size_t first, n = er_manifest_slices_of(m, (size_t)tensor, &first);
    for (size_t i = first; rc == 0 && i < first + n; i++) {
        uint64_t at;
        const struct er_manifest_slice *s = &m->slices[i];
        if (er_overlap(s->offset, s->count, want->offset, want->count, &at) > 0)
            rc = load_stored(fds[s->shard], m, s, want, err);
    }
    return rc;
}

static int load_folder(const char *folder, const struct er_slice *slices, size_t n,
                       struct er_meta *ret_meta, struct er_error *err)
{
    struct er_manifest m;
    int rc = er_ckpt_read_manifest(folder, &m, err);
    if (rc < 0)
        return rc;
    uint32_t opened = 0;
    ER_CLEANUP(er_cleanup_free) int *fds = calloc(m.shard_n, sizeof(*fds));
    if (!fds)
        rc = er_error_set(err, -ENOMEM, "load: no memory");
    for (; rc == 0 && opened < m.shard_n; opened++) {
        fds[opened] = open_shard(folder, &m, opened, err);
        if (fds[opened] < 0) {
            rc = fds[opened];
            break;
        }
    }
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = load_slice(fds, &m, &slices[i], err);
    while (opened > 0)
        close(fds[--opened]);
    if (rc == 0)
        *ret_meta = m.meta;
    er_manifest_done(&m);
    return rc;
}

/* Rank 0: the newest that verifies; 0, 1 none at all, ER_E_CORRUPT none that verifies. */
static int choose(struct er_ckpt *ckpt, er_ckpt_skip_fn skip, void *user, uint64_t *ret_step,
                  struct er_error *err)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    int rc = er_ckpt_list(ckpt->dir, &steps, &n, err);
    if (rc < 0)
        return rc;
    rc = n ? ER_E_CORRUPT : 1;
    for (size_t i = n; rc == ER_E_CORRUPT && i-- > 0;) {
        struct er_error why = ER_ERROR_INIT;
        if (er_ckpt_verify(ckpt->dir, steps[i], &why) == 0) {
            *ret_step = steps[i];
            rc = 0;
        } else if (skip) {
            skip(user, steps[i], why.text);
        }
    }
    free(steps);
    if (rc == ER_E_CORRUPT)
        er_error_set(err, rc,
                     "'%s': %zu checkpoints, none verifies: move the folder away to start from the "
                     "beginning",
                     ckpt->dir, n);
    return rc;
}

struct choice {
    int64_t rc; /* 0, 1 none yet */
    uint64_t step;
};

int er_ckpt_load(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                 struct er_meta *ret_meta, er_ckpt_skip_fn skip, void *user, struct er_error *err)
{
    struct er_error local = ER_ERROR_INIT;
    err = err ? err : &local;
    struct choice mine = {0}, *all = calloc((size_t)ckpt->group.size, sizeof(*all));
    if (!all)
        return er_error_set(err, -ENOMEM, "load: no memory");
    int rc = ckpt->group.rank == 0 ? choose(ckpt, skip, user, &mine.step, err) : 0;
    mine.rc = rc > 0 ? rc : 0;
    rc = er_ckpt_agree(ckpt, rc < 0 ? rc : 0, err);
    if (rc == 0)
        rc = er_ckpt_gather(ckpt, &mine, sizeof(mine), all, err);
    mine = all[0];
    free(all);
    if (rc < 0 || mine.rc > 0)
        return rc < 0 ? rc : 1;
    char folder[PATH_MAX];
    rc = er_ckpt_step_path(ckpt->dir, mine.step, folder, err);
    if (rc == 0)
        rc = load_folder(folder, slices, n, ret_meta, err);
    return er_ckpt_agree(ckpt, rc, err);
}
