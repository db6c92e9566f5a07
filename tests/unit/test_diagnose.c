#include <criterion/criterion.h>
#include <string.h>

#include "agent/diagnose.h"
#include "base/clock.h"

#define S ER_US_PER_S

struct job {
    struct er_diagnose_facts f;
    struct er_diagnose_rank ranks[4];
    struct er_hang_fact room[4];
    struct er_hang_verdict verdict;
    struct er_finding found[ER_FINDINGS_MAX];
    size_t n;
};

/* Four ranks that train. */
static void begin(struct job *j)
{
    memset(j, 0, sizeof(*j));
    for (int i = 0; i < 4; i++) {
        j->ranks[i] = (struct er_diagnose_rank){
            .reports = true,
            .begun = true,
            .pid = 100 + i,
            .fact = {.rank = i, .step = 12, .collective = 50, .phase = ER_PHASE_COMMUNICATE}};
    }
    j->f = (struct er_diagnose_facts){.phase = "running",
                                      .outcome = "",
                                      .exit_code = -1,
                                      .store_is_far = true,
                                      .store_answers = true,
                                      .store_endpoint = "10.0.0.1:2379",
                                      .store_error = "",
                                      .registered = true,
                                      .leads = true,
                                      .leader = "a",
                                      .aside = "",
                                      .have = 2,
                                      .min = 2,
                                      .max = 4,
                                      .living = 4,
                                      .kill_us = ER_FOREVER,
                                      .ranks = j->ranks,
                                      .ranks_n = 4,
                                      .room = j->room,
                                      .kills = true,
                                      .straggler = -1};
}

static void expect(struct job *j, enum er_finding_code code, const char *words)
{
    j->n = er_diagnose(&j->f, j->found);
    cr_assert_geq(j->n, 1);
    cr_assert_eq(j->found[0].code, code, "%s: %s", er_finding_code_name(j->found[0].code),
                 j->found[0].text);
    cr_assert(strstr(j->found[0].text, words), "%s", j->found[0].text);
}

static void stand_still(struct job *j, int i, enum er_phase phase, uint64_t still_us,
                        uint64_t left_us)
{
    struct er_hang_fact *f = &j->ranks[i].fact;

    f->state = left_us ? ER_HANG_STILL : ER_HANG_LATE;
    f->phase = phase;
    f->still_us = still_us;
    f->left_us = left_us;
}

Test(diagnose, a_job_that_moves)
{
    struct job j;

    begin(&j);
    expect(&j, ER_FINDING_MOVING, "at step 12");
    cr_assert_eq(j.n, 1);
    cr_assert_eq(j.found[0].weight, ER_FINDING_GOOD);
}

Test(diagnose, the_store_comes_first)
{
    struct job j;

    begin(&j);
    j.f.store_answers = false;
    j.f.store_down_us = 200 * S;
    j.f.store_error = "connection refused";
    expect(&j, ER_FINDING_STORE_AWAY, "10.0.0.1:2379) has not answered for 3m20s");
    cr_assert_eq(j.found[1].code, ER_FINDING_MOVING);
    j.f.store_denies = true;
    expect(&j, ER_FINDING_STORE_DENIED, "refuses");
    j.f.store_is_far = j.f.store_denies = false;
    expect(&j, ER_FINDING_MOVING, "step");
}

Test(diagnose, nodes_are_waited_for)
{
    struct job j;

    begin(&j);
    j.f.phase = "forming";
    j.f.living = 0;
    j.f.ranks_n = 0;
    j.f.have = 1;
    j.f.give_up_us = 598 * S;
    expect(&j, ER_FINDING_TOO_FEW_NODES, "1 node is here, and the job needs at least 2");
    cr_assert(strstr(j.found[0].advice, "9m58s"));
    j.f.have = 3;
    j.f.unready = 1;
    expect(&j, ER_FINDING_NODES_NOT_READY, "1 node still");
    j.f.unready = 0;
    j.f.last_call_us = 5 * S;
    expect(&j, ER_FINDING_LAST_CALL, "1 may join within 5.0s");
    j.f.last_call_us = 0;
    j.f.leads = false;
    expect(&j, ER_FINDING_FORMING, "being formed");
    cr_assert(strstr(j.found[0].advice, "node 'a' leads"));
}

Test(diagnose, a_node_outside_says_whether_it_is_set_aside)
{
    struct job j;

    begin(&j);
    j.f.spare = true;
    j.f.living = 0;
    j.f.ranks_n = 0;
    expect(&j, ER_FINDING_SPARE, "takes it when a place is free");
    cr_assert_str_empty(j.found[0].advice);
    j.f.aside = "its workers keep failing";
    expect(&j, ER_FINDING_SPARE, "set aside (its workers keep failing)");
    cr_assert(strstr(j.found[0].advice, "taken back"));
}

Test(diagnose, workers_that_do_not_end)
{
    struct job j;

    begin(&j);
    j.f.phase = "forming";
    j.f.stopping = true;
    j.f.living = 1;
    j.f.kill_us = 20 * S;
    expect(&j, ER_FINDING_STOPPING, "1 worker of this node still runs");
    cr_assert(strstr(j.found[0].advice, "20.0s"));
}

Test(diagnose, a_stopped_process_is_seen_at_once)
{
    struct job j;

    begin(&j);
    j.ranks[2].fact.stopped = true;
    stand_still(&j, 2, ER_PHASE_DATA, 3 * S, 57 * S);
    expect(&j, ER_FINDING_RANK_STOPPED, "rank 2 (pid 102) is stopped by a signal");
    cr_assert(strstr(j.found[0].advice, "kill -CONT 102"));
    cr_assert(strstr(j.found[0].advice, "57.0s"));
}

