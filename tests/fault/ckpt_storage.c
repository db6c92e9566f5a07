/* Storage that is full, fails, or hangs: training goes on, the old checkpoint stays, and the
 * failure is one event everywhere. And writers that wake up late. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/ckpt_internal.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/file_hook.h"
#include "tests/lib/tap.h"

static struct er_cw world;

static void begin(void)
{
    er_cw_begin(&world);
    er_tap_check(er_cw_save(&world, 3, 10, 1) == 0);
}

/* The old one is there and whole, and with the fault gone a new one can be written. */
static void expect_old_and_recover(void)
{
    float seed = 0;

    er_file_before = NULL;
    world.opts.deadline_us = 0;
    er_tap_check(er_cw_listed(&world) == 1);
    er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed == 1);
    er_tap_check(er_cw_save(&world, 2, 30, 3) == 0 && er_cw_load(&world, 1, &seed) == 0 &&
                 seed == 3);
    er_test_rmtree(world.dir);
}

/* ---- full ---- */

static atomic_llong room; /* bytes that the disk still takes */
static bool no_fallocate;

static int full_disk(const struct er_file_op *op, size_t *ret_n)
{
    long long left;

    if (op->kind == ER_FILE_ALLOCATE && no_fallocate)
        return -EOPNOTSUPP;
    if (op->kind == ER_FILE_ALLOCATE)
        return (long long)op->n > atomic_load(&room) ? -ENOSPC : 0;
    if (op->kind != ER_FILE_WRITE)
        return 0;
    left = atomic_fetch_sub(&room, (long long)*ret_n);
    if (left <= 0)
        return -ENOSPC;
    if ((long long)*ret_n > left)
        *ret_n = (size_t)left;
    return 0;
}

static long long bytes_written;

static void count_bytes(const struct er_file_op *op)
{
    bytes_written += op->kind == ER_FILE_WRITE ? (long long)op->n : 0;
}

static void a_disk_full_at_any_size_loses_nothing(void)
{
    long long needed;
    unsigned failed = 0, fine = 0;
    float seed = 0;

    begin();
    er_file_after = count_bytes;
    er_tap_check(er_cw_save(&world, 2, 20, 2) == 0);
    er_file_after = NULL;
    needed = bytes_written;
    for (int pass = 0; pass < 4; pass++) {
        no_fallocate = pass % 2;
        world.beside = pass / 2;
        for (long long size = 0; size <= needed; size += size < 4096 ? 512 : needed / 301 + 1) {
            int rc;

            atomic_store(&room, size);
            er_file_before = full_disk;
            rc = er_cw_save(&world, 2, 40, 4);
            er_file_before = NULL;
            if (rc == 0) {
                fine++; /* LATEST did not fit, or nothing was missing */
                er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed == 4);
                continue;
            }
            failed++;
            er_tap_check(rc == -ENOSPC);
            er_tap_check(strstr(world.ranks[1].err.text, "No space left") != NULL);
            er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed == (fine ? 4 : 2));
        }
    }
    er_tap_note("%lld bytes; failed %u times, %u times it fitted", needed, failed, fine);
    er_tap_check(failed > 100);
    er_test_rmtree(world.dir);
}

/* ---- failing ---- */

static int failing_kind, failing_code;
static atomic_int failing_after; /* operations of the kind that still work */

static int fail_some(const struct er_file_op *op, size_t *ret_n)
{
    (void)ret_n;
    if ((int)op->kind != failing_kind || !strstr(op->path, "/.step-"))
        return 0; /* not the folder itself, which is opened before, nor what follows the commit */
    return atomic_fetch_sub(&failing_after, 1) <= 0 ? failing_code : 0;
}

/* Each kind of operation in turn fails, from its first use on, its second, ... */
static void failing_operations(bool beside)
{
    static const struct {
        int kind, code;
    } faults[] = {{ER_FILE_MKDIR, -EDQUOT}, {ER_FILE_CREATE, -EMFILE}, {ER_FILE_ALLOCATE, -EDQUOT},
                  {ER_FILE_WRITE, -EIO},    {ER_FILE_FSYNC, -EIO},     {ER_FILE_RENAME, -EIO},
                  {ER_FILE_WRITE, -EDQUOT}};

    for (size_t i = 0; i < ER_ARRAY_N(faults); i++) {
        for (int after = 0; after < 8; after++) {
            int rc;

            begin();
            world.beside = beside;
            failing_kind = faults[i].kind;
            failing_code = faults[i].code;
            atomic_store(&failing_after, after);
            er_file_before = fail_some;
            rc = er_cw_save(&world, 2, 20, 2);
            er_file_before = NULL;
            er_tap_check(rc == 0 || rc == faults[i].code || rc == -EACCES);
            if (rc < 0) {
                er_tap_check(strstr(world.ranks[0].err.text, "rank ") != NULL);
                expect_old_and_recover();
                continue;
            }
            er_test_rmtree(world.dir);
            break; /* there are no more operations of the kind that matter */
        }
    }
}

