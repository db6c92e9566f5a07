#include "tests/lib/ckpt_world.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/tap.h"

enum { WAIT_SLICE_US = 1000 };

static int gather(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    struct er_cw_rank *r = user;
    struct er_cw *w = r->world;

    (void)err;
    w->blobs[r->rank] = realloc(w->blobs[r->rank], n + 1);
    memcpy(w->blobs[r->rank], mine, n);
    pthread_barrier_wait(&w->barrier);
    for (int i = 0; i < w->size; i++)
        memcpy((char *)all + (size_t)i * n, w->blobs[i], n);
    pthread_barrier_wait(&w->barrier);
    return 0;
}

static int commit(void *user, const struct er_ckpt_done *done, struct er_error *err)
{
    struct er_cw_rank *r = user;
    struct er_cw *w = r->world;

    w->commits++;
    if (w->on_commit)
        w->on_commit(w->user);
    return w->commit_rc < 0 ? er_error_set(err, w->commit_rc, "step %llu refused",
                                           (unsigned long long)done->step)
                            : 0;
}

static int commit_begin(void *user, const struct er_ckpt_done *done, struct er_error *err)
{
    struct er_cw_rank *r = user;

    (void)err;
    r->asked = done->step;
    r->world->commits++;
    return 0;
}

static int commit_end(void *user, uint64_t wait_us, struct er_error *err)
{
    struct er_cw_rank *r = user;
    struct er_cw *w = r->world;

    if (w->hold) {
        usleep((useconds_t)(wait_us < WAIT_SLICE_US ? wait_us : WAIT_SLICE_US));
        return ER_CKPT_COMMIT_OPEN;
    }
    return w->commit_rc < 0
               ? er_error_set(err, w->commit_rc, "step %llu refused", (unsigned long long)r->asked)
               : 0;
}

struct er_ckpt_group er_cw_group(struct er_cw_rank *r)
{
    struct er_ckpt_group group = {
        .rank = r->rank, .size = r->world->size, .user = r, .gather = gather, .commit = commit};

    if (r->world->later) {
        group.commit = NULL;
        group.commit_begin = commit_begin;
        group.commit_end = commit_end;
    }
    return group;
}

static void describe(struct er_cw_rank *r)
{
    uint64_t first = 0, n = ER_CW_FLAT;

    if (r->world->sharded) {
        first = (uint64_t)(ER_CW_FLAT * r->rank / r->world->size);
        n = (uint64_t)(ER_CW_FLAT * (r->rank + 1) / r->world->size) - first;
    }
    r->slices[0] = (struct er_slice){.name = "layer.weight",
                                     .dtype = ER_CKPT_F32,
                                     .ndim = 2,
                                     .shape = {ER_CW_ROWS, ER_CW_COLS},
                                     .count = ER_CW_ROWS * ER_CW_COLS,
                                     .data = r->w,
                                     .replicated = true};
    r->slices[1] = (struct er_slice){.name = "flat",
                                     .dtype = ER_CKPT_F32,
                                     .ndim = 1,
                                     .shape = {ER_CW_FLAT},
                                     .offset = first,
                                     .count = n,
                                     .data = r->b + first,
                                     .replicated = !r->world->sharded};
    r->slices[2] = (struct er_slice){.name = "count",
                                     .dtype = ER_CKPT_I64,
                                     .ndim = 1,
                                     .shape = {1},
                                     .count = 1,
                                     .data = &r->count,
                                     .replicated = true};
}

void er_cw_fill(struct er_cw_rank *r, float seed)
{
    for (int i = 0; i < ER_CW_ROWS * ER_CW_COLS; i++)
        r->w[i] = seed + (float)i;
    for (int i = 0; i < ER_CW_FLAT; i++)
        r->b[i] = seed - (float)i;
    r->count = (int64_t)seed;
}

bool er_cw_is_whole(const struct er_cw_rank *r)
{
    const struct er_slice *flat = &r->slices[1];
    struct er_cw_rank *want = malloc(sizeof(*want));
    bool same;

    er_tap_require(want);
    er_cw_fill(want, (float)r->count);
    same = memcmp(want->w, r->w, sizeof(want->w)) == 0 &&
           memcmp(want->b + flat->offset, r->b + flat->offset, flat->count * 4) == 0;
    free(want);
    return same;
}

struct er_meta er_cw_meta(const struct er_cw_rank *r)
{
    return (struct er_meta){.applied = r->world->step,
                            .generation = r->world->opts.generation,
                            .seed = 9,
                            .first_step = 1,
                            .world_size = r->world->size};
}

