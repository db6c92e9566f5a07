/* Checkpoints as a whole: threads play the ranks of a job. */
#include "ckpt/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "ckpt/ckpt_internal.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

static struct er_cw world;
static struct er_cw_rank *const ranks = world.ranks;

static int save(int size, uint64_t step, float seed)
{
    return er_cw_save(&world, size, step, seed);
}

static int load(int size, float *ret_seed)
{
    return er_cw_load(&world, size, ret_seed);
}

static void any_world_size_loads_what_any_other_saved(void)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    for (int from = 0; from < 6; from++) {
        for (int to = 0; to < 6; to++) {
            for (int kind = 0; kind < 4; kind++) {
                float seed = 0;
                er_cw_begin(&world);
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
    er_cw_begin(&world);
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

static void a_refused_commit_leaves_no_trace(void)
{
    float seed = 0;
    er_cw_begin(&world);
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

/* The record may name the folder by now, so it stays, and it is as good as any. */
static void an_unknown_commit_leaves_the_folder(void)
{
    static const int codes[] = {-ETIMEDOUT, ER_E_AMBIGUOUS, -EIO, ER_E_PEER_LOST};

    for (size_t i = 0; i < ER_ARRAY_N(codes); i++) {
        float seed = 0;

        er_cw_begin(&world);
        world.opts.keep_last = 1;
        er_tap_check(save(2, 10, 1) == 0);
        world.commit_rc = codes[i];
        er_tap_check(save(2, 20, 2) == codes[i] && strstr(ranks[1].err.text, "unknown"));
        er_tap_check(er_cw_listed(&world) == 2); /* nor does it cost an older one */
        er_tap_check(er_ckpt_verify(world.dir, 20, NULL) == 0);
        er_tap_check(load(3, &seed) == 0 && seed == 2);
        er_tap_check(save(2, 20, 3) == codes[i]); /* the same step again: the new one */
        er_tap_check(load(1, &seed) == 0 && seed == 3);
        world.commit_rc = ER_E_STALE;
        er_tap_check(save(2, 20, 4) == ER_E_STALE && load(1, &seed) == 0 && seed == 3);
        world.commit_rc = 0;
        er_tap_check(save(2, 30, 5) == 0 && er_cw_listed(&world) == 1);
        world.opts.keep_last = 0;
        er_test_rmtree(world.dir);
    }
}

static void a_step_that_did_not_verify_is_replaced(void)
{
    float seed = 0;
    char path[PATH_MAX];
    er_cw_begin(&world);
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
    er_cw_begin(&world);
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
    er_cw_begin(&world);
    world.opts.keep_last = 2;
    for (uint64_t step = 10; step <= 50; step += 10)
        er_tap_check(save(2, step, (float)step) == 0);
    uint64_t *steps;
    size_t n;
    er_tap_check(er_ckpt_list(world.dir, &steps, &n, NULL) == 0 && n == 2 && steps[0] == 40 &&
                 steps[1] == 50);
    free(steps);
    world.opts.keep_last = 0;
    er_test_rmtree(world.dir);
}

static void leftovers_of_dead_writers_are_removed(void)
{
    char path[PATH_MAX], file[PATH_MAX + 16];
    er_cw_begin(&world);
    snprintf(path, sizeof(path), "%s/.step-000000000005.g1.tmp", world.dir);
    er_tap_require(mkdir(path, 0777) == 0);
    snprintf(file, sizeof(file), "%s/shard", path);
    er_test_write_file(file, "half");
    er_tap_check(save(1, 10, 1) == 0);
    er_tap_check(access(path, F_OK) != 0);
    er_test_rmtree(world.dir);
}

/* ---- in the background ---- */

/* A trainer in small: one checkpoint while "steps" go on, boundaries agreed by a vote. */
static void save_beside_steps(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);
    int rc;

    er_cw_fill(r, r->world->seed);
    r->rc = er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err);
    er_tap_check(er_ckpt_in_flight(r->ckpt) == (r->rc == 0));
    er_tap_check(er_ckpt_before_apply(r->ckpt, NULL) == 0);
    er_cw_fill(r, -5); /* the next step */
    do {
        if (er_cw_all(r, er_ckpt_local_done(r->ckpt))) {
            rc = er_ckpt_advance(r->ckpt, &r->err);
            r->rc = rc < 0 ? rc : r->rc;
        }
    } while (er_ckpt_in_flight(r->ckpt));
}

static void what_changes_after_the_copy_is_not_saved(void)
{
    er_cw_begin(&world);
    for (int size = 1; size <= 5; size++) {
        float seed = 0;
        world.step = (uint64_t)size;
        world.seed = 100.0f * (float)size;
        er_cw_run(&world, size, save_beside_steps);
        for (int i = 0; i < size; i++)
            er_tap_check(ranks[i].rc == 0);
        er_tap_check(load(2, &seed) == 0 && seed == world.seed);
    }
    er_test_rmtree(world.dir);
}

static void begin_twice(struct er_cw_rank *r)
{
    struct er_meta meta = er_cw_meta(r);
    struct er_ckpt_stats stats;

    er_cw_fill(r, 1);
    r->rc = er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err);
    meta.applied++;
    er_tap_check(er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err) == ER_CKPT_BUSY);
    er_tap_check(er_ckpt_load(r->ckpt, r->slices, 3, &r->meta, NULL, NULL, NULL) == -EBUSY);
    er_tap_check(er_ckpt_finish(r->ckpt, &r->err) == 0);
    er_tap_check(er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err) == 0);
    er_tap_check(er_ckpt_finish(r->ckpt, &r->err) == 0 && er_ckpt_finish(r->ckpt, NULL) == 0);
    er_ckpt_stats(r->ckpt, &stats);
    er_tap_check(stats.begun == 2 && stats.committed == 2 && stats.busy == 1 && stats.failed == 0);
}

