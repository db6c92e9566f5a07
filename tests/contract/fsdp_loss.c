/*
 * FSDP when something goes wrong, or somebody goes: a model that does not keep to the order of its
 * units is told so, a lost rank ends the step, and the others go on in their processes with what
 * checkpoints or second copies of shards bring back; who leaves as told hands its shard over.
 */
#include <string.h>

#include "tests/contract/fsdp_model.h"
#include "tests/lib/fake_world.h"
#include "tests/lib/tap.h"

static struct fsdp_test *test;

/* Who finds it first leaves, perhaps while the other still waits for what both began. */
static void units_out_of_order_are_refused(void)
{
    int refused = 0;

    test = fsdp_test_new();
    test->strategy = FULL;
    test->disordered = true;
    er_ranks_run(2, fsdp_rank, NULL, NULL);
    for (int rank = 0; rank < 2; rank++) {
        refused += test->rcs[rank] == ER_E_USAGE;
        er_tap_check(test->rcs[rank] == ER_E_USAGE || test->rcs[rank] == ER_E_PEER_LOST);
    }
    er_tap_check(refused > 0);
    if (!er_tap_check(strstr(test->refused, "unit 'b' is used after 'c'")))
        er_tap_note("%s", test->refused);
}

/* Nobody waits for ever: neither a rank that waits for the lost one nor a GPU's stream. */
static void a_lost_rank_ends_the_step(void)
{
    test = fsdp_test_new();
    test->dies = 1;
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        test->strategy = s;
        er_ranks_run(3, fsdp_rank, NULL, NULL);
        er_tap_check(test->rcs[0] == ER_E_PEER_LOST && test->rcs[2] == ER_E_PEER_LOST);
        if (!er_tap_check(strstr(test->text, "rank 1") && strstr(test->text, "of unit '")))
            er_tap_note("%s", test->text);
    }
}

/* The next generation is that without the one that died, or left. */
static int rejoin(struct er_ctx *ctx)
{
    const struct er_world *w = er_world(ctx);

    if (w->rank == test->dies)
        return ER_REJOIN_DONE;
    er_fake_move(ctx, w->rank - (w->rank > test->dies), w->size - 1, w->generation + 1);
    return 0;
}

/* Nor does a step with them wait for the device, which the double sees. */
static void second_copies_change_no_bit(void)
{
    static float want[FSDP_ELEMENTS_MAX], got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        test->shadow = false;
        fsdp_train(3, s, 2, want);
        test->shadow = true;
        fsdp_train(3, s, 2, got);
        er_tap_check(memcmp(want, got, sizeof(want)) == 0);
    }
}

enum keeps { NOTHING, CHECKPOINTS, COPIES, KEEPS };

/* Without rank 1 from the third step on. */
static void run_without(enum strategy strategy, enum keeps keeps)
{
    test->strategy = strategy;
    test->shadow = keeps == COPIES;
    test->checkpoint_steps = keeps == CHECKPOINTS;
    test->passes_n = 0;
    memset(test->values, 0, sizeof(test->values));
    test->world = er_fake_world_new();
    er_fake_rejoin = rejoin;
    er_ranks_run_in(test->world, 3, fsdp_rank, NULL, NULL);
    er_fake_rejoin = NULL;
    er_fake_world_free(test->world);
    test->shadow = false;
    test->checkpoint_steps = 0;
    if (!er_tap_check(test->rcs[0] == 0 && test->rcs[2] == 0 && test->recoveries == 1))
        er_tap_note("strategy %d, keeps %d: %d %d %s", (int)strategy, (int)keeps, test->rcs[0],
                    test->rcs[2], test->text);
}

/* What `keeps` can bring back is not computed again. Whether rank 0 had begun the third step is up
 * to the machine. */
static void the_others_go_on_in_their_processes(void)
{
    static const int again_most[KEEPS] = {[NOTHING] = 3, [CHECKPOINTS] = 2, [COPIES] = 1};
    static float want[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        for (enum keeps keeps = NOTHING; keeps < KEEPS; keeps++) {
            uint64_t steps;

            test->dies = 0;
            test->passes_n = 0;
            fsdp_train(3, s, 0, want);
            steps = test->passes_n;
            test->dies = 1;
            if (keeps == CHECKPOINTS)
                er_test_tempdir(test->dir);
            run_without(s, keeps);
            er_tap_check(fsdp_near(want, test->values));
            if (!er_tap_check(test->passes_n <= steps + (uint64_t)again_most[keeps]))
                er_tap_note("keeps %d: %d steps, undisturbed %d", (int)keeps, (int)test->passes_n,
                            (int)steps);
            if (keeps == CHECKPOINTS)
                er_test_rmtree(test->dir);
            test->dir[0] = '\0';
        }
    }
}

/* Who leaves as told gives its shard to those who stay. */
static void who_leaves_hands_its_shard_over(void)
{
    static float want[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        uint64_t steps;

        test->leaves = false;
        test->dies = 0;
        test->passes_n = 0;
        fsdp_train(3, s, 0, want);
        steps = test->passes_n;
        test->dies = 1;
        test->leaves = true;
        run_without(s, NOTHING);
        er_tap_check(test->rcs[1] == 0 && test->passes_n == steps);
        er_tap_check(fsdp_near(want, test->values));
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"units_out_of_order_are_refused", units_out_of_order_are_refused, 0},
        {"a_lost_rank_ends_the_step", a_lost_rank_ends_the_step, 0},
        {"second_copies_change_no_bit", second_copies_change_no_bit, 240},
        {"who_leaves_hands_its_shard_over", who_leaves_hands_its_shard_over, 240},
        {"the_others_go_on_in_their_processes", the_others_go_on_in_their_processes, 240},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