static void any_failing_operation_is_one_error_everywhere(void)
{
    failing_operations(true);
    failing_operations(false);
}

/* ---- hanging ---- */

#define HANG_US ER_US_PER_S /* long enough for what does not hang on a busy machine */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool hangs, one_alone; /* one_alone: rank 1's storage answers */
    int waiting;
    enum er_file_op_kind kind;
    const char *only; /* part of the path */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int hang(const struct er_file_op *op, size_t *ret_n)
{
    (void)ret_n;
    if (op->kind != disk.kind || (disk.only && !strstr(op->path, disk.only)))
        return 0;
    pthread_mutex_lock(&disk.lock);
    disk.waiting++;
    pthread_cond_broadcast(&disk.changed);
    while (disk.hangs)
        pthread_cond_wait(&disk.changed, &disk.lock);
    disk.waiting--;
    pthread_mutex_unlock(&disk.lock);
    return 0;
}

static void start_hanging(enum er_file_op_kind kind, const char *only)
{
    disk.kind = kind;
    disk.only = only;
    disk.hangs = true;
    er_file_before = hang;
}

static void wait_for_victim(void)
{
    pthread_mutex_lock(&disk.lock);
    while (disk.waiting == 0)
        pthread_cond_wait(&disk.changed, &disk.lock);
    pthread_mutex_unlock(&disk.lock);
}

static void stop_hanging(void)
{
    pthread_mutex_lock(&disk.lock);
    disk.hangs = false;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

/* Trains: no call may take long, whatever the disk does. */
static void train_beside_hanging_disk(struct er_cw_rank *r)
{
    struct er_meta meta = er_cw_meta(r);
    uint64_t longest = 0, steps = 0;

    er_cw_fill(r, 2);
    er_tap_check(er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err) == 0);
    while (er_ckpt_in_flight(r->ckpt)) {
        uint64_t started = er_now_us(), took;

        er_tap_check(er_ckpt_before_apply(r->ckpt, NULL) == 0);
        er_cw_fill(r, -7);
        if (er_cw_all(r, er_ckpt_local_done(r->ckpt)))
            r->rc = er_ckpt_advance(r->ckpt, &r->err);
        took = er_now_us() - started;
        longest = took > longest ? took : longest;
        steps++;
        poll(NULL, 0, 1); /* the step itself */
    }
    er_tap_check(r->rc == -ETIMEDOUT && strstr(r->err.text, "has not answered within"));
    er_tap_check(steps > 3);
    if (longest > 5 * ER_US_PER_S) /* nobody waited for the disk; generous for a busy machine */
        er_tap_check(!"a step waited for the disk");
    r->ckpt->opts.deadline_us = ER_CKPT_DEADLINE_US; /* what works may take its time */
    /* The next one fails at once while the storage of both still hangs. */
    meta.applied++;
    er_tap_check(er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err) ==
                 (disk.one_alone ? 0 : -ETIMEDOUT));
    er_tap_check(er_ckpt_finish(r->ckpt, &r->err) == 0); /* rank 1 wrote for both */
    if (er_cw_all(r, true) && r->rank == 0)
        stop_hanging();
    /* And works again once it answers. */
    meta.applied++;
    er_cw_fill(r, 5);
    do {
        r->rc = er_ckpt_save(r->ckpt, r->slices, 3, &meta, &r->err);
        poll(NULL, 0, 1);
    } while (r->rc == -ETIMEDOUT && strstr(r->err.text, "still hangs"));
    er_tap_check(r->rc == 0);
}

static void hang_in(enum er_file_op_kind kind, const char *only)
{
    float seed = 0;

    begin();
    world.opts.deadline_us = HANG_US;
    start_hanging(kind, only);
    world.step = 20;
    er_cw_run(&world, 2, train_beside_hanging_disk);
    er_file_before = NULL;
    er_tap_check(world.ranks[0].rc == 0 && world.ranks[1].rc == 0);
    /* The checkpoint that was given up has not appeared. */
    er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed == 5);
    er_tap_check(er_cw_listed(&world) == (disk.one_alone ? 3 : 2));
    er_test_rmtree(world.dir);
}

static void a_hanging_write_never_stalls_training(void)
{
    hang_in(ER_FILE_WRITE, "shard-1");
}

static void a_hanging_fsync_never_stalls_training(void)
{
    hang_in(ER_FILE_FSYNC, "shard-0");
}

static void a_hanging_rename_never_stalls_training(void)
{
    disk.one_alone = true;
    hang_in(ER_FILE_RENAME, "step-000000000020.g");
}

static void leave_with_hanging_disk(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);

    er_cw_fill(r, 2);
    r->rc = er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err);
    er_tap_check(er_ckpt_finish(r->ckpt, &r->err) == -ETIMEDOUT);
}