static void one_at_a_time_and_the_rest_is_counted(void)
{
    er_cw_begin(&world);
    world.step = 1;
    er_cw_run(&world, 3, begin_twice);
    er_tap_check(ranks[0].rc == 0 && er_cw_listed(&world) == 2);
    er_test_rmtree(world.dir);
}

static void begin_apart(struct er_cw_rank *r)
{
    struct er_meta meta = er_cw_meta(r);

    meta.applied += (uint64_t)r->rank;
    r->rc = er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err);
}

static void ranks_at_different_steps_are_told(void)
{
    er_cw_begin(&world);
    er_cw_run(&world, 3, begin_apart);
    for (int i = 0; i < 3; i++)
        er_tap_check(ranks[i].rc == ER_E_MISMATCH && strstr(ranks[i].err.text, "rank 1 begins"));
    er_tap_check(er_cw_listed(&world) == 0);
    er_test_rmtree(world.dir);
}

static void begin_and_leave(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);

    er_cw_fill(r, 2);
    r->rc = er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err);
}

static void a_checkpoint_in_flight_is_given_up_at_the_end(void)
{
    float seed = 0;
    er_cw_begin(&world);
    er_tap_check(save(2, 10, 1) == 0);
    world.step = 20;
    er_cw_run(&world, 2, begin_and_leave);
    er_tap_check(ranks[0].rc == 0 && er_cw_listed(&world) == 1);
    er_tap_check(load(1, &seed) == 0 && seed == 1);
    er_test_rmtree(world.dir);
}

/* ---- larger than one write, one piece ---- */

enum { BIG_N = 3 * 1024 * 1024 + 77 };

static struct er_slice big_slice(float *data, uint64_t offset, uint64_t count)
{
    return (struct er_slice){.name = "big",
                             .dtype = ER_CKPT_F32,
                             .ndim = 1,
                             .shape = {BIG_N},
                             .offset = offset,
                             .count = count,
                             .data = data,
                             .replicated = offset == 0 && count == BIG_N};
}

