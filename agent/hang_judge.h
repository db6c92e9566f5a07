#pragma once
/*
 * Who hangs, of ranks that stand still: from what all nodes know of theirs. And what nodes tell
 * each other about it, as bytes. Pure.
 *
 * In a collective all wait for the one that does not come, and all look alike from outside. So, of
 * the ranks that do not move:
 *
 *   1. who is stopped (by a signal) or held by a debugger;
 *   2. else who is behind the others: by step, then by the number of its last collective, then by
 *      its phase within the step, then by not waiting in the store, where others do. Is the time
 *      of one of those not over yet (it saves a checkpoint, say), the others wait for it, and
 *      nobody hangs;
 *   3. else nobody can be told from the others: the lowest rank stands for all.
 *
 * Ranks that move take no part. When some nodes have not answered, only what is sure without them
 * counts: 1, and who is behind and not communicating.
 */
#include "agent/hang.h"
#include "base/error.h"

struct er_hang_fact {
    int rank, node_rank;
    enum er_hang_state state;
    bool stopped, traced;
    bool waits; /* for somebody's key, or at a barrier, in the job's store */
    enum er_phase phase;
    uint64_t step, collective, still_us;
    uint64_t left_us; /* of its time, ER_FOREVER: no limit */
};

#define ER_HANG_NAMED_MAX  16 /* culprits, and nodes that did not answer */
#define ER_HANG_WAITED_MAX 64 /* ranks that wait for them */

enum er_hang_why {
    ER_HANG_WHY_NOBODY,  /* nobody is late */
    ER_HANG_WHY_PATIENT, /* they wait for somebody whose time is not over */
    ER_HANG_WHY_UNKNOWN, /* nodes have not answered: it may be one of theirs */
    ER_HANG_WHY_STOPPED,
    ER_HANG_WHY_BEHIND,
    ER_HANG_WHY_ALIKE, /* the lowest rank stands for all */
    ER_HANG_WHY_COUNT
};

struct er_hang_verdict {
    enum er_hang_why why;
    int n, waiting_n, missing_n;                /* in the lists; missing_n: all of them */
    int waiting_all;                            /* also those that did not fit */
    struct er_hang_fact who[ER_HANG_NAMED_MAX]; /* culprits; PATIENT: who is waited for */
    int waiting[ER_HANG_WAITED_MAX];
    int missing[ER_HANG_NAMED_MAX]; /* node ranks, the first of them */
};

/* `nodes` of the generation, `answered[node]` those whose ranks are in `facts`. Somebody hangs when
 * the result has `why` STOPPED, BEHIND or ALIKE. */
void er_hang_judge(const struct er_hang_fact *facts, size_t n, const bool *answered, int nodes,
                   struct er_hang_verdict *ret);
bool er_hang_is_hang(const struct er_hang_verdict *v);

/* "data", "forward", ... "unknown". */
const char *er_phase_name(uint64_t phase);

/* One node's facts, and a verdict, as bytes. Encoders return the length; a node with more ranks
 * than fit tells of the first ones. Parsers are strict: ER_E_CORRUPT. */
#define ER_HANG_FACT_BYTES  38
#define ER_HANG_FACTS_MAX   1024 /* of a node */
#define ER_HANG_FACTS_BYTES (2 + ER_HANG_FACTS_MAX * ER_HANG_FACT_BYTES)
#define ER_HANG_VERDICT_BYTES                                                                      \
    (64 + ER_HANG_NAMED_MAX * (ER_HANG_FACT_BYTES + 4) + ER_HANG_WAITED_MAX * 4)
size_t er_hang_facts_encode(const struct er_hang_fact *facts, size_t n, void *ret);
int er_hang_facts_parse(const void *bytes, size_t n, struct er_hang_fact *ret, size_t *ret_n,
                        struct er_error *err);
size_t er_hang_verdict_encode(const struct er_hang_verdict *v, void *ret);
int er_hang_verdict_parse(const void *bytes, size_t n, struct er_hang_verdict *ret,
                          struct er_error *err);