static void the_end_does_not_wait_for_a_hanging_disk(void)
{
    begin();
    world.opts.deadline_us = HANG_US;
    start_hanging(ER_FILE_FSYNC, "shard-0");
    world.step = 20;
    er_cw_run(&world, 2, leave_with_hanging_disk);
    stop_hanging(); /* the thread that was left behind ends by itself, with its own memory */
    expect_old_and_recover();
}

/* ---- late ---- */

static void *old_generation(void *unused)
{
    (void)unused;
    world.step = 20;
    world.seed = 2;
    er_cw_save(&world, 1, 20, 2);
    return NULL;
}

/* A writer of generation 1 sleeps in `kind`; generation 2 loads, and the old one wakes up. */
static void wake_up_late(enum er_file_op_kind kind, const char *only)
{
    static struct er_cw newer;
    pthread_t thread;
    float seed = 0;

    begin();
    world.commit_rc = ER_E_STALE;
    start_hanging(kind, only);
    er_tap_require(pthread_create(&thread, NULL, old_generation, NULL) == 0);
    wait_for_victim();
    newer = (struct er_cw){.opts = {.generation = 2, .keep_last = 1}};
    memcpy(newer.dir, world.dir, sizeof(newer.dir));
    er_file_before = NULL;
    er_tap_check(er_cw_load(&newer, 1, &seed) == 0 && seed == 1);
    stop_hanging();
    pthread_join(thread, NULL);
    if (!er_tap_check(world.ranks[0].rc == ER_E_STALE && world.commits == 0 &&
                      strstr(world.ranks[0].err.text, "generation 1 was superseded by 2")))
        er_tap_note("%s: %d, '%s'", only, world.ranks[0].rc, world.ranks[0].err.text);
    er_tap_check(er_cw_listed(&newer) == 1);
    er_tap_check(er_cw_load(&newer, 1, &seed) == 0 && seed == 1);
    er_tap_check(er_cw_save(&newer, 1, 15, 9) == 0 && er_cw_load(&newer, 1, &seed) == 0 &&
                 seed == 9);
    world.commit_rc = 0;
    er_test_rmtree(world.dir);
}

static void a_late_writer_of_an_older_generation_publishes_nothing(void)
{
    for (int beside = 0; beside < 2; beside++) {
        world.beside = beside;
        wake_up_late(ER_FILE_MKDIR, "step-000000000020.g1");
        wake_up_late(ER_FILE_WRITE, "shard-0");
        wake_up_late(ER_FILE_FSYNC, "shard-0");
        wake_up_late(ER_FILE_CREATE, "/.er-tmp-");
    }
}

static int stop_at_first_removal(const struct er_file_op *op, size_t *ret_n)
{
    /* The rename away of an old checkpoint, not the publication. */
    if (op->kind == ER_FILE_RENAME && strstr(op->path, "/step-"))
        return hang(op, ret_n);
    return 0;
}

static void *old_generation_removes(void *unused)
{
    (void)unused;
    er_cw_save(&world, 1, 20, 2);
    return NULL;
}

/* It committed, then slept before it removed what it no longer needs. */
static void a_late_writer_of_an_older_generation_removes_no_more_than_it_began(void)
{
    static struct er_cw newer;
    pthread_t thread;
    float seed = 0;

    begin();
    er_tap_check(er_cw_save(&world, 1, 11, 1) == 0 && er_cw_save(&world, 1, 12, 1) == 0);
    world.opts.keep_last = 1;
    disk.kind = ER_FILE_RENAME;
    disk.only = NULL;
    disk.hangs = true;
    er_file_before = stop_at_first_removal;
    er_tap_require(pthread_create(&thread, NULL, old_generation_removes, NULL) == 0);
    wait_for_victim(); /* about to remove step 10 */
    newer = (struct er_cw){.opts = {.generation = 2}};
    memcpy(newer.dir, world.dir, sizeof(newer.dir));
    er_file_before = NULL;
    er_tap_check(er_cw_load(&newer, 1, &seed) == 0 && seed == 2);
    stop_hanging();
    pthread_join(thread, NULL);
    er_tap_check(er_cw_listed(&newer) == 3); /* 11, 12, 20 */
    er_test_rmtree(world.dir);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(a_disk_full_at_any_size_loses_nothing),
        CASE(any_failing_operation_is_one_error_everywhere),
        CASE(a_hanging_write_never_stalls_training),
        CASE(a_hanging_fsync_never_stalls_training),
        CASE(a_hanging_rename_never_stalls_training),
        CASE(the_end_does_not_wait_for_a_hanging_disk),
        CASE(a_late_writer_of_an_older_generation_publishes_nothing),
        CASE(a_late_writer_of_an_older_generation_removes_no_more_than_it_began),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
