#pragma once
/*
 * --dry-run: YAML with argv, working directory and environment (what is added, changed or, as null,
 * removed) of each worker of a first start on this node. What is known only at the start shows as
 * <name>. Starts and creates nothing.
 */
#include "agent/config.h"
#include "base/buf.h"

int er_dry_run_format(const struct er_config *config, char **environ_, struct er_buf *out,
                      struct er_error *err);
/* The same to stdout. */
int er_dry_run_print(const struct er_config *config, char **environ_, struct er_error *err);
