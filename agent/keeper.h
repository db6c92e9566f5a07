#pragma once
/*
 * The keeper's life: takes the folder, starts etcd, starts it again when it dies, serves the agents
 * of this host, and ends with etcd when an agent says so, at SIGTERM, or when nobody has been
 * connected for a while.
 *
 *     home, TLS, ports --> etcd runs --(stop, SIGTERM, nobody)--> TERM, KILL --> all removed
 *                             ^  |
 *              a moment later +--+ died (three times at once: "failed", and the end)
 */
#include "agent/keeper_opts.h"

/* The exit code of the program. */
int er_keeper_run(const struct er_keeper_opts *opts);
