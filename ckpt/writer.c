/* What the writer's thread does for one checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "ckpt/gc.h"
#include "ckpt/save.h"
#include "ckpt/shard_io.h"

/* A newer generation clears away what this one is still writing: that is the reason, not the file
 * that is missing. */
static int tell_superseded(const struct er_save *save, int rc, struct er_error *err)
{
    struct er_error fence = ER_ERROR_INIT;

    if (rc != -ENOENT || er_ckpt_check_fence(save->dir, save->fence, &fence) != ER_E_STALE)
        return rc;
    *err = fence;
    return ER_E_STALE;
}

/* ---- this rank's shard ---- */

/* An er_bytes_fn: as soon as it has been copied. */
static const char *from_image(void *arg, uint64_t at, uint64_t end)
{
    struct er_save *save = arg;

    return er_save_copied_to(save, end) ? er_snapshot_data(save->snapshot) + at : NULL;
}

static int write_shard(struct er_save *save, struct er_error *err)
{
    char name[ER_MANIFEST_NAME_MAX], path[PATH_MAX];
    int rc = 0;

    if (save->rank == 0) /* leftovers take space; that they cannot go is no reason to fail */
        (void)er_ckpt_clean(save->dir, save->meta.generation, save->temp, NULL, NULL);
    if (mkdir(save->temp, 0777) < 0 && errno != EEXIST) /* every rank tries; one makes it */
        return er_error_errno(err, "make folder '%s'", save->temp);
    if (save->plan.n == 0)
        return 0;
    er_manifest_shard_name((uint32_t)save->rank, (uint32_t)save->size, name, sizeof(name));
    rc = er_ckpt_join(save->temp, name, path, err);
    return rc < 0 ? rc
                  : er_shard_write(path, save->plan.bytes, save->opts.buffered,
                                   save->staged ? er_stage_take : from_image, save, err);
}

void er_task_shard(void *arg)
{
    struct er_save *save = arg;
    struct er_error err = ER_ERROR_INIT;
    int rc = er_save_given_up(save) ? er_error_set(&err, -ECANCELED, "given up")
                                    : write_shard(save, &err);

    rc = tell_superseded(save, rc, &err);
    er_save_task_end(save, rc, &err);
}

/* ---- the part of a rank that could not, or is gone ---- */

#define UNLINK_TRIES 3 /* a file that a writer which was given up makes in between */

static const char *spare_image(const struct er_save *save)
{
    return er_snapshot_data(save->snapshot) + er_save_spare_at(save);
}

/* An er_bytes_fn. */
static const char *from_spare(void *arg, uint64_t at, uint64_t end)
{
    struct er_save *save = arg;

    (void)end;
    return er_save_given_up(save) ? NULL : spare_image(save) + at;
}

/* The other rank may have begun: its file goes, whatever it holds, and a writer that still has it
 * open writes into nothing. */
static int write_spare(struct er_save *save, struct er_error *err)
{
    char name[ER_MANIFEST_NAME_MAX], path[PATH_MAX];
    int rc;

    er_manifest_shard_name((uint32_t)save->spare_rank, (uint32_t)save->size, name, sizeof(name));
    rc = er_ckpt_join(save->temp, name, path, err);
    if (rc < 0)
        return rc;
    for (int tries = 0; tries < UNLINK_TRIES; tries++) {
        if (unlink(path) < 0 && errno != ENOENT)
            return er_error_errno(err, "remove '%s'", path);
        rc = er_shard_write(path, save->spare.bytes, save->opts.buffered,
                            save->staged ? er_stage_take : from_spare, save, err);
        if (rc != -EEXIST)
            break;
    }
    if (rc == 0 && !save->staged)
        er_save_digest(save, &save->spare, spare_image(save));
    return rc;
}

void er_task_stand_in(void *arg)
{
    struct er_save *save = arg;
    struct er_error err = ER_ERROR_INIT;
    int rc = write_spare(save, &err);

    er_save_task_end(save, rc, &err);
}

/* ---- publication (leader) ---- */

static int write_manifest(struct er_save *save, struct er_error *err)
{
    char path[PATH_MAX];
    ER_CLEANUP(er_buf_done) struct er_buf text;
    int rc;

    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    rc = er_manifest_format(&save->manifest, &text, &save->digest, err);
    if (rc == 0)
        rc = er_ckpt_join(save->temp, "manifest.json", path, err);
    if (rc == 0) /* makes the folder's entries durable as well */
        rc = er_file_replace(path, text.data, text.len, 0644, err);
    return rc;
}

