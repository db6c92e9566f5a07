/* The caller's side of a checkpoint in flight: advance, finish. Touches no file. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/save.h"

#define DROP_US   (5 * ER_US_PER_S)  /* for the system call that the writer is in */
#define COMMIT_US (10 * ER_US_PER_S) /* for the outcome of a commit, where it is waited for */

typedef unsigned long long ull;

void er_save_tell(struct er_ckpt *ckpt, const struct er_save *save, uint64_t step, int rc,
                  const char *text)
{
    struct er_ckpt_event event = {
        .kind = rc < 0 ? ER_CKPT_FAILED : ER_CKPT_COMMITTED, .step = step, .code = rc};

    if (save) {
        event.bytes = event.written_bytes = rc < 0 ? 0 : save->total_bytes;
        event.duration_us = er_now_us() - save->started_us;
        event.pause_us = save->pause_us;
        event.stood_in = save->stood_in;
        memcpy(event.note, save->note, sizeof(event.note));
        ckpt->stats.stood_in += rc < 0 ? 0 : save->stood_in;
    }
    snprintf(event.text, sizeof(event.text), "%.*s", (int)sizeof(event.text) - 1, text);
    er_ckpt_remember(ckpt, &event);
    *(rc < 0 ? &ckpt->stats.failed : &ckpt->stats.committed) += 1;
}

bool er_ckpt_in_flight(const struct er_ckpt *ckpt)
{
    return ckpt->save != NULL;
}

/* Only ER_E_STALE says that the record does not name the folder: any other failure leaves that
 * open, and a record must never name a folder that is gone. */
static int note_commit(struct er_save *save, int rc, struct er_error *err)
{
    save->committed = rc == 0;
    save->in_doubt = rc != 0 && rc != ER_E_STALE;
    return save->in_doubt ? er_error_wrap(err, rc, "whether '%s' is committed is unknown, it stays",
                                          save->final)
                          : rc;
}

/* Whether the outcome of the commit that was asked for is known, or not waited for any longer. */
static bool hear_commit(struct er_ckpt *ckpt, struct er_save *save, bool wait)
{
    uint64_t now = er_now_us();
    uint64_t left_us = wait && now < save->deadline_us ? save->deadline_us - now : 0;
    int rc;

    if (save->answered)
        return true;
    rc = ckpt->group.commit_end(ckpt->group.user, left_us, &save->answer_err);
    now = er_now_us();
    if (rc == ER_CKPT_COMMIT_OPEN && now < save->deadline_us)
        return false;
    if (rc == ER_CKPT_COMMIT_OPEN)
        rc = er_error_set(&save->answer_err, -ETIMEDOUT,
                          "step %llu: the job's record has not answered within %llu s",
                          (ull)save->meta.applied, (ull)((now - save->asked_us) / ER_US_PER_S));
    save->answered = true;
    save->answer = note_commit(save, rc, &save->answer_err);
    return true;
}

bool er_save_is_recorded(struct er_ckpt *ckpt)
{
    struct er_save *save = ckpt->save;

    return save && save->leader && save->asked_us && hear_commit(ckpt, save, false) &&
           save->answer == 0;
}

bool er_ckpt_local_done(struct er_ckpt *ckpt)
{
    struct er_save *save = ckpt->save;
    bool done;

    if (!save || !save->duty)
        return true;
    if (save->stage == ER_SAVE_COMMITTING)
        return hear_commit(ckpt, save, false);
    pthread_mutex_lock(&save->lock);
    done = save->running == 0;
    pthread_mutex_unlock(&save->lock);
    return done || er_now_us() >= save->deadline_us;
}

static void give_up(struct er_save *save)
{
    pthread_mutex_lock(&save->lock);
    save->given_up = true;
    while (save->reading) /* in the caller's memory, from now on the caller's again */
        pthread_cond_wait(&save->changed, &save->lock);
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
}

