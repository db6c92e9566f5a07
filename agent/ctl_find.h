#pragma once
/* elastic-ctl's search for a job: which one is meant, its agent, its last words. Results are 0 or
 * elastic-ctl's exit code with a text of one or more lines in `err`. */
#include <jansson.h>

#include "agent/config.h"
#include "base/ctlclient.h"

enum er_ctl_exit {
    ER_CTL_EXIT_NO = 1,
    ER_CTL_EXIT_USAGE = 64,
    ER_CTL_EXIT_NO_SUCH = 66,
    ER_CTL_EXIT_UNREACHABLE = 69,
    ER_CTL_EXIT_REFUSED = 77,
};

struct er_ctl_job {
    char name[64];
    struct er_config *config; /* owned; where its logs are; NULL: not known */
};

#define ER_CTL_SETS_MAX 32

/* `--set KEY=VALUE` beside a job file. */
struct er_ctl_sets {
    const char *items[ER_CTL_SETS_MAX];
    int n;
};

/* By job file (and `sets`; NULL: none), by name, or (both NULL) the only one that runs on this
 * host. */
int er_ctl_job_find(struct er_ctl_job *ret, const char *file, const struct er_ctl_sets *sets,
                    const char *name, char **environ_, struct er_error *err);
void er_ctl_job_done(struct er_ctl_job *job);
/* Connects to its agent on this host; `timeout_us`: for an agent that accepts nobody now. */
int er_ctl_job_connect(const struct er_ctl_job *job, struct er_ctl_client *client,
                       uint64_t timeout_us, struct er_error *err);
/* The last event of a job that has ended, owned by the caller; NULL: its logs tell nothing. Its
 * name is agent_exited, unless the agent died. */
json_t *er_ctl_job_last_event(const struct er_ctl_job *job);
