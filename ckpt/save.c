#include "ckpt/save.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/copy.h"
#include "ckpt/slices.h"

#define COPY_BYTES (4u << 20) /* of one step; the writer follows */

static void destroy(struct er_save *save)
{
    er_shard_plan_done(&save->plan);
    er_shard_plan_done(&save->spare);
    er_manifest_done(&save->manifest);
    er_snapshot_unref(save->snapshot);
    pthread_cond_destroy(&save->changed);
    pthread_mutex_destroy(&save->lock);
    free(save->chain);
    free(save->dir);
    free(save->temp);
    free(save->final);
    free(save);
}

void er_save_unref(struct er_save *save)
{
    if (save && atomic_fetch_sub(&save->refs, 1) == 1)
        destroy(save);
}

static void init_lock(struct er_save *save)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&save->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&save->changed, &attr);
    pthread_condattr_destroy(&attr);
}

/* The generations before this one: a generation that goes on is still the last link. */
static int take_chain(struct er_save *save, const struct er_ckpt *ckpt)
{
    size_t n = ckpt->chain_n;

    while (n > 0 && ckpt->chain[n - 1].generation >= save->meta.generation)
        n--;
    save->chain = calloc(n + 1, sizeof(*save->chain));
    if (!save->chain)
        return -ENOMEM;
    if (n > 0)
        memcpy(save->chain, ckpt->chain, n * sizeof(*save->chain));
    save->chain_n = n;
    return 0;
}

static int make_plans(struct er_save *save, const struct er_slice *slices, size_t n,
                      struct er_error *err)
{
    int rc = er_shard_plan_make(&save->plan, slices, n, save->rank, save->size, false, err);

    save->spare_rank = save->opts.no_stand_in ? -1 : er_cover_spare(save->rank, save->size);
    if (rc < 0 || save->spare_rank < 0)
        return rc;
    rc = er_shard_plan_make(&save->spare, slices, n, save->spare_rank, save->size, true, err);
    save->spare_state = save->spare.n > 0 ? ER_SPARE_KEPT : ER_SPARE_WRITTEN;
    return rc;
}

uint64_t er_save_spare_at(const struct er_save *save)
{
    return (save->plan.bytes + ER_SNAPSHOT_ALIGN - 1) / ER_SNAPSHOT_ALIGN * ER_SNAPSHOT_ALIGN;
}

uint64_t er_save_image_bytes(const struct er_save *save)
{
    if (save->staged)
        return ER_STAGE_BYTES;
    return save->spare_state == ER_SPARE_KEPT ? er_save_spare_at(save) + save->spare.bytes
                                              : save->plan.bytes;
}

int er_save_new(struct er_save **ret, struct er_ckpt *ckpt, const struct er_slice *slices, size_t n,
                const struct er_meta *meta, bool staged, struct er_error *err)
{
    char final[PATH_MAX];
    struct er_save *save;
    int rc = er_ckpt_step_path(ckpt->dir, meta->applied, final, err);

    if (rc < 0)
        return rc;
    save = calloc(1, sizeof(*save));
    if (!save)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    atomic_init(&save->refs, 1);
    init_lock(save);
    er_manifest_init(&save->manifest);
    save->rank = ckpt->group.rank;
    save->size = ckpt->group.size;
    save->meta = *meta;
    save->opts = ckpt->opts;
    save->fence = meta->generation;
    save->staged = staged;
    save->dir = strdup(ckpt->dir);
    save->final = strdup(final);
    if (!save->dir || !save->final || take_chain(save, ckpt) < 0)
        rc = er_error_set(err, -ENOMEM, "checkpoint: no memory");
    if (rc == 0)
        rc = make_plans(save, slices, n, err);
    if (rc < 0) {
        er_save_unref(save);
        return rc;
    }
    *ret = save;
    return 0;
}

int er_save_start(struct er_save *save, struct er_ckpt_worker *worker, er_work_fn fn,
                  struct er_error *err)
{
    pthread_mutex_lock(&save->lock);
    save->running++;
    pthread_mutex_unlock(&save->lock);
    atomic_fetch_add(&save->refs, 1);
    if (er_ckpt_worker_run(worker, fn, save) < 0) {
        struct er_error full = ER_ERROR_INIT;

        er_error_set(&full, -EBUSY, "step %llu: the storage is still busy with earlier ones",
                     (unsigned long long)save->meta.applied);
        er_save_task_end(save, -EBUSY, &full);
        return er_error_set(err, -EBUSY, "%s", full.text);
    }
    return 0;
}

void er_save_start_part(struct er_save *save, bool spare)
{
    const bool copy = !save->staged && !spare;

    pthread_mutex_lock(&save->lock);
    if (copy || save->staged)
        save->copied = save->taken = 0;
    save->reading = copy;
    pthread_mutex_unlock(&save->lock);
    /* Queues of idle threads; one that is full is a failed part. */
    if (save->staged)
        (void)er_save_start(save, save->copier, spare ? er_task_fill_spare : er_task_fill, NULL);
    if (copy) {
        (void)er_save_start(save, save->copier, er_task_copy, NULL);
        (void)er_save_start(save, save->digester, er_task_digest, NULL);
    }
    (void)er_save_start(save, save->writer, spare ? er_task_stand_in : er_task_shard, NULL);
}

