#include "agent/ctl_run.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl_explain.h"
#include "agent/ctl_print.h"
#include "agent/ctl_remote.h"
#include "agent/ctl_set.h"
#include "agent/findings.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/parse.h"

#define LOOK_MS  500
#define WATCH_MS 1000
#define CLEAR    "\033[H\033[2J\033[3J"
/* Of --state; its help has them too (ctl_verbs.c). */
#define STATES "forming,running,resizing,succeeded,failed,stopped,over"

static int tell(int code, const struct er_error *err)
{
    if (code)
        er_findings_tell("elastic-ctl", err->text);
    return code;
}

/* ---- looking ---- */

static int exit_of(const struct er_ctl_words *w, const json_t *state)
{
    if (w->wait && er_ctl_number(state, "exit_code") != 0)
        return ER_CTL_EXIT_NO;
    /* It has ended, and only its event file is left. */
    return !w->wait && json_object_get(state, "event") ? ER_CTL_EXIT_NO_SUCH : 0;
}

/* What changes from look to look though nothing happens. */
static json_t *without_clocks(const json_t *state)
{
    json_t *copy = json_deep_copy(state);
    size_t i;
    json_t *w;

    json_object_del(copy, "useful_ratio");
    json_array_foreach(json_object_get(copy, "workers"), i, w) json_object_del(w, "runtime_ms");
    return copy;
}

/* On a terminal one picture that stays; elsewhere a new one whenever something has changed. */
static int watch(struct er_ctl_call *c)
{
    bool terminal = isatty(STDOUT_FILENO) && !c->words.json;
    json_t *shown = NULL, *state = NULL;
    int code;

    while (!(code = er_ctl_state(c, &state))) {
        json_t *now = without_clocks(state);
        bool over = er_ctl_is_over(state);

        if (terminal)
            printf(CLEAR);
        if (terminal || !json_equal(now, shown))
            er_ctl_print_state(state, c->words.json);
        code = er_ctl_done(over ? exit_of(&c->words, state) : 0);
        json_decref(shown);
        json_decref(state);
        shown = now;
        if (over || code)
            break;
        poll(NULL, 0, WATCH_MS);
    }
    json_decref(shown);
    return code;
}

/* An agent tells when the job is over; the store is looked at. */
static int wait_over(struct er_ctl_call *c, json_t **state)
{
    if (!json_object_get(*state, "source"))
        return er_ctl_hear_end(c, state);
    while (!er_ctl_is_over(*state)) {
        int code;

        poll(NULL, 0, WATCH_MS);
        json_decref(*state);
        *state = NULL;
        code = er_ctl_state(c, state);
        if (code)
            return code;
    }
    return 0;
}

static int run_status(struct er_ctl_call *c)
{
    json_t *state = NULL;
    int code;

    if (c->words.watch)
        return watch(c);
    code = er_ctl_state(c, &state);
    if (!code && c->words.wait && !er_ctl_is_over(state))
        code = wait_over(c, &state);
    if (!code) {
        er_ctl_print_state(state, c->words.json);
        code = exit_of(&c->words, state);
    }
    json_decref(state);
    return er_ctl_done(code);
}

static int run_explain(struct er_ctl_call *c)
{
    struct er_error err = ER_ERROR_INIT;
    json_t *state = NULL, *shown = NULL;
    int code = er_ctl_state(c, &state);

    if (!code && json_object_get(state, "source") &&
        er_ctl_explain_gather(c->store, c->job.name, state, &err))
        code = tell(ER_CTL_EXIT_UNREACHABLE, &err);
    if (!code && c->words.json)
        er_ctl_print_state(json_object_get(state, "diagnosis"), true);
    else if (!code)
        er_ctl_explain(shown = er_ctl_tame(state), stdout);
    json_decref(shown);
    json_decref(state);
    return er_ctl_done(code);
}

static int run_ps(struct er_ctl_call *c)
{
    struct er_error err = ER_ERROR_INIT;
    json_t *jobs = NULL;
    int code = er_ctl_call_store(c);

    if (!code)
        code = tell(er_ctl_remote_jobs(c->store, &jobs, &err), &err);
    if (!code)
        er_ctl_print_jobs(jobs, c->words.json);
    json_decref(jobs);
    return er_ctl_done(code);
}

/* ---- waiting ---- */

static bool in_list(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] != '\0')) {
        if (strcspn(at, ",") == n && strncmp(at, word, n) == 0)
            return true;
    }
    return false;
}

static bool states_known(const char *list)
{
    char word[24];

    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");

        if (n == 0 || n >= sizeof(word))
            return false;
        memcpy(word, at, n);
        word[n] = '\0';
        if (!in_list(STATES, word))
            return false;
        at += n + (at[n] != '\0');
    }
    return *list != '\0';
}

struct wish {
    const char *states;
    uint64_t nodes;
    uint64_t until_us;
};

static bool holds(const struct wish *w, const json_t *state)
{
    const char *phase = er_ctl_text(state, "phase");
    bool over = er_ctl_is_over(state);

    if (over && strcmp(phase, "-") == 0) /* of an event file */
        phase = er_ctl_text(state, "outcome");
    return (in_list(w->states, phase) || (over && in_list(w->states, "over"))) &&
           (uint64_t)er_ctl_number(state, "nnodes") >= w->nodes;
}