/* How this rank's task of the round ended. */
static int local_result(struct er_ckpt *ckpt, struct er_save *save, struct er_error *err)
{
    if (!save->duty)
        return 0;
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

/* Lets go of the checkpoint in flight; `over`: the leader's writer tidies up behind it. */
static void let_go(struct er_ckpt *ckpt, bool over)
{
    struct er_save *save = ckpt->save;

    ckpt->save = NULL;
    if (!ckpt->hanging && save->snapshot) {
        ckpt->stats.snapshot_cpu_us += save->cpu_us;
        er_snapshot_unref(save->snapshot);
        save->snapshot = NULL;
    }
    ckpt->last_nonce = save->nonce;
    ckpt->last_committed = save->committed;
    if (over && save->leader && save->writer)
        (void)er_save_start(save, save->writer, er_task_settle, NULL);
    er_save_unref(save);
}

void er_save_drop(struct er_ckpt *ckpt, bool all)
{
    struct er_save *save = ckpt->save;

    give_up(save);
    if (!er_save_wait(save, er_now_us() + DROP_US))
        ckpt->hanging = true; /* for all we know; it may just be slow */
    if (ckpt->hanging || save->rc == 0)
        save->in_doubt = true; /* what is visible may have been seen, and is whole: it stays */
    let_go(ckpt, all);
}

int er_save_conclude(struct er_ckpt *ckpt, int rc, struct er_error *err)
{
    struct er_save *save = ckpt->save;

    er_save_tell(ckpt, save, save->meta.applied, rc, rc < 0 ? err->text : save->final);
    let_go(ckpt, true);
    return rc;
}

/* ---- rounds ---- */

/* What this rank's task of the last round was, and how it ended. */
static void note_result(struct er_ckpt *ckpt, struct er_save *save)
{
    struct er_error why = ER_ERROR_INIT;
    int rc = local_result(ckpt, save, &why);

    if (!save->own_known) {
        save->own_known = true;
        save->own_code = rc;
        save->own_err = why;
    } else if (save->duty) {
        save->spare_state = rc < 0 ? ER_SPARE_FAILED : ER_SPARE_WRITTEN;
        save->spare_err = why;
    }
    if (save->given_up && save->spare_state == ER_SPARE_KEPT)
        save->spare_state = ER_SPARE_NONE; /* the thread that would write it hangs */
    save->duty = false;
}

static void next_stage(struct er_ckpt *ckpt, struct er_save *save, enum er_cover cover)
{
    save->stage = cover == ER_COVER_WHOLE ? ER_SAVE_PUBLISHING : ER_SAVE_WRITING;
    save->deadline_us = er_deadline_in(er_now_us(), ckpt->opts.deadline_us);
    save->duty = cover == ER_COVER_WHOLE ? save->leader : save->duty;
    if (!save->duty)
        return;
    save->rc = 0; /* of the part before; nothing runs */
    if (cover == ER_COVER_WHOLE)
        (void)er_save_start(save, save->writer, er_task_publish, NULL);
    else
        er_save_start_part(save, true);
}

/* This rank's part is durable, or not: do all parts together make the whole? */
static int parts_done(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_save *save = ckpt->save;
    enum er_cover cover = ER_COVER_LOST;
    bool together = true;
    int mine = 0, rc;

    note_result(ckpt, save);
    rc = er_save_round(save, ckpt, &cover, &mine, &together, err);
    if (!together)
        return rc;
    if (rc < 0)
        return er_save_conclude(ckpt, rc, err);
    if (mine == 0) {
        next_stage(ckpt, save, cover);
        return 1;
    }
    save->stage = ER_SAVE_PUBLISHING;
    save->rc = mine; /* nothing runs; all ranks learn it at the next boundary */
    save->err = *err;
    save->duty = true;
    return 1;
}

#define ASKED 1

/* ASKED: its outcome comes later. */
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
    if (!ckpt->group.commit_begin) {
        rc = ckpt->group.commit ? ckpt->group.commit(ckpt->group.user, &done, err) : 0;
        return note_commit(save, rc, err);
    }
    rc = ckpt->group.commit_begin(ckpt->group.user, &done, err);
    if (rc < 0)
        return note_commit(save, rc, err);
    save->answered = false;
    save->in_doubt = true;
    save->asked_us = er_now_us();
    return ASKED;
}