void er_save_task_end(struct er_save *save, int rc, const struct er_error *err)
{
    pthread_mutex_lock(&save->lock);
    if (rc < 0 && save->rc == 0) {
        save->rc = rc;
        save->err = *err;
    }
    save->running--;
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
    er_save_unref(save);
}

bool er_save_wait(struct er_save *save, uint64_t deadline_us)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_us / ER_US_PER_S),
                                   .tv_nsec = (long)(deadline_us % ER_US_PER_S) * 1000};
    bool done;
    int rc = 0;

    pthread_mutex_lock(&save->lock);
    while (rc == 0 && save->running > 0)
        rc = pthread_cond_timedwait(&save->changed, &save->lock, &until);
    done = save->running == 0;
    pthread_mutex_unlock(&save->lock);
    return done;
}

bool er_save_given_up(struct er_save *save)
{
    bool given_up;

    pthread_mutex_lock(&save->lock);
    given_up = save->given_up;
    pthread_mutex_unlock(&save->lock);
    return given_up;
}

bool er_save_copied_to(struct er_save *save, uint64_t end)
{
    bool go_on;

    pthread_mutex_lock(&save->lock);
    while (save->copied < end && !save->given_up)
        pthread_cond_wait(&save->changed, &save->lock);
    go_on = !save->given_up;
    pthread_mutex_unlock(&save->lock);
    return go_on;
}

/* ---- the copy ---- */

static uint64_t cpu_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * ER_US_PER_S + (uint64_t)ts.tv_nsec / 1000;
}

static void tell_copied(struct er_save *save, uint64_t bytes, bool done)
{
    pthread_mutex_lock(&save->lock);
    save->copied = bytes;
    save->copy_done = done;
    save->reading = !done;
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
}

/* `told`: bytes that the writer knows of; NULL: nobody follows. */
static void copy_part(struct er_save *save, const struct er_shard_plan *plan, size_t i, char *image,
                      uint64_t *told)
{
    uint64_t at = er_shard_plan_at(plan, i), bytes = plan->tensors[i].end - plan->tensors[i].begin;

    for (uint64_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < COPY_BYTES ? bytes - done : COPY_BYTES;
        er_copy_streaming(image + at + done, (const char *)plan->parts[i].data + done, (size_t)n);
        if (told && at + done + n - *told >= COPY_BYTES) {
            *told = at + done + n;
            tell_copied(save, *told, false);
        }
    }
}

static void copy_image(struct er_save *save, const struct er_shard_plan *plan, char *image,
                       uint64_t *told)
{
    uint64_t pad =
        ER_SNAPSHOT_ALIGN - 1 - (plan->bytes + ER_SNAPSHOT_ALIGN - 1) % ER_SNAPSHOT_ALIGN;

    memcpy(image, plan->header_text, (size_t)plan->header_bytes);
    for (size_t i = 0; i < plan->n; i++)
        copy_part(save, plan, i, image, told);
    /* What direct I/O writes behind the end until the file is cut. */
    memset(image + plan->bytes, 0, (size_t)pad);
}

static void copy_state(struct er_save *save)
{
    char *image = er_snapshot_data(save->snapshot);
    uint64_t told = save->plan.header_bytes;

    copy_image(save, &save->plan, image, &told);
    if (save->spare_state == ER_SPARE_KEPT) {
        tell_copied(save, save->plan.bytes, false);
        copy_image(save, &save->spare, image + er_save_spare_at(save), NULL);
    }
    tell_copied(save, save->plan.bytes, true);
}

/* From the copy: the writer is at the disk meanwhile, and the caller's state may change again. */
void er_save_digest(struct er_save *save, const struct er_shard_plan *plan, const char *image)
{
    struct er_digest *digest = plan->digests;

    for (size_t i = 0; i < plan->n && !er_save_given_up(save); i++) {
        uint64_t at = er_shard_plan_at(plan, i);
        uint64_t bytes = plan->tensors[i].end - plan->tensors[i].begin;
        uint64_t piece = er_piece_bytes(bytes);

        for (uint64_t done = 0; done < bytes; done += piece)
            *digest++ =
                er_hash(image + at + done, (size_t)(bytes - done < piece ? bytes - done : piece));
    }
}

void er_task_copy(void *arg)
{
    struct er_save *save = arg;
    uint64_t started = cpu_us();

    copy_state(save);
    pthread_mutex_lock(&save->lock);
    save->cpu_us = cpu_us() - started;
    pthread_mutex_unlock(&save->lock);
    er_save_task_end(save, 0, NULL);
}

void er_task_digest(void *arg)
{
    struct er_save *save = arg;

    if (er_save_copied_to(save, save->plan.bytes))
        er_save_digest(save, &save->plan, er_snapshot_data(save->snapshot));
    er_save_task_end(save, 0, NULL);
}
