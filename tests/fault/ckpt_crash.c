/* A crash behind every single file operation of a checkpoint, and every state of the disk that it
 * may leave: a load finds the old checkpoint or the new one, whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/crash_model.h"
#include "tests/lib/tap.h"

enum { RANDOM_KINDS = 250, OLD_STEP = 20, NEW_STEP = 30 };

static struct er_cw world, after;
static struct er_crash_model *model;
static size_t committed_at; /* operations when the commit was made */

static void note_commit(void *unused)
{
    (void)unused;
    committed_at = er_crash_op_n(model);
}

/* Images seen, to count distinct ones. */
static struct {
    uint64_t digests[65536];
    size_t n;
} seen;

static bool is_new(uint64_t digest)
{
    for (size_t i = 0; i < seen.n; i++)
        if (seen.digests[i] == digest)
            return false;
    er_tap_require(seen.n < 65536);
    seen.digests[seen.n++] = digest;
    return true;
}

static bool check_point(size_t ops, unsigned kind, float old_seed, float new_seed)
{
    float seed = 0;
    bool good;

    if (!is_new(er_crash_make(model, ops, kind, NULL)))
        return false;
    er_tap_require(snprintf(after.dir, sizeof(after.dir), "%s.after", world.dir) <
                   (int)sizeof(after.dir));
    er_crash_make(model, ops, kind, after.dir);
    after.opts = (struct er_ckpt_opts){.generation = 3, .keep_last = 1, .read_threads = 1};
    good = er_cw_load(&after, 1, &seed) == 0 &&
           (seed == new_seed || (seed == old_seed && ops <= committed_at));
    if (!er_tap_check(good))
        er_tap_note("behind operation %zu (%s), kind %u: %s, seed %g", ops,
                    ops ? er_crash_describe(model, ops - 1) : "none", kind, after.ranks[0].err.text,
                    (double)seed);
    /* And the job goes on from there. */
    if (kind == ER_CRASH_PROCESS || ops % 7 == kind % 7)
        er_tap_check(er_cw_save(&after, 2, NEW_STEP + 10, 4) == 0 &&
                     er_cw_load(&after, 1, &seed) == 0 && seed == 4 && er_cw_listed(&after) == 1);
    er_test_rmtree(after.dir);
    return true;
}

static void enumerate(float old_seed, float new_seed, size_t least)
{
    size_t ops = er_crash_op_n(model), points = 0;

    for (size_t k = 0; k <= ops; k++)
        for (unsigned kind = 0; kind < ER_CRASH_ANY + RANDOM_KINDS; kind++)
            points += check_point(k, kind, old_seed, new_seed);
    er_tap_note("%zu operations, commit behind %zu, %zu distinct states of the disk", ops,
                committed_at, points);
    er_tap_check(points >= least);
}

/* Two old checkpoints by three ranks, a leftover of a dead writer, then one by two ranks that
 * removes all of that. */
static void old_or_new_after_a_crash_anywhere(void)
{
    char leftover[ER_TEST_PATH_MAX + 64], file[ER_TEST_PATH_MAX + 96];

    er_cw_begin(&world);
    er_tap_require(er_cw_save(&world, 3, OLD_STEP - 10, 1) == 0);
    er_tap_require(er_cw_save(&world, 3, OLD_STEP, 2) == 0);
    snprintf(leftover, sizeof(leftover), "%s/.step-000000000025.g1.0123456789abcdef.tmp",
             world.dir);
    er_tap_require(mkdir(leftover, 0777) == 0);
    snprintf(file, sizeof(file), "%s/shard-0-of-3.safetensors", leftover);
    er_test_write_file(file, "half");
    world.opts = (struct er_ckpt_opts){.generation = 2, .keep_last = 1};
    world.on_commit = note_commit;
    model = er_crash_new(world.dir);
    er_crash_record(model);
    er_tap_require(er_cw_save(&world, 2, NEW_STEP, 3) == 0);
    er_crash_stop();
    er_tap_check(er_cw_listed(&world) == 1);
    enumerate(2, 3, 200);
    er_crash_free(model);
    er_test_rmtree(world.dir);
}

/* The step exists already (a run that went back repeats it): the old one of that step stays until
 * the new one is in its place, by one exchange. */
static void the_same_step_is_replaced_at_once(void)
{
    seen.n = 0;
    er_cw_begin(&world);
    er_tap_require(er_cw_save(&world, 3, NEW_STEP, 2) == 0);
    world.opts = (struct er_ckpt_opts){.generation = 2, .keep_last = 1};
    world.on_commit = note_commit;
    model = er_crash_new(world.dir);
    er_crash_record(model);
    world.beside = true; /* the same operations, by another thread */
    er_tap_require(er_cw_save(&world, 2, NEW_STEP, 3) == 0);
    world.beside = false;
    er_crash_stop();
    enumerate(2, 3, 25);
    er_crash_free(model);
    er_test_rmtree(world.dir);
}

/* A commit that is refused: the old one, at every instant after it was withdrawn; before that, the
 * new one may be seen, whole. */
static void a_withdrawn_checkpoint_leaves_the_old_one(void)
{
    seen.n = 0;
    er_cw_begin(&world);
    world.opts.keep_last = 1;
    er_tap_require(er_cw_save(&world, 3, OLD_STEP, 2) == 0);
    world.on_commit = NULL;
    world.commit_rc = ER_E_STALE;
    committed_at = SIZE_MAX;
    model = er_crash_new(world.dir);
    er_crash_record(model);
    er_tap_require(er_cw_save(&world, 2, NEW_STEP, 3) == ER_E_STALE);
    er_crash_stop();
    enumerate(2, 3, 25);
    er_crash_free(model);
    er_test_rmtree(world.dir);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 120                                                                           \
    }
    static const struct er_tap_case cases[] = {
        CASE(old_or_new_after_a_crash_anywhere),
        CASE(the_same_step_is_replaced_at_once),
        CASE(a_withdrawn_checkpoint_leaves_the_old_one),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
