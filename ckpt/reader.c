/* Loading the newest checkpoint that verifies. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fence.h"
#include "base/file.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/fetch.h"
#include "ckpt/view.h"

/* Opening a pipe would wait for its other end, for ever. */
static int read_text(const char *path, struct er_buf *text, struct er_error *err)
{
    struct stat st;
    int rc;

    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return er_error_set(err, ER_E_CORRUPT, "'%s' is not a file", path);
    rc = er_file_read(path, text, err);
    return rc == -EFBIG ? er_error_set(err, ER_E_CORRUPT, "'%s' is too long for a manifest", path)
                        : rc;
}

/* A folder under the name of another step would be taken for the newest, again and again. */
static int check_name(const char *folder, const struct er_manifest *m, struct er_error *err)
{
    const char *slash = strrchr(folder, '/');
    uint64_t step;

    if (!er_ckpt_step_parse(slash ? slash + 1 : folder, &step) || step == m->meta.applied)
        return 0;
    return er_error_set(err, ER_E_CORRUPT,
                        "'%s' holds step %llu, somebody renamed it: give it the name of its step",
                        folder, (unsigned long long)m->meta.applied);
}

int er_ckpt_read_manifest(const char *folder, struct er_manifest *ret, struct er_error *err)
{
    char path[PATH_MAX];
    ER_CLEANUP(er_buf_done) struct er_buf text;
    struct er_manifest m;
    int rc;

    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    rc = er_ckpt_join(folder, "manifest.json", path, err);
    if (rc == 0)
        rc = read_text(path, &text, err);
    if (rc == 0)
        rc = er_manifest_parse(er_buf_str(&text), text.len, &m, err);
    if (rc < 0)
        return rc;
    rc = check_name(folder, &m, err);
    if (rc < 0)
        er_manifest_done(&m);
    else
        *ret = m;
    return rc;
}

/* ---- one folder ---- */

/* The generations up to and with this checkpoint's: those to come continue the list. */
static int take_chain(struct er_ckpt *ckpt, const struct er_manifest *m, struct er_error *err)
{
    struct er_chain_link *chain = calloc(m->chain_n + 1, sizeof(*chain));

    if (!chain)
        return er_error_set(err, -ENOMEM, "load: no memory");
    if (m->chain_n > 0)
        memcpy(chain, m->chain, m->chain_n * sizeof(*chain));
    chain[m->chain_n] = (struct er_chain_link){m->meta.generation, m->meta.first_step};
    free(ckpt->chain);
    ckpt->chain = chain;
    ckpt->chain_n = m->chain_n + 1;
    return 0;
}

/* What a load wants: copies, or views. */
struct want {
    const struct er_slice *slices;
    size_t n;
    struct er_slice *views; /* the same slices, whose data is set; NULL: copies */
    struct er_ckpt_views *made;
};

static void drop_views(struct want *want)
{
    er_ckpt_unmap(want->made);
    want->made = NULL;
    for (size_t i = 0; want->views && i < want->n; i++)
        want->views[i].data = NULL;
}

static int list_wanted(struct want *want, struct er_ckpt_source *source, struct er_fetch_list *list,
                       struct er_error *err)
{
    int rc = 0;

    if (want->views) {
        want->made = calloc(1, sizeof(*want->made));
        return want->made ? er_views_make(want->made, source, want->views, want->n, list, err)
                          : er_error_set(err, -ENOMEM, "map: no memory");
    }
    for (size_t i = 0; rc == 0 && i < want->n; i++)
        rc = er_fetch_want(list, source, &want->slices[i], false, err);
    return rc;
}

static int load_folder(struct er_ckpt *ckpt, const char *folder, struct want *want,
                       struct er_meta *ret_meta, struct er_error *err)
{
    const struct er_fetch_opts opts = {.threads = ckpt->opts.read_threads,
                                       .refuse_nonfinite = ckpt->opts.nan != ER_CKPT_NAN_LOAD};
    struct er_ckpt_source source;
    struct er_fetch_list list = {0};
    uint64_t read = 0;
    int rc = er_ckpt_source_open(&source, folder, err);

    if (rc < 0)
        return rc;
    rc = list_wanted(want, &source, &list, err);
    if (rc == 0)
        rc = er_fetch_run(&list, &source, &opts, &read, err);
    ckpt->stats.read_bytes += read;
    for (size_t i = 0; i < list.n; i++)
        ckpt->stats.needed_bytes += list.items[i].bytes;
    if (rc == 0)
        rc = take_chain(ckpt, &source.m, err);
    if (rc == 0)
        *ret_meta = source.m.meta;
    er_fetch_done(&list);
    er_ckpt_source_close(&source);
    return rc;
}

/* ---- which one ---- */

/* Rank 0's memory of what did not verify. */
struct search {
    uint64_t *tried; /* owned */
    size_t tried_n;
};

static bool was_tried(const struct search *search, uint64_t step)
{
    for (size_t i = 0; i < search->tried_n; i++)
        if (search->tried[i] == step)
            return true;
    return false;
}

static int note_tried(struct search *search, uint64_t step, struct er_error *err)
{
    uint64_t *more = reallocarray(search->tried, search->tried_n + 1, sizeof(*more));

    if (!more)
        return er_error_set(err, -ENOMEM, "load: no memory");
    search->tried = more;
    search->tried[search->tried_n++] = step;
    return 0;
}

/* What was there has been taken back: there is none. Unless the storage itself went: then the fence
 * of this load is gone with it, and nobody may begin anew for that. */
