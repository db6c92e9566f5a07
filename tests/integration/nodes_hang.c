/* A rank of a job on two nodes stands still: it is named, with those that wait for it, and started
 * anew; all others go on in process. */
#include "tests/integration/hang_case.h"
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_hang"

/* Longer than a loaded machine lets a step of milliseconds wait. */
#define FLOOR "--set=hang.floor=4s"

static void start(struct elastic_case *e, int node, const char *limit)
{
    char logs[ER_TEST_PATH_MAX + 32];

    snprintf(logs, sizeof(logs), "--log-dir=%s/logs", e->n.c.dir);
    elastic_start_more(e, node, limit, logs);
}

static void begin(struct elastic_case *e, const char *sleep, const char *limit)
{
    char list[64];

    snprintf(list, sizeof(list), " %s ", sleep);
    er_tap_require(setenv("WORKER_SLEEP", list, 1) == 0);
    elastic_begin(e, PROGRAM, "2", 2);
    start(e, 0, limit);
    start(e, 1, limit);
}

/* The event about place (node, local), its rank, and that all others wait for it. */
static json_t *expect_named(struct elastic_case *e, int node, int local)
{
    char id[8];
    json_t *event, *waiting;

    snprintf(id, sizeof(id), "n%d", node);
    event = hang_wait_event(hang_events(&e->n.c, id), "worker_hung", 0);
    if (!event)
        elastic_notes(e);
    er_tap_require(event);
    er_tap_check(hang_number(event, "pid") == elastic_pid(e, node, local));
    waiting = json_object_get(event, "waiting_ranks");
    er_tap_check(json_array_size(waiting) == 3);
    for (size_t i = 0; i < json_array_size(waiting); i++)
        er_tap_check(json_integer_value(json_array_get(waiting, i)) != hang_number(event, "rank"));
    return event;
}

/* The others told what they wait for. */
static void expect_told(struct elastic_case *e, int node, long long rank)
{
    char text[64];

    snprintf(text, sizeof(text), "wait for rank %lld of node", rank);
    if (!er_tap_check(er_test_wait_err(&e->n.p[node], text, NODES_WAIT)))
        elastic_notes(e);
}

/* It was started anew, and the others live on. */
static void expect_recovered(struct elastic_case *e, int node, int local)
{
    const char *paths[2] = {hang_events(&e->n.c, "n0"), hang_events(&e->n.c, "n1")};
    json_t *event = hang_wait_event(paths[node], "recovered", 0);

    er_tap_check(event && strcmp(hang_text(event, "reason"), "worker_hung") == 0);
    er_tap_check(event && hang_number(event, "detect_ms") >= 3500);
    json_decref(event);
    elastic_hurry(e);
    er_tap_check(nodes_end_with(&e->n, 0));
    for (int i = 0; i < 2; i++) {
        for (int l = 0; l < 2; l++)
            elastic_expect_lives(e, i, l, i == node && l == local ? 2 : 1);
        elastic_expect_exact(e, i);
        event = hang_event(paths[i], "worker_hung", i == node);
        er_tap_check(!event); /* nobody else, and once */
        json_decref(event);
    }
}

static void a_stopped_worker_is_named_and_started_anew(void)
{
    struct elastic_case e;
    json_t *event;

    begin(&e, "", FLOOR);
    elastic_wait(&e, 0, 0, 30, 4);
    kill(elastic_pid(&e, 1, 0), SIGSTOP);
    event = expect_named(&e, 1, 0);
    er_tap_check(strncmp(hang_text(event, "state"), "T", 1) == 0);
    er_tap_check(hang_number(event, "deadline_ms") >= 4000);
    er_tap_check(hang_number(event, "step") >= 29);
    expect_told(&e, 0, hang_number(event, "rank"));
    json_decref(event);
    expect_recovered(&e, 1, 0);
    event = hang_event(hang_events(&e.n.c, "n1"), "worker_exited", 0);
    er_tap_check(event && strcmp(hang_text(event, "kind"), "hung") == 0);
    json_decref(event);
    elastic_end(&e);
}

/* The default would be a minute, and the stopped rank is looked at by the old deadline already. */
static void a_deadline_that_is_set_meanwhile_holds(void)
{
    struct elastic_case e;
    json_t *event;

    begin(&e, "", "--set=hang.floor=1h");
    elastic_wait(&e, 0, 0, 30, 4);
    kill(elastic_pid(&e, 1, 0), SIGSTOP);
    elastic_ctl(&e, "set", "hang.floor=4s");
    event = expect_named(&e, 1, 0);
    er_tap_check(hang_number(event, "deadline_ms") >= 4000);
    er_tap_check(hang_number(event, "deadline_ms") < 600000);
    json_decref(event);
    expect_recovered(&e, 1, 0);
    elastic_end(&e);
}

static void a_worker_that_waits_for_data_is_named(void)
{
    struct elastic_case e;
    json_t *event;

    begin(&e, "n0-1:20", FLOOR);
    event = expect_named(&e, 0, 1);
    er_tap_check(strcmp(hang_text(event, "phase"), "data") == 0);
    er_tap_check(hang_number(event, "step") == 19);
    json_decref(event);
    expect_recovered(&e, 0, 1);
    elastic_end(&e);
}

