#pragma once
/* The exit codes of elastic-run; docs/exit-codes.md and `--help exit-codes` are made from this. */

/* X(number, ER_CODE_ name, name in docs, when, all agents alike, run again?) */
#define ER_EXIT_CODES(X)                                                                           \
    X(0, OK, "OK",                                                                                 \
      "job succeeded; this node was a spare at the end; job had finished before (said loudly); "   \
      "node left by `elastic-ctl drain` and the job goes on",                                      \
      "yes (drain: that node)", "no")                                                              \
    X(64, USAGE, "USAGE", "command line", "this agent", "no")                                      \
    X(69, UNAVAILABLE, "UNAVAILABLE",                                                              \
      "store not reached within join_timeout, or lost for store_loss.limit", "this agent", "yes")  \
    X(70, SOFTWARE, "SOFTWARE", "our bug (assertion); core kept", "this agent", "yes")             \
    X(71, OSERR, "OSERR", "no processes, descriptors, memory for the agent itself", "this agent",  \
      "yes")                                                                                       \
    X(73, CANTCREAT, "CANTCREAT",                                                                  \
      "log, state or checkpoint directory cannot be made or written at start", "this agent", "no") \
    X(74, IOERR, "IOERR", "checkpoint.on_failure.max reached", "yes", "yes")                       \
    X(75, TEMPFAIL, "TEMPFAIL",                                                                    \
      "unfinished, state safe, run me again: preempted or signalled (not INT); fewer than "        \
      "MIN for join_timeout",                                                                      \
      "yes (preempt of one node: that node)", "yes")                                               \
    X(76, PROTOCOL, "PROTOCOL", "spec, or protocol version, differs from the job's", "this agent", \
      "no")                                                                                        \
    X(77, NOPERM, "NOPERM", "store refused certificate, password or role", "this agent", "no")     \
    X(78, CONFIG, "CONFIG", "job spec wrong, or asks for what this build or host cannot do",       \
      "this agent", "no")                                                                          \
    X(79, CANCELED, "CANCELED", "`elastic-ctl stop`", "yes", "no")                                 \
    X(93, NO_REQUEUE, "-", "restarting cannot help: poison step, or a worker exited 93", "yes",    \
      "no")                                                                                        \
    X(124, HANG, "HANG", "no restart left and the root cause is a hung rank (as timeout(1))",      \
      "yes", "yes")                                                                                \
    X(126, NOT_EXECUTABLE, "-", "program not executable (as the shell)", "yes", "no")              \
    X(127, NOT_FOUND, "-", "program not found (as the shell)", "yes", "no")                        \
    X(130, INTERRUPTED, "-", "Ctrl-C (INT)", "this agent, the job if it was single-node", "no")

enum er_exit_code {
#define ER_EXIT_CODE_ENUM(number, name, ...) ER_CODE_##name = number,
    ER_EXIT_CODES(ER_EXIT_CODE_ENUM)
#undef ER_EXIT_CODE_ENUM
};
