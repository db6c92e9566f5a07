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

typedef unsigned long long ull;

/* ---- before the first byte ---- */

static int have_threads(struct er_ckpt *ckpt, struct er_error *err)
{
    const struct {
        struct er_ckpt_worker **worker;
        const char *name;
        int nice_by;
    } threads[] = {{&ckpt->copier, "er-ckpt-copy", 0},
                   {&ckpt->digester, "er-ckpt-digest", NICE_BY},
                   {&ckpt->writer, "er-ckpt-write", NICE_BY}};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ER_ARRAY_N(threads); i++)
        if (!*threads[i].worker)
            rc = er_ckpt_worker_new(threads[i].worker, threads[i].name, threads[i].nice_by, err);
    return rc;
}

/* Room for an image of `bytes`: what is there already, unless the state grew. */
static int have_snapshot(struct er_ckpt *ckpt, uint64_t bytes, struct er_error *err)
{
    if (ckpt->snapshot && er_snapshot_shared(ckpt->snapshot))
        return er_error_set(err, -ETIMEDOUT,
                            "the storage has not answered for so long that an earlier checkpoint "
                            "was given up, and it still hangs");
    ckpt->hanging = false;
    if (ckpt->snapshot && er_snapshot_room(ckpt->snapshot) >= bytes)
        return 0;
    er_snapshot_unref(ckpt->snapshot);
    ckpt->snapshot = NULL;
    return er_snapshot_new(&ckpt->snapshot, bytes, err);
}

int er_ckpt_reserve(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                    struct er_error *err)
{
    static const struct er_meta nothing;
    struct er_save *save = NULL;
    int rc = er_save_new(&save, ckpt, slices, n, &nothing, err);

    if (rc == 0)
        rc = have_threads(ckpt, err);
    if (rc == 0)
        rc = have_snapshot(ckpt, er_save_image_bytes(save), err);
    er_save_unref(save);
    return rc;
}

/* Without memory for the copy this rank takes part all the same: others may have what it has. */
static int prepare(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                   const struct er_meta *meta, struct er_save **ret, struct er_error *err)
{
    struct er_save *save;
    int rc = er_save_new(ret, ckpt, slices, n, meta, err);

    if (rc < 0)
        return rc;
    save = *ret;
    rc = have_threads(ckpt, &save->own_err);
    if (rc == 0)
        rc = have_snapshot(ckpt, er_save_image_bytes(save), &save->own_err);
    if (rc == 0) {
        save->snapshot = er_snapshot_ref(ckpt->snapshot);
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

/* A full queue is a failed part. */
static void start_tasks(struct er_ckpt *ckpt, struct er_save *save)
{
    save->duty = !save->absent;
    if (save->absent)
        return;
    (void)er_save_start(save, ckpt->copier, er_task_copy, NULL); /* an idle thread's queue */
    (void)er_save_start(save, ckpt->digester, er_task_digest, NULL);
    (void)er_save_start(save, ckpt->writer, er_task_shard, NULL);
}

int er_ckpt_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                  const struct er_meta *meta, struct er_error *err)
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
    rc = prepare(ckpt, slices, n, meta, &save, err);
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
    start_tasks(ckpt, save);
    ckpt->save = save;
    ckpt->stats.begun++;
    save->pause_us += er_now_us() - started;
    return 0;
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