static void a_large_tensor_is_read_and_checked_in_pieces(void)
{
    struct er_ckpt *ckpt = NULL;
    struct er_ckpt_stats stats;
    struct er_meta meta = {.applied = 1};
    float *all = malloc(BIG_N * sizeof(float)), *back = calloc(BIG_N, sizeof(float));
    struct er_slice whole = big_slice(all, 0, BIG_N), part = big_slice(back, 1000000, 1000000);
    char path[PATH_MAX];

    er_cw_begin(&world);
    er_tap_require(all && back);
    for (int i = 0; i < BIG_N; i++)
        all[i] = (float)i;
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_reserve(ckpt, &whole, 1, NULL) == 0);
    er_tap_check(er_ckpt_save(ckpt, &whole, 1, &meta, NULL) == 0);
    er_tap_check(er_ckpt_verify(world.dir, 1, NULL) == 0);
    er_tap_check(er_ckpt_load(ckpt, &part, 1, &meta, NULL, NULL, NULL) == 0);
    er_tap_check(memcmp(back, all + 1000000, 4000000) == 0 && back[1000000] == 0);
    er_ckpt_stats(ckpt, &stats);
    er_tap_check(stats.needed_bytes == 4000000 && stats.read_bytes < 4000000 + (1 << 20));
    /* Damage outside of what is wanted does not matter to a load, but to a verification. */
    shard_path(1, "shard-0-of-1.safetensors", path);
    flip(path, 4096 + 9000000);
    er_tap_check(er_ckpt_load(ckpt, &part, 1, &meta, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_verify(world.dir, 1, NULL) == ER_E_CORRUPT);
    flip(path, 4096 + 6000000);
    er_tap_check(er_ckpt_load(ckpt, &part, 1, &meta, NULL, NULL, NULL) == ER_E_CORRUPT);
    er_ckpt_close(ckpt);
    er_test_rmtree(world.dir);
    free(all);
    free(back);
}

static void values_that_are_not_finite_follow_the_policy(void)
{
    static const struct {
        enum er_ckpt_nan policy;
        int rc;
        float seed;
    } cases[] = {{ER_CKPT_NAN_LOAD, 0, 0}, {ER_CKPT_NAN_SKIP, 0, 5}, {ER_CKPT_NAN_FAIL, -EDOM, 0}};

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct er_ckpt *ckpt = NULL;
        struct er_meta meta = {.applied = 1};
        float x[2] = {5, 5};
        const struct er_slice s = {"x", ER_CKPT_F32, 1, {2}, 0, 2, x, true};
        const struct er_ckpt_opts opts = {.nan = cases[i].policy};

        er_cw_begin(&world);
        er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, &opts, NULL) == 0);
        er_tap_check(er_ckpt_save(ckpt, &s, 1, &meta, NULL) == 0);
        meta.applied = 2;
        x[1] = 1.0f / 0.0f;
        er_tap_check(er_ckpt_save(ckpt, &s, 1, &meta, NULL) == 0);
        x[0] = x[1] = 0;
        er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, NULL) == cases[i].rc);
        er_tap_check(cases[i].seed == 0 || x[1] == cases[i].seed);
        er_ckpt_close(ckpt);
        er_test_rmtree(world.dir);
    }
}

static void numbers_of_16_bits_come_back(void)
{
    static const struct {
        enum er_ckpt_dtype type;
        uint16_t one, infinite;
    } cases[] = {{ER_CKPT_F16, 0x3c00, 0x7c00}, {ER_CKPT_BF16, 0x3f80, 0xff80}};

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        const struct er_ckpt_opts opts = {.nan = ER_CKPT_NAN_FAIL};
        struct er_ckpt *ckpt = NULL;
        struct er_meta meta = {.applied = 1};
        uint16_t x[3] = {cases[i].one, 0x8001, cases[i].infinite - 1}; /* the largest one */
        struct er_slice s = {"x", cases[i].type, 1, {3}, 0, 3, x, true};

        er_cw_begin(&world);
        er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, &opts, NULL) == 0);
        er_tap_check(er_ckpt_save(ckpt, &s, 1, &meta, NULL) == 0);
        memset(x, 0, sizeof(x));
        er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, NULL) == 0);
        er_tap_check(x[0] == cases[i].one && x[1] == 0x8001 && x[2] == cases[i].infinite - 1);
        /* another type of the same size is not the same tensor */
        s.dtype = i ? ER_CKPT_F16 : ER_CKPT_BF16;
        er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, NULL) < 0);
        s.dtype = cases[i].type;
        x[2] = cases[i].infinite;
        meta.applied = 2;
        er_tap_check(er_ckpt_save(ckpt, &s, 1, &meta, NULL) == 0);
        er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, NULL) == -EDOM);
        er_ckpt_close(ckpt);
        er_test_rmtree(world.dir);
    }
}

