#include "tests/lib/event_schema.h"

#include <ctype.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

enum { LINE_MAX_BYTES = 64 << 10 };

/*
 * "name:type ..."; types: s string, i integer, n number, b bool, a list, o object, t time; a `?`
 * behind it: may be missing or null. One row an event, as reference and docs have them.
 */
static const char ALWAYS[] = "v:i ts:t mono_us:i seq:i event:s severity:s job:s run_id:s node_id:s "
                             "host:s generation:i msg:s";

static const struct {
    const char *event, *fields;
} EVENTS[] = {
    {"agent_started", "version:s pid:i argv:a config_digest:s"},
    {"agent_exited", "exit_code:i outcome:s reason:s"},
    {"config_reloaded", "keys:a changes:s"},
    {"overrides_changed", "keys:a changes:s by:s? set_ts:t?"},
    {"node_joined", "node:s address:s slots:i as:s"},
    {"node_promoted", "node:s address:s slots:i as:s"},
    {"node_left", "node:s reason:s"},
    {"node_lost", "node:s reason:s detect_ms:n?"},
    {"node_set_aside", "node:s reason:s until_ts:t?"},
    {"generation_forming", "reason:s have:i min:i max:i missing:a?"},
    {"generation_sealed", "reason:s world_size:i nnodes:i added:a? removed:a? master_addr:s "
                          "master_port:i duration_ms:n"},
    {"worker_started", "rank:i local_rank:i pid:i"},
    {"worker_ready", "rank:i start_ms:n"},
    {"worker_exited", "rank:i local_rank:i pid:i kind:s code:i? signal:i? core:b? step:i? "
                      "runtime_ms:n error_file:s? message:s? stderr_tail:a? root_cause:b"},
    {"worker_hung", "rank:i pid:i phase:s step:i? collective_seq:i? deadline_ms:n state:s? "
                    "wchan:s? waiting_ranks:a? stack:s?"},
    {"straggler_detected", "rank:i ratio:n cost_ms:n?"},
    {"restart_counted", "used:i max:i? window_s:n? cause_rank:i cause:s"},
    {"restart_denied", "used:i max:i? window_s:n? cause_rank:i cause:s"},
    {"resize_announced", "from:i to:i at_step:i? reason:s deadline_ts:t?"},
    {"recovered", "reason:s detect_ms:n stop_ms:n rendezvous_ms:n start_ms:n comm_init_ms:n "
                  "restore_ms:n replay_ms:n total_ms:n steps_lost:i?"},
    {"checkpoint_committed", "step:i bytes:i written_bytes:i pause_ms:n duration_ms:n digest:s "
                             "path:s"},
    {"checkpoint_failed", "step:i errno:i message:s failures:i"},
    {"checkpoint_loaded", "step:i path:s source:s skipped:a?"},
    {"store_lost", "endpoints:a? error:s"},
    {"store_restored", "outage_ms:n verdict:s"},
    {"health_check_failed", "check:s detail:s"},
    {"log_dropped", "rank:i stream:s lines:i bytes:i reason:s"},
    {"job_succeeded", "exit_code:i steps:i? restarts:i duration_ms:n"},
    {"job_failed", "exit_code:i root_cause:o? steps:i? restarts:i duration_ms:n"},
    {"job_stopped", "exit_code:i steps:i? restarts:i duration_ms:n"},
};

static const char ROOT_CAUSE[] = "node_id:s host:s rank:i pid:i kind:s code:i signal:i message:s";

/* 2026-01-31T12:00:00.123456Z */
static bool is_time(const json_t *value)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd.ddddddZ";
    const char *text = json_string_value(value);

    if (!text || strlen(text) != sizeof(form) - 1)
        return false;
    for (size_t i = 0; form[i]; i++) {
        if (form[i] == 'd' ? !isdigit((unsigned char)text[i]) : form[i] != text[i])
            return false;
    }
    return true;
}

static bool has_type(const json_t *value, char type)
{
    switch (type) {
    case 's':
        return json_is_string(value);
    case 'i':
        return json_is_integer(value);
    case 'n':
        return json_is_number(value);
    case 'b':
        return json_is_boolean(value);
    case 'a':
        return json_is_array(value);
    case 'o':
        return json_is_object(value);
    case 't':
        return is_time(value);
    default:
        return false;
    }
}

