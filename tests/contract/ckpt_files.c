/* What can be wrong with the files of a checkpoint, and files that two of them share. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
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

static void file_path(uint64_t step, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/step-%012llu/%s", world.dir, (unsigned long long)step, name);
}

static void flip_bit(const char *path, off_t at, unsigned bit)
{
    char c = 0;
    int fd = open(path, O_RDWR);

    er_tap_require(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c = (char)(c ^ 1 << bit);
    er_tap_require(pwrite(fd, &c, 1, at) == 1);
    close(fd);
}

static void corrupt_ones_are_passed_over_with_the_reason(void)
{
    float seed = 0;
    char path[PATH_MAX];
    er_cw_begin(&world);
    er_tap_check(save(2, 10, 1) == 0 && save(2, 20, 2) == 0 && save(2, 30, 3) == 0);
    file_path(30, "shard-1-of-2.safetensors", path);
    flip_bit(path, 4096 + 5, 0);
    file_path(20, "manifest.json", path);
    flip_bit(path, 100, 0);
    er_tap_check(load(2, &seed) == 0 && seed == 1);
    er_tap_check(ranks[0].skipped == 2 && ranks[1].skipped == 0 && strstr(ranks[0].why, "20: "));
    file_path(10, "shard-0-of-2.safetensors", path);
    er_tap_check(truncate(path, 5000) == 0);
    er_tap_check(load(2, &seed) == ER_E_CORRUPT && strstr(ranks[1].err.text, "none verifies"));
    er_test_rmtree(world.dir);
}

static void withdraw(void *rank, uint64_t step, const char *why)
{
    char path[PATH_MAX];

    er_cw_skip(rank, step, why);
    file_path(step, "", path);
    er_tap_check(er_remove_all(path, NULL) == 0);
}

static void unmount(void *rank, uint64_t step, const char *why)
{
    er_cw_skip(rank, step, why);
    er_test_rmtree(world.dir);
    er_tap_check(mkdir(world.dir, 0777) == 0);
}

static void load_meanwhile(struct er_cw_rank *r)
{
    er_ckpt_skip_fn *meanwhile = world.user;

    r->rc = er_ckpt_load(r->ckpt, r->slices, 3, &r->meta, *meanwhile, r, &r->err);
}

static void load_and(er_ckpt_skip_fn meanwhile, int rc)
{
    char path[PATH_MAX];

    er_cw_begin(&world);
    er_tap_check(save(2, 10, 1) == 0);
    file_path(10, "manifest.json", path);
    flip_bit(path, 100, 0);
    world.user = &meanwhile;
    er_cw_run(&world, 2, load_meanwhile);
    er_tap_check(ranks[0].rc == rc && ranks[1].rc == rc && ranks[0].skipped == 1);
    er_test_rmtree(world.dir);
}

/* A writer of another generation may take back what this one is about to load. */
static void what_is_gone_again_is_not_damage(void)
{
    load_and(withdraw, 1);
}

static void storage_that_goes_meanwhile_is_no_beginning(void)
{
    load_and(unmount, -ENOENT);
    er_tap_check(strstr(ranks[1].err.text, "still mounted?"));
}

#define TOO_DEEP 130 /* to be removed */

/* Whoever is about to publish what is being cleared away finds all of it, or nothing. */
static void what_is_cleared_away_loses_its_name_first(void)
{
    char path[PATH_MAX], below[PATH_MAX];
    size_t n = 0;

    er_cw_begin(&world);
    er_tap_require(er_ckpt_temp_path(world.dir, 10, 1, 7, path, NULL) == 0);
    snprintf(below, sizeof(below), "%s", path);
    for (int i = 0; i < TOO_DEEP; i++) {
        er_tap_require(mkdir(below, 0700) == 0);
        strcat(below, "/a");
    }
    er_tap_check(er_ckpt_clean(world.dir, 0, NULL, &n, NULL) == 0 && access(path, F_OK) == 0);
    er_tap_check(er_ckpt_clean(world.dir, 1, path, &n, NULL) == 0 && access(path, F_OK) == 0);
    er_tap_check(er_ckpt_clean(world.dir, 1, NULL, &n, NULL) == -ENAMETOOLONG && n == 0);
    er_tap_check(access(path, F_OK) < 0 && errno == ENOENT);
    er_test_rmtree(world.dir);
}

/* A file at a time: the number of single-bit changes, and of shorter lengths, that a verification
 * does not see. */
