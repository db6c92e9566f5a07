/* The caller's side of writing: begin, wait for the copy, advance, finish. Touches no file. */
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
#define DROP_US (5 * ER_US_PER_S) /* for the system call that the writer is in */

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
    struct er_shard_plan plan;
    int rc = er_shard_plan_make(&plan, slices, n, ckpt->group.rank, ckpt->group.size, err);

    if (rc == 0)
        rc = have_threads(ckpt, err);
    if (rc == 0)
        rc = have_snapshot(ckpt, plan.bytes, err);
    er_shard_plan_done(&plan);
    return rc;
}

static int prepare(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                   const struct er_meta *meta, struct er_save **ret, struct er_error *err)
{
    int rc = er_save_new(ret, ckpt, slices, n, meta, err);

    if (rc == 0)
        rc = have_threads(ckpt, err);
    if (rc == 0)
        rc = have_snapshot(ckpt, (*ret)->plan.bytes, err);
    if (rc == 0)
        (*ret)->snapshot = er_snapshot_ref(ckpt->snapshot);
    return rc;
}

/* ---- begin ---- */

struct start {
    int64_t code;
    uint64_t step, generation, nonce;
    char text[480];
};

/* Every rank can begin, and all mean the same step; rank 0 names the attempt. */
static int agree_start(struct er_ckpt *ckpt, const struct er_meta *meta, int rc,
                       uint64_t *ret_nonce, struct er_error *err)
{
    size_t size = (size_t)ckpt->group.size;
    struct start mine = {.code = rc, .step = meta->applied, .generation = meta->generation};
    ER_CLEANUP(er_cleanup_free) struct start *all = calloc(size, sizeof(*all));
    int gathered;

    if (!all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    mine.nonce = er_rand_mix(er_wall_us() ^ (uint64_t)getpid() << 44 ^ ++ckpt->attempts << 56);
    if (rc < 0)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1, err->text);
    gathered = er_ckpt_gather(ckpt, &mine, sizeof(mine), all, err);
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
    return 0;
}

static int name_temp(struct er_save *save, uint64_t nonce, struct er_error *err)
{
    char temp[PATH_MAX];
    int rc =
        er_ckpt_temp_path(save->dir, save->meta.applied, save->meta.generation, nonce, temp, err);

    if (rc < 0)
        return rc;
    save->temp = strdup(temp);
    return save->temp ? 0 : er_error_set(err, -ENOMEM, "checkpoint: no memory");
}

static void tell(struct er_ckpt *ckpt, const struct er_save *save, uint64_t step, int rc,
                 const char *text)
{
    struct er_ckpt_event event = {
        .kind = rc < 0 ? ER_CKPT_FAILED : ER_CKPT_COMMITTED, .step = step, .code = rc};

    if (save) {
        event.bytes = event.written_bytes = rc < 0 ? 0 : save->total_bytes;
        event.duration_us = er_now_us() - save->started_us;
        event.pause_us = save->pause_us;
    }
    snprintf(event.text, sizeof(event.text), "%.*s", (int)sizeof(event.text) - 1, text);
    er_ckpt_remember(ckpt, &event);
    *(rc < 0 ? &ckpt->stats.failed : &ckpt->stats.committed) += 1;
}

