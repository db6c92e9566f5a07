#include <criterion/criterion.h>

#include "agent/worker_fsm.h"
#include "base/clock.h"

static unsigned step(struct er_worker_fsm *f, enum er_worker_event_kind kind, uint64_t now_us,
                     uint64_t grace_us)
{
    return er_worker_fsm_step(
        f, &(struct er_worker_event){.kind = kind, .now_us = now_us, .grace_us = grace_us});
}

static struct er_worker_fsm fresh(void)
{
    struct er_worker_fsm f;

    er_worker_fsm_init(&f);
    return f;
}

Test(worker_fsm, ordinary_life)
{
    struct er_worker_fsm f = fresh();

    cr_assert_eq(f.state, ER_WORKER_SPAWNING);
    cr_assert_eq(step(&f, ER_WORKER_EV_EXECED, 1, 0), 0);
    cr_assert_eq(f.state, ER_WORKER_UP);
    cr_assert_eq(step(&f, ER_WORKER_EV_READY, 2, 0), 0);
    cr_assert_eq(f.state, ER_WORKER_READY);
    cr_assert_eq(step(&f, ER_WORKER_EV_EXITED, 3, 0), 0);
    cr_assert_eq(f.state, ER_WORKER_EXITED);
    cr_assert_not(f.stopped_by_us);
    cr_assert_not(er_worker_fsm_alive(&f));
}

Test(worker_fsm, ladder_is_notice_signal_grace_kill)
{
    struct er_worker_fsm f = fresh();

    step(&f, ER_WORKER_EV_EXECED, 0, 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_STOP, 100, 50), ER_WORKER_ACT_NOTICE | ER_WORKER_ACT_SIGNAL);
    cr_assert_eq(f.deadline_us, 150);
    cr_assert_eq(step(&f, ER_WORKER_EV_TIME, 149, 0), 0);
    cr_assert_eq(f.state, ER_WORKER_STOPPING);
    cr_assert_eq(step(&f, ER_WORKER_EV_TIME, 150, 0), ER_WORKER_ACT_KILL);
    cr_assert_eq(f.state, ER_WORKER_KILLING);
    cr_assert_eq(f.deadline_us, ER_FOREVER);
    cr_assert_eq(step(&f, ER_WORKER_EV_TIME, 1000, 0), 0);
    cr_assert(f.stopped_by_us);
}

Test(worker_fsm, grace_is_only_ever_shortened)
{
    struct er_worker_fsm f = fresh();

    step(&f, ER_WORKER_EV_STOP, 0, 100);
    step(&f, ER_WORKER_EV_HURRY, 0, 500);
    cr_assert_eq(f.deadline_us, 100);
    step(&f, ER_WORKER_EV_HURRY, 20, 30);
    cr_assert_eq(f.deadline_us, 50);
    cr_assert_eq(step(&f, ER_WORKER_EV_STOP, 40, 1000), 0);
    cr_assert_eq(f.deadline_us, 50);
}

Test(worker_fsm, kill_works_in_every_living_state_once)
{
    for (int how = 0; how < 4; how++) {
        struct er_worker_fsm f = fresh();

        if (how > 0)
            step(&f, ER_WORKER_EV_EXECED, 0, 0);
        if (how > 1)
            step(&f, ER_WORKER_EV_READY, 0, 0);
        if (how > 2)
            step(&f, ER_WORKER_EV_STOP, 0, 10);
        cr_assert_eq(step(&f, ER_WORKER_EV_KILL, 1, 0), ER_WORKER_ACT_KILL);
        cr_assert_eq(step(&f, ER_WORKER_EV_KILL, 1, 0), 0);
        cr_assert_eq(f.state, ER_WORKER_KILLING);
    }
}

Test(worker_fsm, no_event_moves_a_dead_worker)
{
    for (int event = 0; event < ER_WORKER_EV_COUNT; event++) {
        struct er_worker_fsm f = fresh();

        step(&f, ER_WORKER_EV_EXITED, 0, 0);
        cr_assert_eq(step(&f, (enum er_worker_event_kind)event, ER_FOREVER, 0), 0);
        cr_assert_eq(f.state, ER_WORKER_EXITED);
    }
}

/* Every walk of five events ends in a state that may still end, and never resurrects. */
Test(worker_fsm, every_short_walk_is_legal)
{
    enum { LENGTH = 5 };
    unsigned walks = 1;

    for (int i = 0; i < LENGTH; i++)
        walks *= ER_WORKER_EV_COUNT;
    for (unsigned walk = 0; walk < walks; walk++) {
        struct er_worker_fsm f = fresh();
        bool dead = false;

        for (unsigned i = 0, rest = walk; i < LENGTH; i++, rest /= ER_WORKER_EV_COUNT) {
            step(&f, (enum er_worker_event_kind)(rest % ER_WORKER_EV_COUNT), i, 1);
            cr_assert_not(dead && er_worker_fsm_alive(&f));
            dead = !er_worker_fsm_alive(&f);
        }
    }
}

