#pragma once
/* The agent's state as one JSON object: what `elastic-ctl status` shows. */
#include "base/buf.h"

struct er_agent;

#define ER_STATUS_VERSION 1
#define ER_STATUS_MAX     (48u * 1024)

/* `exit_code` -1: still running. -ENOBUFS, -ENOMEM. */
int er_status_json(struct er_agent *agent, int exit_code, struct er_buf *buf);
