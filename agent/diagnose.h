#pragma once
/*
 * Why does it not move? One mechanism behind `elastic-ctl explain`, `diagnosis` in the status, and
 * what is told of hangs: from what this agent knows, a list of findings, the most likely cause
 * first. Pure.
 */
#include "agent/hang_judge.h"

/* X(ENUM, "code"): what programs may rely on; in the order in which they explain each other. */
#define ER_FINDING_CODES(X)                                                                        \
    X(OVER, "over")                                                                                \
    X(STORE_DENIED, "store_denied")                                                                \
    X(STORE_AWAY, "store_away")                                                                    \
    X(UNHEALTHY, "unhealthy")                                                                      \
    X(NOT_REGISTERED, "not_registered")                                                            \
    X(STOPPING, "stopping")                                                                        \
    X(GPU_MEMORY, "gpu_memory")                                                                    \
    X(TOO_FEW_NODES, "too_few_nodes")                                                              \
    X(MEMBERS_ABSENT, "members_absent")                                                            \
    X(NODES_NOT_READY, "nodes_not_ready")                                                          \
    X(NOT_ASKED, "nodes_not_asked")                                                                \
    X(NODE_SILENT, "node_silent")                                                                  \
    X(LAST_CALL, "last_call")                                                                      \
    X(FORMING, "forming")                                                                          \
    X(SPARE, "spare")                                                                              \
    X(RANK_HUNG, "rank_hung")                                                                      \
    X(RANK_STOPPED, "rank_stopped")                                                                \
    X(NO_WORD, "no_word_from_nodes")                                                               \
    X(RANK_WAITED_FOR, "rank_waited_for")                                                          \
    X(RANK_STILL, "rank_still")                                                                    \
    X(STARTING, "starting")                                                                        \
    X(RESIZING, "resizing")                                                                        \
    X(STRAGGLER, "straggler")                                                                      \
    X(NO_REPORTS, "no_reports")                                                                    \
    X(MOVING, "moving")

enum er_finding_code {
#define ER_FINDING_ENUM(name, text) ER_FINDING_##name,
    ER_FINDING_CODES(ER_FINDING_ENUM)
#undef ER_FINDING_ENUM
        ER_FINDING_COUNT
};
const char *er_finding_code_name(enum er_finding_code code);

/* Does it keep the job from moving? */
enum er_finding_weight { ER_FINDING_GOOD, ER_FINDING_WAITS, ER_FINDING_WRONG };
const char *er_finding_weight_name(enum er_finding_weight weight); /* good waits wrong */

#define ER_FINDINGS_MAX 8
struct er_finding {
    enum er_finding_code code;
    enum er_finding_weight weight;
    char text[320];   /* a sentence */
    char advice[256]; /* what to do; "": nothing */
};

/* A local rank. */
struct er_diagnose_rank {
    struct er_hang_fact fact;
    bool reports; /* `fact` says something */
    bool begun;   /* it has made a step in this generation */
    int pid;
};

/* What the agent knows; texts are lent for the call. Times are as long as they are from now. */
struct er_diagnose_facts {
    const char *phase; /* of the job: forming running resizing succeeded failed stopped */
    const char *outcome;
    int exit_code; /* < 0: it is not over */

    bool store_is_far; /* etcd, not one of this agent's own */
    bool store_answers, store_denies;
    uint64_t store_down_us;
    const char *store_endpoint, *store_error;

    bool registered, spare, leads;
    const char *aside;                        /* why this node is set aside; "" it is not */
    const char *leader;                       /* "": none */
    uint32_t have, min, max, absent, unready; /* nodes; have, absent, unready: where it leads */
    uint64_t give_up_us, last_call_us;        /* 0: no such end */

    bool unhealthy, waits_for_gpus;
    bool stopping;    /* local workers are told to end, or to leave */
    int living;       /* local workers that run */
    uint64_t kill_us; /* ER_FOREVER: never */
    const struct er_diagnose_rank *ranks;
    size_t ranks_n;
    struct er_hang_fact *room; /* for ranks_n of them, to work in */

    /* Who gathered what all nodes know; nodes NULL: this is one node's view. */
    const char *const *nodes; /* ids by node rank; the ranks are of these */
    const bool *answered;     /* of each */
    int nodes_n;
    const char *const *silent; /* ids of nodes that have said nothing, members or not */
    size_t silent_n;
    uint64_t waited_us;
    const char *not_asked; /* why nobody could be asked; NULL: they were, or need not be */
    bool not_allowed;      /* that is because the store refused it */

    bool kills;                            /* hang.action is restart */
    const struct er_hang_verdict *verdict; /* the last one of this generation; NULL: none */

    int straggler; /* rank, -1: none lately */
    double straggler_ratio, straggler_cost_ms;
};

/* At least one finding; returns how many. */
size_t er_diagnose(const struct er_diagnose_facts *f, struct er_finding ret[ER_FINDINGS_MAX]);