bool er_cw_all(struct er_cw_rank *r, bool mine)
{
    char all[ER_CW_RANKS_MAX], one = mine;

    gather(r, &one, 1, all, NULL);
    for (int i = 0; i < r->world->size; i++)
        mine = mine && all[i];
    return mine;
}

void er_cw_skip(void *user, uint64_t step, const char *why)
{
    struct er_cw_rank *r = user;

    r->skipped++;
    snprintf(r->why, sizeof(r->why), "%llu: %.400s", (unsigned long long)step, why);
}

static void *run_rank(void *arg)
{
    struct er_cw_rank *r = arg;
    const struct er_ckpt_group group = er_cw_group(r);

    describe(r);
    r->rc = er_ckpt_open(&r->ckpt, r->world->dir, &group, &r->world->opts, &r->err);
    if (r->rc == 0)
        r->world->fn(r);
    er_ckpt_close(r->ckpt);
    r->ckpt = NULL;
    return NULL;
}

void er_cw_begin(struct er_cw *world)
{
    er_test_tempdir(world->dir);
    world->opts = (struct er_ckpt_opts){.generation = 1};
}

void er_cw_run(struct er_cw *w, int size, void (*fn)(struct er_cw_rank *rank))
{
    pthread_t threads[ER_CW_RANKS_MAX];

    w->size = size;
    w->commits = 0;
    w->fn = fn;
    pthread_barrier_init(&w->barrier, NULL, (unsigned)size);
    for (int i = 0; i < size; i++) {
        memset(&w->ranks[i], 0, sizeof(w->ranks[i]));
        w->ranks[i].world = w;
        w->ranks[i].rank = i;
        er_tap_require(pthread_create(&threads[i], NULL, run_rank, &w->ranks[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&w->barrier);
    for (int i = 0; i < size; i++) {
        free(w->blobs[i]);
        w->blobs[i] = NULL;
    }
}

int er_cw_save_rank(struct er_cw_rank *r, const struct er_meta *meta)
{
    int rc;

    er_cw_fill(r, r->world->seed);
    if (!r->world->beside)
        return er_ckpt_save(r->ckpt, r->slices, 3, meta, &r->err);
    rc = er_ckpt_begin(r->ckpt, r->slices, 3, meta, &r->err);
    if (rc < 0)
        return rc;
    er_tap_check(er_ckpt_before_apply(r->ckpt, &r->err) == 0);
    er_cw_fill(r, -5); /* the next step: the copies count, not what is there now */
    return er_ckpt_finish(r->ckpt, &r->err);
}

static void save_rank(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);
    struct er_ckpt_event event;

    r->rc = er_cw_save_rank(r, &meta);
    er_ckpt_poll(r->ckpt, &event);
    er_tap_check(event.kind == (r->rc < 0 ? ER_CKPT_FAILED : ER_CKPT_COMMITTED) &&
                 event.step == r->world->step);
}

static void load_rank(struct er_cw_rank *r)
{
    r->rc = er_ckpt_load(r->ckpt, r->slices, 3, &r->meta, er_cw_skip, r, &r->err);
}

int er_cw_save(struct er_cw *w, int size, uint64_t step, float seed)
{
    w->step = step;
    w->seed = seed;
    er_cw_run(w, size, save_rank);
    for (int i = 1; i < size; i++)
        er_tap_check(w->ranks[i].rc == w->ranks[0].rc); /* all agree */
    return w->ranks[0].rc;
}

int er_cw_load(struct er_cw *w, int size, float *ret_seed)
{
    er_cw_run(w, size, load_rank);
    for (int i = 0; i < size; i++) {
        er_tap_check(w->ranks[i].rc == w->ranks[0].rc);
        if (w->ranks[i].rc != 0)
            continue;
        er_tap_check(er_cw_is_whole(&w->ranks[i]));
        *ret_seed = (float)w->ranks[i].count;
    }
    return w->ranks[0].rc;
}

size_t er_cw_listed(const struct er_cw *w)
{
    uint64_t *steps = NULL;
    size_t n = 0;

    er_tap_check(er_ckpt_list(w->dir, &steps, &n, NULL) == 0);
    free(steps);
    return n;
}

size_t er_cw_remove_file(const struct er_cw *w, const char *name)
{
    char pattern[ER_TEST_PATH_MAX + 64];
    glob_t found = {0};
    size_t n = 0;

    snprintf(pattern, sizeof(pattern), "%s/{.,}step-*/%s", w->dir, name);
    if (glob(pattern, GLOB_BRACE, NULL, &found) == 0)
        for (; n < found.gl_pathc; n++)
            er_tap_check(unlink(found.gl_pathv[n]) == 0);
    globfree(&found);
    return n;
}
