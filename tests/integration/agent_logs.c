/* Logs, event file and summaries. */
#include <jansson.h>

#include "tests/integration/agent_case.h"

static char log_keys[ER_TEST_PATH_MAX + 512];

/* A job with logs in the case's folder; `more` goes into its `log:` map. */
static int run_logged(struct agent_case *c, const char *command, const char *more)
{
    snprintf(log_keys, sizeof(log_keys), "nproc_per_node: 2\nlog: {dir: %s/logs%s}\n", c->dir,
             more);
    return case_run_job(c, case_job(c, command, log_keys));
}

/* <dir>/logs/<name>/<file> relative to the case's folder. */
static const char *log_file(const struct agent_case *c, const char *file)
{
    static char paths[4][1024];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "logs/%s/%s", c->name, file);
    return path;
}

static void each_rank_and_stream_has_its_file(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_logged(&c, "[sh, -c, 'echo out $RANK; echo err $RANK >&2']", "") == 0);
    er_tap_check(case_file_is(&c, log_file(&c, "gen-1/rank-0/stdout.log"), "out 0\n"));
    er_tap_check(case_file_is(&c, log_file(&c, "gen-1/rank-1/stdout.log"), "out 1\n"));
    er_tap_check(case_file_is(&c, log_file(&c, "gen-1/rank-1/stderr.log"), "err 1\n"));
    er_tap_check(case_file_is(&c, log_file(&c, "current/rank-1/stderr.log"), "err 1\n"));
    er_tap_check(strstr(er_test_out(&c.p), "[default0]: out 0\n") != NULL);
    er_tap_check(strstr(er_test_out(&c.p), "[default1]: out 1\n") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "[default1]: err 1\n") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "succeeded") != NULL);
    case_end(&c);
}

static void progress_bars_and_unfinished_lines_stay_whole(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_logged(&c,
                            "[sh, -c, '[ $RANK = 0 ] || exit 0; printf \"a\\r\"; sleep 0.1; printf "
                            "\"b\\r\\nno\"; sleep 0.1; printf \" end\"']",
                            "") == 0);
    er_tap_check(case_file_is(&c, log_file(&c, "gen-1/rank-0/stdout.log"), "a\rb\r\nno end"));
    er_tap_check(
        strstr(er_test_out(&c.p), "[default0]: a\r[default0]: b\r\n[default0]: no end\n") != NULL);
    case_end(&c);
}

static void console_shows_the_ranks_asked_for(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_logged(&c, "[sh, -c, 'echo out $RANK']", ", console: \"1\"") == 0);
    er_tap_check(strcmp(er_test_out(&c.p), "[default1]: out 1\n") == 0);
    er_tap_check(case_file_is(&c, log_file(&c, "gen-1/rank-0/stdout.log"), "out 0\n"));
    case_end(&c);
}

static void files_are_rotated(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_logged(&c,
                            "[sh, -c, 'for i in 1 2 3 4 5 6; do printf %03000d 0 | tr "
                            "0 $i; sleep 0.05; done']",
                            ", max_size: 4KiB, max_files: 3, tee: \"0\"") == 0);
    er_tap_check(case_has(&c, log_file(&c, "gen-1/rank-0/stdout.log")));
    er_tap_check(case_has(&c, log_file(&c, "gen-1/rank-0/stdout.log.1")));
    er_tap_check(case_has(&c, log_file(&c, "gen-1/rank-0/stdout.log.2")));
    er_tap_check(!case_has(&c, log_file(&c, "gen-1/rank-0/stdout.log.3")));
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    case_end(&c);
}

/* Rank 0 of the first generation makes the disk full for its successor. */
static void full_disk_costs_lines_not_workers(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_logged(&c,
                            "[sh, -c, '[ $ELASTIC_GENERATION = 1 ] || exec seq 100000; [ $RANK = 0 "
                            "] || exec sleep 100; d=$CASE/logs/$ELASTIC_JOB/gen-2/rank-0; mkdir -p "
                            "$d; ln -s /dev/full $d/stdout.log; exit 1']",
                            ", tee: \"0\"") == 0);
    char *events = er_test_read_file(case_path(&c, log_file(&c, "gen-2/rank-1/stdout.log")));

    er_tap_check(events && strlen(events) == 588895);
    free(events);
    er_tap_check(strstr(er_test_err(&c.p), "output of a worker was dropped") != NULL);
    case_end(&c);
}

static void unwritable_log_dir_is_73(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "file"), "");
    er_tap_check(case_run(&c, ARGS("--log-dir", case_path(&c, "file/logs"), "-r", "3", "sh", "-c",
                                   "echo started > $CASE/started")) == 73);
    er_tap_check(strstr(er_test_err(&c.p), "log.dir") != NULL);
    er_tap_check(!case_has(&c, "started"));
    case_end(&c);
}

static void summary_has_the_last_words(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_logged(&c,
                            "[sh, -c, '[ $RANK = 1 ] || exec sleep 100; seq 30 >&2; echo Boom: no "
                            "luck >&2; exit 4']",
                            ", console: none}\nrestart: {max: 0") == 4);
    er_tap_check(strstr(er_test_err(&c.p), "message     Boom: no luck") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "    | 12\n") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "    | 11\n") == NULL); /* 20 lines */
    er_tap_check(strstr(er_test_err(&c.p), "gen-1/rank-1") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), "1 stopped after it") != NULL);
    case_end(&c);
}

