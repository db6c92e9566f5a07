/* Programs that run beside the workers: health, notice and preemption commands. */
#include <jansson.h>

#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)
#define LONG_RUN         "[sh, -c, 'echo up; exec sleep 1000']"

static void start_job(struct agent_case *c, const char *command, const char *text)
{
    char env[ER_TEST_PATH_MAX + 8];

    snprintf(env, sizeof(env), "CASE=%s", c->dir);
    er_test_start(&c->p, ARGS(er_test_bin("elastic-run"), case_job(c, command, text)),
                  (const char *const[]){env, NULL});
}

static int run_job(struct agent_case *c, const char *command, const char *text)
{
    start_job(c, command, text);
    return case_finish(c);
}

static void notices_are_events_as_json(void)
{
    struct agent_case c = {0};
    json_t *event;
    char *text;

    case_begin(&c);
    er_tap_check(run_job(&c, "[sh, -c, 'exit 5']",
                         "log: {dir: none}\nrestart: {max: 1}\nnotify: {on: [job_failed, "
                         "worker_exited], command: [sh, -c, \"cat >> ${env.CASE}/told; echo "
                         "heard\"]}\n") == 5);
    ERR_HAS(&c, "notify.command: heard\n");
    text = er_test_read_file(case_path(&c, "told"));
    er_tap_require(text != NULL);
    er_tap_check(strstr(text, "\"event\":\"worker_exited\"") != NULL);
    char *last = strstr(text, "{\"v\":1");

    for (char *at = last; at; at = strstr(at + 1, "{\"v\":1"))
        last = at;
    event = last ? json_loads(last, 0, NULL) : NULL;
    er_tap_require(event != NULL);
    er_tap_check(strcmp(json_string_value(json_object_get(event, "event")), "job_failed") == 0);
    er_tap_check(strcmp(json_string_value(json_object_get(event, "job")), c.name) == 0);
    er_tap_check(json_integer_value(json_object_get(event, "exit_code")) == 5);
    json_decref(event);
    free(text);
    case_end(&c);
}

static void a_notice_that_hangs_or_fails_stops_nothing(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    /* Many restarts, each told of; every command hangs until the job has ended. */
    start_job(&c,
              "[sh, -c, '[ $TORCHELASTIC_RESTART_COUNT -lt 3 ] && exit 1; touch $CASE/end; exit "
              "0']",
              "log: {dir: none}\nrestart: {max: 5}\nnotify: {on: [restart_counted], command: [sh, "
              "-c, \"while [ ! -e ${env.CASE}/end ]; do sleep 0.01; done; exit 4\"]}\n");
    er_tap_check(case_finish(&c) == 0);
    ERR_HAS(&c, "notify.command failed");
    ERR_HAS(&c, "exited with code 4");
    case_end(&c);
}

static void a_file_gives_notice(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_job(&c, LONG_RUN,
              "log: {dir: none, tee: \"1\"}\npreempt: {file: going, interval: 100ms}\n");
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    er_test_write_file(case_path(&c, "going"), "");
    er_tap_check(case_finish(&c) == 75);
    ERR_HAS(&c, "/going' is there: stopping 1 worker with SIGTERM");
    case_end(&c);
}

static void a_command_gives_notice(void)
{
    struct agent_case c = {0};
    char *events;

    case_begin(&c);
    start_job(&c, LONG_RUN,
              "log: {dir: logs, tee: \"1\"}\npreempt: {command: [test, -e, \"${env.CASE}/go\"], "
              "interval: 100ms}\n");
    er_tap_require(er_test_wait_out(&c.p, "up", ER_TEST_DEADLINE_MS));
    er_test_write_file(case_path(&c, "go"), "");
    er_tap_check(case_finish(&c) == 75);
    ERR_HAS(&c, "preempt.command gave notice");
    char script[4 * ER_TEST_PATH_MAX];

    snprintf(script, sizeof(script), "cat %s/logs/%s/events-*", c.dir, c.name);
    er_test_done(&c.p);
    er_tap_check(er_test_run(&c.p, ARGS(SH(script)), NULL, ER_TEST_DEADLINE_MS) == 0);
    events = strstr(er_test_out(&c.p), "\"event\":\"agent_exited\"");
    er_tap_check(events && strstr(events, "\"outcome\":\"preempted\"") != NULL);
    case_end(&c);
}

