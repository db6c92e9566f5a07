#pragma once
/*
 * One node's agent: joins the rendezvous, runs the workers of each generation, ends with an exit
 * code of docs/exit-codes.md. One loop, one step function; one thread, but for
 * those that carry the workers' output (agent/logpump.h).
 */
#include "agent/config.h"
#include "agent/guard.h"
#include "base/error.h"

/* Runs the job to its end. `environ_` as environ(7). Returns the exit code; has said everything
 * that there is to say. */
int er_agent_run(struct er_config *config, struct er_guard *guard, int argc, char **argv,
                 char **environ_);
