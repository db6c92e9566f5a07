/* The beginning of a checkpoint: memory, threads, agreement, the copy. Touches no file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "ckpt/save.h"

#define NICE_BY                                                                                    \
    15 /* some 3 % of a processor that the steps need whole; all of one that is free               \
        */

#define PAGES_BYTES (8ull << 20)

typedef unsigned long long ull;

/* ---- before the first byte ---- */

static int have_thread(struct er_ckpt_worker **worker, const char *name, int nice_by,
                       struct er_error *err)
{
    return *worker ? 0 : er_ckpt_worker_new(worker, name, nice_by, err);
}

static int have_threads(struct er_ckpt *ckpt, bool staged, struct er_error *err)
{
    int rc = have_thread(&ckpt->copier, "er-ckpt-copy", 0, err);

    if (rc == 0 && staged)
        return have_thread(&ckpt->saver, "er-ckpt-save", 0, err);
    if (rc == 0)
        rc = have_thread(&ckpt->digester, "er-ckpt-digest", NICE_BY, err);
    return rc == 0 ? have_thread(&ckpt->writer, "er-ckpt-write", NICE_BY, err) : rc;
}

static bool is_shared(const struct er_snapshot *snapshot)
{
    return snapshot && er_snapshot_shared(snapshot);
}

/* Who brings in the snapshot's pages lets go of it. */
static void stop_pages(struct er_ckpt *ckpt)
{
    atomic_store(&ckpt->no_more_pages, true);
    if (ckpt->digester)
        (void)er_ckpt_worker_wait(ckpt->digester, ER_FOREVER);
}

/* Room for an image of `bytes` (staged: for the blocks): what is there already, unless the state
 * grew. */
static int have_memory(struct er_ckpt *ckpt, uint64_t bytes, bool staged, struct er_error *err)
{
    struct er_snapshot **memory = staged ? &ckpt->stage : &ckpt->snapshot;

    if (is_shared(ckpt->snapshot) || is_shared(ckpt->stage))
        return er_error_set(err, -ETIMEDOUT,
                            "the storage has not answered for so long that an earlier checkpoint "
                            "was given up, and it still hangs");
    ckpt->hanging = false;
    if (*memory && er_snapshot_room(*memory) >= bytes)
        return 0;
    if (!staged)
        stop_pages(ckpt);
    er_snapshot_unref(*memory);
    *memory = NULL;
    return er_snapshot_new(memory, bytes, err);
}

/* Beside the first steps, in small bites: a checkpoint that begins meanwhile ends it, and brings in
 * the rest as it is copied. */
static void bring_in_pages(void *arg)
{
    struct er_ckpt *ckpt = arg;
    uint64_t room = er_snapshot_room(ckpt->snapshot);

    for (uint64_t at = 0; at < room && !atomic_load(&ckpt->no_more_pages); at += PAGES_BYTES)
        er_snapshot_populate(ckpt->snapshot, at, PAGES_BYTES);
}

int er_ckpt_reserve(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                    struct er_error *err)
{
    static const struct er_meta nothing;
    struct er_save *save = NULL;
    int rc = er_save_new(&save, ckpt, slices, n, &nothing, false, err);

    if (rc == 0)
        rc = have_threads(ckpt, false, err);
    if (rc == 0)
        rc = have_memory(ckpt, er_save_image_bytes(save), false, err);
    er_save_unref(save);
    if (rc < 0)
        return rc;
    atomic_store(&ckpt->no_more_pages, false);
    (void)er_ckpt_worker_run(ckpt->digester, bring_in_pages, ckpt); /* a full queue: not now */
    return 0;
}

/* Without memory for the copy this rank takes part all the same: others may have what it has. */
static int prepare(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                   const struct er_meta *meta, bool staged, struct er_save **ret,
                   struct er_error *err)
{
    struct er_save *save;
    int rc = er_save_new(ret, ckpt, slices, n, meta, staged, err);

    if (rc < 0)
        return rc;
    save = *ret;
    atomic_store(&ckpt->no_more_pages, true);
    rc = have_threads(ckpt, staged, &save->own_err);
    if (rc == 0)
        rc = have_memory(ckpt, er_save_image_bytes(save), staged, &save->own_err);
    save->copier = ckpt->copier;
    save->digester = ckpt->digester;
    save->writer = staged ? ckpt->saver : ckpt->writer;
    if (rc == 0) {
        save->snapshot = er_snapshot_ref(staged ? ckpt->stage : ckpt->snapshot);
        return 0;
    }
    save->absent = save->own_known = save->copy_done = true;
    save->own_code = rc;
    save->spare_state = ER_SPARE_NONE;
    return 0;
}

/* ---- begin ---- */

struct start {
    int64_t code, own_code; /* cannot at all; cannot write its own part */
    uint64_t step, generation, nonce;
    int64_t spare;
    uint8_t empty, sole, spare_state;
    char text[480];
};

