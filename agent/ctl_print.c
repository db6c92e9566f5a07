#include "agent/ctl_print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define DEPTH_MAX 8 /* of what is shown */

const char *er_ctl_text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_string(value) ? json_string_value(value) : "-";
}

long long er_ctl_number(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

bool er_ctl_known(const json_t *object, const char *key)
{
    return json_is_number(json_object_get(object, key));
}

static json_t *tame_text(const json_t *value)
{
    ER_CLEANUP(er_cleanup_free) char *text = strdup(json_string_value(value));

    if (!text)
        return NULL;
    er_utf8_tame(text, strlen(text));
    for (char *at = text; (at = strchr(at, '\n'));)
        *at = ' ';
    return json_string(text);
}

static json_t *tame(const json_t *value, int depth)
{
    json_t *ret, *item;
    const char *key;
    size_t i;

    if (json_is_string(value))
        return tame_text(value);
    if (!json_is_object(value) && !json_is_array(value))
        return json_copy((json_t *)value);
    ret = json_is_object(value) ? json_object() : json_array();
    if (depth >= DEPTH_MAX)
        return ret;
    json_object_foreach((json_t *)value, key, item)
        json_object_set_new_nocheck(ret, key, tame(item, depth + 1));
    json_array_foreach(value, i, item) json_array_append_new(ret, tame(item, depth + 1));
    return ret;
}

json_t *er_ctl_tame(const json_t *value)
{
    return tame(value, 0);
}

void er_ctl_print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    printf("\n");
}

static void print_worker(const json_t *w)
{
    bool over = strcmp(er_ctl_text(w, "state"), "exited") == 0;
    double seconds = json_number_value(json_object_get(w, "runtime_ms")) / 1e3;
    char steps[64];

    printf("%5lld %6lld %8lld  %-9s %-12s", er_ctl_number(w, "rank"),
           er_ctl_number(w, "local_rank"), er_ctl_number(w, "pid"), er_ctl_text(w, "state"),
           over ? er_ctl_text(w, "kind") : er_ctl_text(w, "phase"));
    if (!er_ctl_known(w, "step")) /* a program without libelastic does not tell */
        snprintf(steps, sizeof(steps), "-");
    else if (er_ctl_number(w, "total_steps") > 0)
        snprintf(steps, sizeof(steps), "%lld/%lld", er_ctl_number(w, "step"),
                 er_ctl_number(w, "total_steps"));
    else
        snprintf(steps, sizeof(steps), "%lld", er_ctl_number(w, "step"));
    printf(" %-15s %8.1fs\n", steps, seconds);
}

static void print_node(const json_t *n)
{
    if (er_ctl_text(n, "host")[0] == '\0') { /* its record is gone */
        printf("node       %-16s %s\n", er_ctl_text(n, "node"), er_ctl_text(n, "state"));
        return;
    }
    printf("node       %-16s %-10s %lld workers, %s on %s\n", er_ctl_text(n, "node"),
           er_ctl_text(n, "state"), er_ctl_number(n, "slots"), er_ctl_text(n, "address"),
           er_ctl_text(n, "host"));
}

/* A job with an embedded store has no more to tell here. */
static void print_nodes(const json_t *s)
{
    const json_t *store = json_object_get(s, "store"), *nodes = json_object_get(s, "nodes");
    bool asked_agent = json_is_string(json_object_get(s, "node_id"));

    if (strcmp(er_ctl_text(store, "backend"), "etcd") != 0)
        return;
    printf("store      etcd at %s, %s\n", er_ctl_text(store, "endpoint"),
           json_is_true(json_object_get(store, "connected")) ? "connected"
                                                             : er_ctl_text(store, "error"));
    if (asked_agent)
        printf("this node  %s; node '%s' leads", er_ctl_text(s, "stand"), er_ctl_text(s, "leader"));
    else
        printf("leader     %s", er_ctl_text(s, "leader"));
    printf("; %lld to %lld nodes\n", er_ctl_number(s, "nnodes_min"),
           er_ctl_number(s, "nnodes_max"));
    for (size_t i = 0; i < json_array_size(nodes); i++)
        print_node(json_array_get(nodes, i));
}

/* What only an agent knows. */
static void print_agent(const json_t *s)
{
    if (json_is_string(json_object_get(s, "sentence")))
        printf("now        %s\n", er_ctl_text(s, "sentence"));
    if (json_is_string(json_object_get(s, "node_id")))
        printf("node       %s on %s, agent %lld, since %s\n", er_ctl_text(s, "node_id"),
               er_ctl_text(s, "host"), er_ctl_number(s, "pid"), er_ctl_text(s, "started_ts"));
}

