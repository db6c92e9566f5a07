#pragma once
/* --check: what the configuration asks of this host and of the network. */
#include "agent/config.h"
#include "agent/findings.h"
#include "base/buf.h"

/* Is the store reachable, does node.address lead anywhere? May take seconds. */
void er_check_host(const struct er_config *config, struct er_findings *findings);
/* What a start would find here, one fact a line. */
int er_check_facts(const struct er_config *config, struct er_buf *out);
