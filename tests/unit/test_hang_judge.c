#include <criterion/criterion.h>
#include <string.h>

#include "agent/hang_judge.h"
#include "base/clock.h"

#define RANKS_MAX 16

struct job {
    struct er_hang_fact facts[RANKS_MAX];
    bool answered[RANKS_MAX];
    size_t n;
    int nodes;
    struct er_hang_verdict v;
};

/* `n` ranks, two a node, that all wait in collective 7 of the step after 4, too long. */
static void begin(struct job *j, size_t n)
{
    memset(j, 0, sizeof(*j));
    j->n = n;
    j->nodes = (int)(n + 1) / 2;
    for (size_t i = 0; i < n; i++) {
        j->facts[i] = (struct er_hang_fact){.rank = (int)i,
                                            .node_rank = (int)i / 2,
                                            .state = ER_HANG_LATE,
                                            .phase = ER_PHASE_COMMUNICATE,
                                            .step = 4,
                                            .collective = 7,
                                            .still_us = 70 * ER_US_PER_S};
        j->answered[i / 2] = true;
    }
}

static void judge(struct job *j)
{
    er_hang_judge(j->facts, j->n, j->answered, j->nodes, &j->v);
}

static void expect_one(struct job *j, enum er_hang_why why, int rank)
{
    judge(j);
    cr_assert_eq(j->v.why, why);
    cr_assert_eq(j->v.n, 1);
    cr_assert_eq(j->v.who[0].rank, rank);
    cr_assert_eq(er_hang_is_hang(&j->v), why >= ER_HANG_WHY_STOPPED);
}

Test(hang_judge, who_is_stopped_hangs)
{
    struct job j;

    begin(&j, 4);
    j.facts[2].stopped = true;
    expect_one(&j, ER_HANG_WHY_STOPPED, 2);
    cr_assert_eq(j.v.waiting_n, 3);
    cr_assert_eq(j.v.waiting[0], 0);
    cr_assert_eq(j.v.waiting[2], 3);
    j.facts[2].stopped = false;
    j.facts[1].traced = true;
    expect_one(&j, ER_HANG_WHY_STOPPED, 1);
}

Test(hang_judge, who_did_not_come_to_the_collective_hangs)
{
    struct job j;

    begin(&j, 4);
    j.facts[3].collective = 6; /* a wait inside forward, as that of a gather, looks the same */
    j.facts[3].phase = ER_PHASE_FORWARD;
    j.facts[1].phase = ER_PHASE_FORWARD;
    expect_one(&j, ER_HANG_WHY_BEHIND, 3);
}

Test(hang_judge, phases_tell_where_collectives_are_not_counted)
{
    struct job j;

    begin(&j, 4);
    for (int i = 0; i < 4; i++) {
        j.facts[i].collective = 0;
        j.facts[i].phase = ER_PHASE_BACKWARD;
    }
    j.facts[0].phase = ER_PHASE_DATA;
    expect_one(&j, ER_HANG_WHY_BEHIND, 0);
    j.facts[0].phase = ER_PHASE_IDLE;
    j.facts[0].state = ER_HANG_STILL;
    expect_one(&j, ER_HANG_WHY_BEHIND, 0);
}

Test(hang_judge, who_has_finished_fewer_steps_hangs)
{
    struct job j;

    begin(&j, 4);
    j.facts[1].step = 3;
    j.facts[1].collective = 9; /* a communicator of its own */
    expect_one(&j, ER_HANG_WHY_BEHIND, 1);
}

Test(hang_judge, who_does_not_wait_in_the_store_hangs)
{
    struct job j;

    begin(&j, 4);
    for (int i = 0; i < 4; i++) {
        j.facts[i].phase = ER_PHASE_STARTUP;
        j.facts[i].waits = i != 2;
    }
    expect_one(&j, ER_HANG_WHY_BEHIND, 2);
}

Test(hang_judge, several_may_hang)
{
    struct job j;

    begin(&j, 6);
    j.facts[1].collective = j.facts[4].collective = 6;
    judge(&j);
    cr_assert_eq(j.v.why, ER_HANG_WHY_BEHIND);
    cr_assert_eq(j.v.n, 2);
    cr_assert_eq(j.v.who[1].rank, 4);
    cr_assert_eq(j.v.waiting_n, 4);
}

Test(hang_judge, who_saves_a_checkpoint_is_waited_for)
{
    struct job j;

    begin(&j, 4);
    j.facts[0].phase = ER_PHASE_CHECKPOINT;
    j.facts[0].collective = 6;
    j.facts[0].state = ER_HANG_PATIENT;
    expect_one(&j, ER_HANG_WHY_PATIENT, 0);
    j.facts[0].state = ER_HANG_LATE;
    expect_one(&j, ER_HANG_WHY_BEHIND, 0);
}

Test(hang_judge, who_moves_takes_no_part)
{
    struct job j;

    begin(&j, 4);
    for (int i = 0; i < 3; i++) {
        j.facts[i].state = ER_HANG_MOVING;
        j.facts[i].step = 2; /* far behind, each at its own pace */
    }
    expect_one(&j, ER_HANG_WHY_BEHIND, 3);
    cr_assert_eq(j.v.waiting_n, 0);
}

