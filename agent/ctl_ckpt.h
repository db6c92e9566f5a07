#pragma once
/* `elastic-ctl [-f JOB.yaml | --job NAME] ckpt VERB ...`: finds the job's folder of checkpoints and
 * hands on to elastic-ckpt, which knows what is in it. */

/* The verb is `ckpt`, behind nothing but -f and --job: then *ret is the exit code of what could not
 * be started (on success this does not return). False: another verb. */
#include <stdbool.h>

bool er_ctl_ckpt(int argc, char **argv, char **environ_, int *ret);