static void damage_file(const char *name, int *ret_bits, int *ret_cuts)
{
    ER_CLEANUP(er_buf_done) struct er_buf whole;
    char path[PATH_MAX];

    er_buf_init(&whole, 1 << 20);
    file_path(1, name, path);
    er_tap_require(er_file_read(path, &whole, NULL) == 0);
    for (size_t i = 0; i < whole.len; i++) {
        bool blank = whole.data[i] == ' '; /* most of the header: one bit each is enough */

        for (unsigned b = blank ? i % 8 : 0; b < (blank ? i % 8 + 1 : 8); b++) {
            flip_bit(path, (off_t)i, b);
            *ret_bits += er_ckpt_verify(world.dir, 1, NULL) == 0;
            flip_bit(path, (off_t)i, b);
        }
    }
    for (size_t n = whole.len; n-- > 0;) {
        er_tap_require(truncate(path, (off_t)n) == 0);
        *ret_cuts += er_ckpt_verify(world.dir, 1, NULL) == 0;
    }
    er_tap_require(er_file_replace(path, whole.data, whole.len, 0644, NULL) == 0);
}

static void every_flipped_bit_and_every_truncation_is_detected(void)
{
    static const char *const names[] = {"shard-1-of-2.safetensors", "manifest.json"};

    er_cw_begin(&world);
    er_tap_check(save(2, 1, 5) == 0);
    for (size_t i = 0; i < ER_ARRAY_N(names); i++) {
        int bits = 0, cuts = 0;

        damage_file(names[i], &bits, &cuts);
        if (!er_tap_check(bits == 0 && cuts == 0))
            er_tap_note("%s: %d bits, %d lengths were not noticed", names[i], bits, cuts);
        er_tap_check(er_ckpt_verify(world.dir, 1, NULL) == 0);
    }
    er_test_rmtree(world.dir);
}

static void missing_and_reshaped_tensors_are_named(void)
{
    er_cw_begin(&world);
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

/* ---- a file that two checkpoints share ---- */

/* A checkpoint of step 20 made by hand: what has not changed since step 10 lies in a hard link to
 * that one's file, as a later release may write it. */
static void make_step_20(const float *changed)
{
    struct er_manifest old, m;
    struct er_slice s = {"y", ER_CKPT_F32, 1, {8}, 0, 8, NULL, true};
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char from[PATH_MAX], to[PATH_MAX], folder[PATH_MAX];
    struct er_digest digest;
    long x;
    size_t first = 0;

    file_path(10, "shard-0-of-1.safetensors", from);
    er_tap_require(er_ckpt_step_path(world.dir, 10, folder, NULL) == 0);
    er_tap_require(er_ckpt_read_manifest(folder, &old, NULL) == 0);
    /* A real checkpoint of what changed, at step 20; its manifest is then replaced. */
    s.data = (void *)(uintptr_t)changed;
    struct er_ckpt *ckpt = NULL;
    const struct er_meta meta = {.applied = 20, .generation = 1};
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, NULL, NULL) == 0);
    er_tap_require(er_ckpt_save(ckpt, &s, 1, &meta, NULL) == 0);
    er_ckpt_close(ckpt);
    file_path(20, "shard-0-of-1.from-10.safetensors", to);
    er_tap_require(link(from, to) == 0);
    er_tap_require(er_ckpt_step_path(world.dir, 20, folder, NULL) == 0);
    er_tap_require(er_ckpt_read_manifest(folder, &m, NULL) == 0);

    struct er_manifest_shard *shards = reallocarray(m.shards, 2, sizeof(*shards));
    er_tap_require(shards);
    m.shards = shards;
    m.shards[1] = old.shards[0];
    snprintf(m.shards[1].name, sizeof(m.shards[1].name), "shard-0-of-1.from-10.safetensors");
    m.shard_n = 2;
    x = er_manifest_find(&old, "x");
    er_tap_require(x >= 0 && er_manifest_slices_of(&old, (size_t)x, &first) == 1);
    s.name = "x";
    er_tap_require(
        er_manifest_add(&m, &s, 1, old.slices[first].at, old.slices[first].digest, NULL) == 0 &&
        er_manifest_finish(&m, NULL) == 0);
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    er_tap_require(er_manifest_format(&m, &text, &digest, NULL) == 0);
    file_path(20, "manifest.json", to);
    er_tap_require(er_file_replace(to, text.data, text.len, 0644, NULL) == 0);
    er_manifest_done(&m);
    er_manifest_done(&old);
}

static void unchanged_slices_may_lie_in_an_older_checkpoints_file(void)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {9}, changed[8] = {10, 11}, back[2][8] = {{0}};
    struct er_slice s[2] = {{"x", ER_CKPT_F32, 1, {8}, 0, 8, x, true},
                            {"y", ER_CKPT_F32, 1, {8}, 0, 8, y, true}};
    struct er_meta meta = {.applied = 10, .generation = 1};
    struct er_ckpt *ckpt = NULL;
    char path[PATH_MAX];

    er_cw_begin(&world);
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_save(ckpt, s, 2, &meta, NULL) == 0);
    make_step_20(changed);
    er_tap_check(er_ckpt_verify(world.dir, 20, NULL) == 0);
    s[0].data = back[0];
    s[1].data = back[1];
    for (int pass = 0; pass < 2; pass++) {
        memset(back, 0, sizeof(back));
        er_tap_check(er_ckpt_load(ckpt, s, 2, &meta, NULL, NULL, NULL) == 0);
        er_tap_check(meta.applied == 20 && memcmp(back[0], x, sizeof(x)) == 0 &&
                     memcmp(back[1], changed, sizeof(changed)) == 0);
        er_tap_require(er_ckpt_step_path(world.dir, 10, path, NULL) == 0);
        er_tap_check(er_remove_all(path, NULL) == 0); /* retention takes the older one */
    }
    file_path(20, "shard-0-of-1.from-10.safetensors", path);
    flip_bit(path, 4096 + 3, 1);
    er_tap_check(er_ckpt_verify(world.dir, 20, NULL) == ER_E_CORRUPT);
    er_ckpt_close(ckpt);
    er_test_rmtree(world.dir);
}

