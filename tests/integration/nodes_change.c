/* Changes that meet each other, and what goes wrong meanwhile: the leader dies during a planned
 * change, nodes come and go while others start up or save, several ranks die at once, newcomers
 * hang. The job goes on with what it has in memory, and ends with the parameters of an undisturbed
 * run, bit for bit; the ledger says that every sample was used once. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM     "tests/integration/integration_nodes_change"
#define SHORT_START "--set=hang.startup=5s" /* newcomers have no more time */
#define TOLD        "the membership changes: 1 worker will change over"

enum change { GROW, SHRINK, DRAIN };

/* Three nodes, the first of which leads, and a change that the second has been told of when the
 * leader's agent and worker are killed. */
static void leader_dies_during(enum change change)
{
    struct elastic_case e;
    unsigned long long before;

    elastic_begin(&e, PROGRAM, "1:4", 1);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    elastic_pace(&e, 1, 60);
    elastic_start(&e, 0);
    elastic_wait(&e, 0, 0, 1, 1);
    elastic_start(&e, 1);
    elastic_wait(&e, 1, 0, 1, 2);
    elastic_start(&e, 2);
    before = elastic_wait(&e, 1, 0, 3, 3);
    if (change == GROW)
        elastic_start(&e, 3);
    else if (change == SHRINK)
        elastic_ctl(&e, "scale", "1:2");
    else
        kill(e.n.p[2].pid, SIGTERM);
    er_tap_check(er_test_wait_err(&e.n.p[1], TOLD, NODES_WAIT));
    elastic_lose(&e, 0);
    if (change == DRAIN) {
        er_tap_check(node_finish(&e.n, 2) == 75);
        node_forget(&e.n, 2);
    }
    elastic_wait(&e, 1, before, 4, change == GROW ? 3 : change == SHRINK ? 2 : 1);
    elastic_expect_lives(&e, 1, 0, 1);
    elastic_finish(&e);
}

static void leader_dies_while_the_job_grows(void)
{
    leader_dies_during(GROW);
}

static void leader_dies_while_the_job_shrinks(void)
{
    leader_dies_during(SHRINK);
}

static void leader_dies_while_a_node_drains(void)
{
    leader_dies_during(DRAIN);
}

/* It is gone before anybody was told: the newcomers' workers are still coming up. */
static void leader_dies_while_a_newcomer_comes_up(void)
{
    struct elastic_case e;
    unsigned long long before;

    elastic_begin(&e, PROGRAM, "1:3", 1);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    elastic_start(&e, 0);
    elastic_wait(&e, 0, 0, 1, 1);
    elastic_start(&e, 1);
    before = elastic_wait(&e, 1, 0, 3, 2);
    elastic_hold(&e, "start", 2, 0);
    elastic_start(&e, 2);
    er_tap_check(er_test_wait_err(&e.n.p[2], "starting 1 worker for generation", NODES_WAIT));
    elastic_lose(&e, 0);
    elastic_let_go(&e, "start", 2, 0);
    elastic_wait(&e, 1, before, 4, 2);
    elastic_expect_lives(&e, 1, 0, 1);
    elastic_finish(&e);
}

/* Nobody is further than that when a third node joins: it is taken when they are. */
static void a_node_joins_while_workers_start(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "1:3", 1);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    elastic_hold(&e, "start", 0, 0);
    elastic_start(&e, 0);
    elastic_wait_up(&e, 0, 0);
    elastic_start(&e, 1);
    elastic_wait_status(&e, "resizing");
    elastic_let_go(&e, "start", 0, 0);
    elastic_wait(&e, 0, 0, 1, 2);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_finish(&e);
}

/* One of two whose workers are coming up is told to go. */
static void a_node_leaves_while_workers_start(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "1:2", 1);
    e.saves = true;
    for (int i = 0; i < 2; i++)
        elastic_hold(&e, "start", i, 0);
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, "--set=preempt.deadline=6s");
    for (int i = 0; i < 2; i++)
        elastic_wait_up(&e, i, 0);
    elastic_preempt(&e, 1); /* though its worker does not listen */
    elastic_let_go(&e, "start", 0, 0);
    elastic_wait(&e, 0, 0, 1, 1);
    elastic_finish(&e);
}

/* A checkpoint is always being written when nodes come and go. */
static void change_while_a_checkpoint_is_written(void)
{
    struct elastic_case e;
    unsigned long long g;

    elastic_begin(&e, PROGRAM, "1:3", 1);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, "--set=checkpoint.every_steps=1");
    g = elastic_wait(&e, 0, 0, 5, 2);
    elastic_start_with(&e, 2, "--set=checkpoint.every_steps=1");
    g = elastic_wait(&e, 0, g, 6, 3);
    elastic_preempt(&e, 1);
    elastic_wait(&e, 0, g, 7, 2);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_finish(&e);
}

/* A newcomer's workers are coming up when a member is told to go: that happens first. It
 * was too slow for that, and comes in later. */
