/* One rank's storage fails or hangs, the others' works: the others write its part of the state. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/ckpt_internal.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/file_hook.h"
#include "tests/lib/tap.h"

static struct er_cw world;

/* What happens to the first such operation on the file of each rank of a set. */
static struct {
    enum er_file_op_kind kind;
    int code;
    atomic_uint ranks;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool hangs, reached; /* reached: somebody hangs */
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void hang_here(void)
{
    pthread_mutex_lock(&fault.lock);
    fault.reached = true;
    pthread_cond_broadcast(&fault.changed);
    while (fault.hangs)
        pthread_cond_wait(&fault.changed, &fault.lock);
    pthread_mutex_unlock(&fault.lock);
}

static int strike(const struct er_file_op *op, size_t *ret_n)
{
    const char *shard = strstr(op->path, "/shard-");
    unsigned bit;

    (void)ret_n;
    if (op->kind != fault.kind || !shard)
        return 0;
    bit = 1u << (shard[7] - '0');
    if (!(atomic_fetch_and(&fault.ranks, ~bit) & bit))
        return 0; /* not this rank's, or by the one that stands in */
    if (fault.code)
        return fault.code;
    hang_here();
    return 0;
}

static void arm(enum er_file_op_kind kind, int code, unsigned ranks)
{
    fault.kind = kind;
    fault.code = code;
    fault.hangs = code == 0;
    fault.reached = false;
    atomic_store(&fault.ranks, ranks);
    er_file_before = strike;
}

static void await_hang(void)
{
    pthread_mutex_lock(&fault.lock);
    while (!fault.reached)
        pthread_cond_wait(&fault.changed, &fault.lock);
    pthread_mutex_unlock(&fault.lock);
}

static void wake_up(void)
{
    pthread_mutex_lock(&fault.lock);
    fault.hangs = false;
    pthread_cond_broadcast(&fault.changed);
    pthread_mutex_unlock(&fault.lock);
}

static void save_and_look(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);
    struct er_ckpt_event event;

    r->rc = er_cw_save_rank(r, &meta);
    er_ckpt_poll(r->ckpt, &event);
    er_tap_check(event.kind == (r->rc < 0 ? ER_CKPT_FAILED : ER_CKPT_COMMITTED));
    r->skipped = (int)event.stood_in;
    snprintf(r->why, sizeof(r->why), "%s", event.note);
}

static int save(int size, uint64_t step, float seed)
{
    world.step = step;
    world.seed = seed;
    er_cw_run(&world, size, save_and_look);
    for (int i = 1; i < size; i++)
        er_tap_check(world.ranks[i].rc == world.ranks[0].rc);
    return world.ranks[0].rc;
}

static void begin(void)
{
    er_cw_begin(&world);
    world.sharded = false;
}

static void one_rank_cannot_write(bool beside)
{
    static const struct {
        enum er_file_op_kind kind;
        int code;
        const char *text;
    } faults[] = {{ER_FILE_CREATE, -EMFILE, "Too many"},
                  {ER_FILE_ALLOCATE, -ENOSPC, "No space"},
                  {ER_FILE_WRITE, -EIO, "Input/output"},
                  {ER_FILE_FSYNC, -EDQUOT, "quota"}};
    static const int sizes[] = {2, 3, 4, 5, 8};

    for (size_t f = 0; f < ER_ARRAY_N(faults); f++) {
        for (size_t s = 0; s < ER_ARRAY_N(sizes); s++) {
            for (int victim = 0; victim < sizes[s]; victim++) {
                char who[32];
                float seed = 0;

                begin();
                world.beside = beside;
                arm(faults[f].kind, faults[f].code, 1u << victim);
                er_tap_check(save(sizes[s], 7, 77) == 0 && world.commits == 1);
                er_file_before = NULL;
                snprintf(who, sizeof(who), "rank %d: ", victim);
                for (int i = 0; i < sizes[s]; i++)
                    er_tap_check(world.ranks[i].skipped == 1 && strstr(world.ranks[i].why, who) &&
                                 strstr(world.ranks[i].why, faults[f].text));
                er_tap_check(er_ckpt_verify(world.dir, 7, NULL) == 0);
                er_tap_check(er_cw_load(&world, 3, &seed) == 0 && seed == 77);
                er_test_rmtree(world.dir);
            }
        }
    }
}

static void any_one_rank_that_cannot_write_is_stood_in_for(void)
{
    one_rank_cannot_write(true);
    one_rank_cannot_write(false);
}

/* A copy lies half the world away. */
static bool covered(unsigned failing, int size)
{
    for (int i = 0; i < size; i++)
        if ((failing >> i & 1) && (failing >> (i + size - size / 2) % size & 1))
            return false;
    return true;
}

