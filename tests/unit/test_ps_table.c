#include <criterion/criterion.h>

#include <string.h>

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

Test(ps_table, once_all_have_been_told_they_meet_behind_what_was_given_out)
{
    uint64_t step;

    er_ps_table_init(&table, 2, 100, 3, no_pauses, 0);
    table.workers = 3;
    for (uint64_t part = 0; part < 3; part++)
        cr_assert_eq(must_give((uint32_t)part), part); /* the last one is of step 2 */
    er_ps_table_told(&table, 0);
    er_ps_table_told(&table, 0);
    er_ps_table_told(&table, 1);
    cr_assert_not(table.calling, "one does not know yet");
    er_ps_table_told(&table, 2);
    cr_assert(er_ps_table_commit(&table, 0));
    cr_assert_eq(must_give(0), 3, "the step is brought to its end");
    cr_assert(er_ps_table_commit(&table, 1) && er_ps_table_commit(&table, 2));
    cr_assert_eq(ask(1), ER_PS_WAIT);
    cr_assert(er_ps_table_commit(&table, 3));
    for (uint32_t w = 0; w < 3; w++) {
        cr_assert(table.calling);
        cr_assert_eq(er_ps_table_lease(&table, w, &step), ER_PS_PAUSE);
        cr_assert_eq(step, 2);
    }
    cr_assert_not(table.calling, "all are there");
    cr_assert_eq(must_give(0), 4, "nothing came of it: they go on");
}

Test(ps_table, a_call_at_a_boundary_where_all_have_just_met_is_a_meeting_too)
{
    static const uint64_t pauses[2] = {1, 0};
    uint64_t step;

    er_ps_table_init(&table, 1, 9, 0, pauses, 0);
    table.workers = 1;
    cr_assert(er_ps_table_commit(&table, must_give(0)));
    cr_assert_eq(er_ps_table_lease(&table, 0, &step), ER_PS_PAUSE);
    er_ps_table_told(&table, 0);
    cr_assert_eq(er_ps_table_lease(&table, 0, &step), ER_PS_PAUSE);
    cr_assert_eq(step, 1);
    cr_assert_eq(must_give(0), 1);
}

Test(ps_table, parts_that_were_done_are_not_given_out_by_the_next_table)
{
    static struct er_ps_table before;

    er_ps_table_init(&table, 2, 100, 4, no_pauses, 10);
    for (uint64_t part = 20; part < 26; part++)
        cr_assert_eq(must_give((uint32_t)part), part);
    cr_assert(er_ps_table_commit(&table, 21) && er_ps_table_commit(&table, 24));
    before = table;
    er_ps_table_init(&table, 2, 100, 4, no_pauses, 10);
    cr_assert(er_ps_table_resume(&table, before.bits));
    cr_assert_eq(must_give(0), 20, "whatever its number is now");
    cr_assert_eq(must_give(1), 22);
    cr_assert_eq(must_give(2), 23);
    cr_assert_eq(must_give(3), 25);
    cr_assert_not(er_ps_table_commit(&table, 24), "it counts once");
    cr_assert(er_ps_table_commit(&table, 20));
    cr_assert_eq(table.done_steps, 11);
}

Test(ps_table, bits_that_no_table_can_have_are_refused)
{
    static uint64_t bits[ER_PS_WINDOW / 64];

    memset(bits, 0, sizeof(bits));
    bits[0] = 1ull << 63; /* behind the last part */
    er_ps_table_init(&table, 2, 10, ER_PS_UNBOUNDED, no_pauses, 0);
    cr_expect_not(er_ps_table_resume(&table, bits));
    bits[0] = 3; /* a whole step */
    er_ps_table_init(&table, 2, 10, ER_PS_UNBOUNDED, no_pauses, 0);
    cr_expect_not(er_ps_table_resume(&table, bits));
    bits[0] = 0;
    bits[ER_PS_WINDOW / 64 - 1] = 1; /* more were under way than there can be workers */
    er_ps_table_init(&table, 2, 1u << 20, ER_PS_UNBOUNDED, no_pauses, 0);
    cr_expect_not(er_ps_table_resume(&table, bits));
}

/* Workers that take, finish and lose parts at random: each part is done exactly once. */
Test(ps_table, every_part_is_done_once_whatever_happens)
{
    enum { PARTS = 3, STEPS = 50, WORKERS = 4 };
    static const uint64_t pauses[2] = {10, 0};
    static struct er_ps_table before;

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
            if (er_rand_below(&rand, 40) == 0) { /* another generation */
                before = table;
                er_ps_table_init(&table, PARTS, STEPS, seed % 4, pauses, before.done_steps);
                cr_assert(er_ps_table_resume(&table, before.bits));
            }
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