static int parse_wish(const struct er_ctl_words *words, struct wish *ret)
{
    struct er_error err = ER_ERROR_INIT;
    uint64_t timeout_us = ER_FOREVER;

    *ret = (struct wish){.states = words->state};
    if (!ret->states)
        ret->states = words->nodes ? "running" : "over";
    if (!states_known(ret->states))
        return er_ctl_wrong("--state: expected some of " STATES "; got", ret->states);
    if (words->nodes && er_parse_u64(words->nodes, 1, UINT32_MAX, &ret->nodes, &err))
        return er_ctl_wrong("--nodes", err.text);
    if (words->timeout && er_parse_duration(words->timeout, false, &timeout_us, &err))
        return er_ctl_wrong("--timeout", err.text);
    ret->until_us = er_deadline_in(er_now_us(), timeout_us);
    return 0;
}

/* Looks once. 0: it is so; ER_CTL_EXIT_NO: it cannot be any more; -1: not yet. */
static int look(struct er_ctl_call *c, const struct wish *wish)
{
    json_t *state = NULL;
    int code = er_ctl_state(c, &state);
    bool met = !code && holds(wish, state), over = !code && er_ctl_is_over(state);

    if (met || over)
        er_ctl_print_state(state, c->words.json);
    json_decref(state);
    if (met)
        return er_ctl_done(0);
    if (over)
        return er_ctl_done(ER_CTL_EXIT_NO);
    return code == 0 || code == ER_CTL_EXIT_NO_SUCH ? -1 : code;
}

static int run_wait(struct er_ctl_call *c)
{
    struct wish wish;
    int code = parse_wish(&c->words, &wish);

    if (code)
        return code;
    c->patient = true;
    while ((code = look(c, &wish)) < 0) {
        if (er_now_us() >= wish.until_us) {
            fprintf(stderr, "elastic-ctl: not within %s\n", c->words.timeout);
            return ER_CTL_EXIT_NO;
        }
        poll(NULL, 0, LOOK_MS);
    }
    return code;
}

/* ---- asking for something ---- */

/* The agent here carries it to the job, or we write it to the store ourselves. `*ret` NULL: that
 * was done. */
static int ask(struct er_ctl_call *c, struct er_ctl_msg *request, const struct er_ask *what,
               json_t **ret)
{
    struct er_error err = ER_ERROR_INIT;
    int code = er_ctl_call_agent(c, &err);

    *ret = NULL;
    if (!code)
        return er_ctl_ask_agent(c, request, ret);
    if (code != ER_CTL_EXIT_NO_SUCH || !c->job.config || !er_config_keeps_record(c->job.config))
        return tell(code, &err);
    code = er_ctl_call_store(c);
    return code ? code
                : tell(er_ctl_remote_ask(c->store, c->job.name, c->words.verb, what, &err), &err);
}

/* "; they have 2m to save", "" without a deadline. */
static void time_text(uint64_t time_us, char ret[ER_UNIT_TEXT_MAX + 32])
{
    char time[ER_UNIT_TEXT_MAX];

    er_format_duration(time_us, time);
    snprintf(ret, ER_UNIT_TEXT_MAX + 32, time_us ? "; its workers have %s to save" : "", time);
}

static int told_end(struct er_ctl_call *c, const json_t *state, uint64_t time_us)
{
    char time[ER_UNIT_TEXT_MAX + 32];

    time_text(time_us, time);
    if (state && er_ctl_is_over(state) && c->words.wait)
        printf("job '%s' has ended: exit code %lld (%s)\n", c->job.name,
               er_ctl_number(state, "exit_code"), er_ctl_text(state, "outcome"));
    else if (c->words.preempt && c->words.wait)
        printf("every node of job '%s' has left\n", c->job.name);
    else if (c->words.preempt)
        printf("job '%s' is asked to save and leave, with exit code %d%s\n", c->job.name,
               ER_CODE_TEMPFAIL, time);
    else
        printf("job '%s' is being stopped%s\n", c->job.name, time);
    return er_ctl_done(0);
}

static bool any_node(const json_t *state)
{
    const json_t *node;
    size_t i;

    json_array_foreach(json_object_get(state, "nodes"), i, node)
    {
        if (strcmp(er_ctl_text(node, "state"), "gone") != 0)
            return true;
    }
    return false;
}

/* Until the agent here has ended, or, as the store tells it, every node has left. */
static int wait_stopped(struct er_ctl_call *c, json_t **state)
{
    int code = *state ? 0 : er_ctl_state(c, state);

    if (!code && !json_object_get(*state, "source"))
        return er_ctl_is_over(*state) ? 0 : er_ctl_hear_end(c, state);
    while (!code && (any_node(*state) || (!c->words.preempt && !er_ctl_is_over(*state)))) {
        poll(NULL, 0, WATCH_MS);
        json_decref(*state);
        *state = NULL;
        code = er_ctl_state(c, state);
    }
    return code;
}

