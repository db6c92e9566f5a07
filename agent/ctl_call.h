#pragma once
/*
 * One call of elastic-ctl: what was said, which job is meant, and how it is reached: the agent on
 * this host, else the job's store, else (for looking only) the event file of a job that has ended.
 *
 * Results are 0, or elastic-ctl's exit code; what went wrong has then been told on stderr.
 */
#include <jansson.h>

#include "agent/ctl_find.h"
#include "agent/ctl_store.h"
#include "base/ctlclient.h"

struct er_ctl_words {
    const char *file, *job, *endpoints, *verb, *operand;
    const char *state, *nodes, *timeout, *deadline; /* as written; NULL: not given */
    struct er_ctl_sets sets, wishes;                /* wishes: KEY=VALUE, or KEY to unset it */
    bool json, wait, watch, follow, preempt, help, version;
};

struct er_ctl_call {
    struct er_ctl_words words;
    struct er_ctl_job job;
    struct er_ctl_client *client; /* borrowed */
    struct er_ctl_store *store;   /* owned; NULL: not opened */
    bool patient;                 /* a job that is not there may come: nobody is told */
    unsigned died_n;              /* looks that found its agent dead; told of once */
};

/* Says why, then how elastic-ctl is used. ER_CTL_EXIT_USAGE. `which` NULL: no more to say. */
int er_ctl_wrong(const char *what, const char *which);
/* Done, and what was printed has arrived. */
int er_ctl_done(int code);

/* Finds the job that is meant. `client` is large: the caller's, closed. */
int er_ctl_call_begin(struct er_ctl_call *c, struct er_ctl_client *client, char **environ_);
void er_ctl_call_end(struct er_ctl_call *c);
/* Is there an agent of the job here to speak with? Otherwise, without a word, `err` says why not,
 * and what elastic-ctl would exit with. */
int er_ctl_call_agent(struct er_ctl_call *c, struct er_error *err);
/* The store, opened once. */
int er_ctl_call_store(struct er_ctl_call *c);

/* Asks the agent that was found. */
int er_ctl_ask_agent(struct er_ctl_call *c, struct er_ctl_msg *request, json_t **ret);
/* Hears the agent's states until the job is over; `*state` is replaced. */
int er_ctl_hear_end(struct er_ctl_call *c, json_t **state);

/* The job's state, from wherever it can be had; the caller's. */
int er_ctl_state(struct er_ctl_call *c, json_t **ret);
/* Is it over? */
bool er_ctl_is_over(const json_t *state);
