#include <criterion/criterion.h>

#include "agent/hang.h"
#include "base/clock.h"

#define S  ER_US_PER_S
#define MS ER_US_PER_MS

/* One rank, looked at whenever it is due, in virtual time. */
struct world {
    struct er_hang h;
    struct er_hang_rank rank;
    struct er_hang_sample says;
    uint64_t now_us;
};

static void begin(struct world *w)
{
    *w = (struct world){
        .h.limits = {.floor_us = 10 * S,
                     .startup_us = 100 * S,
                     .checkpoint_us = 50 * S,
                     .evaluation_us = 200 * S,
                     .factor = 10},
        .now_us = 1000 * S,
        .says = {.reports = true, .begun_us = 1000 * S, .reported_us = 1000 * S},
    };
    er_hang_begin(&w->h, w->now_us);
}

static void look(struct world *w)
{
    (void)er_hang_awake(&w->h, &w->rank, 1, w->now_us);
    er_hang_look(&w->h, &w->rank, &w->says, w->now_us);
    er_hang_looked(&w->h, &w->rank, 1, w->now_us);
}

/* The agent's loop, for `us`: it looks when it is due. */
static void pass(struct world *w, uint64_t us)
{
    uint64_t end_us = w->now_us + us;

    while (w->h.due_us <= end_us) {
        w->now_us = w->h.due_us;
        look(w);
    }
    w->now_us = end_us;
}

static void say(struct world *w, enum er_phase phase, uint64_t step)
{
    w->says.phase = phase;
    w->says.step = step;
    w->says.reported_us = w->now_us;
    if (step > 0 && !w->says.first_us) {
        w->says.first_us = w->now_us;
        w->says.first_step = step;
    }
}

/* `n` steps of `us`. */
static void train(struct world *w, int n, uint64_t us)
{
    for (int i = 0; i < n; i++) {
        pass(w, us);
        say(w, ER_PHASE_DATA, w->says.step + 1);
    }
    look(w);
}

static enum er_hang_state state(struct world *w)
{
    return er_hang_state(&w->h, &w->rank, w->now_us);
}

/* How long it takes until it is late. */
static uint64_t late_after(struct world *w)
{
    uint64_t from_us = w->now_us;

    while (!er_hang_alarms(&w->h, &w->rank, w->now_us)) {
        cr_assert(w->now_us < from_us + 100000 * S);
        w->now_us = w->h.due_us;
        look(w);
    }
    return w->now_us - from_us;
}

Test(hang, p99_is_at_most_an_eighth_too_long)
{
    for (uint64_t us = 2 * MS; us < 1000 * S; us = us * 5 / 4) {
        struct er_hang_steps steps = {0};

        er_hang_steps_add(&steps, us, 1);
        cr_assert_geq(er_hang_steps_p99(&steps), us);
        cr_assert_leq(er_hang_steps_p99(&steps), us + us / 8 + 1);
    }
}

Test(hang, p99_of_few_steps_is_the_longest)
{
    struct er_hang_steps steps = {0};

    cr_assert_eq(er_hang_steps_p99(&steps), 0);
    er_hang_steps_add(&steps, 5 * S, 1);
    er_hang_steps_add(&steps, 10 * MS, 60);
    cr_assert_geq(er_hang_steps_p99(&steps), 5 * S);
}

Test(hang, p99_forgets_what_was_long_ago)
{
    struct er_hang_steps steps = {0};

    for (int i = 0; i < 100; i++)
        er_hang_steps_add(&steps, 60 * S, 1);
    for (int i = 0; i < 20000; i++)
        er_hang_steps_add(&steps, 100 * MS, 1);
    cr_assert_leq(steps.n, ER_HANG_STEPS_MAX);
    cr_assert_leq(er_hang_steps_p99(&steps), 120 * MS);
}

Test(hang, strange_durations_are_taken)
{
    struct er_hang_steps steps = {0};

    er_hang_steps_add(&steps, UINT64_MAX, UINT64_MAX);
    er_hang_steps_add(&steps, 0, 1);
    cr_assert_gt(er_hang_steps_p99(&steps), 0);
}

Test(hang, short_steps_leave_the_floor)
{
    struct world w;

    begin(&w);
    train(&w, 50, 100 * MS);
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), 10 * S);
    cr_assert_eq(late_after(&w), 10 * S);
}

Test(hang, long_steps_stretch_the_deadline)
{
    struct world w;
    uint64_t limit;

    begin(&w);
    train(&w, 20, 6 * S);
    limit = er_hang_limit(&w.h, &w.rank);
    cr_assert_geq(limit, 60 * S);
    cr_assert_leq(limit, 75 * S);
    cr_assert_eq(late_after(&w), limit);
}

Test(hang, startup_lasts_until_steps_are_known)
{
    struct world w;

    begin(&w);
    pass(&w, 40 * S);
    say(&w, ER_PHASE_FORWARD, 0);
    pass(&w, 40 * S);
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), 100 * S);
    cr_assert_eq(late_after(&w), 20 * S); /* signs of life do not prolong it */
    begin(&w);
    train(&w, 1, 30 * S); /* a first step may take its time, and so may the second */
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), 100 * S);
}

