#include <criterion/criterion.h>

#include "agent/straggler.h"
#include "base/clock.h"

#define S  ER_US_PER_S
#define MS ER_US_PER_MS

#define RANKS 4

struct world {
    struct er_straggler s;
    struct er_straggler_rank ranks[RANKS];
    struct er_straggler_sample says[RANKS];
    uint64_t now_us;
    int who[RANKS];
};

static void begin(struct world *w)
{
    *w = (struct world){.s = {.threshold = 0.7, .for_us = 50 * S}, .now_us = 7 * S};
    for (int i = 0; i < RANKS; i++)
        w->says[i].reports = true;
}

static int look(struct world *w)
{
    return er_straggler_look(&w->s, w->ranks, w->says, RANKS, w->now_us, w->who);
}

/* A slice of 20 steps: rank i is busy for own_ms[i] of each, the median is `median_ms` (0: not
 * known). Returns how many stragglers are told of. */
static int slice(struct world *w, const unsigned own_ms[RANKS], unsigned median_ms)
{
    if (w->s.slice_end_us == 0)
        cr_assert_eq(look(w), 0);
    for (int i = 0; i < RANKS; i++) {
        w->says[i].step += 20;
        w->says[i].busy_us += 20 * own_ms[i] * MS;
        w->says[i].median_us += 20 * median_ms * MS;
    }
    w->now_us = er_straggler_due(&w->s, w->now_us);
    return look(w);
}

Test(straggler, who_is_too_slow_all_the_time_is_told)
{
    const unsigned ms[RANKS] = {100, 100, 200, 100};
    struct world w;

    begin(&w);
    for (int i = 1; i < ER_STRAGGLER_SLICES; i++)
        cr_assert_eq(slice(&w, ms, 100), 0);
    cr_assert_eq(slice(&w, ms, 100), 1);
    cr_assert_eq(w.who[0], 2);
    cr_assert_float_eq(w.ranks[2].ratio, 0.5, 0.001);
    cr_assert_float_eq(w.ranks[2].cost_ms, 100, 0.1);
    cr_assert_eq(w.now_us, (7 + 50) * S);
    for (int i = 1; i < ER_STRAGGLER_SLICES; i++)
        cr_assert_eq(slice(&w, ms, 100), 0);
    cr_assert_eq(slice(&w, ms, 100), 1); /* again after as long again */
}

Test(straggler, who_recovers_is_not_told)
{
    const unsigned slow[RANKS] = {100, 100, 200, 100}, well[RANKS] = {100, 100, 110, 100};
    struct world w;

    begin(&w);
    for (int round = 0; round < 5; round++) {
        for (int i = 1; i < ER_STRAGGLER_SLICES; i++)
            cr_assert_eq(slice(&w, slow, 100), 0);
        cr_assert_eq(slice(&w, well, 100), 0);
    }
}

Test(straggler, all_of_a_node_may_be)
{
    const unsigned ms[RANKS] = {200, 200, 200, 200}; /* the median is of the other nodes' ranks */
    struct world w;
    int told = 0;

    begin(&w);
    for (int i = 0; i < ER_STRAGGLER_SLICES; i++)
        told = slice(&w, ms, 100);
    cr_assert_eq(told, RANKS);
}

Test(straggler, without_a_vote_this_nodes_ranks_are_compared)
{
    const unsigned ms[RANKS] = {101, 99, 102, 190};
    struct world w;
    int told = 0;

    begin(&w);
    for (int i = 0; i < ER_STRAGGLER_SLICES; i++)
        told = slice(&w, ms, 0);
    cr_assert_eq(told, 1);
    cr_assert_eq(w.who[0], 3);
}

Test(straggler, two_ranks_have_no_median)
{
    const unsigned ms[RANKS] = {100, 300, 100, 100};
    struct world w;

    begin(&w);
    w.says[2].reports = w.says[3].reports = false;
    for (int i = 0; i < 3 * ER_STRAGGLER_SLICES; i++)
        cr_assert_eq(slice(&w, ms, 0), 0);
}

Test(straggler, who_makes_no_step_is_no_straggler)
{
    const unsigned ms[RANKS] = {100, 100, 200, 100};
    struct world w;

    begin(&w);
    for (int i = 0; i < 3 * ER_STRAGGLER_SLICES; i++) {
        w.says[2].step -= i > 0 ? 20 : 0; /* it began anew: its totals are small again */
        cr_assert_eq(slice(&w, ms, 100), 0);
    }
}

Test(straggler, threshold_0_looks_at_nobody)
{
    struct world w;

    begin(&w);
    w.s.threshold = 0;
    cr_assert_eq(er_straggler_due(&w.s, w.now_us), ER_FOREVER);
    cr_assert_eq(look(&w), 0);
}
