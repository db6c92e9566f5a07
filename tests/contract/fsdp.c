/*
 * FSDP on real communicators: the same parameters as DDP, bit for bit, at every world size, with
 * either strategy; checkpoints that load at other world sizes and into DDP; memory within its
 * bound. With ER_TEST_ENGINE=gpu the same in the memory of GPUs; so in fsdp_mixed.c, fsdp_loss.c.
 */
#include <string.h>

#include "tests/contract/fsdp_model.h"
#include "tests/lib/tap.h"

static struct fsdp_test *test;

static void the_same_bits_as_ddp(void)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    static float want[FSDP_ELEMENTS_MAX], got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double norm2;

        fsdp_train(sizes[i], DDP, 0, want);
        norm2 = test->norm2;
        for (enum strategy s = FULL; s < STRATEGIES; s++) {
            fsdp_train(sizes[i], s, 0, got);
            if (!er_tap_check(memcmp(want, got, sizeof(want)) == 0))
                er_tap_note("%d ranks, strategy %d", sizes[i], (int)s);
            er_tap_check(test->norm2 > 0.999999 * norm2 && test->norm2 < 1.000001 * norm2);
        }
    }
}

/* Sums are made in another order: over ranks first, then over passes. */
static void passes_of_a_step_add_up(void)
{
    static float want[FSDP_ELEMENTS_MAX], got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    fsdp_train(3, DDP, 3, want);
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        fsdp_train(3, s, 3, got);
        er_tap_check(fsdp_near(want, got));
    }
}

/* Each row: one epoch at the first size and strategy, another one from its checkpoint. */
static void checkpoints_load_anywhere(void)
{
    static const struct {
        int size, then;
        enum strategy strategy, then_strategy;
    } rows[] = {{2, 3, FULL, FULL}, {3, 2, FULL, FULL},       {3, 2, FULL, DDP},
                {2, 3, DDP, FULL},  {4, 1, GRAD_OPTIM, FULL}, {1, 5, DDP, GRAD_OPTIM}};
    static float saved[FSDP_ELEMENTS_MAX], want[FSDP_ELEMENTS_MAX], got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        er_test_tempdir(test->dir);
        test->epochs = 1;
        fsdp_train(rows[i].size, rows[i].strategy, 0, saved);
        /* Nothing is left to do: what is loaded is what was saved. */
        fsdp_train(rows[i].then, rows[i].then_strategy, 0, got);
        er_tap_check(test->resumed_from > 0 && memcmp(saved, got, sizeof(saved)) == 0);
        /* And a step from there is the same step, whoever holds the state. */
        test->epochs = 2;
        fsdp_train(rows[i].then, rows[i].then_strategy, 0, got);
        er_test_rmtree(test->dir);
        er_test_tempdir(test->dir);
        test->epochs = 1;
        fsdp_train(rows[i].size, rows[i].strategy, 0, saved);
        test->epochs = 2;
        fsdp_train(rows[i].then, DDP, 0, want);
        if (!er_tap_check(memcmp(want, got, sizeof(want)) == 0))
            er_tap_note("row %zu", i);
        er_test_rmtree(test->dir);
        test->dir[0] = '\0';
    }
}

static void memory_is_within_its_bound(void)
{
    static float got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (int size = 1; size <= 4; size++) {
        fsdp_train(size, FULL, 0, got);
        if (!er_tap_check(test->bytes <= test->bound))
            er_tap_note("%d ranks: %zu bytes, bound %zu", size, test->bytes, test->bound);
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"the_same_bits_as_ddp", the_same_bits_as_ddp, 0},
        {"passes_of_a_step_add_up", passes_of_a_step_add_up, 0},
        {"checkpoints_load_anywhere", checkpoints_load_anywhere, 0},
        {"memory_is_within_its_bound", memory_is_within_its_bound, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