/* ---- a reader beside a writer that removes ---- */

static atomic_bool writing;

static void *write_many(void *unused)
{
    (void)unused;
    for (uint64_t step = 2; step < 100; step++)
        er_tap_check(save(1, step, (float)step) == 0);
    atomic_store(&writing, false);
    return NULL;
}

static void a_reader_beside_retention_always_finds_one_whole(void)
{
    static struct er_cw reader;
    pthread_t thread;
    unsigned loads = 0, wrong = 0;

    er_cw_begin(&world);
    world.opts.keep_last = 1;
    er_tap_check(save(1, 1, 1) == 0);
    memcpy(reader.dir, world.dir, sizeof(reader.dir));
    atomic_store(&writing, true);
    er_tap_require(pthread_create(&thread, NULL, write_many, NULL) == 0);
    while (atomic_load(&writing)) {
        float seed = 0;

        wrong += er_cw_load(&reader, 1, &seed) != 0 || seed < 1;
        loads++;
    }
    pthread_join(thread, NULL);
    er_tap_note("%u loads", loads);
    er_tap_check(wrong == 0 && er_cw_listed(&world) == 1);
    world.opts.keep_last = 0;
    er_test_rmtree(world.dir);
}

/* ---- what is in the file does not depend on how it came there ---- */

enum { ODD_N = 3, ODD_BYTES = 7 * 1024 * 1024 + 13 };

static void same_file(const char *name)
{
    ER_CLEANUP(er_buf_done) struct er_buf a;
    ER_CLEANUP(er_buf_done) struct er_buf b;
    char path[PATH_MAX];

    er_buf_init(&a, 64u << 20);
    er_buf_init(&b, 64u << 20);
    file_path(1, name, path);
    er_tap_require(er_file_read(path, &a, NULL) == 0);
    file_path(2, name, path);
    er_tap_require(er_file_read(path, &b, NULL) == 0);
    er_tap_check(a.len > ODD_N * (size_t)ODD_BYTES && a.len == b.len &&
                 memcmp(a.data, b.data, a.len) == 0);
}

static void a_copy_and_the_memory_itself_give_the_same_file(void)
{
    static const char *const names[ODD_N] = {"a", "b", "c"};
    struct er_slice slices[ODD_N];
    unsigned char *data = malloc((size_t)ODD_N * ODD_BYTES);
    struct er_ckpt *ckpt = NULL;
    struct er_meta meta = {.applied = 1};

    er_cw_begin(&world);
    er_tap_require(data);
    for (size_t i = 0; i < (size_t)ODD_N * ODD_BYTES; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < ODD_N; i++)
        slices[i] = (struct er_slice){names[i],  ER_CKPT_U8,           1,   {ODD_BYTES}, 0,
                                      ODD_BYTES, data + i * ODD_BYTES, true};
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_save(ckpt, slices, ODD_N, &meta, NULL) == 0);
    meta.applied = 2;
    er_tap_check(er_ckpt_begin(ckpt, slices, ODD_N, &meta, NULL) == 0);
    er_tap_check(er_ckpt_before_apply(ckpt, NULL) == 0);
    memset(data, 0, (size_t)ODD_N * ODD_BYTES);
    er_tap_check(er_ckpt_finish(ckpt, NULL) == 0);
    er_tap_check(er_ckpt_verify(world.dir, 1, NULL) == 0);
    er_tap_check(er_ckpt_verify(world.dir, 2, NULL) == 0);
    same_file("shard-0-of-1.safetensors");
    er_ckpt_close(ckpt);
    er_test_rmtree(world.dir);
    free(data);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(corrupt_ones_are_passed_over_with_the_reason),
        CASE(what_is_gone_again_is_not_damage),
        CASE(storage_that_goes_meanwhile_is_no_beginning),
        CASE(what_is_cleared_away_loses_its_name_first),
        {"every_flipped_bit_and_every_truncation_is_detected",
         every_flipped_bit_and_every_truncation_is_detected, 240},
        CASE(missing_and_reshaped_tensors_are_named),
        CASE(unchanged_slices_may_lie_in_an_older_checkpoints_file),
        CASE(a_reader_beside_retention_always_finds_one_whole),
        CASE(a_copy_and_the_memory_itself_give_the_same_file),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
