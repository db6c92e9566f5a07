/* Checkpoints as a whole: threads play the ranks of a job. */
#include "ckpt/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

#define RANKS_MAX 5
#define ROWS      37
#define COLS      11
#define FLAT      101

/* What the ranks of one world share. */
struct world {
    pthread_barrier_t barrier;
    char blobs[RANKS_MAX][1 << 16];
    int size, commits, commit_rc;
    char dir[ER_TEST_PATH_MAX];
    uint64_t step;
    float seed;
    bool load, sharded;
    uint32_t keep;
};

struct rank {
    struct world *world;
    int rank, rc;
    float w[ROWS * COLS], b[FLAT];
    int64_t count;
    struct er_meta meta;
    int skipped;
    char why[512];
    struct er_error err;
};

static int gather(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    struct rank *r = user;
    (void)err;
    if (n > sizeof(r->world->blobs[0]))
        return -EMSGSIZE;
    memcpy(r->world->blobs[r->rank], mine, n);
    pthread_barrier_wait(&r->world->barrier);
    for (int i = 0; i < r->world->size; i++)
        memcpy((char *)all + (size_t)i * n, r->world->blobs[i], n);
    pthread_barrier_wait(&r->world->barrier);
    return 0;
}

static int commit(void *user, const struct er_ckpt_done *done, struct er_error *err)
{
    struct rank *r = user;
    r->world->commits++;
    return r->world->commit_rc < 0 ? er_error_set(err, r->world->commit_rc, "step %llu refused",
                                                  (unsigned long long)done->step)
                                   : 0;
}

static void skip(void *user, uint64_t step, const char *why)
{
    struct rank *r = user;
    r->skipped++;
    snprintf(r->why, sizeof(r->why), "%llu: %.400s", (unsigned long long)step, why);
}

/* A matrix and a counter that all hold; a flat vector that all hold, or each its part of. */
static size_t slices_of(struct rank *r, struct er_slice s[3])
{
    uint64_t first = 0, n = FLAT;
    if (r->world->sharded) {
        first = (uint64_t)(FLAT * r->rank / r->world->size);
        n = (uint64_t)(FLAT * (r->rank + 1) / r->world->size) - first;
    }
    s[0] = (struct er_slice){.name = "layer.weight",
                             .dtype = ER_CKPT_F32,
                             .ndim = 2,
                             .shape = {ROWS, COLS},
                             .count = ROWS * COLS,
                             .data = r->w,
                             .replicated = true};
    s[1] = (struct er_slice){.name = "flat",
                             .dtype = ER_CKPT_F32,
                             .ndim = 1,
                             .shape = {FLAT},
                             .offset = first,
                             .count = n,
                             .data = r->b + first,
                             .replicated = !r->world->sharded};
    s[2] = (struct er_slice){.name = "count",
                             .dtype = ER_CKPT_I64,
                             .ndim = 1,
                             .shape = {1},
                             .count = 1,
                             .data = &r->count,
                             .replicated = true};
    return 3;
}

static void fill(struct rank *r, float seed)
{
    for (int i = 0; i < ROWS * COLS; i++)
        r->w[i] = seed + (float)i;
    for (int i = 0; i < FLAT; i++)
        r->b[i] = seed - (float)i;
    r->count = (int64_t)seed;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct er_ckpt *ckpt = NULL;
    struct er_slice s[3];
    size_t n = slices_of(r, s);
    const struct er_ckpt_group group = {
        .rank = r->rank, .size = r->world->size, .user = r, .gather = gather, .commit = commit};
    const struct er_ckpt_opts opts = {.keep_last = r->world->keep};
    r->rc = er_ckpt_open(&ckpt, r->world->dir, &group, &opts, &r->err);
    if (r->rc == 0 && r->world->load) {
        r->rc = er_ckpt_load(ckpt, s, n, &r->meta, skip, r, &r->err);
    } else if (r->rc == 0) {
        fill(r, r->world->seed);
        const struct er_meta meta = {
            .applied = r->world->step, .generation = 1, .seed = 9, .world_size = r->world->size};
        r->rc = er_ckpt_save(ckpt, s, n, &meta, &r->err);
        struct er_ckpt_event event;
        er_ckpt_poll(ckpt, &event);
        er_tap_check(event.kind == (r->rc < 0 ? ER_CKPT_FAILED : ER_CKPT_COMMITTED) &&
                     event.step == r->world->step);
    }
    er_ckpt_close(ckpt);
    return NULL;
}

