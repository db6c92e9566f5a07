/* elastic-ctl: asks the agent of a job on this host. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl_ckpt.h"
#include "agent/ctl_find.h"
#include "agent/ctl_verbs.h"
#include "agent/findings.h"
#include "agent/help.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/ctlclient.h"
#include "base/parse.h"

#define ANSWER_US (10 * ER_US_PER_S)
#define USAGE_MAX (64u << 10)

extern char **environ;

struct options {
    const char *file, *job, *verb, *operand;
    bool json, wait, help, version;
};

static void print_usage(FILE *to)
{
    struct er_buf text;

    er_buf_init(&text, USAGE_MAX);
    if (!er_ctl_usage(&text))
        fputs(er_buf_str(&text), to);
    er_buf_done(&text);
}

static int usage(const char *what, const char *which)
{
    fprintf(stderr, "elastic-ctl: %s%s%s\n", what, which ? ": " : "", which ? which : "");
    print_usage(stderr);
    return ER_CTL_EXIT_USAGE;
}

static int unknown_verb(const char *verb)
{
    const char *near = er_ctl_verb_nearest(verb);

    if (er_ctl_verb_is_later(verb)) {
        fprintf(stderr, "elastic-ctl: %s: not available in this release; --help lists the verbs\n",
                verb);
        return ER_CTL_EXIT_USAGE;
    }
    if (!near)
        return usage("unknown verb", verb);
    fprintf(stderr, "elastic-ctl: unknown verb: %s; did you mean '%s'?\n", verb, near);
    return ER_CTL_EXIT_USAGE;
}

static bool takes_operand(const char *verb)
{
    return strcmp(verb, "drain") == 0 || strcmp(verb, "scale") == 0;
}

static int parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        bool takes_value = strcmp(arg, "-f") == 0 || strcmp(arg, "--job") == 0;

        if (takes_value && !argv[i + 1])
            return usage("a value is missing after", arg);
        if (takes_value)
            *(arg[1] == 'f' ? &o->file : &o->job) = argv[++i];
        else if (strncmp(arg, "--job=", 6) == 0)
            o->job = arg + 6;
        else if (strcmp(arg, "--json") == 0)
            o->json = true;
        else if (strcmp(arg, "--wait") == 0)
            o->wait = true;
        else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
            o->help = true;
        else if (strcmp(arg, "--version") == 0)
            o->version = true;
        else if (arg[0] == '-')
            return usage("unknown option", arg);
        else if (o->verb && er_ctl_verb_is_later(o->verb))
            return unknown_verb(o->verb);
        else if (o->verb && !o->operand && takes_operand(o->verb))
            o->operand = arg;
        else if (o->verb)
            return usage("one verb at a time; did not expect", arg);
        else
            o->verb = arg;
    }
    if (o->help || o->version)
        return 0;
    if (!o->verb)
        return usage("which verb?", NULL);
    if (!er_ctl_verb_find(o->verb))
        return unknown_verb(o->verb);
    if (strcmp(o->verb, "scale") == 0 && !o->operand)
        return usage("to how many nodes? scale MIN[:MAX]", NULL);
    if (o->file && o->job)
        return usage("-f and --job exclude each other", NULL);
    return 0;
}

/* The state in a message; NULL: none that we understand. */
static json_t *state_of(const struct er_ctl_msg *m)
{
    if (m->type != ER_CTL_REPLY || m->status != 0 || m->str_n < 1)
        return NULL;
    return json_loadb(m->str[0].data, m->str[0].len, 0, NULL);
}

static int no_answer(const char *name, int rc)
{
    if (rc == -ETIMEDOUT)
        fprintf(stderr, "elastic-ctl: the agent of job '%s' does not answer\n", name);
    else
        fprintf(stderr, "elastic-ctl: the agent of job '%s' has gone without a last word\n", name);
    return ER_CTL_EXIT_UNREACHABLE;
}

/* The agent has understood, and will not. */
static int refused(const struct er_ctl_msg *m)
{
    char words[512] = "";

    if (m->str_n > 0)
        er_ctl_copy(m->str[0], words, sizeof(words));
    fprintf(stderr, "elastic-ctl: %s\n", words[0] ? words : er_error_name(m->status));
    return ER_CTL_EXIT_NO;
}