Test(hang_judge, nobody_hangs_while_nobody_is_late)
{
    struct job j;

    begin(&j, 4);
    for (int i = 0; i < 4; i++)
        j.facts[i].state = ER_HANG_STILL;
    j.facts[2].stopped = true;
    judge(&j);
    cr_assert_eq(j.v.why, ER_HANG_WHY_NOBODY);
    cr_assert_eq(j.v.n, 0);
}

Test(hang_judge, of_equals_the_lowest_stands_for_all)
{
    struct job j;

    begin(&j, 4);
    expect_one(&j, ER_HANG_WHY_ALIKE, 0);
    cr_assert_eq(j.v.waiting_n, 3);
}

Test(hang_judge, a_world_of_one)
{
    struct job j;

    begin(&j, 1);
    expect_one(&j, ER_HANG_WHY_BEHIND, 0);
}

Test(hang_judge, without_a_node_the_waiting_are_not_blamed)
{
    struct job j;

    begin(&j, 4);
    j.n = 2;
    j.answered[1] = false;
    judge(&j);
    cr_assert_eq(j.v.why, ER_HANG_WHY_UNKNOWN);
    cr_assert_eq(j.v.missing_n, 1);
    cr_assert_eq(j.v.missing[0], 1);
    cr_assert_eq(j.v.waiting_n, 2);
    j.facts[1].collective = 6; /* perhaps since a neighbour did not pass its part on */
    judge(&j);
    cr_assert_eq(j.v.why, ER_HANG_WHY_UNKNOWN);
    j.facts[1].phase = ER_PHASE_DATA;
    expect_one(&j, ER_HANG_WHY_BEHIND, 1);
}

Test(hang_judge, lists_have_bounds)
{
    static struct er_hang_fact facts[200];
    static bool answered[100];
    struct er_hang_verdict v;

    for (int i = 0; i < 200; i++)
        facts[i] = (struct er_hang_fact){
            .rank = i, .state = ER_HANG_LATE, .phase = ER_PHASE_FORWARD, .stopped = i < 100};
    er_hang_judge(facts, 200, answered, 100, &v);
    cr_assert_eq(v.n, ER_HANG_NAMED_MAX);
    cr_assert_eq(v.waiting_n, ER_HANG_WAITED_MAX);
    cr_assert_eq(v.waiting_all, 200 - ER_HANG_NAMED_MAX);
    cr_assert_eq(v.missing_n, 100);
}

static bool same_fact(const struct er_hang_fact *a, const struct er_hang_fact *b)
{
    return a->rank == b->rank && a->node_rank == b->node_rank && a->state == b->state &&
           a->stopped == b->stopped && a->traced == b->traced && a->waits == b->waits &&
           a->phase == b->phase && a->step == b->step && a->collective == b->collective &&
           a->still_us == b->still_us && a->left_us == b->left_us;
}

Test(hang_judge, what_a_node_tells_is_read_back)
{
    unsigned char bytes[ER_HANG_FACTS_BYTES];
    static struct er_hang_fact got[ER_HANG_FACTS_MAX];
    struct job j;
    size_t n, got_n = 0;

    begin(&j, 5);
    j.facts[1].stopped = j.facts[2].traced = true;
    j.facts[3].left_us = ER_FOREVER;
    j.facts[0].waits = true;
    j.facts[4].step = UINT64_MAX;
    n = er_hang_facts_encode(j.facts, j.n, bytes);
    cr_assert_eq(er_hang_facts_parse(bytes, n, got, &got_n, NULL), 0);
    cr_assert_eq(got_n, 5);
    for (int i = 0; i < 5; i++)
        cr_assert(same_fact(&j.facts[i], &got[i]));
    for (size_t cut = 0; cut < n; cut++) {
        int rc = er_hang_facts_parse(bytes, cut, got, &got_n, NULL);

        cr_assert(rc == ER_E_CORRUPT || (cut - 2) % ER_HANG_FACT_BYTES == 0);
    }
}

Test(hang_judge, a_verdict_is_read_back)
{
    unsigned char bytes[ER_HANG_VERDICT_BYTES];
    struct er_hang_verdict got;
    struct job j;
    size_t n;

    begin(&j, 8);
    j.facts[5].stopped = true;
    j.answered[1] = false;
    judge(&j);
    n = er_hang_verdict_encode(&j.v, bytes);
    cr_assert_leq(n, sizeof(bytes));
    cr_assert_eq(er_hang_verdict_parse(bytes, n, &got, NULL), 0);
    cr_assert_eq(got.why, j.v.why);
    cr_assert(same_fact(&got.who[0], &j.v.who[0]));
    cr_assert_eq(got.waiting_n, 7);
    cr_assert_eq(got.waiting[6], 7);
    cr_assert_eq(got.missing[0], 1);
    for (size_t cut = 0; cut < n; cut++)
        cr_assert_eq(er_hang_verdict_parse(bytes, cut, &got, NULL), ER_E_CORRUPT);
    for (size_t i = 0; i < n; i++) {
        unsigned char was = bytes[i];

        bytes[i] = 0xff; /* whatever it makes of it, within its bounds */
        (void)er_hang_verdict_parse(bytes, n, &got, NULL);
        bytes[i] = was;
    }
}