static void run_world(struct world *w, struct rank *ranks, int size)
{
    pthread_t threads[RANKS_MAX];
    w->size = size;
    w->commits = 0;
    pthread_barrier_init(&w->barrier, NULL, (unsigned)size);
    for (int i = 0; i < size; i++) {
        memset(&ranks[i], 0, sizeof(ranks[i]));
        ranks[i].world = w;
        ranks[i].rank = i;
        er_tap_require(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&w->barrier);
}

static struct world world;
static struct rank ranks[RANKS_MAX];

static int save(int size, uint64_t step, float seed)
{
    world.load = false;
    world.step = step;
    world.seed = seed;
    run_world(&world, ranks, size);
    for (int i = 1; i < size; i++)
        er_tap_check(ranks[i].rc == ranks[0].rc); /* all agree */
    return ranks[0].rc;
}

/* The seed found in the state of every rank, or the failure. */
static int load(int size, float *ret_seed)
{
    world.load = true;
    run_world(&world, ranks, size);
    for (int i = 0; i < size; i++) {
        struct er_slice s[3];
        static struct rank want;
        er_tap_check(ranks[i].rc == ranks[0].rc);
        if (ranks[i].rc != 0)
            continue;
        want = ranks[i];
        fill(&want, (float)ranks[i].count);
        slices_of(&ranks[i], s);
        er_tap_check(memcmp(want.w, ranks[i].w, sizeof(want.w)) == 0);
        er_tap_check(memcmp(want.b + s[1].offset, s[1].data, s[1].count * 4) == 0);
        *ret_seed = (float)ranks[i].count;
    }
    return ranks[0].rc;
}

static void begin(void)
{
    er_test_tempdir(world.dir);
}

static void any_world_size_loads_what_any_other_saved(void)
{
    static const int sizes[] = {1, 2, 3, 5};
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            for (int kind = 0; kind < 4; kind++) {
                float seed = 0;
                begin();
                world.sharded = kind & 1;
                er_tap_check(save(sizes[from], 7, 1234) == 0);
                er_tap_check(world.commits == 1);
                world.sharded = kind & 2;
                er_tap_check(load(sizes[to], &seed) == 0 && seed == 1234 &&
                             ranks[0].meta.applied == 7);
                er_test_rmtree(world.dir);
            }
        }
    }
}

static void an_empty_folder_has_none_yet(void)
{
    float seed;
    begin();
    er_tap_check(load(3, &seed) == 1);
    er_test_rmtree(world.dir);
}

static void shard_path(uint64_t step, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/step-%012llu/%s", world.dir, (unsigned long long)step, name);
}

