#include "rendezvous/rdzv.h"

#include <errno.h>

#include "tests/unit/rdzv_case.h"

/* What is set while the job runs: written once, seen by all, and by those that come later. */

static struct asked {
    const char *text, *id;
    int refuses;
    unsigned merges, answers;
    int rc;
    uint64_t seq; /* that was there at the last merge */
} asked;

static int merge(void *user, const struct er_overrides *now, struct er_overrides *next)
{
    asked.merges++;
    asked.seq = now->seq;
    if (asked.refuses)
        return asked.refuses;
    snprintf(next->id, sizeof(next->id), "%s", asked.id);
    snprintf(next->text, sizeof(next->text), "%s", asked.text);
    return 0;
}

static void answered(void *user, int rc, const void *value, size_t n)
{
    asked.answers++;
    asked.rc = rc;
}

static void set(int i, const char *text)
{
    static char ids[8][16];
    static unsigned count;
    char *id = ids[count++ % 8];

    snprintf(id, 16, "set-%u", count);
    asked = (struct asked){.text = text, .id = id};
    er_driver_override(nodes[i].driver, now_us + 5 * ER_US_PER_S, merge, answered, NULL);
}

Test(rdzv_override, all_nodes_see_it_at_once_and_newcomers_before_they_start)
{
    begin(1, 4);
    form(3);
    cr_assert_eq(nodes[1].overrides_told, 1u); /* that there are none */
    set(2, "hang.floor=5m\n");
    settle();
    cr_assert_eq(asked.answers, 1u);
    cr_assert_eq(asked.rc, 0);
    cr_assert_eq(asked.seq, 0u);
    for (int i = 0; i < 3; i++)
        cr_assert_str_eq(nodes[i].overrides, "hang.floor=5m\n");
    up(3);
    settle();
    cr_assert_str_eq(nodes[3].overrides, "hang.floor=5m\n");
    cr_assert_eq(nodes[3].overrides_told, 1u);
    pass(100 * ER_US_PER_S);
    cr_assert_eq(nodes[3].starts, 1u);
    end();
}

Test(rdzv_override, each_change_is_made_from_the_one_before)
{
    begin(1, 2);
    form(2);
    set(0, "a=1\n");
    settle();
    set(1, "b=2\n");
    settle();
    cr_assert_eq(asked.seq, 1u);
    cr_assert_eq(er_driver_overrides(nodes[0].driver)->seq, 2u);
    set(1, "");
    settle();
    cr_assert_str_eq(nodes[0].overrides, "");
    end();
}

/* The record is written once, whatever becomes of the answer. */
Test(rdzv_override, a_lost_answer_is_found_out)
{
    begin(1, 2);
    form(2);
    set(1, "a=1\n");
    work(); /* read */
    for (int i = 0; i < 3 && asked.merges == 0; i++)
        work();
    er_store_mem_fault(nodes[1].client, ER_FAULT_LOST_REPLY, 0);
    pass(ER_US_PER_S);
    cr_assert_eq(asked.answers, 1u);
    cr_assert_eq(asked.rc, 0);
    cr_assert_eq(er_driver_overrides(nodes[0].driver)->seq, 1u);
    cr_assert_eq(nodes[0].overrides_told, 2u);
    end();
}

Test(rdzv_override, a_refusal_writes_nothing)
{
    begin(1, 2);
    form(2);
    asked = (struct asked){.refuses = -EINVAL};
    er_driver_override(nodes[1].driver, now_us + ER_US_PER_S, merge, answered, NULL);
    settle();
    cr_assert_eq(asked.rc, -EINVAL);
    asked = (struct asked){.refuses = 1};
    er_driver_override(nodes[1].driver, now_us + ER_US_PER_S, merge, answered, NULL);
    settle();
    cr_assert_eq(asked.answers, 1u);
    cr_assert_eq(asked.rc, 0);
    cr_assert_null(er_driver_overrides(nodes[0].driver));
    end();
}

/* The leader has no part in it: that it dies changes nothing, and its successor knows. */
Test(rdzv_override, it_does_not_need_the_leader)
{
    begin(1, 3);
    form(3);
    down(0);
    set(1, "a=1\n");
    settle();
    cr_assert_eq(asked.rc, 0);
    pass(60 * ER_US_PER_S);
    cr_assert_str_eq(nodes[2].overrides, "a=1\n");
    cr_assert_eq(nodes[1].a.nnodes, 2);
    end();
}

static struct er_driver_tuning tuning(uint32_t restart_max)
{
    return (struct er_driver_tuning){.restart_max = restart_max,
                                     .restart_window_us = ER_FOREVER,
                                     .strike_max = base.strike_max,
                                     .strike_window_us = base.strike_window_us,
                                     .strike_cooldown_us = base.strike_cooldown_us};
}

Test(rdzv_override, the_leader_goes_by_the_new_budget)
{
    struct er_driver_tuning t = tuning(1);

    base.restart_max = 3;
    begin(2, 2);
    form(2);
    for (int i = 0; i < 2; i++)
        er_driver_tune(nodes[i].driver, &t);
    settle();
    fail(0);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[0].a.restarts, 1u);
    fail(1);
    pass(10 * ER_US_PER_S);
    cr_assert(nodes[0].over);
    cr_assert_eq(nodes[0].v.kind, ER_VERDICT_FAILED);
    cr_assert(strstr(nodes[0].v.reason, "1"), "%s", nodes[0].v.reason);
    end();
}

