#pragma once
/* The exit codes of elastic-run; docs/exit-codes.md and `--help exit-codes` are made from this. */

/* X(number, ER_CODE_ name, name in docs, when, who exits with it, run again?) */
#define ER_EXIT_CODES(X)                                                                           \
    X(0, OK, "OK", "the job succeeded, or had finished before", "all agents", "no")                \
    X(64, USAGE, "USAGE", "wrong command line", "this agent", "no")                                \
    X(69, UNAVAILABLE, "UNAVAILABLE",                                                              \
      "the rendezvous store was not reached within rendezvous.join_timeout, or lost for "          \
      "rendezvous.store_loss.limit",                                                               \
      "this agent", "yes")                                                                         \
    X(70, SOFTWARE, "SOFTWARE",                                                                    \
      "a bug of elastic-run (assertion; core kept), or the agent was killed", "this agent", "yes") \
    X(71, OSERR, "OSERR", "no processes, descriptors or memory for the agent itself",              \
      "this agent", "yes")                                                                         \
    X(73, CANTCREAT, "CANTCREAT",                                                                  \
      "the log, state or checkpoint directory cannot be made or written at start", "this agent",   \
      "no")                                                                                        \
    X(74, IOERR, "IOERR", "checkpoints failed too often (checkpoint.on_failure.max)",              \
      "all agents", "yes")                                                                         \
    X(75, TEMPFAIL, "TEMPFAIL",                                                                    \
      "unfinished, state safe, run me again: preempted or stopped by a signal other than INT, or " \
      "too few nodes for rendezvous.join_timeout",                                                 \
      "all agents (preemption of one node: that node)", "yes")                                     \
    X(76, PROTOCOL, "PROTOCOL", "the job spec or the protocol version differs from the job's",     \
      "this agent", "no")                                                                          \
    X(77, NOPERM, "NOPERM", "the store refused certificate, password or role", "this agent", "no") \
    X(78, CONFIG, "CONFIG",                                                                        \
      "the job spec is wrong, or asks for what this build or host cannot do", "this agent", "no")  \
    X(79, CANCELED, "CANCELED", "stopped by `elastic-ctl stop`", "all agents", "no")               \
    X(93, NO_REQUEUE, "-",                                                                         \
      "restarting cannot help: a worker exited with one of restart.fatal_exit_codes, or the same " \
      "step failed again and again",                                                               \
      "all agents", "no")                                                                          \
    X(124, HANG, "HANG", "the first failure was a hung rank, no restart left (as timeout(1))",     \
      "all agents", "yes")                                                                         \
    X(126, NOT_EXECUTABLE, "-", "the program is not executable (as the shell)", "all agents",      \
      "no")                                                                                        \
    X(127, NOT_FOUND, "-", "the program was not found (as the shell)", "all agents", "no")         \
    X(130, INTERRUPTED, "-", "Ctrl-C (INT)", "this agent; the job if it was single-node", "no")

enum er_exit_code {
#define ER_EXIT_CODE_ENUM(number, name, ...) ER_CODE_##name = number,
    ER_EXIT_CODES(ER_EXIT_CODE_ENUM)
#undef ER_EXIT_CODE_ENUM
};

/* What comes before the table: codes that are a worker's. */
#define ER_EXIT_OTHER_CODES(X)                                                                     \
    X("1-255", "the worker's",                                                                     \
      "the first worker that failed exited with it, and no restart was left", "all agents",        \
      "the worker's business")                                                                     \
    X("128+n", "signal n", "the first worker that failed died by signal n", "all agents", "-")
