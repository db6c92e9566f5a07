/* Views of a checkpoint: the same bytes as a load, checked before they are seen. */
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

static struct er_cw world;

static void shard_path(uint64_t step, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/step-%012llu/%s", world.dir, (unsigned long long)step, name);
}

static void flip(const char *path, off_t at)
{
    char c = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);

    er_tap_require(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 4;
    er_tap_require(pwrite(fd, &c, 1, at) == 1);
    close(fd);
}

/* Maps, and takes what is seen for its own state. */
static void map_rank(struct er_cw_rank *r)
{
    void *const own[3] = {r->w, r->b, &r->count};
    const size_t size[3] = {4, 4, 8};
    struct er_ckpt_views *views = NULL;
    struct er_slice slices[3];

    memcpy(slices, r->slices, sizeof(slices));
    for (int i = 0; i < 3; i++)
        slices[i].data = &slices;
    r->rc = er_ckpt_map(r->ckpt, slices, 3, &r->meta, er_cw_skip, r, &views, &r->err);
    for (int i = 0; i < 3; i++) {
        er_tap_check((slices[i].data != NULL) == (r->rc == 0));
        if (r->rc != 0)
            continue;
        er_tap_check((uintptr_t)slices[i].data % size[i] == 0);
        memcpy((char *)own[i] + slices[i].offset * size[i], slices[i].data,
               slices[i].count * size[i]);
        memset(slices[i].data, 0x55, slices[i].count * size[i]); /* its own memory */
    }
    er_tap_check((views != NULL) == (r->rc == 0));
    er_ckpt_unmap(views);
}

static int map(int size, float *ret_seed)
{
    er_cw_run(&world, size, map_rank);
    for (int i = 0; i < size; i++) {
        er_tap_check(world.ranks[i].rc == world.ranks[0].rc);
        if (world.ranks[i].rc == 0)
            er_tap_check(er_cw_is_whole(&world.ranks[i]));
    }
    *ret_seed = (float)world.ranks[0].count;
    return world.ranks[0].rc;
}

static void any_world_size_sees_what_any_other_saved(void)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        for (int from = 1; from <= 4; from++) {
            float seed = 0;

            er_cw_begin(&world);
            world.sharded = sharded;
            er_tap_check(map(1, &seed) == 1);
            er_tap_check(er_cw_save(&world, from, 7, 70) == 0);
            for (int to = 1; to <= 4; to++)
                er_tap_check(map(to, &seed) == 0 && seed == 70);
            er_tap_check(er_ckpt_verify(world.dir, 7, NULL) == 0); /* nobody wrote to the file */
            er_test_rmtree(world.dir);
        }
    }
    world.sharded = false;
}

static void a_damaged_one_is_passed_over(void)
{
    char path[PATH_MAX];
    float seed = 0;

    for (int damage = 0; damage < 3; damage++) {
        er_cw_begin(&world);
        er_tap_check(er_cw_save(&world, 1, 1, 10) == 0 && er_cw_save(&world, 1, 2, 20) == 0);
        shard_path(2, damage < 2 ? "shard-0-of-1.safetensors" : "manifest.json", path);
        if (damage == 0)
            flip(path, 4096 + 9);
        else
            er_tap_require(truncate(path, damage == 1 ? 4100 : 10) == 0);
        er_tap_check(map(2, &seed) == 0 && seed == 10);
        er_tap_check(world.ranks[0].skipped == 1 && world.ranks[1].skipped == 0);
        shard_path(1, "shard-0-of-1.safetensors", path);
        flip(path, 4096 + 9);
        er_tap_check(map(2, &seed) == ER_E_CORRUPT);
        er_test_rmtree(world.dir);
    }
}

/* An odd number of bytes before it: numbers do not lie there as their type wants. */
static void what_lies_askew_is_copied(void)
{
    unsigned char odd[13] = "twelve bytes";
    float x[300];
    struct er_slice slices[] = {{"a", ER_CKPT_U8, 1, {13}, 0, 13, odd, true},
                                {"b", ER_CKPT_F32, 1, {300}, 0, 300, x, true}};
    struct er_ckpt_views *views = NULL;
    struct er_ckpt_stats stats;
    struct er_ckpt *ckpt = NULL;
    struct er_meta meta = {.applied = 1};

    er_cw_begin(&world);
    for (int i = 0; i < 300; i++)
        x[i] = (float)i;
    er_tap_require(er_ckpt_open(&ckpt, world.dir, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_save(ckpt, slices, 2, &meta, NULL) == 0);
    slices[1].offset = 100;
    slices[1].count = 150;
    er_tap_require(er_ckpt_map(ckpt, slices, 2, &meta, NULL, NULL, &views, NULL) == 0);
    er_ckpt_stats(ckpt, &stats);
    er_tap_check(stats.needed_bytes == 13 + 600);
    er_ckpt_close(ckpt);
    er_tap_check((uintptr_t)slices[1].data % 4 == 0 && slices[0].data != odd &&
                 memcmp(slices[0].data, odd, 13) == 0 && memcmp(slices[1].data, x + 100, 600) == 0);
    er_ckpt_unmap(views);
    er_ckpt_unmap(NULL);
    er_test_rmtree(world.dir);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(any_world_size_sees_what_any_other_saved),
        CASE(a_damaged_one_is_passed_over),
        CASE(what_lies_askew_is_copied),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
