#include "rendezvous/rdzv.h"

#include <string.h>

#include "tests/unit/rdzv_case.h"

/* Another spec for a running job: rolled out node by node. */

static void restart(int i, const char *spec, bool update)
{
    er_driver_leave(nodes[i].driver, 75, "restarted");
    pass(ER_US_PER_S);
    cr_assert(nodes[i].over);
    down(i);
    base.spec = spec;
    base.update_spec = update;
    up(i);
    settle();
}

Test(rdzv_respec, without_consent_a_different_spec_is_refused)
{
    begin(1, 3);
    form(3);
    restart(1, "command=other\n", false);
    cr_assert(nodes[1].over);
    cr_assert_eq(nodes[1].v.exit_code, 76);
    end();
}

Test(rdzv_respec, carriers_wait_as_spares_till_there_are_enough)
{
    begin(2, 3);
    form(3);
    restart(2, "command=other\n", true);
    pass(200 * ER_US_PER_S);
    cr_assert_eq(nodes[2].running, 0u); /* not in the old generation */
    cr_assert_eq(nodes[0].a.nnodes, 2);
    restart(1, "command=other\n", false); /* which is the next one already */
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[1].a.nnodes, 2); /* two have it, one the old one */
    cr_assert_eq(nodes[2].running, nodes[1].running);
    cr_assert(nodes[0].over); /* with neither it has nothing to do here */
    cr_assert_eq(nodes[0].v.exit_code, 76);
    down(0);
    up(0);
    pass(100 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.nnodes, 3);
    cr_assert_eq(nodes[1].a.restarts, 0u);
    end();
}

Test(rdzv_respec, a_generation_never_mixes_specs)
{
    begin(2, 3);
    form(3);
    restart(2, "command=other\n", true);
    pass(10 * ER_US_PER_S);
    fail(0); /* there is a place, but one carrier is not enough */
    pass(100 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    cr_assert_eq(nodes[0].a.nnodes, 2);
    cr_assert_eq(nodes[0].running, nodes[1].running);
    cr_assert_eq(nodes[2].running, 0u);
    end();
}

Test(rdzv_respec, with_min_equal_to_max_the_job_waits_for_the_last_node)
{
    begin(3, 3);
    form(3);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(nodes[2].starts, 1u);
        restart(i, "command=other\n", true);
    }
    pass(10 * ER_US_PER_S);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(nodes[i].starts, 1u);
        cr_assert_eq(nodes[i].a.nnodes, 3);
    }
    end();
}

Test(rdzv_respec, a_failure_brings_the_next_spec_into_force)
{
    begin(2, 3);
    form(3);
    base.spec = "command=other\n";
    base.update_spec = true;
    up(3);
    up(4);
    pass(100 * ER_US_PER_S);
    cr_assert_eq(nodes[3].running, 0u); /* nothing is ended for it */
    fail(1);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[3].a.nnodes, 2);
    cr_assert_eq(nodes[4].a.nnodes, 2);
    cr_assert_eq(nodes[3].a.restarts, 1u);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(nodes[i].v.exit_code, 76);
    end();
}

Test(rdzv_respec, who_has_a_spec_that_was_to_be_and_is_not_leaves)
{
    begin(1, 3);
    form(1);
    pass(31 * ER_US_PER_S);
    base.update_spec = true;
    base.spec = "command=second\n";
    up(1);
    pass(ER_US_PER_S);
    base.spec = "command=third\n";
    up(2);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[1].running, 0u);
    er_driver_leave(nodes[0].driver, 75, "restarted");
    pass(30 * ER_US_PER_S);
    cr_assert_eq(nodes[2].running, nodes[2].a.generation);
    cr_assert_eq(nodes[2].a.nnodes, 1);
    cr_assert_eq(nodes[1].v.exit_code, 76);
    end();
}

Test(rdzv_respec, two_that_disagree_do_not_take_turns)
{
    begin(1, 3);
    form(1);
    base.update_spec = true;
    base.spec = "command=second\n";
    up(1);
    base.spec = "command=third\n";
    up(2);
    pass(10 * ER_US_PER_S);
    cr_assert_neq(nodes[1].over, nodes[2].over);
    cr_assert_eq(nodes[nodes[1].over ? 1 : 2].v.exit_code, 76);
    end();
}