static void shrink_while_the_job_grows(void)
{
    struct elastic_case e;
    unsigned long long g;

    elastic_begin(&e, PROGRAM, "1:3", 1);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, "--set=resize.grace=4s");
    g = elastic_wait(&e, 0, 0, 3, 2);
    elastic_hold(&e, "start", 2, 0);
    elastic_start_with(&e, 2, "--set=resize.grace=4s");
    er_tap_check(er_test_wait_err(&e.n.p[2], "starting 1 worker for generation", NODES_WAIT));
    elastic_preempt(&e, 1);
    g = elastic_wait(&e, 0, g, 4, 1);
    elastic_let_go(&e, "start", 2, 0);
    elastic_wait(&e, 2, g, 5, 2);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_finish(&e);
}

/* The newcomer's workers never come up: it is set aside, and the others are not disturbed. */
static void newcomer_that_hangs_is_set_aside(void)
{
    struct elastic_case e;
    unsigned long long g;

    elastic_begin(&e, PROGRAM, "1:3", 1);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, SHORT_START);
    g = elastic_wait(&e, 0, 0, 3, 2);
    elastic_hold(&e, "start", 2, 0);
    elastic_start_with(&e, 2, SHORT_START);
    elastic_wait_said(&e, "its workers did not come up in time");
    er_tap_check(elastic_wait(&e, 0, g - 1, 4, 2) == g);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_hurry(&e);
    if (!er_tap_check(node_finish(&e.n, 2) == 0)) /* a spare, at the end */
        elastic_notes(&e);
    node_forget(&e.n, 2);
    elastic_finish(&e);
}

/* The whole job is told to go, three times in one epoch, and comes back each time. */
static void three_resumes_in_one_epoch(void)
{
    struct elastic_case e;
    unsigned long long g = 0, step = 3;

    elastic_begin(&e, PROGRAM, "2", 1);
    e.saves = true;
    elastic_pace(&e, 1, 10);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 2; i++)
            elastic_start(&e, i);
        for (int i = 0; i < 2; i++)
            g = elastic_wait(&e, i, g - (i > 0), step, 2);
        for (int i = 0; i < 2; i++)
            kill(e.n.p[i].pid, SIGTERM);
        er_tap_check(nodes_end_with(&e.n, 75));
        for (int i = 0; i < 2; i++)
            node_forget(&e.n, i);
        step += 10;
    }
    for (int i = 0; i < 2; i++)
        elastic_start(&e, i);
    elastic_finish(&e);
}

static void all_workers_of_a_node_die_at_once(void)
{
    struct elastic_case e;
    unsigned long long g;

    elastic_begin(&e, PROGRAM, "3", 2);
    e.saves = true;
    elastic_start_all(&e, 3);
    g = elastic_wait(&e, 0, 0, 5, 6);
    for (int l = 0; l < 2; l++)
        kill(elastic_pid(&e, 1, l), SIGKILL);
    elastic_wait(&e, 0, g, 6, 6);
    for (int i = 0; i < 3; i++) {
        for (int l = 0; l < 2; l++)
            elastic_expect_lives(&e, i, l, i == 1 ? 2 : 1);
    }
    elastic_finish(&e);
}

static void all_nodes_but_one_die(void)
{
    struct elastic_case e;
    unsigned long long g;

    elastic_begin(&e, PROGRAM, "1:4", 1);
    e.saves = true;
    elastic_start_all(&e, 4);
    g = elastic_wait(&e, 3, 0, 5, 4);
    for (int i = 0; i < 3; i++)
        kill(node_agent(&e.n, i), SIGKILL);
    for (int i = 0; i < 3; i++) {
        er_tap_check(node_finish(&e.n, i) == 70);
        node_forget(&e.n, i);
    }
    elastic_wait(&e, 3, g, 6, 1);
    elastic_expect_lives(&e, 3, 0, 1);
    elastic_finish(&e);
}

/* One rank has applied the step and dies, another one has not and dies: of those left, some may
 * have and some not. */
static void two_die_around_one_apply(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "2", 2);
    e.saves = true;
    elastic_kill_at(&e, "n0-0:50:2 n1-0:50:1");
    elastic_hurry(&e);
    elastic_start_all(&e, 2);
    elastic_finish(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"leader_dies_while_the_job_grows", leader_dies_while_the_job_grows, 0},
        {"leader_dies_while_the_job_shrinks", leader_dies_while_the_job_shrinks, 0},
        {"leader_dies_while_a_node_drains", leader_dies_while_a_node_drains, 0},
        {"leader_dies_while_a_newcomer_comes_up", leader_dies_while_a_newcomer_comes_up, 0},
        {"a_node_joins_while_workers_start", a_node_joins_while_workers_start, 0},
        {"a_node_leaves_while_workers_start", a_node_leaves_while_workers_start, 0},
        {"change_while_a_checkpoint_is_written", change_while_a_checkpoint_is_written, 0},
        {"shrink_while_the_job_grows", shrink_while_the_job_grows, 0},
        {"newcomer_that_hangs_is_set_aside", newcomer_that_hangs_is_set_aside, 0},
        {"three_resumes_in_one_epoch", three_resumes_in_one_epoch, 0},
        {"all_workers_of_a_node_die_at_once", all_workers_of_a_node_die_at_once, 0},
        {"all_nodes_but_one_die", all_nodes_but_one_die, 0},
        {"two_die_around_one_apply", two_die_around_one_apply, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
