#pragma once
/* Hangs, as the agent sees to them: looks at the pages, asks the other nodes, names the culprit,
 * and acts (agent_hang.c; agent_hang_act.c: what is done about one of its own). */
#include "agent/hang_round.h"
#include "agent/helper.h"
#include "agent/procinfo.h"
#include "agent/straggler.h"
#include "agent/worker.h"

struct er_agent;

/* A rank of this node that hangs: what is told of it. */
struct er_hang_report {
    struct er_agent *agent;
    bool busy; /* its stack is being looked at */
    int local_rank, rank;
    uint64_t generation;
    pid_t pid;
    struct er_hang_fact fact;
    uint64_t limit_us, since_us;
    struct er_procinfo process;
    enum er_hang_why why;
    int waiting_n, waiting_all;
    int waiting[ER_HANG_WAITED_MAX];
};

/* What the kernel said of a rank's process, and when. */
struct er_hang_process {
    uint64_t read_us; /* 0: nothing yet */
    pid_t pid;
    bool stopped, traced;
};

struct er_agent_hang {
    struct er_hang clocks;
    struct er_hang_rank *ranks;        /* owned; one a local rank */
    struct er_hang_process *processes; /* owned; as `ranks` */
    int n;                             /* 0: no generation is looked at */
    uint64_t generation, begun_us;
    bool ever_reported;             /* the workers' program reports progress */
    bool still, late;               /* at the last look: a rank is */
    struct er_hang_round *round;    /* owned */
    struct er_hang_verdict verdict; /* the last one of this generation, ... */
    uint64_t verdict_us;            /* ... 0: none */
    /* Stragglers (agent_straggler.c); NULL: no memory, or no generation. */
    struct er_straggler straggler;
    struct er_straggler_rank *slow;    /* owned; as `ranks` */
    struct er_straggler_sample *paces; /* owned; as `ranks`, for a look */
    int *told;                         /* owned; as `ranks`, for a look */
    int straggler_rank;                /* told of last, ... */
    uint64_t straggler_us;             /* ... at; 0: nobody */
    double straggler_ratio, straggler_cost_ms;
    struct er_hang_report reports[ER_HELPERS_MAX]; /* whose stacks are being looked at */
};

int er_agent_hang_open(struct er_agent *agent, struct er_error *err);
void er_agent_hang_close(struct er_agent *agent);
void er_agent_hang_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_hang_deadline(const struct er_agent *agent);
/* What is known of local rank `i` now; false: nothing. Whether its process is stopped may be known
 * from up to `stale_us` ago: looks that come many times a second need not ask the kernel each time.
 */
bool er_agent_hang_fact(struct er_agent *agent, int i, uint64_t now_us, uint64_t stale_us,
                        struct er_hang_fact *ret);
/* All that report, at most ER_HANG_FACTS_MAX, for other nodes or hosts; how many. */
size_t er_agent_hang_facts(struct er_agent *agent, struct er_hang_fact *ret);
/* Its process has ended, before it is judged: has it ever reported progress, and is it one that was
 * killed because it hung? */
void er_agent_hang_exited(struct er_agent *agent, struct er_worker *w);

/* agent_straggler.c: a generation begins, with hang->n ranks (false: no memory); the step; no
 * generation any more. */
bool er_agent_straggler_begin(struct er_agent *agent);
void er_agent_straggler_step(struct er_agent *agent, uint64_t now_us);
void er_agent_straggler_end(struct er_agent *agent);

/* agent_diagnose.c: why it does not move, as a JSON list of findings (agent/diagnose.h), appended
 * to `buf`. `exit_code` < 0: it is not over; `stale_us` as above. -ENOBUFS, -ENOMEM. */
int er_agent_diagnosis_json(struct er_agent *agent, int exit_code, uint64_t stale_us,
                            struct er_buf *buf);

/* agent_answer.c: the driver's callback. */
void er_agent_on_query(void *user, const struct er_query *query);

/* agent_hang_act.c: tells of local rank `i`, which hangs as in `fact`, and ends its process, unless
 * hang.action or a debugger forbids that. With hang.stacks its stack is read first. */
void er_agent_hang_act(struct er_agent *agent, const struct er_hang_fact *fact, int i,
                       const struct er_hang_verdict *verdict, uint64_t now_us);
/* What a verdict says of ranks that are not this node's: whom its own wait for, or that nobody
 * knows. */
void er_agent_hang_say(struct er_agent *agent, const struct er_hang_verdict *verdict);
