#pragma once
/* What elastic-ctl shows: states, jobs and events, as text for people or as one JSON object a
 * line. All to stdout. */
#include <jansson.h>
#include <stdbool.h>

/* Members of an object; absent ones are "-", 0, false. */
const char *er_ctl_text(const json_t *object, const char *key);
long long er_ctl_number(const json_t *object, const char *key);
bool er_ctl_known(const json_t *object, const char *key); /* a number */

/* `state`: of an agent, of the store, or of a job that has ended. */
void er_ctl_print_state(const json_t *state, bool json);
/* `jobs`: a list of states. */
void er_ctl_print_jobs(const json_t *jobs, bool json);
void er_ctl_print_event(const json_t *event, bool json);
/* A copy for people, the caller's: whatever others wrote into its texts, a terminal finds nothing
 * in them to act upon, and each is one line. NULL: out of memory. */
json_t *er_ctl_tame(const json_t *value);
/* The line that `value` is. */
void er_ctl_print_json(const json_t *value);