Test(rdzv_override, grows_follow_the_new_pace)
{
    struct er_driver_tuning t = tuning(3);

    begin(1, 2);
    form(1);
    pass(31 * ER_US_PER_S);
    t.resize_settle_us = 40 * ER_US_PER_S;
    t.resize_min_interval_us = 1;
    er_driver_tune(nodes[0].driver, &t);
    up(1);
    pass(39 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 0u);
    t.resize_settle_us = 1;
    er_driver_tune(nodes[0].driver, &t);
    pass(ER_US_PER_S / 2);
    cr_assert_eq(nodes[1].starts, 1u);
    end();
}

/* ---- the spec ---- */

/* The file was brought up to date with what the job does: that is no other spec. */
Test(rdzv_override, a_file_that_has_the_overrides_value_agrees)
{
    begin(1, 3);
    base.spec = "command=train\nhang.floor=1m\n";
    form(1);
    set(0, "hang.floor=5m\n");
    settle();
    base.spec = "command=train\nhang.floor=5m\n";
    up(1);
    pass(100 * ER_US_PER_S);
    cr_assert_eq(nodes[1].starts, 1u);
    cr_assert_str_eq(er_driver_spec(nodes[1].driver), "command=train\nhang.floor=1m\n");
    base.spec = "command=train\nhang.floor=6m\n";
    up(2);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[2].v.exit_code, 76);
    end();
}

Test(rdzv_override, once_unset_such_a_file_differs)
{
    begin(1, 2);
    base.spec = "command=train\nhang.floor=1m\n";
    form(1);
    set(0, "hang.floor=5m\n");
    settle();
    set(0, "");
    settle();
    base.spec = "command=train\nhang.floor=5m\n";
    up(1);
    pass(10 * ER_US_PER_S);
    cr_assert_eq(nodes[1].v.exit_code, 76);
    end();
}

Test(rdzv_override, they_stay_when_the_spec_changes)
{
    begin(1, 2);
    form(2);
    set(0, "hang.floor=5m\n");
    settle();
    base.spec = "command=other\n";
    base.update_spec = true;
    for (int i = 0; i < 2; i++) {
        er_driver_leave(nodes[i].driver, 75, "restarted");
        pass(ER_US_PER_S);
        down(i);
        up(i);
        pass(100 * ER_US_PER_S);
    }
    cr_assert_eq(nodes[1].a.nnodes, 2);
    cr_assert_str_eq(nodes[1].overrides, "hang.floor=5m\n");
    end();
}

/* ---- runs ---- */

Test(rdzv_override, they_end_with_their_run)
{
    begin(1, 1);
    form(1);
    set(0, "hang.floor=5m\n");
    settle();
    er_driver_result(nodes[0].driver, nodes[0].running, NULL);
    settle();
    cr_assert(nodes[0].over);
    set(0, "hang.floor=6m\n");
    pass(ER_US_PER_S);
    down(0);
    base.new_run = ER_NEW_RUN_RESUME;
    up(0);
    pass(ER_US_PER_S);
    cr_assert_eq(nodes[0].starts, 1u);
    cr_assert_str_eq(nodes[0].overrides, "");
    cr_assert_null(er_driver_overrides(nodes[0].driver));
    end();
}

/* All agents leave, and the same command goes on: it is the same run. */
Test(rdzv_override, they_outlive_a_pause_of_the_job)
{
    begin(1, 1);
    form(1);
    set(0, "hang.floor=5m\n");
    settle();
    er_driver_leave(nodes[0].driver, 75, "preempted");
    pass(ER_US_PER_S);
    cr_assert(nodes[0].over);
    down(0);
    up(0);
    pass(ER_US_PER_S);
    cr_assert_str_eq(nodes[0].overrides, "hang.floor=5m\n");
    end();
}

static void ignored(void *user, int rc, const struct er_store_reply *reply) {}

Test(rdzv_override, a_record_that_cannot_be_read_changes_nothing)
{
    const char key[] = "/elastic-run/job/overrides";
    const struct er_store_op op = {
        .kind = ER_OP_PUT, .key = {key, sizeof(key) - 1}, .value = {"o\x63zzz", 5}};

    begin(1, 1);
    form(1);
    set(0, "hang.floor=5m\n");
    settle();
    cr_assert_eq(nodes[0].client->ops->txn(nodes[0].client,
                                           &(struct er_store_txn){.then_ops = &op, .then_n = 1},
                                           ignored, NULL),
                 0);
    pass(ER_US_PER_S);
    cr_assert_str_eq(nodes[0].overrides, "hang.floor=5m\n");
    cr_assert_eq(nodes[0].overrides_told, 2u);
    set(0, "hang.floor=6m\n");
    pass(ER_US_PER_S);
    cr_assert_eq(asked.rc, ER_E_PROTOCOL);
    end();
}