static void any_set_of_ranks_as_long_as_the_parts_cover_the_state(void)
{
    for (int size = 2; size <= 5; size++) {
        for (unsigned failing = 1; failing < 1u << size; failing++) {
            float seed = 0;

            begin();
            world.beside = size % 2; /* else from the ranks' own memory */
            er_tap_check(save(2, 5, 5) == 0);
            arm(ER_FILE_WRITE, -EIO, failing);
            er_tap_check(save(size, 7, 77) == (covered(failing, size) ? 0 : -EIO));
            er_file_before = NULL;
            er_tap_check(er_cw_load(&world, 1, &seed) == 0 &&
                         seed == (covered(failing, size) ? 77 : 5));
            er_tap_check(er_cw_listed(&world) == (covered(failing, size) ? 2 : 1));
            er_test_rmtree(world.dir);
        }
    }
}

static void a_part_that_nobody_else_has_fails_the_checkpoint(void)
{
    float seed = 0;

    begin();
    er_tap_check(save(3, 5, 5) == 0);
    world.sharded = true;
    arm(ER_FILE_FSYNC, -EIO, 2);
    er_tap_check(save(3, 7, 77) == -EIO);
    for (int i = 0; i < 3; i++)
        er_tap_check(strstr(world.ranks[i].err.text, "no other rank has") &&
                     strstr(world.ranks[i].err.text, "rank 1: write '"));
    er_file_before = NULL;
    er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed == 5);
    er_test_rmtree(world.dir);
}

static void without_copies_one_rank_is_enough_to_fail(void)
{
    begin();
    world.opts.no_stand_in = true;
    er_tap_check(save(3, 5, 5) == 0);
    arm(ER_FILE_FSYNC, -EIO, 2);
    er_tap_check(save(3, 7, 77) == -EIO && strstr(world.ranks[0].err.text, "rank 1: write '"));
    er_file_before = NULL;
    er_tap_check(er_cw_listed(&world) == 1);
    er_test_rmtree(world.dir);
}

static int hanging_rank;

/* Given up not before it hangs, however busy the machine is: who stands in would hang instead. */
static int save_and_hang(struct er_cw_rank *r, const struct er_meta *meta)
{
    int rc = er_ckpt_begin(r->ckpt, r->slices, 3, meta, &r->err);

    if (rc == 0 && r->rank == hanging_rank)
        await_hang();
    return rc < 0 ? rc : er_ckpt_finish(r->ckpt, &r->err);
}

/* One rank's storage stops answering: its checkpoint and those that follow are written without it,
 * until it answers again. */
static void train_while_one_hangs(struct er_cw_rank *r)
{
    struct er_meta meta = er_cw_meta(r);
    struct er_ckpt_stats stats;

    if (r->rank == hanging_rank) /* the others' storage answers, however busy the machine is */
        r->ckpt->opts.deadline_us = 100 * ER_US_PER_MS;
    for (int i = 0; i < 3; i++, meta.applied++) {
        er_cw_fill(r, (float)meta.applied);
        r->rc =
            i == 0 ? save_and_hang(r, &meta) : er_ckpt_save(r->ckpt, r->slices, 3, &meta, &r->err);
        er_tap_check(r->rc == 0);
    }
    er_ckpt_stats(r->ckpt, &stats);
    er_tap_check(stats.committed == 3 && stats.stood_in == 3 && stats.failed == 0);
    if (er_cw_all(r, true) && r->rank == 0)
        wake_up();
    r->ckpt->opts.deadline_us = ER_CKPT_DEADLINE_US;
    do {
        er_cw_fill(r, (float)meta.applied);
        er_tap_check(er_ckpt_save(r->ckpt, r->slices, 3, &meta, &r->err) == 0);
        meta.applied++;
        er_ckpt_stats(r->ckpt, &stats);
    } while (stats.stood_in == stats.committed);
}

static void a_rank_whose_storage_hangs_is_stood_in_for(void)
{
    static const enum er_file_op_kind kinds[] = {ER_FILE_CREATE, ER_FILE_WRITE, ER_FILE_FSYNC};

    for (size_t k = 0; k < ER_ARRAY_N(kinds); k++) {
        for (unsigned victim = 0; victim < 3; victim++) {
            float seed = 0;

            begin();
            hanging_rank = (int)victim;
            world.step = 10;
            arm(kinds[k], 0, 1u << victim);
            er_cw_run(&world, 3, train_while_one_hangs);
            er_file_before = NULL;
            for (uint64_t step = 10; step < 13; step++) /* also behind the late one */
                er_tap_check(er_ckpt_verify(world.dir, step, NULL) == 0);
            er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed >= 13);
            er_test_rmtree(world.dir);
        }
    }
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(any_one_rank_that_cannot_write_is_stood_in_for),
        CASE(any_set_of_ranks_as_long_as_the_parts_cover_the_state),
        CASE(a_part_that_nobody_else_has_fails_the_checkpoint),
        CASE(without_copies_one_rank_is_enough_to_fail),
        CASE(a_rank_whose_storage_hangs_is_stood_in_for),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
