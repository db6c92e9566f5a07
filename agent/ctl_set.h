#pragma once
/* elastic-ctl set: through the agent here, or by a write of its own to the job's store. */
#include "agent/ctl_call.h"

/* elastic-ctl's exit code; what is wrong is told on stderr. */
int er_ctl_run_set(struct er_ctl_call *c);