static void a_worker_that_hangs_in_startup_is_named(void)
{
    struct elastic_case e;
    json_t *event;

    begin(&e, "n1-1:0", "--set=hang.startup=12s");
    event = expect_named(&e, 1, 1);
    er_tap_check(strcmp(hang_text(event, "phase"), "startup") == 0);
    er_tap_check(hang_number(event, "deadline_ms") == 12000);
    json_decref(event);
    expect_recovered(&e, 1, 1);
    elastic_end(&e);
}

/* Its agent has not looked at a worker yet when the first one dies; the next one never says a word.
 */
static void a_worker_that_never_begins_is_named(void)
{
    struct elastic_case e;
    json_t *event;

    er_tap_require(setenv("WORKER_SLEEP", "", 1) == 0);
    elastic_begin(&e, PROGRAM, "2", 1);
    for (int i = 0; i < 2; i++)
        start(&e, i, "--set=hang.startup=12s");
    elastic_wait(&e, 1, 0, 1, 2);
    elastic_hold(&e, "start", 1, 0);
    kill(elastic_pid(&e, 1, 0), SIGKILL);
    event = hang_wait_event(hang_events(&e.n.c, "n1"), "worker_hung", 0);
    er_tap_check(event && strcmp(hang_text(event, "phase"), "startup") == 0);
    json_decref(event);
    elastic_let_go(&e, "start", 1, 0);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    elastic_expect_exact(&e, 0);
    elastic_expect_exact(&e, 1);
    elastic_end(&e);
}

/* All wait for it in each step, so that all are equally fast: it is the one that never waits. */
static void a_slow_rank_is_told_of(void)
{
    struct elastic_case e;
    json_t *event;

    er_tap_require(setenv("WORKER_DRAG", "n1-0", 1) == 0);
    begin(&e, "", "--set=straggler.for=2s");
    event = hang_wait_event(hang_events(&e.n.c, "n1"), "straggler_detected", 0);
    er_tap_check(event && json_real_value(json_object_get(event, "ratio")) < 0.7);
    er_tap_check(event && json_real_value(json_object_get(event, "cost_ms")) > 1);
    json_decref(event);
    event = hang_event(hang_events(&e.n.c, "n0"), "straggler_detected", 0);
    er_tap_check(!event);
    json_decref(event);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    elastic_end(&e);
}

/* The others go on without its node, in process. */
static void a_slow_nodes_place_is_given_up(void)
{
    struct elastic_case e;
    unsigned long long before;

    er_tap_require(setenv("WORKER_DRAG", "n1-0", 1) == 0);
    elastic_begin(&e, PROGRAM, "2:3", 1);
    for (int i = 0; i < 3; i++)
        elastic_start_more(&e, i, "--set=straggler.for=1s", "--set=straggler.action=set_aside");
    before = elastic_wait(&e, 0, 0, 1, 3);
    elastic_wait(&e, 0, before, 1, 2);
    er_tap_check(er_test_wait_err(&e.n.p[1], "is asked to go on without this node", NODES_WAIT));
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_expect_lives(&e, 2, 0, 1);
    elastic_expect_exact(&e, 0);
    elastic_expect_exact(&e, 2);
    elastic_end(&e);
}

/* Agent and workers of a node stand still, as in a frozen container: the other node's ranks wait,
 * nobody is blamed, and all goes on afterwards. */
static void a_frozen_node_is_not_blamed(void)
{
    struct elastic_case e;
    pid_t agent, workers[2];

    begin(&e, "", FLOOR);
    elastic_wait(&e, 1, 0, 30, 4);
    agent = node_agent(&e.n, 1);
    for (int l = 0; l < 2; l++)
        workers[l] = elastic_pid(&e, 1, l);
    for (int l = 0; l < 2; l++)
        kill(workers[l], SIGSTOP);
    kill(agent, SIGSTOP);
    er_tap_check(er_test_wait_err(&e.n.p[0], "who hangs cannot be told", NODES_WAIT));
    kill(agent, SIGCONT);
    for (int l = 0; l < 2; l++)
        kill(workers[l], SIGCONT);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 2; i++) {
        char id[8];
        json_t *event;

        snprintf(id, sizeof(id), "n%d", i);
        event = hang_event(hang_events(&e.n.c, id), "worker_hung", 0);
        er_tap_check(!event);
        json_decref(event);
        elastic_expect_lives(&e, i, 0, 1);
        elastic_expect_lives(&e, i, 1, 1);
        elastic_expect_exact(&e, i);
    }
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_stopped_worker_is_named_and_started_anew", a_stopped_worker_is_named_and_started_anew,
         0},
        {"a_deadline_that_is_set_meanwhile_holds", a_deadline_that_is_set_meanwhile_holds, 0},
        {"a_worker_that_waits_for_data_is_named", a_worker_that_waits_for_data_is_named, 0},
        {"a_worker_that_hangs_in_startup_is_named", a_worker_that_hangs_in_startup_is_named, 0},
        {"a_worker_that_never_begins_is_named", a_worker_that_never_begins_is_named, 0},
        {"a_slow_rank_is_told_of", a_slow_rank_is_told_of, 0},
        {"a_slow_nodes_place_is_given_up", a_slow_nodes_place_is_given_up, 0},
        {"a_frozen_node_is_not_blamed", a_frozen_node_is_not_blamed, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
