#pragma once
/*
 * What elastic-ctl does through the job's store, from any host: there need not be an agent on it.
 * Reads are of one revision; requests go to the job's leader, as those of agents do. Blocking.
 *
 * Results are 0, or elastic-ctl's exit code (agent/ctl_find.h) with a text in `err`.
 */
#include <jansson.h>

#include "agent/ctl_store.h"

/* The state of a job, with the names that the status of an agent has, and "source": "store"; the
 * caller's. ER_CTL_EXIT_NO_SUCH: there is no such job. */
int er_ctl_remote_status(struct er_ctl_store *store, const char *job, json_t **ret,
                         struct er_error *err);
/* Every job below the prefix, one object each, as er_ctl_remote_status() but for the nodes. */
int er_ctl_remote_jobs(struct er_ctl_store *store, json_t **ret, struct er_error *err);
/* Asks the job's leader. `verb`: for the request's name. ER_CTL_EXIT_NO: the job is over; or nodes
 * are to leave or stop, and none is there: such a request would wait for the next run, and end it.
 */
int er_ctl_remote_ask(struct er_ctl_store *store, const char *job, const char *verb,
                      const struct er_ask *ask, struct er_error *err);