/* Asks, and with `wait` listens until the job is over. 0, or the exit code, told. */
static int ask_for(struct er_ctl_client *client, struct er_ctl_msg *request, bool wait,
                   const char *name, json_t **ret)
{
    struct er_ctl_msg m = {0};
    int rc = er_ctl_client_call(client, request, ANSWER_US, &m, NULL);
    json_t *state = rc ? NULL : state_of(&m);

    if (!rc && m.type == ER_CTL_REPLY && m.status < 0)
        return refused(&m);

    while (state && wait && !json_is_number(json_object_get(state, "exit_code"))) {
        json_decref(state);
        rc = er_ctl_client_hear(client, ER_FOREVER, &m, NULL);
        state = rc ? NULL : state_of(&m);
    }
    *ret = state;
    return state ? 0 : no_answer(name, rc);
}

static int ask(struct er_ctl_client *client, enum er_ctl_type type, bool wait, const char *name,
               json_t **ret)
{
    struct er_ctl_msg request = {.type = type};

    return ask_for(client, &request, wait, name, ret);
}

static const char *text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_string(value) ? json_string_value(value) : "-";
}

static long long number(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static bool known(const json_t *object, const char *key)
{
    return json_is_number(json_object_get(object, key));
}

static void print_worker(const json_t *w)
{
    bool over = strcmp(text(w, "state"), "exited") == 0;
    double seconds = json_number_value(json_object_get(w, "runtime_ms")) / 1e3;
    char steps[64];

    printf("%5lld %6lld %8lld  %-9s %-12s", number(w, "rank"), number(w, "local_rank"),
           number(w, "pid"), text(w, "state"), over ? text(w, "kind") : text(w, "phase"));
    if (!known(w, "step")) /* a program without libelastic does not tell */
        snprintf(steps, sizeof(steps), "-");
    else if (number(w, "total_steps") > 0)
        snprintf(steps, sizeof(steps), "%lld/%lld", number(w, "step"), number(w, "total_steps"));
    else
        snprintf(steps, sizeof(steps), "%lld", number(w, "step"));
    printf(" %-15s %8.1fs\n", steps, seconds);
}

/* A job with a store of its own has no more to tell here. */
static void print_nodes(const json_t *s)
{
    const json_t *store = json_object_get(s, "store"), *nodes = json_object_get(s, "nodes");

    if (strcmp(text(store, "backend"), "etcd") != 0)
        return;
    printf("store      etcd at %s, %s\n", text(store, "endpoint"),
           json_is_true(json_object_get(store, "connected")) ? "connected" : text(store, "error"));
    printf("this node  %s; node '%s' leads; %lld to %lld nodes\n", text(s, "stand"),
           text(s, "leader"), number(s, "nnodes_min"), number(s, "nnodes_max"));
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *n = json_array_get(nodes, i);

        printf("node       %-16s %-10s %lld workers, %s on %s\n", text(n, "node"), text(n, "state"),
               number(n, "slots"), text(n, "address"), text(n, "host"));
    }
}

static void print_table(const json_t *s)
{
    const json_t *workers = json_object_get(s, "workers");

    printf("job        %s\n", text(s, "job"));
    printf("phase      %s", text(s, "phase"));
    if (known(s, "exit_code"))
        printf(", exit code %lld (%s)", number(s, "exit_code"), text(s, "outcome"));
    printf("\nnode       %s on %s, agent %lld, since %s\n", text(s, "node_id"), text(s, "host"),
           number(s, "pid"), text(s, "started_ts"));
    printf("generation %lld, world size %lld on %lld node(s)\n", number(s, "generation"),
           number(s, "world_size"), number(s, "nnodes"));
    printf("restarts   %lld", number(s, "restarts"));
    if (known(s, "restart_max"))
        printf(" of %lld", number(s, "restart_max"));
    if (known(s, "checkpoint_step"))
        printf("\ncheckpoint step %lld", number(s, "checkpoint_step"));
    printf("\nlogs       %s\n", text(s, "log_dir"));
    print_nodes(s);
    printf(" RANK  LOCAL      PID  STATE     PHASE        STEP              RUNTIME\n");
    for (size_t i = 0; i < json_array_size(workers); i++)
        print_worker(json_array_get(workers, i));
    if (number(s, "workers_left_out") > 0)
        printf("... and %lld more\n", number(s, "workers_left_out"));
}

