/* A file from the caller's memory, block by block, while the caller waits. */
#include <errno.h>
#include <string.h>

#include "ckpt/save.h"
#include "ckpt/slices.h"

#define BLOCK_BYTES ER_SHARD_WRITE_BYTES
#define HASH_BYTES  (256u << 10) /* copied and hashed while it is in the nearest cache */

struct fill {
    struct er_save *save;
    const struct er_shard_plan *plan;
    char *stage;
    uint64_t at; /* in the file */
    struct er_hasher *hasher;
};

/* Under the lock. Nobody wants the rest. */
static bool is_over(const struct er_save *save)
{
    return save->given_up || save->rc < 0;
}

/* Waits until the writer is done with what was in the block's place. From then on the caller's
 * memory is read, until tell_filled(). */
static bool wait_for_room(struct er_save *save, uint64_t at)
{
    bool go_on;

    pthread_mutex_lock(&save->lock);
    while (at > save->taken + BLOCK_BYTES && !is_over(save))
        pthread_cond_wait(&save->changed, &save->lock);
    go_on = save->reading = !is_over(save);
    pthread_mutex_unlock(&save->lock);
    return go_on;
}

static void tell_filled(struct er_save *save, uint64_t bytes)
{
    pthread_mutex_lock(&save->lock);
    save->copied = bytes;
    save->reading = false;
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
}

/* The next `n` bytes of the file. */
static bool put(struct fill *f, const char *data, uint64_t n)
{
    for (uint64_t k; n > 0; n -= k, data += k) {
        char *to = f->stage + f->at % ER_STAGE_BYTES;

        if (f->at % BLOCK_BYTES == 0 && !wait_for_room(f->save, f->at))
            return false;
        k = BLOCK_BYTES - f->at % BLOCK_BYTES;
        k = n < k ? n : k;
        k = k < HASH_BYTES ? k : HASH_BYTES;
        memcpy(to, data, (size_t)k);
        er_hasher_add(f->hasher, to, (size_t)k);
        f->at += k;
        if (f->at == f->plan->bytes) /* what direct I/O writes until the file is cut */
            memset(to + k, 0, (size_t)(-f->at % ER_SNAPSHOT_ALIGN));
        if (f->at % BLOCK_BYTES == 0 || f->at == f->plan->bytes)
            tell_filled(f->save, f->at);
    }
    return true;
}

static void fill(struct fill *f)
{
    const struct er_shard_plan *plan = f->plan;
    struct er_digest *digest = plan->digests;
    bool go_on = put(f, plan->header_text, plan->header_bytes);

    for (size_t i = 0; i < plan->n && go_on; i++) {
        uint64_t bytes = plan->tensors[i].end - plan->tensors[i].begin;
        uint64_t piece = er_piece_bytes(bytes);

        for (uint64_t done = 0, n; done < bytes && go_on; done += n) {
            n = bytes - done < piece ? bytes - done : piece;
            er_hasher_reset(f->hasher);
            go_on = put(f, (const char *)plan->parts[i].data + done, n);
            *digest++ = er_hasher_get(f->hasher);
        }
    }
}

static void run(struct er_save *save, const struct er_shard_plan *plan)
{
    struct fill f = {.save = save,
                     .plan = plan,
                     .stage = er_snapshot_data(save->snapshot),
                     .hasher = er_hasher_new()};
    struct er_error err = ER_ERROR_INIT;
    int rc = f.hasher ? 0 : er_error_set(&err, -ENOMEM, "checkpoint: no memory");

    if (rc == 0 && plan->n > 0)
        fill(&f);
    er_hasher_free(f.hasher);
    pthread_mutex_lock(&save->lock);
    save->reading = false;
    save->copy_done = true;
    pthread_mutex_unlock(&save->lock);
    er_save_task_end(save, rc, &err);
}

void er_task_fill(void *arg)
{
    struct er_save *save = arg;

    run(save, &save->plan);
}

void er_task_fill_spare(void *arg)
{
    struct er_save *save = arg;

    run(save, &save->spare);
}

const char *er_stage_take(void *arg, uint64_t at, uint64_t end)
{
    struct er_save *save = arg;
    bool go_on;

    pthread_mutex_lock(&save->lock);
    save->taken = at;
    pthread_cond_broadcast(&save->changed);
    while (save->copied < end && !is_over(save))
        pthread_cond_wait(&save->changed, &save->lock);
    go_on = !is_over(save);
    pthread_mutex_unlock(&save->lock);
    return go_on ? er_snapshot_data(save->snapshot) + at % ER_STAGE_BYTES : NULL;
}
