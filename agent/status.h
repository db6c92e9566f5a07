#pragma once
/* The agent's state as one JSON object: what `elastic-ctl status` shows. */
#include <stdint.h>

#include "base/buf.h"

struct er_agent;

/* What is not asked of a job in the midst of an upgrade; for the job's name. */
#define ER_CTL_TOO_OLD                                                                             \
    "job '%s' has agents of an earlier release, which know neither --deadline nor --preempt: "     \
    "stop it "                                                                                     \
    "without them, or drain its nodes one after the other"

#define ER_STATUS_VERSION 1
#define ER_STATUS_MAX     (48u * 1024)

/* `exit_code` -1: still running. What the kernel says of the workers may be up to `stale_us` old.
 * -ENOBUFS, -ENOMEM. */
int er_status_json(struct er_agent *agent, int exit_code, uint64_t stale_us, struct er_buf *buf);
