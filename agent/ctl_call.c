#include "agent/ctl_call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl_print.h"
#include "agent/ctl_remote.h"
#include "agent/ctl_verbs.h"
#include "agent/findings.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"

#define ANSWER_US (10 * ER_US_PER_S)
#define USAGE_MAX (64u << 10)

int er_ctl_wrong(const char *what, const char *which)
{
    struct er_buf text;

    fprintf(stderr, "elastic-ctl: %s%s%s\n", what, which ? ": " : "", which ? which : "");
    er_buf_init(&text, USAGE_MAX);
    if (!er_ctl_usage(&text))
        fputs(er_buf_str(&text), stderr);
    er_buf_done(&text);
    return ER_CTL_EXIT_USAGE;
}

int er_ctl_done(int code)
{
    return fflush(stdout) == EOF ? ER_CTL_EXIT_UNREACHABLE : code;
}

static int tell(int code, const struct er_error *err)
{
    if (code)
        er_findings_tell("elastic-ctl", err->text);
    return code;
}

/* ---- which job ---- */

/* --endpoints and --set stand for a job file. */
static int of_endpoints(struct er_ctl_call *c, char **environ_, struct er_error *err)
{
    const struct er_ctl_words *w = &c->words;
    const char *argv[16 + 2 * ER_CTL_SETS_MAX] = {"elastic-ctl",
                                                  "--rdzv-backend",
                                                  "etcd",
                                                  "--rdzv-endpoint",
                                                  w->endpoints,
                                                  "--rdzv-id",
                                                  w->job ? w->job : "any",
                                                  "--nnodes",
                                                  "1:2",
                                                  "--log-dir",
                                                  "auto"};
    int n = 11;

    for (int i = 0; i < w->sets.n; i++) {
        argv[n++] = "--set";
        argv[n++] = w->sets.items[i];
    }
    argv[n++] = "true";
    snprintf(c->job.name, sizeof(c->job.name), "%s", w->job ? w->job : "");
    return er_config_load(&c->job.config, n, (char **)argv, environ_, err) ? ER_CTL_EXIT_USAGE : 0;
}

int er_ctl_call_begin(struct er_ctl_call *c, struct er_ctl_client *client, char **environ_)
{
    struct er_error err = ER_ERROR_INIT;

    c->client = client;
    if (c->words.endpoints)
        return tell(of_endpoints(c, environ_, &err), &err);
    return tell(
        er_ctl_job_find(&c->job, c->words.file, &c->words.sets, c->words.job, environ_, &err),
        &err);
}

void er_ctl_call_end(struct er_ctl_call *c)
{
    er_ctl_client_close(c->client);
    er_ctl_store_close(c->store);
    er_ctl_job_done(&c->job);
}

int er_ctl_call_agent(struct er_ctl_call *c, struct er_error *err)
{
    if (c->words.endpoints) {
        er_error_set(err, -ENOENT, "--endpoints asks the store");
        return ER_CTL_EXIT_NO_SUCH;
    }
    er_ctl_client_close(c->client);
    return er_ctl_job_connect(&c->job, c->client, ANSWER_US, err);
}

int er_ctl_call_store(struct er_ctl_call *c)
{
    struct er_error err = ER_ERROR_INIT;

    return c->store ? 0 : tell(er_ctl_store_open(&c->store, c->job.config, &err), &err);
}

/* ---- the agent ---- */

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
    else if (rc == 0)
        fprintf(stderr,
                "elastic-ctl: the agent of job '%s' answers what this program cannot read\n", name);
    else
        fprintf(stderr, "elastic-ctl: the agent of job '%s' has gone without a last word\n", name);
    return ER_CTL_EXIT_UNREACHABLE;
}

/* The agent has understood, and will not. */
static int refused(const struct er_ctl_msg *m)
{
    char words[ER_ERROR_TEXT_MAX] = "";

    if (m->str_n > 0)
        er_ctl_copy(m->str[0], words, sizeof(words));
    er_findings_tell("elastic-ctl", words[0] ? words : er_error_name(m->status));
    return m->status == -ENOTCONN || m->status == -ETIMEDOUT ? ER_CTL_EXIT_UNREACHABLE
           : m->status == -EACCES                            ? ER_CTL_EXIT_REFUSED
                                                             : ER_CTL_EXIT_NO;
}