/* ---- generations ---- */

static void the_list_of_generations_goes_on(void)
{
    struct er_ckpt *ckpt = NULL;
    struct er_manifest m;
    float x = 1;
    const struct er_slice s = {"x", ER_CKPT_F32, 1, {1}, 0, 1, &x, true};
    char path[PATH_MAX];

    er_cw_begin(&world);
    for (uint64_t g = 1; g <= 3; g++) {
        const struct er_ckpt_opts opts = {.generation = 10 * g};
        struct er_meta meta = {0}, save_meta = {.generation = 10 * g, .first_step = 10 * (g - 1)};

        er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, &opts, NULL) == 0);
        er_tap_check(er_ckpt_load(ckpt, &s, 1, &meta, NULL, NULL, NULL) == (g == 1));
        for (uint64_t i = 1; i <= 2; i++) {
            save_meta.applied = 10 * (g - 1) + i;
            er_tap_check(er_ckpt_save(ckpt, &s, 1, &save_meta, NULL) == 0);
        }
        er_ckpt_close(ckpt);
    }
    er_tap_require(er_ckpt_step_path(world.dir, 22, path, NULL) == 0);
    er_tap_require(er_ckpt_read_manifest(path, &m, NULL) == 0);
    er_tap_check(m.chain_n == 2 && m.chain[0].generation == 10 && m.chain[1].generation == 20 &&
                 m.chain[1].first_step == 10 && m.meta.generation == 30 && m.meta.first_step == 20);
    er_manifest_done(&m);
    er_test_rmtree(world.dir);
}

static void retention_keeps_every_kth_and_the_best(void)
{
    struct er_ckpt *ckpt = NULL;
    float x = 1;
    const struct er_slice s = {"x", ER_CKPT_F32, 1, {1}, 0, 1, &x, true};
    const struct er_ckpt_opts opts = {.keep_last = 2, .keep_every = 40, .keep_best = 1};
    uint64_t *steps = NULL;
    size_t n = 0;

    er_cw_begin(&world);
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, &opts, NULL) == 0);
    for (uint64_t step = 10; step <= 80; step += 10) {
        struct er_meta meta = {.applied = step,
                               .has_metric = 1,
                               .metric = step == 30 ? 0.125 : 2.0 / (double)step + 1};
        er_tap_check(er_ckpt_save(ckpt, &s, 1, &meta, NULL) == 0);
    }
    er_tap_check(er_ckpt_list(world.dir, &steps, &n, NULL) == 0 && n == 4);
    er_tap_check(n == 4 && steps[0] == 30 && steps[1] == 40 && steps[2] == 70 && steps[3] == 80);
    free(steps);
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
        CASE(a_refused_commit_leaves_no_trace),
        CASE(an_unknown_commit_leaves_the_folder),
        CASE(a_step_that_did_not_verify_is_replaced),
        CASE(a_failed_write_is_one_error_everywhere_and_loses_nothing),
        CASE(retention_keeps_the_newest),
        CASE(leftovers_of_dead_writers_are_removed),
        CASE(what_changes_after_the_copy_is_not_saved),
        CASE(one_at_a_time_and_the_rest_is_counted),
        CASE(ranks_at_different_steps_are_told),
        CASE(a_checkpoint_in_flight_is_given_up_at_the_end),
        CASE(a_large_tensor_is_read_and_checked_in_pieces),
        CASE(values_that_are_not_finite_follow_the_policy),
        CASE(numbers_of_16_bits_come_back),
        CASE(the_list_of_generations_goes_on),
        CASE(retention_keeps_every_kth_and_the_best),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