Test(worker_fsm, states_have_the_names_of_the_metric)
{
    cr_assert_str_eq(er_worker_state_name(ER_WORKER_SPAWNING), "spawning");
    cr_assert_str_eq(er_worker_state_name(ER_WORKER_EXITED), "exited");
    cr_assert_str_eq(er_worker_state_name(ER_WORKER_STATE_COUNT), "unknown");
}

Test(worker_fsm, who_leaves_its_generation_is_up_again_in_the_next)
{
    struct er_worker_fsm f = fresh();

    step(&f, ER_WORKER_EV_READY, 0, 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_LEAVE, 100, 50), ER_WORKER_ACT_NOTICE);
    cr_assert(f.state == ER_WORKER_STOPPING && f.stopped_by_us && f.deadline_us == 150);
    cr_assert_eq(step(&f, ER_WORKER_EV_LEFT, 120, 0), 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_TIME, 1000, 0), 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_REJOIN, 1000, 0), 0);
    cr_assert(f.state == ER_WORKER_UP && !f.stopped_by_us && f.deadline_us == ER_FOREVER);
    step(&f, ER_WORKER_EV_READY, 1001, 0);
    cr_assert_eq(f.state, ER_WORKER_READY);
}

Test(worker_fsm, who_offers_to_live_on_may_do_so_from_its_start_up_on)
{
    struct er_worker_fsm f = fresh();

    cr_assert_eq(step(&f, ER_WORKER_EV_LEAVE, 100, 50), ER_WORKER_ACT_NOTICE);
    cr_assert_eq(step(&f, ER_WORKER_EV_EXECED, 101, 0), 0);
    cr_assert(f.state == ER_WORKER_STOPPING && f.deadline_us == 150);
    step(&f, ER_WORKER_EV_LEFT, 120, 0);
    step(&f, ER_WORKER_EV_REJOIN, 1000, 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_ASK, 1001, 50), ER_WORKER_ACT_ASK);
    f = fresh();
    cr_assert_eq(step(&f, ER_WORKER_EV_ASK, 100, 50), ER_WORKER_ACT_ASK);
    cr_assert(f.state == ER_WORKER_STOPPING && f.stopped_by_us);
}

Test(worker_fsm, who_does_not_leave_in_time_is_killed)
{
    struct er_worker_fsm f = fresh();

    step(&f, ER_WORKER_EV_READY, 0, 0);
    step(&f, ER_WORKER_EV_LEAVE, 100, 50);
    cr_assert_eq(step(&f, ER_WORKER_EV_TIME, 150, 0), ER_WORKER_ACT_KILL);
    cr_assert_eq(step(&f, ER_WORKER_EV_REJOIN, 160, 0), 0);
    cr_assert_eq(f.state, ER_WORKER_KILLING);
}

Test(worker_fsm, who_is_asked_to_leave_may_be_told_to_leave_at_once)
{
    struct er_worker_fsm f = fresh();

    step(&f, ER_WORKER_EV_READY, 0, 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_ASK, 100, 1000), ER_WORKER_ACT_ASK);
    cr_assert(f.state == ER_WORKER_STOPPING && f.stopped_by_us && f.deadline_us == 1100);
    cr_assert_eq(step(&f, ER_WORKER_EV_ASK, 110, 50), 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_LEAVE, 200, 30), ER_WORKER_ACT_NOTICE);
    cr_assert_eq(f.deadline_us, 230);
    cr_assert_eq(step(&f, ER_WORKER_EV_STOP, 210, 40), ER_WORKER_ACT_NOTICE | ER_WORKER_ACT_SIGNAL);
    cr_assert_eq(step(&f, ER_WORKER_EV_LEAVE, 220, 90), 0);
    cr_assert_eq(f.deadline_us, 250);
}

Test(worker_fsm, the_ladder_begins_for_who_waits_for_the_next_generation_when_there_is_none)
{
    struct er_worker_fsm f = fresh();

    step(&f, ER_WORKER_EV_READY, 0, 0);
    step(&f, ER_WORKER_EV_LEAVE, 100, 50);
    step(&f, ER_WORKER_EV_LEFT, 120, 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_STOP, 200, 30), ER_WORKER_ACT_NOTICE | ER_WORKER_ACT_SIGNAL);
    cr_assert_eq(f.deadline_us, 230);
    cr_assert_eq(step(&f, ER_WORKER_EV_STOP, 210, 5), 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_LEFT, 215, 0), 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_REJOIN, 220, 0), 0);
    cr_assert_eq(step(&f, ER_WORKER_EV_TIME, 230, 0), ER_WORKER_ACT_KILL);
}
