#include "ckpt/view.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ckpt/slices.h"

#define COPY_ALIGN 64u

void er_ckpt_unmap(struct er_ckpt_views *views)
{
    if (!views)
        return;
    for (uint32_t i = 0; i < views->file_n; i++)
        if (views->files[i].data)
            munmap(views->files[i].data, views->files[i].bytes);
    er_pool_free(views->pool);
    free(views->files);
    free(views);
}

/* Private: what the program writes there is its own. */
static int map_file(struct er_ckpt_views *views, const struct er_ckpt_source *source,
                    uint32_t shard, struct er_error *err)
{
    struct er_view_file *file = &views->files[shard];
    void *data;

    if (file->data)
        return 0;
    data = mmap(NULL, (size_t)source->m.shards[shard].bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_NORESERVE, source->fds[shard], 0);
    if (data == MAP_FAILED)
        return er_error_errno(err, "map '%s'", source->m.shards[shard].name);
    file->data = data;
    file->bytes = (size_t)source->m.shards[shard].bytes;
    return 0;
}

/* Where [want->offset, + count) of tensor `t` begins in a file, when it lies there in one piece and
 * where numbers of its type may. */
static bool in_one_piece(const struct er_manifest *m, size_t tensor, const struct er_slice *want,
                         uint32_t *ret_shard, uint64_t *ret_at)
{
    size_t size = er_ckpt_dtype_size(want->dtype), first = 0;
    size_t n = er_manifest_slices_of(m, tensor, &first);
    const struct er_manifest_slice *s = &m->slices[first], *end = s + n;
    uint64_t at;

    while (s < end && s->offset + s->count <= want->offset)
        s++;
    if (s == end)
        return false;
    *ret_shard = s->shard;
    *ret_at = at = s->at + (want->offset - s->offset) * size;
    for (; s < end && s->offset < want->offset + want->count; s++)
        if (s->shard != *ret_shard || s->at + want->offset * size != at + s->offset * size)
            return false;
    return at % size == 0;
}

static uint64_t bytes_of(const struct er_slice *slice)
{
    return slice->count * er_ckpt_dtype_size(slice->dtype);
}

/* Sets data of those that are in one piece to the file's, of others to NULL; *ret_copied: bytes of
 * those. */
static int place(struct er_ckpt_views *views, struct er_ckpt_source *source,
                 struct er_slice *slices, size_t n, uint64_t *ret_copied, struct er_error *err)
{
    int rc = 0;

    *ret_copied = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        size_t tensor = 0;
        uint32_t shard = 0;
        uint64_t at = 0;

        slices[i].data = NULL;
        rc = er_fetch_find(source, &slices[i], &tensor, err);
        if (rc < 0)
            return rc;
        if (!in_one_piece(&source->m, tensor, &slices[i], &shard, &at)) {
            *ret_copied += bytes_of(&slices[i]) + COPY_ALIGN;
            continue;
        }
        rc = er_ckpt_source_shard(source, shard, err);
        if (rc == 0)
            rc = map_file(views, source, shard, err);
        if (rc == 0)
            slices[i].data = views->files[shard].data + at;
    }
    return rc;
}

int er_views_make(struct er_ckpt_views *views, struct er_ckpt_source *source,
                  struct er_slice *slices, size_t n, struct er_fetch_list *list,
                  struct er_error *err)
{
    uint64_t copied = 0;
    int rc;

    views->files = calloc(source->m.shard_n, sizeof(*views->files));
    if (!views->files)
        return er_error_set(err, -ENOMEM, "map: no memory");
    views->file_n = source->m.shard_n;
    rc = place(views, source, slices, n, &copied, err);
    if (rc == 0 && copied > 0)
        rc = er_pool_map(&views->pool, (size_t)copied, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        bool mapped = slices[i].data != NULL;

        if (!mapped)
            slices[i].data = er_pool_alloc(views->pool, (size_t)bytes_of(&slices[i]), COPY_ALIGN);
        rc = er_fetch_want(list, source, &slices[i], mapped, err);
    }
    return rc;
}
