#pragma once
/* elastic-ctl's verbs on a running job (ckpt and audit, which work on folders: ctl_ckpt.h). */
#include "agent/ctl_call.h"

/* Does it: the exit code. The verb is one of the table's (ctl_verbs.h). */
int er_ctl_run(const struct er_ctl_words *words, char **environ_);

/* ctl_events.c: what happened, from the event files of the job's log folder. */
int er_ctl_run_events(struct er_ctl_call *c);