static void check_fields(const json_t *object, const char *what, const char *fields)
{
    char *copy = strdup(fields), *rest = copy;

    for (char *field; (field = strsep(&rest, " "));) {
        char *colon = strchr(field, ':');
        const json_t *value;

        *colon = '\0';
        value = json_object_get(object, field);
        if (colon[2] == '?' && (!value || json_is_null(value)))
            continue;
        if (!er_tap_check(value && has_type(value, colon[1])))
            er_tap_note("%s: field '%s' is %s", what, field, value ? "of a wrong type" : "missing");
    }
    free(copy);
}

static bool is_one_of(const char *text, const char *list)
{
    size_t n = text ? strlen(text) : 0;
    const char *at = list;

    while (n && (at = strstr(at, text))) {
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
        at += n;
    }
    return false;
}

static void check_words(const json_t *event, const char *name)
{
    static const struct {
        const char *event, *field, *words;
    } rows[] = {
        {NULL, "severity", "info warning error"},
        {"agent_exited", "outcome",
         "succeeded failed stopped preempted drained canceled superseded error"},
        {"node_joined", "as", "member spare"},
        {"node_left", "reason", "drained preempted finished stopped"},
        {"node_lost", "reason", "lease_expired agent_died"},
        {"generation_sealed", "reason",
         "formed worker_failed worker_hung node_lost node_joined drained preempted scaled "
         "connections_lost"},
        {"generation_forming", "reason",
         "formed worker_failed worker_hung node_lost node_joined drained preempted scaled "
         "connections_lost"},
        {"worker_exited", "kind", "ok exited signaled oom exec_failed hung lost stopped"},
        {"log_dropped", "stream", "stdout stderr"},
        {"checkpoint_loaded", "source", "store disk peer local"},
        {"store_restored", "verdict", "same_world superseded reset"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *word = json_string_value(json_object_get(event, rows[i].field));

        if (rows[i].event && strcmp(rows[i].event, name) != 0)
            continue;
        if (!er_tap_check(is_one_of(word, rows[i].words)))
            er_tap_note("%s: %s is '%s'", name, rows[i].field, word ? word : "(missing)");
    }
}

static void check_event(const json_t *event, long long seq, char seen[2048])
{
    const char *name = json_string_value(json_object_get(event, "event"));
    size_t i = 0, n = sizeof(EVENTS) / sizeof(EVENTS[0]);

    er_tap_require(name != NULL);
    check_fields(event, name, ALWAYS);
    er_tap_check(json_integer_value(json_object_get(event, "v")) == 1);
    er_tap_check(json_integer_value(json_object_get(event, "seq")) == seq);
    while (i < n && strcmp(EVENTS[i].event, name) != 0)
        i++;
    if (!er_tap_check(i < n)) {
        er_tap_note("unknown event '%s'", name);
        return;
    }
    check_fields(event, name, EVENTS[i].fields);
    check_words(event, name);
    if (json_is_object(json_object_get(event, "root_cause")))
        check_fields(json_object_get(event, "root_cause"), "root_cause", ROOT_CAUSE);
    if (seen && strlen(seen) + strlen(name) + 2 < 2048)
        strcat(strcat(seen, name), " ");
}

size_t er_test_events_check(const char *path, char ret_seen[2048])
{
    char *text = er_test_read_file(path), *rest = text;
    size_t n = 0;

    if (ret_seen)
        strcpy(ret_seen, " ");
    er_tap_require(text != NULL);
    for (char *line; (line = strsep(&rest, "\n")) && line[0];) {
        json_error_t wrong;
        json_t *event = json_loads(line, JSON_REJECT_DUPLICATES, &wrong);

        er_tap_check(strlen(line) <= LINE_MAX_BYTES);
        if (!er_tap_check(event != NULL))
            er_tap_note("%s: %s", wrong.text, line);
        if (event)
            check_event(event, (long long)++n, ret_seen);
        json_decref(event);
    }
    free(text);
    return n;
}