static void print_state(const json_t *state, bool json)
{
    if (!json) {
        print_table(state);
    } else {
        json_dumpf(state, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
        printf("\n");
    }
}

static int run_status(const struct options *o, struct er_ctl_client *client, const char *name)
{
    json_t *state;
    int code = ask(client, ER_CTL_STATUS, o->wait, name, &state);

    if (code)
        return code;
    print_state(state, o->json);
    if (o->wait && number(state, "exit_code") != 0)
        code = ER_CTL_EXIT_NO;
    json_decref(state);
    return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : code;
}

static int run_stop(const struct options *o, struct er_ctl_client *client, const char *name)
{
    json_t *state;
    int code = ask(client, ER_CTL_STOP, o->wait, name, &state);

    if (code)
        return code;
    if (known(state, "exit_code"))
        printf("job '%s' has ended: exit code %lld (%s)\n", name, number(state, "exit_code"),
               text(state, "outcome"));
    else
        printf("job '%s' is being stopped\n", name);
    json_decref(state);
    return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : 0;
}

static int run_drain(const struct options *o, struct er_ctl_client *client, const char *name)
{
    struct er_ctl_msg request = {.type = ER_CTL_DRAIN};
    json_t *state;
    int code;

    er_ctl_str(&request, o->operand ? o->operand : "");
    code = ask_for(client, &request, false, name, &state);
    if (code)
        return code;
    printf("node '%s' of job '%s' is asked to leave\n",
           o->operand ? o->operand : text(state, "node_id"), name);
    json_decref(state);
    return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : 0;
}

static int run_scale(const struct options *o, struct er_ctl_client *client, const char *name)
{
    struct er_ctl_msg request = {.type = ER_CTL_SCALE};
    struct er_error err = ER_ERROR_INIT;
    uint32_t min, max;
    json_t *state;
    int code;

    if (er_parse_range(o->operand, UINT32_MAX, &min, &max, &err))
        return usage("scale", err.text);
    er_ctl_num(&request, min);
    er_ctl_num(&request, max);
    code = ask_for(client, &request, false, name, &state);
    if (code)
        return code;
    printf("job '%s' is asked to go on with %u to %u nodes\n", name, min, max);
    json_decref(state);
    return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : 0;
}

typedef int (*verb_fn)(const struct options *o, struct er_ctl_client *client, const char *name);

static verb_fn verb_of(const char *name)
{
    static const struct {
        const char *name;
        verb_fn run;
    } VERBS[] = {
        {"status", run_status}, {"stop", run_stop}, {"drain", run_drain}, {"scale", run_scale}};

    for (size_t i = 0; i < ER_ARRAY_N(VERBS); i++) {
        if (strcmp(VERBS[i].name, name) == 0)
            return VERBS[i].run;
    }
    return run_status;
}

/* A job that has ended: what its event file says. `code`: of the search for its agent. */
static int tell_ended(const struct options *o, const struct er_ctl_job *job, int code,
                      const struct er_error *err)
{
    json_t *last = code == ER_CTL_EXIT_UNREACHABLE ? NULL : er_ctl_job_last_event(job);
    bool ended = last && strcmp(text(last, "event"), "agent_exited") == 0;

    er_findings_tell("elastic-ctl", err->text);
    if (code == ER_CTL_EXIT_NO_SUCH && !last)
        er_findings_tell("elastic-ctl", "how it ended is in its event file, which is looked for "
                                        "where -f JOB.yaml says");
    if (last && !ended)
        fprintf(stderr, "elastic-ctl: its agent died after %s\n", text(last, "ts"));
    if (!ended) {
        json_decref(last);
        return code;
    }
    if (o->json)
        print_state(last, true);
    else
        printf("job '%s' ended at %s: exit code %lld (%s)\n", job->name, text(last, "ts"),
               number(last, "exit_code"), text(last, "outcome"));
    code = !o->wait ? ER_CTL_EXIT_NO_SUCH : number(last, "exit_code") ? ER_CTL_EXIT_NO : 0;
    json_decref(last);
    return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : code;
}

static int run(const struct options *o)
{
    static struct er_ctl_client client = {.fd = -1}; /* large */
    struct er_error err = ER_ERROR_INIT;
    bool acts = strcmp(o->verb, "status") != 0;
    struct er_ctl_job job;
    int code = er_ctl_job_find(&job, o->file, o->job, environ, &err);

    if (code) {
        er_findings_tell("elastic-ctl", err.text);
    } else {
        code = er_ctl_job_connect(&job, &client, ANSWER_US, &err);
        if (!code)
            code = verb_of(o->verb)(o, &client, job.name);
        else if (acts)
            er_findings_tell("elastic-ctl", err.text);
        else
            code = tell_ended(o, &job, code, &err);
    }
    er_ctl_client_close(&client);
    er_ctl_job_done(&job);
    return code;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    int code;

    /* Checkpoints are another library's business, which the agent does not link. */
    if (er_ctl_ckpt(argc, argv, environ, &code))
        return code;
    code = parse(&o, argc, argv);
    if (code)
        return code;
    if (o.help || o.version) {
        if (o.help)
            print_usage(stdout);
        else
            printf("elastic-ctl %s\n", er_agent_version());
        return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : 0;
    }
    return run(&o);
}