/* torchrun's @record writes either form. */
static void error_file(const char *json, const char *message, const char *traceback)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "error"), json);
    er_tap_check(case_run(&c, ARGS(SH("cp $CASE/error $TORCHELASTIC_ERROR_FILE; exit 1"))) == 1);
    er_tap_check(strstr(er_test_err(&c.p), message) != NULL);
    er_tap_check(!traceback || strstr(er_test_err(&c.p), traceback));
    case_end(&c);
}

static void error_files_of_both_forms_are_read(void)
{
    error_file("{\"message\": \"flat words\", \"timestamp\": 1}", "message     flat words", NULL);
    error_file("{\"message\": {\"message\": \"ValueError: x\", \"extraInfo\": {\"py_callstack\": "
               "\"Traceback:\\n  line 3\", \"timestamp\": \"1\"}}}",
               "message     ValueError: x", "    | Traceback:\n    |   line 3\n");
    error_file("{\"message\": nonsense", "exited with code 1", NULL);
}

/* elastic-run as a worker of elastic-run. */
static void root_cause_reaches_an_outer_launcher(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS(er_test_bin("elastic-run"),
                                   SH("echo '{\"message\": \"inner words\"}' > "
                                      "$TORCHELASTIC_ERROR_FILE; exit 21"))) == 21);
    const char *outer = strstr(er_test_err(&c.p), c.name);

    er_tap_check(outer && strstr(outer, "message     inner words"));
    case_end(&c);
}

static const char *const ALWAYS[] = {"ts",     "event",   "severity", "job",
                                     "run_id", "node_id", "host",     "msg"};

static json_t *event_of(const char *line)
{
    json_t *event = json_loads(line, 0, NULL);

    er_tap_require(event != NULL);
    for (size_t i = 0; i < sizeof(ALWAYS) / sizeof(ALWAYS[0]); i++)
        er_tap_check(json_is_string(json_object_get(event, ALWAYS[i])));
    er_tap_check(json_integer_value(json_object_get(event, "v")) == 1);
    er_tap_check(json_is_integer(json_object_get(event, "mono_us")));
    er_tap_check(json_is_integer(json_object_get(event, "generation")));
    return event;
}

static bool event_is(const json_t *event, const char *name)
{
    return strcmp(json_string_value(json_object_get(event, "event")), name) == 0;
}

static void check_exit_event(const json_t *event)
{
    const char *kind = json_string_value(json_object_get(event, "kind"));

    if (!json_is_true(json_object_get(event, "root_cause")))
        return;
    er_tap_check(kind && strcmp(kind, "signaled") == 0);
    er_tap_check(json_integer_value(json_object_get(event, "signal")) == 9);
    er_tap_check(json_is_array(json_object_get(event, "stderr_tail")));
}

static void events_are_json_lines_in_order(void)
{
    static const char *const NAMES[] = {"agent_started",     "node_joined",    "generation_forming",
                                        "generation_sealed", "worker_started", "worker_exited",
                                        "restart_counted",   "recovered",      "job_succeeded",
                                        "agent_exited"};
    struct agent_case c = {0};
    unsigned seen = 0;
    long long seq = 0;
    char file[256], host[200] = "";

    case_begin(&c);
    er_tap_check(run_logged(&c,
                            "[sh, -c, 'echo \"\\\"quoted\\\"\" >&2; [ $RANK = 1 ] || exec sleep "
                            "0.2; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || kill -KILL $$$$']",
                            "") == 0);
    gethostname(host, sizeof(host) - 1);
    snprintf(file, sizeof(file), "events-%s.jsonl", host);
    char *text = er_test_read_file(case_path(&c, log_file(&c, file))), *rest = text;

    er_tap_require(text != NULL);
    for (char *line; (line = strsep(&rest, "\n")) && line[0];) {
        json_t *event = event_of(line);

        er_tap_check(json_integer_value(json_object_get(event, "seq")) == ++seq);
        for (unsigned i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
            seen |= event_is(event, NAMES[i]) ? 1u << i : 0;
        if (event_is(event, "worker_exited"))
            check_exit_event(event);
        json_decref(event);
    }
    for (unsigned i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (!er_tap_check(seen & 1u << i))
            er_tap_note("missing: %s", NAMES[i]);
    }
    free(text);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"each_rank_and_stream_has_its_file", each_rank_and_stream_has_its_file, 0},
        {"progress_bars_and_unfinished_lines_stay_whole",
         progress_bars_and_unfinished_lines_stay_whole, 0},
        {"console_shows_the_ranks_asked_for", console_shows_the_ranks_asked_for, 0},
        {"files_are_rotated", files_are_rotated, 0},
        {"full_disk_costs_lines_not_workers", full_disk_costs_lines_not_workers, 0},
        {"unwritable_log_dir_is_73", unwritable_log_dir_is_73, 0},
        {"summary_has_the_last_words", summary_has_the_last_words, 0},
        {"error_files_of_both_forms_are_read", error_files_of_both_forms_are_read, 0},
        {"root_cause_reaches_an_outer_launcher", root_cause_reaches_an_outer_launcher, 0},
        {"events_are_json_lines_in_order", events_are_json_lines_in_order, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