static int published(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_save *save = ckpt->save;
    bool together = true;
    int rc = local_result(ckpt, save, err), agreed;

    if (rc == 0 && save->leader)
        rc = commit(ckpt, save, err);
    agreed = er_ckpt_agree(ckpt, rc, &together, err);
    if (together && agreed == ASKED) {
        save->stage = ER_SAVE_COMMITTING;
        save->deadline_us = er_deadline_in(er_now_us(), ckpt->opts.deadline_us);
        return 1;
    }
    if (together)
        return er_save_conclude(ckpt, agreed, err);
    if (save->leader && rc != ASKED) /* its outcome is known here, whoever else hears of it */
        (void)er_save_conclude(ckpt, rc, err);
    return agreed;
}

static int committing(struct er_ckpt *ckpt, struct er_error *err)
{
    struct er_save *save = ckpt->save;
    bool together = true;
    int rc = 0, agreed;

    if (save->leader) {
        while (!hear_commit(ckpt, save, true))
            ;
        rc = save->answer;
        if (rc < 0)
            er_error_set(err, rc, "%s", save->answer_err.text);
    }
    agreed = er_ckpt_agree(ckpt, rc, &together, err);
    if (together)
        return er_save_conclude(ckpt, agreed, err);
    if (save->leader)
        (void)er_save_conclude(ckpt, rc, err);
    return agreed;
}

int er_ckpt_advance(struct er_ckpt *ckpt, struct er_error *err)
{
    static int (*const stages[])(struct er_ckpt *, struct er_error *) = {
        [ER_SAVE_WRITING] = parts_done,
        [ER_SAVE_PUBLISHING] = published,
        [ER_SAVE_COMMITTING] = committing,
    };
    struct er_error local = ER_ERROR_INIT;
    struct er_save *save = ckpt->save;
    uint64_t started = er_now_us();
    int rc;

    if (!save)
        return 0;
    rc = stages[save->stage](ckpt, err ? err : &local);
    if (rc == 1)
        save->pause_us += er_now_us() - started;
    return rc;
}

/* What follows the outcome. */
static void wait_settled(struct er_ckpt *ckpt)
{
    struct er_ckpt_worker *const writers[] = {ckpt->writer, ckpt->saver};
    uint64_t deadline = er_deadline_in(er_now_us(), ckpt->opts.deadline_us);

    for (size_t i = 0; i < ER_ARRAY_N(writers); i++)
        if (writers[i])
            (void)er_ckpt_worker_wait(writers[i], deadline);
}

static bool is_committing(const struct er_ckpt *ckpt)
{
    return ckpt->save && ckpt->save->stage == ER_SAVE_COMMITTING;
}

int er_ckpt_settle(struct er_ckpt *ckpt, struct er_error *err)
{
    uint64_t end_us = er_deadline_in(er_now_us(), COMMIT_US);

    if (!is_committing(ckpt))
        return ckpt->save ? 1 : 0;
    if (ckpt->save->deadline_us > end_us)
        ckpt->save->deadline_us = end_us;
    return er_ckpt_advance(ckpt, err);
}

int er_ckpt_finish(struct er_ckpt *ckpt, struct er_error *err)
{
    int rc;

    do
        rc = is_committing(ckpt) ? er_ckpt_settle(ckpt, err) : er_ckpt_advance(ckpt, err);
    while (rc == 1);
    if (!ckpt->hanging)
        wait_settled(ckpt);
    return rc;
}

int er_ckpt_save(struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                 const struct er_meta *meta, struct er_error *err)
{
    int rc;

    rc = er_ckpt_finish(ckpt, err); /* its outcome is an event */
    if (ckpt->save)
        return rc; /* the group's exchange fails */
    rc = er_save_begin(ckpt, slices, n, meta, true, err);
    if (rc == 0)
        rc = er_ckpt_finish(ckpt, err);
    if (ckpt->save && ckpt->save->spare_state == ER_SPARE_KEPT)
        ckpt->save->spare_state = ER_SPARE_NONE; /* from now on the caller may change it */
    return rc;
}
