/* Planned changes of programs that know nothing of libelastic: resize.notice_signal tells them in
 * time, and a program that saves and exits then has left, neither finished nor failed. */
#include <jansson.h>

#include "tests/integration/nodes_case.h"

#define NOTICE "--set=resize.notice_signal=USR1"

/* Says in which generation it was told, and leaves. */
#define SAVER "trap 'echo $RANK >> $CASE/saved-g$ELASTIC_GENERATION; exit 0' USR1; " NODES_WORKER

/* Does not care; the stop signal ends it. */
#define DEAF "trap '' USR1; " NODES_WORKER

static int lines_in(struct nodes_case *n, const char *file)
{
    char *text = er_test_read_file(case_path(&n->c, file));
    int lines = 0;

    for (const char *at = text; at && (at = strchr(at, '\n')); at++)
        lines++;
    free(text);
    return lines;
}

static int saved_in(struct nodes_case *n, int generation)
{
    char file[64];

    snprintf(file, sizeof(file), "saved-g%d", generation);
    return lines_in(n, file);
}

static void start(struct nodes_case *n, int node, const char *script, const char *option)
{
    char logs[ER_TEST_PATH_MAX + 32];

    snprintf(logs, sizeof(logs), "--set=log.dir=%s/logs", n->c.dir);
    node_start(n, node,
               ARGS(NO_LAST_CALL, NOTICE, logs, option, "--nproc-per-node=2", "--max-restarts=0",
                    SH(script)));
}

/* The last event of that kind that `node` wrote; NULL: none. Owned by the caller. */
static json_t *last_event(struct nodes_case *n, int node, const char *kind)
{
    char file[160];
    char *text;
    json_t *found = NULL;

    snprintf(file, sizeof(file), "logs/%s/events-n%d.jsonl", n->c.name, node);
    text = er_test_read_file(case_path(&n->c, file));
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *event = json_loadb(line, (size_t)(end - line), 0, NULL);

        if (strcmp(json_string_value(json_object_get(event, "event")), kind) != 0) {
            json_decref(event);
            continue;
        }
        json_decref(found);
        found = event;
    }
    free(text);
    return found;
}

/* By the leader, whoever that was. */
static void expect_announced(struct nodes_case *n, int from, int to, const char *reason)
{
    json_t *event = NULL;

    for (int i = 0; i < 3; i++) {
        json_decref(event);
        event = last_event(n, i, "resize_announced");
        if (event && json_integer_value(json_object_get(event, "from")) == from)
            break;
    }
    if (!er_tap_check(event != NULL))
        return;
    er_tap_check(json_integer_value(json_object_get(event, "from")) == from);
    er_tap_check(json_integer_value(json_object_get(event, "to")) == to);
    er_tap_check(json_is_null(json_object_get(event, "at_step"))); /* they tell no steps */
    er_tap_check(strcmp(json_string_value(json_object_get(event, "reason")), reason) == 0);
    er_tap_check(json_is_string(json_object_get(event, "deadline_ts")));
    json_decref(event);
}

static void expect_left(struct nodes_case *n, int node)
{
    json_t *event = last_event(n, node, "worker_exited");

    if (!er_tap_check(event != NULL))
        return;
    er_tap_check(strcmp(json_string_value(json_object_get(event, "kind")), "ok") == 0);
    er_tap_check(json_is_false(json_object_get(event, "root_cause")));
    json_decref(event);
}

/* A node joins, then one goes: each time every worker saves, and nothing counts as a failure. */
static void programs_save_when_the_membership_changes(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int two, three, rest;

    nodes_begin(&n, "2:3");
    start(&n, 0, SAVER, LEASE);
    start(&n, 1, SAVER, LEASE);
    two = nodes_next(&n, 0, 4, 2);
    start(&n, 2, SAVER, LEASE);
    three = nodes_next(&n, two, 6, 3);
    er_tap_check(saved_in(&n, two) == 4);
    expect_announced(&n, 4, 6, "join");
    expect_left(&n, 0);
    kill(n.p[1].pid, SIGTERM);
    er_tap_check(node_finish(&n, 1) == 75);
    node_forget(&n, 1);
    rest = nodes_next(&n, three, 4, 2);
    er_tap_check(saved_in(&n, three) == 6);
    expect_announced(&n, 6, 4, "preempt");
    er_tap_check(nodes_said(&n, rest, 0, &said) && said.restarts == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* Below the minimum a change cannot be planned: who is left is told all the same. */
static void programs_save_before_the_job_waits_for_nodes(void)
{
    struct nodes_case n;
    int two;

    nodes_begin(&n, "2");
    start(&n, 0, SAVER, LEASE);
    start(&n, 1, SAVER, LEASE);
    two = nodes_next(&n, 0, 4, 2);
    kill(n.p[1].pid, SIGTERM);
    er_tap_check(node_finish(&n, 1) == 75);
    node_forget(&n, 1);
    start(&n, 1, SAVER, LEASE);
    er_tap_check(nodes_next(&n, two, 4, 2) > 0);
    er_tap_check(saved_in(&n, two) == 4);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* resize.grace is all the time there is; then the ladder. */
static void who_does_not_leave_is_stopped(void)
{
    struct nodes_case n;
    int one;

    nodes_begin(&n, "1:2");
    start(&n, 0, DEAF, "--set=resize.grace=1s");
    one = nodes_next(&n, 0, 2, 1);
    start(&n, 1, DEAF, "--set=resize.grace=1s");
    er_tap_check(nodes_next(&n, one, 4, 2) > 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(strstr(er_test_err(&n.p[0]), "sent SIGUSR1 to 2 workers"));
    nodes_end(&n);
}

/* A job of one node that is told to go. */
static void a_single_node_saves_when_it_is_preempted(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    case_start(&c, ARGS(NOTICE, SH("trap 'touch $CASE/saved; exit 0' USR1; echo up; "
                                   "while :; do sleep 0.05; done")));
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(case_has(&c, "saved"));
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"programs_save_when_the_membership_changes", programs_save_when_the_membership_changes, 0},
        {"programs_save_before_the_job_waits_for_nodes",
         programs_save_before_the_job_waits_for_nodes, 0},
        {"who_does_not_leave_is_stopped", who_does_not_leave_is_stopped, 0},
        {"a_single_node_saves_when_it_is_preempted", a_single_node_saves_when_it_is_preempted, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