Test(diagnose, the_one_behind_is_named_before_its_time_is_over)
{
    struct job j;

    begin(&j);
    for (int i = 0; i < 4; i++)
        stand_still(&j, i, ER_PHASE_COMMUNICATE, 40 * S, 20 * S);
    stand_still(&j, 1, ER_PHASE_DATA, 41 * S, 19 * S);
    j.ranks[1].fact.collective = 49;
    expect(&j, ER_FINDING_RANK_STILL, "rank 1 is in data after step 12");
    for (int i = 0; i < 4; i++)
        j.ranks[i].fact = j.ranks[0].fact, j.ranks[i].fact.rank = i;
    expect(&j, ER_FINDING_RANK_STILL, "3 others of this node");
}

Test(diagnose, a_verdict_is_told)
{
    static const bool answered[] = {true, true};
    struct er_hang_fact facts[4];
    struct job j;

    begin(&j);
    for (int i = 0; i < 4; i++) {
        stand_still(&j, i, ER_PHASE_COMMUNICATE, 70 * S, 0);
        facts[i] = j.ranks[i].fact;
    }
    facts[3].collective = 48;
    facts[3].node_rank = 1;
    er_hang_judge(facts, 4, answered, 2, &j.verdict);
    j.f.verdict = &j.verdict;
    expect(&j, ER_FINDING_RANK_HUNG, "rank 3 of node 1 hangs");
    cr_assert(strstr(j.found[0].text, "ranks 0, 1, 2"));
    er_hang_judge(facts, 3, (const bool[]){true, false}, 2, &j.verdict);
    expect(&j, ER_FINDING_NO_WORD, "no word came from node 1");
    facts[3].state = ER_HANG_PATIENT;
    facts[3].phase = ER_PHASE_CHECKPOINT;
    facts[3].left_us = 600 * S;
    er_hang_judge(facts, 4, answered, 2, &j.verdict);
    expect(&j, ER_FINDING_RANK_WAITED_FOR, "wait for rank 3 of node 1, which is in checkpoint");
    for (int i = 0; i < 4; i++)
        j.ranks[i].fact.state = ER_HANG_MOVING; /* it is over */
    expect(&j, ER_FINDING_MOVING, "step");
}

Test(diagnose, ranks_of_all_nodes_are_judged_together)
{
    static const char *const nodes[] = {"a", "b"};
    static const char *const silent[] = {"b"};
    bool answered[] = {true, true};
    struct job j;

    begin(&j);
    j.f.nodes = nodes;
    j.f.answered = answered;
    j.f.nodes_n = 2;
    expect(&j, ER_FINDING_MOVING, "ranks move, at step 12");
    for (int i = 0; i < 4; i++)
        stand_still(&j, i, ER_PHASE_COMMUNICATE, 7 * S, 60 * S);
    j.ranks[3].fact.phase = ER_PHASE_DATA;
    j.ranks[3].fact.node_rank = 1;
    expect(&j, ER_FINDING_RANK_STILL, "rank 3 of node b is in data after step 12");
    cr_assert(strstr(j.found[0].text, "; ranks 0, 1, 2 stand still, too, and may wait for it"));
    j.f.not_asked = "permission denied";
    j.f.not_allowed = true;
    expect(&j, ER_FINDING_NOT_ASKED, "cannot be asked what they know: permission denied");
    cr_assert(strstr(j.found[0].advice, "needs write access"));
    j.f.not_asked = "the store is not reached: timed out";
    j.f.not_allowed = false;
    expect(&j, ER_FINDING_NOT_ASKED, "cannot be asked what they know: the store is not reached");
    cr_assert(strstr(j.found[0].advice, "look at the store") &&
              !strstr(j.found[0].advice, "access"));
    j.f.not_asked = NULL;
    answered[1] = false;
    j.f.ranks_n = 3;
    j.f.silent = silent;
    j.f.silent_n = 1;
    j.f.waited_us = 5 * S;
    expect(&j, ER_FINDING_NODE_SILENT, "no answer within 5.0s from node b");
    cr_assert_eq(j.found[1].code, ER_FINDING_RANK_STILL);
    cr_assert(strstr(j.found[1].text, "ranks 0, 1, 2 stand still; they may wait for ranks of nodes "
                                      "that have not answered"));
}

Test(diagnose, workers_that_start_and_those_that_do_not_report)
{
    struct job j;

    begin(&j);
    for (int i = 0; i < 4; i++) {
        j.ranks[i].begun = false;
        j.ranks[i].fact.phase = ER_PHASE_STARTUP;
        j.ranks[i].fact.left_us = 1700 * S;
    }
    expect(&j, ER_FINDING_STARTING, "4 workers of this node have not finished a step");
    for (int i = 0; i < 4; i++)
        j.ranks[i].reports = false;
    expect(&j, ER_FINDING_NO_REPORTS, "4 workers run here, and report no progress");
}

Test(diagnose, every_code_has_a_name_and_texts_are_cut)
{
    static char long_text[2000];
    struct job j;

    for (int i = 0; i < ER_FINDING_COUNT; i++)
        cr_assert(er_finding_code_name((enum er_finding_code)i)[0]);
    memset(long_text, 'x', sizeof(long_text) - 1);
    begin(&j);
    j.f.store_denies = true;
    j.f.store_error = long_text;
    expect(&j, ER_FINDING_STORE_DENIED, "xxx");
    j.f.exit_code = 0;
    j.f.outcome = "succeeded";
    expect(&j, ER_FINDING_OVER, "exit code 0");
    cr_assert_eq(j.n, 1);
}