/* ER_CTL_EXIT_UNREACHABLE and *ret_rc <= 0, which says why: nobody has been told. */
static int ask(struct er_ctl_call *c, struct er_ctl_msg *request, json_t **ret, int *ret_rc)
{
    struct er_ctl_msg m = {0};
    int rc = er_ctl_client_call(c->client, request, ANSWER_US, &m, NULL);

    if (!rc && m.type == ER_CTL_REPLY && m.status < 0) {
        *ret_rc = 1;
        return refused(&m);
    }
    *ret = rc ? NULL : state_of(&m);
    *ret_rc = rc;
    return *ret ? 0 : ER_CTL_EXIT_UNREACHABLE;
}

int er_ctl_ask_agent(struct er_ctl_call *c, struct er_ctl_msg *request, json_t **ret)
{
    int rc = 0, code = ask(c, request, ret, &rc);

    return code == ER_CTL_EXIT_UNREACHABLE && rc <= 0 ? no_answer(c->job.name, rc) : code;
}

int er_ctl_hear_end(struct er_ctl_call *c, json_t **state)
{
    struct er_ctl_msg m = {0};

    while (!er_ctl_is_over(*state)) {
        int rc = er_ctl_client_hear(c->client, ER_FOREVER, &m, NULL);
        json_t *next = rc ? NULL : state_of(&m);

        if (!next)
            return no_answer(c->job.name, rc);
        json_decref(*state);
        *state = next;
    }
    return 0;
}

/* ---- the state, from wherever ---- */

bool er_ctl_is_over(const json_t *state)
{
    return er_ctl_known(state, "exit_code");
}

/* A job that has ended: what its event file says. */
static int state_of_events(struct er_ctl_call *c, int code, const struct er_error *err,
                           json_t **ret)
{
    json_t *last = code == ER_CTL_EXIT_UNREACHABLE ? NULL : er_ctl_job_last_event(&c->job);
    bool ended = last && strcmp(er_ctl_text(last, "event"), "agent_exited") == 0;

    /* It may come, or come again; and one that ends just now has its last word still to write. */
    if (c->patient && code == ER_CTL_EXIT_NO_SUCH && !ended && (!last || ++c->died_n != 2)) {
        json_decref(last);
        return code;
    }
    er_findings_tell("elastic-ctl", err->text);
    if (code == ER_CTL_EXIT_NO_SUCH && !last)
        er_findings_tell("elastic-ctl", "how it ended is in its event file, which is looked for "
                                        "where -f JOB.yaml says");
    if (last && !ended)
        fprintf(stderr, "elastic-ctl: its agent died after %s\n", er_ctl_text(last, "ts"));
    if (!ended) {
        json_decref(last);
        return code;
    }
    *ret = last;
    return 0;
}

static int state_of_store(struct er_ctl_call *c, json_t **ret)
{
    struct er_error err = ER_ERROR_INIT;
    int code = er_ctl_call_store(c);

    if (code) /* it has been told */
        return code;
    code = er_ctl_remote_status(c->store, c->job.name, ret, &err);
    return c->patient && code == ER_CTL_EXIT_NO_SUCH ? code : tell(code, &err);
}

int er_ctl_state(struct er_ctl_call *c, json_t **ret)
{
    struct er_ctl_msg request = {.type = ER_CTL_STATUS};
    struct er_error err = ER_ERROR_INIT;
    int rc = 0, code = er_ctl_call_agent(c, &err);

    if (!code) {
        code = ask(c, &request, ret, &rc);
        if (code != ER_CTL_EXIT_UNREACHABLE || rc > 0)
            return code;
        /* An agent that ended while it was asked has told the store or its events how. */
        code = rc == -ETIMEDOUT ? 0 : er_ctl_call_agent(c, &err);
        if (!code)
            return no_answer(c->job.name, rc);
    }
    if (code == ER_CTL_EXIT_NO_SUCH && c->job.config && er_config_keeps_record(c->job.config))
        return state_of_store(c, ret);
    return state_of_events(c, code, &err, ret);
}