static struct start describe(struct er_ckpt *ckpt, const struct er_meta *meta,
                             const struct er_save *save, int rc, const struct er_error *err)
{
    struct start mine = {.code = rc, .step = meta->applied, .generation = meta->generation};
    const char *text = rc < 0 ? err->text : save->own_err.text;

    mine.nonce = er_rand_mix(er_wall_us() ^ (uint64_t)getpid() << 44 ^ ++ckpt->attempts << 56);
    if (rc == 0) {
        mine.own_code = save->own_code;
        mine.spare = save->spare_rank;
        mine.spare_state = (uint8_t)save->spare_state;
        mine.empty = save->plan.n == 0;
        mine.sole = save->plan.sole;
    }
    if (rc < 0 || mine.own_code < 0)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1, text);
    return mine;
}

/* Those that can begin have, or can write, what the others cannot. */
static int check_cover(const struct start *all, size_t n, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_cover_member *members = calloc(n, sizeof(*members));
    ER_CLEANUP(er_cleanup_free) bool *write = calloc(n, sizeof(*write));
    int lost = 0;

    if (!members || !write)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    for (size_t i = 0; i < n; i++)
        members[i] = (struct er_cover_member){.rank = (int)i,
                                              .code = (int)all[i].own_code,
                                              .empty = all[i].empty,
                                              .sole = all[i].sole,
                                              .spare = (int)all[i].spare,
                                              .spare_state = all[i].spare_state};
    if (er_cover_judge(members, n, (int)n, write, &lost) != ER_COVER_LOST)
        return 0;
    return er_error_set(err, (int)all[lost].own_code, "rank %d: %s", lost, all[lost].text);
}

/* Enough ranks can begin, and all mean the same step; rank 0 names the attempt. */
static int agree_start(struct er_ckpt *ckpt, const struct start *mine, uint64_t *ret_nonce,
                       struct er_error *err)
{
    size_t size = (size_t)ckpt->group.size;
    ER_CLEANUP(er_cleanup_free) struct start *all = calloc(size, sizeof(*all));
    int gathered;

    if (!all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    gathered = er_ckpt_gather(ckpt, mine, sizeof(*mine), all, err);
    if (gathered < 0)
        return gathered;
    for (size_t i = 0; i < size; i++) {
        all[i].text[sizeof(all[i].text) - 1] = 0;
        if (all[i].code < 0)
            return er_error_set(err, (int)all[i].code, "rank %zu: %s", i, all[i].text);
        if (all[i].step != all[0].step || all[i].generation != all[0].generation)
            return er_error_set(err, ER_E_MISMATCH,
                                "rank %zu begins a checkpoint of step %llu in generation %llu, "
                                "rank 0 of step %llu in %llu",
                                i, (ull)all[i].step, (ull)all[i].generation, (ull)all[0].step,
                                (ull)all[0].generation);
    }
    *ret_nonce = all[0].nonce;
    return check_cover(all, size, err);
}

static int name_temp(struct er_save *save, uint64_t nonce, struct er_error *err)
{
    char temp[PATH_MAX];
    int rc =
        er_ckpt_temp_path(save->dir, save->meta.applied, save->meta.generation, nonce, temp, err);

    if (rc < 0)
        return rc;
    save->nonce = nonce;
    save->temp = strdup(temp);
    return save->temp ? 0 : er_error_set(err, -ENOMEM, "checkpoint: no memory");
}

int er_save_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                  const struct er_meta *meta, bool staged, struct er_error *err)
{
    struct er_error local = ER_ERROR_INIT;
    struct er_save *save = NULL;
    uint64_t started = er_now_us(), nonce = 0;
    struct start mine;
    int rc;

    if (ckpt->save) {
        ckpt->stats.busy++;
        return ER_CKPT_BUSY;
    }
    err = err ? err : &local; /* the text travels to the other ranks */
    rc = prepare(ckpt, slices, n, meta, staged, &save, err);
    mine = describe(ckpt, meta, save, rc, err);
    rc = agree_start(ckpt, &mine, &nonce, err);
    if (rc == 0)
        rc = name_temp(save, nonce, err);
    if (rc < 0) {
        er_save_tell(ckpt, NULL, meta->applied, rc, err->text);
        er_save_unref(save);
        return rc;
    }
    save->started_us = started;
    save->leader = ckpt->group.rank == 0; /* until the first round says who */
    save->deadline_us = er_deadline_in(started, ckpt->opts.deadline_us);
    save->duty = !save->absent;
    if (save->duty)
        er_save_start_part(save, false);
    ckpt->save = save;
    ckpt->stats.begun++;
    save->pause_us += er_now_us() - started;
    return 0;
}

int er_ckpt_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                  const struct er_meta *meta, struct er_error *err)
{
    return er_save_begin(ckpt, slices, n, meta, false, err);
}

int er_ckpt_before_apply(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_save *save = ckpt->save;
    uint64_t started;

    (void)err;
    if (!save)
        return 0;
    started = er_now_us();
    pthread_mutex_lock(&save->lock);
    while (!save->copy_done)
        pthread_cond_wait(&save->changed, &save->lock);
    pthread_mutex_unlock(&save->lock);
    save->pause_us += er_now_us() - started;
    return 0;
}
