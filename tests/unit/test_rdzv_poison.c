#include "rendezvous/rdzv.h"

#include "rendezvous/rdzv_internal.h"
#include "tests/unit/rdzv_case.h"

/* Steps in which workers fail again and again. */

Test(rdzv_poison, a_later_failure_says_that_earlier_steps_got_through)
{
    struct er_poison p = {0};

    cr_assert_eq(rdzv_poison_add(&p, 50), 1u);
    cr_assert_eq(rdzv_poison_add(&p, 50), 2u);
    cr_assert_eq(rdzv_poison_add(&p, 60), 1u);
    cr_assert_eq(rdzv_poison_add(&p, 50), 1u); /* it had got through */
}

Test(rdzv_poison, an_earlier_failure_after_a_way_back_says_nothing)
{
    struct er_poison p = {0};

    cr_assert_eq(rdzv_poison_add(&p, 50), 1u);
    cr_assert_eq(rdzv_poison_add(&p, 41), 1u);
    cr_assert_eq(rdzv_poison_add(&p, 50), 2u);
    cr_assert_eq(p.n, 1u);
}

Test(rdzv_poison, the_furthest_is_forgotten_where_there_is_no_room)
{
    struct er_poison p = {0};

    for (uint64_t step = 100; step > 100 - ER_POISON_MAX; step--)
        cr_assert_eq(rdzv_poison_add(&p, step), 1u);
    cr_assert_eq(rdzv_poison_add(&p, 10), 1u);
    cr_assert_eq(p.n, ER_POISON_MAX);
    cr_assert_eq(p.steps[0].step, 10u);
    cr_assert_eq(p.steps[ER_POISON_MAX - 1].step, 99u);
}

Test(rdzv_poison, skips_are_ascending_and_few)
{
    struct er_skips s = {0};

    for (uint64_t step = 20; step > 10; step--)
        rdzv_skips_add(&s, step);
    rdzv_skips_add(&s, 20);
    cr_assert_eq(s.n, ER_SKIPS_MAX);
    for (uint32_t i = 1; i < s.n; i++)
        cr_assert_lt(s.steps[i - 1], s.steps[i]);
    cr_assert(rdzv_skips_has(&s, 20));
    cr_assert_not(rdzv_skips_has(&s, 10));
}

/* A worker of `node` fails in `step`; everybody starts anew, or the job is over. */
static void fail_in(int node, uint64_t step)
{
    const struct er_cause cause = {
        .kind = ER_EXIT_EXITED, .code = 1, .step = step - 1, .in_step = step};

    er_driver_result(nodes[node].driver, nodes[node].running, &cause);
    pass(ER_US_PER_S);
}

static void begin_poison(bool skip)
{
    begin(1, 2);
    base.restart_max = 10;
    base.poison_max = 3;
    base.poison_skip = skip;
    form(2);
}

Test(rdzv_poison, the_third_failure_in_a_step_ends_the_job)
{
    begin_poison(false);
    fail_in(0, 51);
    fail_in(1, 51); /* wherever it is */
    cr_assert_not(nodes[0].over);
    fail_in(0, 51);
    for (int i = 0; i < 2; i++) {
        cr_assert(nodes[i].over);
        cr_assert_eq(nodes[i].v.kind, ER_VERDICT_FAILED);
        cr_assert_eq(nodes[i].v.exit_code, 93);
        cr_assert_str_eq(nodes[i].v.reason, "step 51 has failed 3 times (restart.poison_step)");
    }
    end();
}

/* Is it the node, or the step? The others try without the node, and then it is known. */
Test(rdzv_poison, a_node_is_set_aside_before_the_step_is_blamed)
{
    begin(1, 2);
    base.restart_max = 10;
    base.poison_max = base.strike_max = 3;
    base.strike_window_us = 3600 * ER_US_PER_S;
    base.strike_cooldown_us = 3600 * ER_US_PER_S;
    form(2);
    for (int i = 0; i < 3; i++)
        fail_in(0, 51);
    pass(5 * ER_US_PER_S);
    cr_assert_not(nodes[0].over);
    cr_assert_eq(nodes[0].aside_notes + nodes[1].aside_notes, 1u);
    cr_assert_eq(nodes[1].a.nnodes, 1);
    fail_in(1, 51);
    cr_assert_eq(nodes[1].v.exit_code, 93);
    cr_assert_str_eq(nodes[1].v.reason, "step 51 has failed 4 times (restart.poison_step)");
    end();
}

Test(rdzv_poison, steps_that_nobody_reports_do_not_count)
{
    begin_poison(false);
    for (int i = 0; i < 5; i++)
        fail_in(0, 0);
    cr_assert_not(nodes[0].over);
    end();
}

Test(rdzv_poison, a_step_is_left_out_once_and_then_ends_the_job)
{
    begin_poison(true);
    for (int i = 0; i < 3; i++)
        fail_in(0, 51);
    cr_assert_not(nodes[0].over);
    cr_assert_eq(nodes[1].a.skips.n, 1u);
    cr_assert_eq(nodes[1].a.skips.steps[0], 51u);
    fail_in(0, 51); /* the program does not leave it out */
    fail_in(0, 51);
    cr_assert_not(nodes[0].over);
    fail_in(0, 51);
    cr_assert_eq(nodes[0].v.exit_code, 93);
    end();
}