static void flip(const char *path, off_t at)
{
    char c = 0;
    int fd = open(path, O_RDWR);
    er_tap_require(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 1;
    er_tap_require(pwrite(fd, &c, 1, at) == 1);
    close(fd);
}

static void corrupt_ones_are_passed_over_with_the_reason(void)
{
    float seed = 0;
    char path[PATH_MAX];
    begin();
    er_tap_check(save(2, 10, 1) == 0 && save(2, 20, 2) == 0 && save(2, 30, 3) == 0);
    shard_path(30, "shard-1-of-2.safetensors", path);
    flip(path, 4096 + 5);
    shard_path(20, "manifest.json", path);
    flip(path, 100);
    er_tap_check(load(2, &seed) == 0 && seed == 1);
    er_tap_check(ranks[0].skipped == 2 && ranks[1].skipped == 0 && strstr(ranks[0].why, "20: "));
    shard_path(10, "shard-0-of-2.safetensors", path);
    er_tap_check(truncate(path, 5000) == 0);
    er_tap_check(load(2, &seed) == ER_E_CORRUPT && strstr(ranks[1].err.text, "none verifies"));
    er_test_rmtree(world.dir);
}

static void every_flipped_byte_of_a_shard_is_detected(void)
{
    char path[PATH_MAX];
    struct stat st;
    begin();
    er_tap_check(save(2, 1, 5) == 0);
    shard_path(1, "shard-0-of-2.safetensors", path);
    er_tap_require(stat(path, &st) == 0);
    int missed = 0;
    for (off_t i = 0; i < st.st_size; i++) {
        flip(path, i);
        missed += er_ckpt_verify(world.dir, 1, NULL) == 0;
        flip(path, i);
    }
    er_tap_note("missed %d", missed);
    er_tap_check(missed == 0);
    er_tap_check(er_ckpt_verify(world.dir, 1, NULL) == 0);
    er_test_rmtree(world.dir);
}

static void a_refused_commit_leaves_no_trace(void)
{
    float seed = 0;
    begin();
    er_tap_check(save(2, 10, 1) == 0);
    world.commit_rc = ER_E_STALE;
    er_tap_check(save(2, 20, 2) == ER_E_STALE &&
                 strstr(ranks[1].err.text, "rank 0: step 20 refused"));
    er_tap_check(save(2, 10, 2) == ER_E_STALE); /* also over an existing one */
    world.commit_rc = 0;
    er_tap_check(load(2, &seed) == 0 && seed == 1);
    uint64_t *steps;
    size_t n;
    er_tap_check(er_ckpt_list(world.dir, &steps, &n, NULL) == 0 && n == 1);
    free(steps);
    er_test_rmtree(world.dir);
}

static void a_step_that_did_not_verify_is_replaced(void)
{
    float seed = 0;
    char path[PATH_MAX];
    begin();
    er_tap_check(save(1, 10, 1) == 0);
    shard_path(10, "shard-0-of-1.safetensors", path);
    flip(path, 4100);
    er_tap_check(save(2, 10, 2) == 0);
    er_tap_check(load(1, &seed) == 0 && seed == 2);
    er_test_rmtree(world.dir);
}

static void a_failed_write_is_one_error_everywhere_and_loses_nothing(void)
{
    float seed = 0;
    begin();
    er_tap_check(save(3, 10, 1) == 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = {4096, 4096};
    er_tap_require(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small.rlim_max = old.rlim_max;
    er_tap_require(setrlimit(RLIMIT_FSIZE, &small) == 0);
    int rc = save(3, 20, 2);
    er_tap_require(setrlimit(RLIMIT_FSIZE, &old) == 0);
    er_tap_check(rc == -EFBIG && strstr(ranks[2].err.text, "rank 0: write '"));
    uint64_t *steps;
    size_t n;
    er_tap_check(er_ckpt_list(world.dir, &steps, &n, NULL) == 0 && n == 1);
    free(steps);
    er_tap_check(load(2, &seed) == 0 && seed == 1);
    er_tap_check(save(3, 20, 3) == 0 && load(2, &seed) == 0 && seed == 3);
    er_test_rmtree(world.dir);
}

static void retention_keeps_the_newest(void)
{
    begin();
    world.keep = 2;
    for (uint64_t step = 10; step <= 50; step += 10)
        er_tap_check(save(2, step, (float)step) == 0);
    uint64_t *steps;
    size_t n;
    er_tap_check(er_ckpt_list(world.dir, &steps, &n, NULL) == 0 && n == 2 && steps[0] == 40 &&
                 steps[1] == 50);
    free(steps);
    world.keep = 0;
    er_test_rmtree(world.dir);
}

static void leftovers_of_dead_writers_are_removed(void)
{
    char path[PATH_MAX], file[PATH_MAX + 16];
    begin();
    snprintf(path, sizeof(path), "%s/.step-000000000005.g1.tmp", world.dir);
    er_tap_require(mkdir(path, 0777) == 0);
    snprintf(file, sizeof(file), "%s/shard", path);
    er_test_write_file(file, "half");
    er_tap_check(save(1, 10, 1) == 0);
    er_tap_check(access(path, F_OK) != 0);
    er_test_rmtree(world.dir);
}

static void missing_and_reshaped_tensors_are_named(void)
{
    begin();
    er_tap_check(save(1, 10, 1) == 0);
    struct er_ckpt *ckpt;
    struct er_meta meta;
    struct er_error err = ER_ERROR_INIT;
    float x[8];
    struct er_slice s = {.name = "nobody",
                         .dtype = ER_CKPT_F32,
                         .ndim = 1,
                         .shape = {8},
                         .count = 8,
                         .data = x,
                         .replicated = true};
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, NULL, &err) == 0);
    er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, &err) == ER_E_MISMATCH &&
                 strstr(err.text, "'nobody'"));
    s.name = "flat";
    er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, &err) == ER_E_MISMATCH &&
                 strstr(err.text, "'flat'"));
    er_ckpt_close(ckpt);
    er_test_rmtree(world.dir);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(any_world_size_loads_what_any_other_saved),
        CASE(an_empty_folder_has_none_yet),
        CASE(corrupt_ones_are_passed_over_with_the_reason),
        CASE(every_flipped_byte_of_a_shard_is_detected),
        CASE(a_refused_commit_leaves_no_trace),
        CASE(a_step_that_did_not_verify_is_replaced),
        CASE(a_failed_write_is_one_error_everywhere_and_loses_nothing),
        CASE(retention_keeps_the_newest),
        CASE(leftovers_of_dead_writers_are_removed),
        CASE(missing_and_reshaped_tensors_are_named),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