int er_ckpt_begin(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                  const struct er_meta *meta, struct er_error *err)
{
    struct er_error local = ER_ERROR_INIT;
    struct er_save *save = NULL;
    uint64_t started = er_now_us(), nonce = 0;
    int rc;

    if (ckpt->save) {
        ckpt->stats.busy++;
        return ER_CKPT_BUSY;
    }
    err = err ? err : &local; /* the text travels to the other ranks */
    rc = prepare(ckpt, slices, n, meta, &save, err);
    rc = agree_start(ckpt, meta, rc, &nonce, err);
    if (rc == 0)
        rc = name_temp(save, nonce, err);
    if (rc < 0) {
        tell(ckpt, NULL, meta->applied, rc, err->text);
        er_save_unref(save);
        return rc;
    }
    save->started_us = started;
    save->deadline_us = er_deadline_in(started, ckpt->opts.deadline_us);
    (void)er_save_start(save, ckpt->copier, er_task_copy, NULL); /* an idle thread's queue */
    (void)er_save_start(save, ckpt->digester, er_task_digest, NULL);
    (void)er_save_start(save, ckpt->writer, er_task_shard, NULL); /* full: a failed part */
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

/* ---- on the way ---- */

bool er_ckpt_in_flight(const struct er_ckpt *ckpt)
{
    return ckpt->save != NULL;
}

bool er_ckpt_local_done(struct er_ckpt *ckpt)
{
    struct er_save *save = ckpt->save;
    bool done;

    if (!save)
        return true;
    pthread_mutex_lock(&save->lock);
    done = save->running == 0;
    pthread_mutex_unlock(&save->lock);
    return done || er_now_us() >= save->deadline_us;
}

static void give_up(struct er_save *save)
{
    pthread_mutex_lock(&save->lock);
    save->given_up = true;
    while (!save->copy_done) /* reads the caller's memory, from now on the caller's again */
        pthread_cond_wait(&save->changed, &save->lock);
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
}

/* How this rank's part of the stage ended. */
static int local_result(struct er_ckpt *ckpt, struct er_save *save, struct er_error *err)
{
    if (!er_save_wait(save, save->deadline_us)) {
        give_up(save);
        ckpt->hanging = true;
        return er_error_set(err, -ETIMEDOUT,
                            "step %llu: the storage has not answered within %llu s",
                            (ull)save->meta.applied, (ull)(ckpt->opts.deadline_us / ER_US_PER_S));
    }
    if (save->rc < 0)
        er_error_set(err, save->rc, "%s", save->err.text);
    return save->rc;
}

/* Lets go of the checkpoint in flight; rank 0's writer tidies up behind it. */
static void let_go(struct er_ckpt *ckpt)
{
    struct er_save *save = ckpt->save;

    ckpt->save = NULL;
    if (!ckpt->hanging) {
        ckpt->stats.snapshot_cpu_us += save->cpu_us;
        er_snapshot_unref(save->snapshot);
        save->snapshot = NULL;
    }
    if (save->rank == 0)
        (void)er_save_start(save, ckpt->writer, er_task_settle, NULL);
    er_save_unref(save);
}

void er_save_drop(struct er_ckpt *ckpt)
{
    give_up(ckpt->save);
    if (!er_save_wait(ckpt->save, er_now_us() + DROP_US))
        ckpt->hanging = true; /* for all we know; it may just be slow */
    let_go(ckpt);
}

static int conclude(struct er_ckpt *ckpt, int rc, struct er_error *err)
{
    struct er_save *save = ckpt->save;

    tell(ckpt, save, save->meta.applied, rc, rc < 0 ? err->text : save->final);
    let_go(ckpt);
    return rc;
}

/* All shards are durable: rank 0 goes on with the manifest. */
static int shards_done(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_save *save = ckpt->save;
    int mine = 0, rc = local_result(ckpt, save, err);

    rc = er_save_collect(save, ckpt, rc, &mine, err);
    if (rc < 0)
        return conclude(ckpt, rc, err);
    save->stage = ER_SAVE_PUBLISHING;
    save->deadline_us = er_deadline_in(er_now_us(), ckpt->opts.deadline_us);
    if (mine < 0) {
        save->rc = mine; /* nothing runs; all ranks learn it at the next boundary */
        save->err = *err;
    } else if (save->rank == 0) {
        (void)er_save_start(save, ckpt->writer, er_task_publish, NULL);
    }
    return 1;
}

/* Only ER_E_STALE says that the record does not name the folder: any other failure leaves that
 * open, and a record must never name a folder that is gone. */
static int commit(struct er_ckpt *ckpt, struct er_save *save, struct er_error *err)
{
    char hex[ER_DIGEST_HEX_MAX];
    const struct er_ckpt_done done = {.step = save->meta.applied,
                                      .bytes = save->total_bytes,
                                      .written_bytes = save->total_bytes,
                                      .pause_us = save->pause_us,
                                      .duration_us = er_now_us() - save->started_us,
                                      .path = save->final,
                                      .digest = hex};
    int rc;

    er_digest_format(save->digest, hex);
    rc = ckpt->group.commit ? ckpt->group.commit(ckpt->group.user, &done, err) : 0;
    save->committed = rc == 0;
    save->in_doubt = rc != 0 && rc != ER_E_STALE;
    return save->in_doubt ? er_error_wrap(err, rc, "whether '%s' is committed is unknown, it stays",
                                          save->final)
                          : rc;
}

static int published(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_save *save = ckpt->save;
    int rc = local_result(ckpt, save, err);

    if (rc == 0 && save->rank == 0)
        rc = commit(ckpt, save, err);
    return conclude(ckpt, er_ckpt_agree(ckpt, rc, NULL, err), err);
}

int er_ckpt_advance(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_error local = ER_ERROR_INIT;
    struct er_save *save = ckpt->save;
    uint64_t started = er_now_us();
    int rc;

    if (!save)
        return 0;
    err = err ? err : &local;
    rc = save->stage == ER_SAVE_WRITING ? shards_done(ckpt, err) : published(ckpt, err);
    if (rc == 1)
        save->pause_us += er_now_us() - started;
    return rc;
}

int er_ckpt_finish(struct er_ckpt *ckpt, struct er_error *err)
{
    int rc;

    do
        rc = er_ckpt_advance(ckpt, err);
    while (rc == 1);
    if (ckpt->writer && !ckpt->hanging)
        (void)er_ckpt_worker_wait(ckpt->writer,
                                  er_deadline_in(er_now_us(), ckpt->opts.deadline_us));
    return rc;
}

int er_ckpt_save(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                 const struct er_meta *meta, struct er_error *err)
{
    int rc;

    if (ckpt->save)
        (void)er_ckpt_finish(ckpt, NULL); /* its outcome is an event */
    rc = er_ckpt_begin(ckpt, slices, n, meta, err);
    return rc == 0 ? er_ckpt_finish(ckpt, err) : rc;
}