Test(hang, steps_before_the_first_look_are_known_too)
{
    struct world w;

    begin(&w);
    w.now_us += 500 * MS; /* two looks are further apart */
    say(&w, ER_PHASE_DATA, 11);
    w.says.first_us = w.now_us - 100 * MS;
    w.says.first_step = 1;
    look(&w);
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), 10 * S);
    cr_assert_eq(late_after(&w), 10 * S);
}

Test(hang, checkpoint_and_evaluation_have_their_own)
{
    struct world w;

    begin(&w);
    train(&w, 50, 100 * MS);
    say(&w, ER_PHASE_CHECKPOINT, 50);
    look(&w);
    cr_assert_eq(late_after(&w), 50 * S);
    train(&w, 2, 100 * MS);
    say(&w, ER_PHASE_EVALUATION, 52);
    look(&w);
    pass(&w, 20 * S);
    cr_assert_eq(state(&w), ER_HANG_PATIENT);
    cr_assert_eq(late_after(&w), 180 * S);
}

Test(hang, checkpoints_do_not_count_as_steps)
{
    struct world w;

    begin(&w);
    train(&w, 20, 100 * MS);
    say(&w, ER_PHASE_CHECKPOINT, 20);
    pass(&w, 40 * S);
    say(&w, ER_PHASE_DATA, 20);
    train(&w, 20, 100 * MS);
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), 10 * S);
}

Test(hang, idle_has_no_limit_but_may_be_waited_for)
{
    struct world w;

    begin(&w);
    train(&w, 20, 100 * MS);
    say(&w, ER_PHASE_IDLE, 20);
    look(&w);
    pass(&w, 4 * S);
    cr_assert_eq(state(&w), ER_HANG_MOVING);
    pass(&w, 100 * S);
    cr_assert_eq(state(&w), ER_HANG_STILL);
    cr_assert_not(er_hang_alarms(&w.h, &w.rank, w.now_us));
}

Test(hang, phases_and_collectives_are_signs_of_life)
{
    struct world w;

    begin(&w);
    train(&w, 20, 100 * MS);
    for (int i = 0; i < 10; i++) {
        pass(&w, 9 * S);
        w.says.collective++;
        pass(&w, 9 * S);
        say(&w, i % 2 ? ER_PHASE_FORWARD : ER_PHASE_BACKWARD, 20);
        cr_assert_neq(state(&w), ER_HANG_LATE);
    }
    look(&w);
    cr_assert_eq(late_after(&w), 10 * S);
}

Test(hang, the_same_word_again_is_none)
{
    struct world w;
    uint64_t from_us;

    begin(&w);
    train(&w, 20, 100 * MS);
    from_us = w.now_us;
    for (int i = 0; i < 9; i++) {
        pass(&w, 1 * S);
        say(&w, ER_PHASE_DATA, 20);
    }
    cr_assert_eq(late_after(&w) + 9 * S, 10 * S);
    cr_assert_eq(w.now_us - from_us, 10 * S);
}

Test(hang, who_does_not_report_is_left_alone)
{
    struct world w;

    begin(&w);
    w.says = (struct er_hang_sample){.begun_us = w.now_us};
    pass(&w, 100000 * S);
    cr_assert_eq(state(&w), ER_HANG_MOVING);
    cr_assert_not(er_hang_alarms(&w.h, &w.rank, w.now_us));
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), ER_FOREVER);
}

Test(hang, time_in_which_the_agent_did_not_run_counts_for_nobody)
{
    struct world w;

    begin(&w);
    train(&w, 20, 100 * MS);
    pass(&w, 2 * S);
    w.now_us += 3600 * S; /* node and agent were frozen */
    look(&w);
    cr_assert_neq(state(&w), ER_HANG_LATE);
    cr_assert_geq(late_after(&w), 7 * S);
}

Test(hang, a_frozen_step_does_not_stretch_the_deadline)
{
    struct world w;

    begin(&w);
    train(&w, 20, 100 * MS);
    w.now_us += 3600 * S;
    say(&w, ER_PHASE_DATA, 21);
    look(&w);
    train(&w, 20, 100 * MS);
    cr_assert_eq(er_hang_limit(&w.h, &w.rank), 10 * S);
}

Test(hang, told_once_a_deadline)
{
    struct world w;

    begin(&w);
    train(&w, 20, 100 * MS);
    cr_assert_eq(late_after(&w), 10 * S);
    w.rank.told_us = w.now_us;
    cr_assert_not(er_hang_alarms(&w.h, &w.rank, w.now_us));
    look(&w);
    cr_assert_eq(late_after(&w), 10 * S);
}

Test(hang, without_limits_nobody_is_late)
{
    struct world w;

    begin(&w);
    w.h.limits = (struct er_hang_limits){ER_FOREVER, ER_FOREVER, ER_FOREVER, ER_FOREVER, 10};
    train(&w, 20, 100 * MS);
    pass(&w, 1000000 * S);
    cr_assert_eq(state(&w), ER_HANG_MOVING);
    cr_assert_not(er_hang_alarms(&w.h, &w.rank, w.now_us));
}