/* Give the temporary folder its final name, or take it back (the same move once more). */
static int swap_names(struct er_save *save, bool back, struct er_error *err)
{
    const char *from = back ? save->final : save->temp, *to = back ? save->temp : save->final;
    unsigned flags;
    int rc;

    if (!back)
        save->exchanged = access(to, F_OK) == 0; /* a checkpoint of this step that did not verify */
    flags = save->exchanged ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
    if (rc < 0 && errno == EINVAL) { /* file systems without these flags */
        if (save->exchanged)
            return er_error_set(err, -EEXIST,
                                "'%s' exists, and this file system cannot exchange folders", to);
        rc = rename(from, to);
    }
    if (rc < 0)
        return er_error_errno(err, "rename '%s' to '%s'", from, to);
    return er_fsync_dir(save->dir, err);
}

/* Nobody reaches the files by the old name any more: is everything here that the manifest names? A
 * rank that was gone, or another job, may have taken something away before. */
static int check_files(const struct er_save *save, struct er_error *err)
{
    for (uint32_t i = 0; i < save->manifest.shard_n; i++) {
        const struct er_manifest_shard *shard = &save->manifest.shards[i];
        char path[PATH_MAX];
        struct stat st;
        int rc = er_ckpt_join(save->final, shard->name, path, err);

        if (rc < 0)
            return rc;
        ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC); /* NFS: looks anew */
        if (fd < 0 || fstat(fd, &st) < 0)
            return er_error_errno(err, "open '%s', which was written", path);
        if ((uint64_t)st.st_size != shard->bytes)
            return er_error_set(err, ER_E_CORRUPT,
                                "'%s' has %llu bytes, of which %llu were written", path,
                                (unsigned long long)st.st_size, (unsigned long long)shard->bytes);
    }
    return 0;
}

/* Whoever gives the checkpoint up after this has returned finds `published`: what is whole stays.
 */
static int publish(struct er_save *save, struct er_error *err)
{
    int rc = write_manifest(save, err);

    if (rc == 0)
        rc = er_ckpt_fence(save->dir, save->fence, err);
    if (rc == 0 && er_save_given_up(save))
        rc = er_error_set(err, -ECANCELED, "given up");
    if (rc < 0)
        return rc;
    save->published = true; /* or half: taking it back is harmless when it is not there */
    rc = swap_names(save, false, err);
    return rc == 0 ? check_files(save, err) : rc;
}

void er_task_publish(void *arg)
{
    struct er_save *save = arg;
    struct er_error err = ER_ERROR_INIT;
    int rc = publish(save, &err);

    rc = tell_superseded(save, rc, &err);
    er_save_task_end(save, rc, &err);
}

/* ---- afterwards (leader) ---- */

static void write_latest(struct er_save *save)
{
    char path[PATH_MAX], text[64];
    int n = snprintf(text, sizeof(text), "step-%012llu\n", (unsigned long long)save->meta.applied);

    if (er_ckpt_join(save->dir, "LATEST", path, NULL) == 0)
        (void)er_file_replace(path, text, (size_t)n, 0644, NULL);
}

/* Published, and known to be in no record. What a newer generation has put there is not ours. */
static bool is_withdrawn(const struct er_save *save)
{
    return save->published && !save->committed && !save->in_doubt &&
           er_ckpt_check_fence(save->dir, save->fence, NULL) == 0;
}

/* Nothing here can fail the checkpoint: what is left over, the next one removes. */
void er_task_settle(void *arg)
{
    struct er_save *save = arg;

    if (save->committed)
        write_latest(save); /* a hint for people; loading looks at the folders */
    else if (is_withdrawn(save))
        (void)swap_names(save, true, NULL);
    /* What failed, or the folder that was replaced. Whole: somebody may still be about to publish.
     */
    (void)er_ckpt_discard(save->dir, save->temp, save->meta.applied, save->meta.generation, NULL);
    if (save->committed)
        (void)er_ckpt_gc(save->dir, &save->opts, save->meta.applied, save->fence, NULL, NULL, NULL);
    er_save_task_end(save, 0, NULL);
}