static void print_workers(const json_t *s)
{
    const json_t *workers = json_object_get(s, "workers");

    if (!workers)
        return;
    printf(" RANK  LOCAL      PID  STATE     PHASE        STEP              RUNTIME\n");
    for (size_t i = 0; i < json_array_size(workers); i++)
        print_worker(json_array_get(workers, i));
    if (er_ctl_number(s, "workers_left_out") > 0)
        printf("... and %lld more\n", er_ctl_number(s, "workers_left_out"));
}

/* What is set above the job's spec. */
static void print_overrides(const json_t *s)
{
    json_t *set = json_object_get(s, "overrides"), *value;
    const char *key;

    if (json_object_size(set) == 0)
        return;
    printf("set       ");
    json_object_foreach(set, key, value) printf(" %s=%s", key, er_ctl_text(set, key));
    printf(" (by %s, %s)\n", er_ctl_text(s, "overrides_by"), er_ctl_text(s, "overrides_ts"));
}

static void print_table(const json_t *s)
{
    printf("job        %s\n", er_ctl_text(s, "job"));
    printf("phase      %s", er_ctl_text(s, "phase"));
    if (er_ctl_known(s, "exit_code"))
        printf(", exit code %lld (%s)", er_ctl_number(s, "exit_code"), er_ctl_text(s, "outcome"));
    printf("\n");
    print_agent(s);
    printf("generation %lld, world size %lld on %lld node(s)\n", er_ctl_number(s, "generation"),
           er_ctl_number(s, "world_size"), er_ctl_number(s, "nnodes"));
    printf("restarts   %lld", er_ctl_number(s, "restarts"));
    if (er_ctl_known(s, "restart_max"))
        printf(" of %lld", er_ctl_number(s, "restart_max"));
    if (er_ctl_known(s, "checkpoint_step"))
        printf("\ncheckpoint step %lld", er_ctl_number(s, "checkpoint_step"));
    if (json_is_string(json_object_get(s, "log_dir")))
        printf("\nlogs       %s", er_ctl_text(s, "log_dir"));
    printf("\n");
    print_overrides(s);
    print_nodes(s);
    print_workers(s);
}

/* The last event of a job that has ended. */
static void print_end(const json_t *s)
{
    printf("job '%s' ended at %s: exit code %lld (%s)\n", er_ctl_text(s, "job"),
           er_ctl_text(s, "ts"), er_ctl_number(s, "exit_code"), er_ctl_text(s, "outcome"));
}

void er_ctl_print_state(const json_t *state, bool json)
{
    json_t *shown = NULL;

    if (json)
        er_ctl_print_json(state);
    else if (json_is_string(json_object_get(state, "event")))
        print_end(shown = er_ctl_tame(state));
    else
        print_table(shown = er_ctl_tame(state));
    json_decref(shown);
}

void er_ctl_print_jobs(const json_t *jobs, bool json)
{
    if (!json)
        printf("%-24s %-10s %10s %6s %6s %8s %10s  %s\n", "JOB", "PHASE", "GENERATION", "NODES",
               "RANKS", "RESTARTS", "CHECKPOINT", "EXIT");
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        const json_t *j = json_array_get(jobs, i);
        char step[24] = "-", code[24] = "-";

        if (json) {
            er_ctl_print_json(j);
            continue;
        }
        if (er_ctl_known(j, "checkpoint_step"))
            snprintf(step, sizeof(step), "%lld", er_ctl_number(j, "checkpoint_step"));
        if (er_ctl_known(j, "exit_code"))
            snprintf(code, sizeof(code), "%lld", er_ctl_number(j, "exit_code"));
        printf("%-24s %-10s %10lld %6lld %6lld %8lld %10s  %s\n", er_ctl_text(j, "job"),
               er_ctl_text(j, "phase"), er_ctl_number(j, "generation"), er_ctl_number(j, "nnodes"),
               er_ctl_number(j, "world_size"), er_ctl_number(j, "restarts"), step, code);
    }
}

void er_ctl_print_event(const json_t *event, bool json)
{
    json_t *e;

    if (json) {
        er_ctl_print_json(event);
        return;
    }
    e = er_ctl_tame(event);
    printf("%-27s %-7s %-12s gen %-4lld %-20s %s\n", er_ctl_text(e, "ts"),
           er_ctl_text(e, "severity"), er_ctl_text(e, "node_id"), er_ctl_number(e, "generation"),
           er_ctl_text(e, "event"), er_ctl_text(e, "msg"));
    json_decref(e);
}