static int run_stop(struct er_ctl_call *c)
{
    struct er_ctl_msg request = {.type = ER_CTL_STOP};
    struct er_ask what = {.kind = ER_ASK_STOP, .reason = "elastic-ctl stop"};
    json_t *state;
    int code;

    if (c->words.deadline &&
        (er_parse_duration(c->words.deadline, false, &what.deadline_us, NULL) ||
         what.deadline_us == 0 || what.deadline_us == ER_FOREVER))
        return er_ctl_wrong("--deadline: expected a time above 0 with its unit, such as 30s or 5m; "
                            "got",
                            c->words.deadline);
    if (c->words.preempt) { /* every node leaves as if its agent got TERM */
        what.kind = ER_ASK_DRAIN;
        what.code = ER_CODE_TEMPFAIL;
        strcpy(what.node, ER_ASK_ALL_NODES);
        strcpy(what.reason, "elastic-ctl stop --preempt");
    }
    er_ctl_num(&request, c->words.preempt);
    er_ctl_num(&request, what.deadline_us);
    code = ask(c, &request, &what, &state);
    if (!code && c->words.wait)
        code = wait_stopped(c, &state);
    if (!code)
        code = told_end(c, state, what.deadline_us);
    json_decref(state);
    return code;
}

static int run_drain(struct er_ctl_call *c)
{
    struct er_ctl_msg request = {.type = ER_CTL_DRAIN};
    struct er_ask what = {.kind = ER_ASK_DRAIN, .reason = "elastic-ctl drain"};
    const char *node = c->words.operand;
    json_t *state;
    int code;

    if (!node && c->words.endpoints)
        return er_ctl_wrong("which node? drain NODE", NULL);
    if (node && !er_name_valid(node))
        return er_ctl_wrong("drain: this is no node id", node);
    snprintf(what.node, sizeof(what.node), "%s", node ? node : "");
    er_ctl_str(&request, node ? node : "");
    code = ask(c, &request, &what, &state);
    if (!code)
        printf("node '%s' of job '%s' is asked to leave\n",
               node ? node : er_ctl_text(state, "node_id"), c->job.name);
    json_decref(state);
    return er_ctl_done(code);
}

static int run_scale(struct er_ctl_call *c)
{
    struct er_ctl_msg request = {.type = ER_CTL_SCALE};
    struct er_ask what = {.kind = ER_ASK_SCALE, .reason = "elastic-ctl scale"};
    struct er_error err = ER_ERROR_INIT;
    json_t *state;
    int code;

    if (!c->words.operand)
        return er_ctl_wrong("to how many nodes? scale MIN[:MAX]", NULL);
    if (er_parse_range(c->words.operand, ER_NODES_MAX, &what.min_nodes, &what.max_nodes, &err))
        return er_ctl_wrong("scale", err.text);
    er_ctl_num(&request, what.min_nodes);
    er_ctl_num(&request, what.max_nodes);
    code = ask(c, &request, &what, &state);
    if (!code)
        printf("job '%s' is asked to go on with %u to %u nodes\n", c->job.name, what.min_nodes,
               what.max_nodes);
    json_decref(state);
    return er_ctl_done(code);
}

static int run_reload(struct er_ctl_call *c)
{
    struct er_ctl_msg request = {.type = ER_CTL_RELOAD};
    struct er_error err = ER_ERROR_INIT;
    json_t *reply = NULL;
    const json_t *keys;
    int code = tell(er_ctl_call_agent(c, &err), &err);

    if (!code)
        code = er_ctl_ask_agent(c, &request, &reply);
    if (code)
        return code;
    keys = json_object_get(reply, "changed");
    if (c->words.json)
        er_ctl_print_json(reply);
    for (size_t i = 0; !c->words.json && i < json_array_size(keys); i++)
        printf("%s has changed\n", json_string_value(json_array_get(keys, i)));
    if (!c->words.json && json_array_size(keys) == 0)
        printf("the job file of '%s' holds nothing new\n", c->job.name);
    json_decref(reply);
    return er_ctl_done(0);
}

/* ---- which ---- */

static const struct {
    const char *verb;
    int (*run)(struct er_ctl_call *c);
} VERBS[] = {
    {"status", run_status},  {"explain", run_explain}, {"ps", run_ps},
    {"wait", run_wait},      {"stop", run_stop},       {"events", er_ctl_run_events},
    {"drain", run_drain},    {"scale", run_scale},     {"reload", run_reload},
    {"set", er_ctl_run_set},
};

int er_ctl_run(const struct er_ctl_words *words, char **environ_)
{
    static struct er_ctl_client client = {.fd = -1}; /* large */
    struct er_ctl_call c = {.words = *words};
    size_t i = 0;
    int code;

    while (i < ER_ARRAY_N(VERBS) && strcmp(VERBS[i].verb, words->verb) != 0)
        i++;
    assert(i < ER_ARRAY_N(VERBS)); /* a verb of ctl_verbs.c that nobody carries out */
    code = er_ctl_call_begin(&c, &client, environ_);
    if (!code)
        code = VERBS[i].run(&c);
    er_ctl_call_end(&c);
    return code;
}