static void an_unhealthy_node_looks_again_until_it_is_fit(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_job(&c, "[sh, -c, 'echo ran']",
              "log: {dir: none, tee: \"1\"}\nhealth: {cooldown: 50ms, command: [sh, -c, \"echo "
              "looking; echo disk is sick; test -e ${env.CASE}/well\"]}\n");
    er_tap_check(er_test_wait_err(&c.p,
                                  "unhealthy (command): disk is sick; the next look is in 50ms\n",
                                  ER_TEST_DEADLINE_MS));
    er_tap_check(strstr(er_test_out(&c.p), "ran") == NULL);
    er_test_write_file(case_path(&c, "well"), "");
    er_tap_check(case_finish(&c) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "ran") != NULL);
    case_end(&c);
}

static void an_unhealthy_node_gives_up_in_time(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_job(&c, "[sh, -c, 'echo ran']",
                         "log: {dir: none, tee: \"1\"}\nrendezvous: {join_timeout: 200ms}\nhealth: "
                         "{cooldown: 150ms, command: [sh, -c, 'echo no; exit 1']}\n") == 75);
    ERR_HAS(&c, "this node is unhealthy (command): no");
    er_tap_check(strstr(er_test_out(&c.p), "ran") == NULL);
    er_test_done(&c.p);
    /* A command that hangs is an unhealthy node. */
    er_tap_check(run_job(&c, "[sh, -c, 'echo ran']",
                         "log: {dir: none, tee: \"1\"}\nrendezvous: {join_timeout: 200ms}\nhealth: "
                         "{timeout: 100ms, command: [sleep, '1000']}\n") == 75);
    ERR_HAS(&c, "health.command took longer than 100ms and was killed");
    case_end(&c);
}

static void health_is_looked_at_before_each_join(void)
{
    struct agent_case c = {0};
    char *text;

    case_begin(&c);
    er_tap_check(run_job(&c, "[sh, -c, 'echo w >> $CASE/order; exit 3']",
                         "log: {dir: none}\nrestart: {max: 1}\nhealth: {command: [sh, -c, \"echo h "
                         ">> ${env.CASE}/order\"]}\n") == 3);
    text = er_test_read_file(case_path(&c, "order"));
    er_tap_check(text && strncmp(text, "h\nw\nh\nw\n", 8) == 0);
    free(text);
    case_end(&c);
}

static void a_stop_ends_the_wait_for_health(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_job(&c, "[sh, -c, 'echo ran']",
              "log: {dir: none, tee: \"1\"}\nhealth: {command: ['false']}\n");
    er_tap_require(er_test_wait_err(&c.p, "unhealthy (command): health.command exited with code 1",
                                    ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    er_tap_check(strstr(er_test_out(&c.p), "ran") == NULL);
    case_end(&c);
}

/* Helpers are nobody's orphans: a generation's sweep leaves them alone. */
static void a_sweep_spares_helpers(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_job(
        &c,
        "[sh, -c, 'echo up; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; (setsid sleep 1000 "
        "&); touch $CASE/go; exit 0']",
        "log: {dir: none}\nrestart: {max: 1}\nnotify: {on: [restart_counted], command: [sh, "
        "-c, \"while [ ! -e ${env.CASE}/go ]; do sleep 0.01; done; echo lived\"]}\n");
    er_tap_check(case_finish(&c) == 0);
    ERR_HAS(&c, "notify.command: lived");
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"notices_are_events_as_json", notices_are_events_as_json, 0},
        {"a_notice_that_hangs_or_fails_stops_nothing", a_notice_that_hangs_or_fails_stops_nothing,
         0},
        {"a_file_gives_notice", a_file_gives_notice, 0},
        {"a_command_gives_notice", a_command_gives_notice, 0},
        {"an_unhealthy_node_looks_again_until_it_is_fit",
         an_unhealthy_node_looks_again_until_it_is_fit, 0},
        {"an_unhealthy_node_gives_up_in_time", an_unhealthy_node_gives_up_in_time, 0},
        {"health_is_looked_at_before_each_join", health_is_looked_at_before_each_join, 0},
        {"a_stop_ends_the_wait_for_health", a_stop_ends_the_wait_for_health, 0},
        {"a_sweep_spares_helpers", a_sweep_spares_helpers, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
