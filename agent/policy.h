#pragma once
/*
 * What a worker's end means for the job: succeeded, failed (restartable, fatal, uncounted) or
 * merely stopped. Pure.
 */
#include <stddef.h>
#include <stdint.h>

#include "agent/exit.h"

enum er_outcome { ER_OUTCOME_OK, ER_OUTCOME_FAILED, ER_OUTCOME_STOPPED };

struct er_policy_input {
    struct er_exit exit;
    bool stopped_by_us;        /* the stop ladder had begun for it */
    bool unexplained;          /* it was not signaled, and nobody knows why its peers lost it */
    int agent_signal;          /* last signal the agent itself got, 0 none */
    uint64_t agent_signal_us;  /* and when */
    uint64_t now_us, grace_us; /* stop.grace */
    bool progress;             /* the job had made progress in this generation */
    const char *message;       /* error file's message or last stderr lines, may be NULL */
    bool checkpoints;          /* the job has a checkpoint.dir: code 74 speaks of it */
    const char *const *fatal_codes; /* restart.fatal_exit_codes as text */
    size_t fatal_n;
};

struct er_policy_result {
    enum er_outcome outcome;
    bool fatal;     /* restarting cannot help */
    bool uncounted; /* costs no restart, unless it is one of too many (ER_RDZV_UNCOUNTED_MAX) */
};

/* What the end of a worker means for its generation and its job. */
struct er_policy_result er_agent_policy_judge(const struct er_policy_input *in);
