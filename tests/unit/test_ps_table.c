#include <criterion/criterion.h>

#include "base/rand.h"
#include "trainer/ps_table.h"

static struct er_ps_table table;
static const uint64_t no_pauses[2] = {0, 0};

static uint64_t must_give(uint32_t worker)
{
    uint64_t part = UINT64_MAX;

    cr_assert_eq(er_ps_table_lease(&table, worker, &part), ER_PS_PART);
    return part;
}

static enum er_ps_answer ask(uint32_t worker)
{
    uint64_t part;

    return er_ps_table_lease(&table, worker, &part);
}

Test(ps_table, lock_step_gives_the_next_step_when_this_one_is_done)
{
    er_ps_table_init(&table, 2, 2, 0, no_pauses, 0);
    cr_assert_eq(must_give(0), 0);
    cr_assert_eq(must_give(1), 1);
    cr_assert(er_ps_table_commit(&table, 0));
    cr_assert_eq(ask(0), ER_PS_WAIT);
    cr_assert(er_ps_table_commit(&table, 1));
    cr_assert_eq(table.done_steps, 1);
    cr_assert_eq(must_give(0), 2);
}

Test(ps_table, a_bound_lets_nobody_run_further_ahead)
{
    for (uint64_t bound = 0; bound < 4; bound++) {
        er_ps_table_init(&table, 1, 100, bound, no_pauses, 0);
        cr_assert_eq(must_give(9), 0); /* and never commits it */
        for (uint64_t step = 2; step <= 1 + bound; step++) {
            uint64_t part = must_give(1);

            cr_assert_eq(er_ps_part_step(&table, part), step);
            cr_assert(er_ps_table_commit(&table, part));
        }
        cr_assert_eq(ask(1), ER_PS_WAIT);
    }
}

Test(ps_table, without_a_bound_the_window_is_one)
{
    uint64_t n = 0;

    er_ps_table_init(&table, 1, 1u << 20, ER_PS_UNBOUNDED, no_pauses, 0);
    must_give(9);
    while (ask(1) == ER_PS_PART) {
        cr_assert(er_ps_table_commit(&table, table.worker[1].part));
        n++;
    }
    cr_assert_eq(n, ER_PS_WINDOW - 1);
}

Test(ps_table, what_a_lost_worker_held_is_given_again_first)
{
    er_ps_table_init(&table, 3, 5, 0, no_pauses, 0);
    cr_assert_eq(must_give(0), 0);
    cr_assert_eq(must_give(1), 1);
    er_ps_table_lost(&table, 0);
    er_ps_table_lost(&table, 0);
    cr_assert_eq(must_give(2), 0);
    cr_assert_eq(must_give(0), 2);
    cr_assert(er_ps_table_commit(&table, 0));
    cr_assert_not(er_ps_table_commit(&table, 0), "a part counts once");
}

Test(ps_table, everybody_meets_at_each_boundary_and_at_the_end)
{
    static const uint64_t pauses[2] = {3, 4};
    static const uint64_t want[] = {3, 4, 6, 7};
    uint64_t met[2] = {0}, step;

    er_ps_table_init(&table, 2, 7, ER_PS_UNBOUNDED, pauses, 0);
    for (uint32_t w = 0;; w = 1 - w) {
        switch (er_ps_table_lease(&table, w, &step)) {
        case ER_PS_PART:
            cr_assert(er_ps_table_commit(&table, step));
            continue;
        case ER_PS_PAUSE:
            cr_assert_eq(step, want[met[w]++]);
            cr_assert_eq(table.done_steps, step);
            continue;
        case ER_PS_WAIT:
            cr_assert_fail("nothing is under way");
        case ER_PS_DONE:
            break;
        }
        break;
    }
    cr_assert_eq(table.done_steps, 7);
    cr_assert(met[0] == 4 || met[1] == 4);
}

/* Workers that take, finish and lose parts at random: each part is done exactly once. */
Test(ps_table, every_part_is_done_once_whatever_happens)
{
    enum { PARTS = 3, STEPS = 50, WORKERS = 4 };
    static const uint64_t pauses[2] = {10, 0};

    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint8_t done[PARTS * STEPS] = {0};
        bool finished[WORKERS] = {false};
        struct er_rand rand;
        size_t open = WORKERS;

        er_rand_init(&rand, seed);
        er_ps_table_init(&table, PARTS, STEPS, seed % 4, pauses, 0);
        for (int i = 0; open > 0; i++) {
            uint32_t w = (uint32_t)er_rand_below(&rand, WORKERS);
            uint64_t part;

            cr_assert_lt(i, 100000, "seed %lu: no end", (unsigned long)seed);
            if (finished[w])
                continue;
            if (!table.worker[w].held) {
                enum er_ps_answer answer = er_ps_table_lease(&table, w, &part);

                finished[w] = answer == ER_PS_DONE;
                open -= finished[w];
                if (answer == ER_PS_PART)
                    cr_assert_leq(er_ps_table_needs(&table, er_ps_part_step(&table, part)),
                                  table.done_steps);
            } else if (er_rand_below(&rand, 4) == 0) {
                er_ps_table_lost(&table, w);
            } else {
                part = table.worker[w].part;
                cr_assert(er_ps_table_commit(&table, part));
                cr_assert_eq(done[part]++, 0);
            }
        }
        for (size_t i = 0; i < PARTS * STEPS; i++)
            cr_assert_eq(done[i], 1, "seed %lu: part %zu", (unsigned long)seed, i);
    }
}
