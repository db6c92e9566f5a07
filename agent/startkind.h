#pragma once
/* --fresh and --resume: what becomes of the checkpoints that are there when a job starts. */
#include <limits.h>

#include "agent/config.h"

/*
 * --fresh: a checkpoint.dir that holds checkpoints (folders step-*) is renamed, whole, to
 * <dir>.before-<N>, the first N that is free; its new name is in ret_moved, "" when nothing was
 * moved. --resume: ER_E_CONFIG when there is no checkpoint to resume from. Call it with the job's
 * lock held.
 */
int er_startkind_apply(const struct er_config *config, char ret_moved[PATH_MAX],
                       struct er_error *err);
/*
 * --fresh where several agents share checkpoint.dir: the same, once for a run, whoever comes first.
 * The folder is made, and remembers the run in a file `.run`; `<dir>.lock` (empty) keeps agents
 * apart and stays. Waits while another agent renames.
 */
int er_startkind_begin_run(const struct er_config *config, const char *run,
                           char ret_moved[PATH_MAX], struct er_error *err);
/* The check of --resume alone; changes nothing. */
int er_startkind_check(const struct er_config *config, struct er_error *err);