static int none_left(const struct er_ckpt *ckpt, struct er_error *err)
{
    uint64_t generation = ckpt->opts.generation, newest = 0;
    int rc = er_fence_newest(ckpt->dir, &newest, err);

    if (rc < 0)
        return rc;
    return newest >= generation ? 1
                                : er_error_set(err, -ENOENT,
                                               "'%s' was emptied while it was read: is its storage "
                                               "still mounted?",
                                               ckpt->dir);
}

/* The newest that has not been tried; looks anew each time, since a writer elsewhere may have
 * removed or withdrawn one and published another. 1: there is none. */
static int next_step(const struct er_ckpt *ckpt, const struct search *search, uint64_t *ret_step,
                     struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    size_t n = 0;
    int rc = er_ckpt_list(ckpt->dir, &steps, &n, err);

    if (rc < 0)
        return rc;
    for (size_t i = n; i-- > 0;) {
        if (!was_tried(search, steps[i])) {
            *ret_step = steps[i];
            return 0;
        }
    }
    if (n == 0)
        return search->tried_n == 0 ? 1 : none_left(ckpt, err);
    return er_error_set(err, ER_E_CORRUPT,
                        "'%s': %zu checkpoints, none verifies: move the "
                        "folder away to start from the beginning",
                        ckpt->dir, n);
}

/* Writers of generations before this one: their unfinished work goes, and they find the fence. */
static int fence_off(const struct er_ckpt *ckpt, struct er_error *err)
{
    uint64_t generation = ckpt->opts.generation;
    int rc = er_ckpt_fence(ckpt->dir, generation, err);

    if (rc == 0 && generation > 0)
        (void)er_ckpt_clean(ckpt->dir, generation - 1, NULL, NULL, NULL);
    return rc;
}

struct choice {
    int64_t rc; /* 0, 1 none yet */
    uint64_t step;
};

/* Collective: rank 0's choice for all. */
static int choose(struct er_ckpt *ckpt, const struct search *search, uint64_t *ret_step,
                  bool *ret_together, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free)
    struct choice *all = calloc((size_t)ckpt->group.size, sizeof(*all));
    struct choice mine = {0};
    int rc = 0;

    if (!all)
        return er_error_set(err, -ENOMEM, "load: no memory");
    if (ckpt->group.rank == 0) {
        rc = search->tried_n == 0 ? fence_off(ckpt, err) : 0;
        if (rc == 0)
            rc = next_step(ckpt, search, &mine.step, err);
        mine.rc = rc > 0 ? rc : 0;
    }
    rc = er_ckpt_agree(ckpt, rc < 0 ? rc : 0, ret_together, err);
    if (rc == 0) {
        rc = er_ckpt_gather(ckpt, &mine, sizeof(mine), all, err);
        *ret_together = rc == 0;
    }
    if (rc < 0)
        return rc;
    *ret_step = all[0].step;
    return all[0].rc > 0 ? 1 : 0;
}

/* Its writer has withdrawn it: that it could not be read says nothing. */
static bool is_gone(const char *folder)
{
    return access(folder, F_OK) < 0 && errno == ENOENT;
}

/* Whether an older checkpoint may do better. */
static bool go_on_after(const struct er_ckpt *ckpt, int rc)
{
    if (rc == -EDOM)
        return ckpt->opts.nan == ER_CKPT_NAN_SKIP;
    return rc != ER_E_MISMATCH && rc != -ENOMEM && rc != -EINVAL;
}

static int load(struct er_ckpt *ckpt, struct want *want, struct er_meta *ret_meta,
                er_ckpt_skip_fn skip, void *user, struct er_error *err)
{
    struct er_error local = ER_ERROR_INIT;
    struct search search = {0};
    bool together = true;
    int rc;

    err = err ? err : &local;
    if (ckpt->save)
        return er_error_set(err, -EBUSY, "load: a checkpoint is in flight");
    for (;;) {
        char folder[PATH_MAX];
        uint64_t step = 0;

        rc = choose(ckpt, &search, &step, &together, err);
        if (rc != 0)
            break;
        rc = er_ckpt_step_path(ckpt->dir, step, folder, err);
        if (rc == 0)
            rc = load_folder(ckpt, folder, want, ret_meta, err);
        rc = er_ckpt_agree(ckpt, rc, &together, err);
        if (rc < 0)
            drop_views(want);
        if (rc == 0 || !together || !go_on_after(ckpt, rc))
            break;
        if (skip && ckpt->group.rank == 0 && !is_gone(folder))
            skip(user, step, err->text);
        rc = note_tried(&search, step, err);
        if (rc < 0)
            break;
    }
    free(search.tried);
    return rc;
}

int er_ckpt_load(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                 struct er_meta *ret_meta, er_ckpt_skip_fn skip, void *user, struct er_error *err)
{
    struct want want = {.slices = slices, .n = n};

    return load(ckpt, &want, ret_meta, skip, user, err);
}

int er_ckpt_map(struct er_ckpt *ckpt, struct er_slice *slices, size_t n, struct er_meta *ret_meta,
                er_ckpt_skip_fn skip, void *user, struct er_ckpt_views **ret, struct er_error *err)
{
    struct want want = {.slices = slices, .n = n, .views = slices};
    int rc = load(ckpt, &want, ret_meta, skip, user, err);

    if (rc == 0)
        *ret = want.made;
    else
        drop_views(&want);
    return rc;
}
