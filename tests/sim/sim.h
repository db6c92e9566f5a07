#pragma once
/*
 * Seeded simulation of the rendezvous: 1 to 64 agents on one embedded store and one virtual clock,
 * in one process. A seed gives the job's shape and a schedule of faults; the same seed and schedule
 * replay exactly. sim.c: the clock; sim_agent.c: agents, their workers; sim_check.c: what must
 * always hold, checked on every change of the store in its order; sim_schedule.c: which faults, and
 * when; sim_fault.c: what each does; sim_text.c: shape and schedule as one line; sim_tell.c: what
 * happens as text; sim_golden.c: scenarios and their golden traces; sim_soak.c: many seeds;
 * sim_bugs.c: planted bugs; rendezvous.c: the program.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/rand.h"
#include "rendezvous/driver_internal.h"
#include "rendezvous/farewell.h"
#include "rendezvous/store_mem.h"

#define SIM_NODES  64
#define SIM_GENS   256 /* sealed generations remembered */
#define SIM_FAULTS 96  /* of one schedule */
#define SIM_FORMER 32
#define SIM_ROOT   "/elastic-run/sim/"

/* X(NAME, weight) */
#define SIM_FAULT_KINDS(X)                                                                         \
    X(FAIL, 14)                                                                                    \
    X(QUIT, 3)                                                                                     \
    X(SUCCESS, 2)                                                                                  \
    X(CRASH_FAST, 7)                                                                               \
    X(CRASH_SLOW, 5)                                                                               \
    X(REBOOT, 3)                                                                                   \
    X(TOLD, 5)                                                                                     \
    X(LOST_REPLY, 12)                                                                              \
    X(LATE, 16)                                                                                    \
    X(LOST, 8)                                                                                     \
    X(DUPLICATE, 8)                                                                                \
    X(REFUSED, 6)                                                                                  \
    X(LEASE, 10)                                                                                   \
    X(CUT, 6)                                                                                      \
    X(DEAF, 6)                                                                                     \
    X(DELAY, 8)                                                                                    \
    X(LEAVE, 3)                                                                                    \
    X(DRAIN, 3)                                                                                    \
    X(SCALE, 3)                                                                                    \
    X(ASIDE, 2)                                                                                    \
    X(RELEASE, 1)                                                                                  \
    X(COMPACT, 3)                                                                                  \
    X(OUTAGE, 2)                                                                                   \
    X(CLOCK, 4)                                                                                    \
    X(COMMIT, 12)                                                                                  \
    X(KEYS, 6)                                                                                     \
    X(RESPEC, 3)                                                                                   \
    X(WIPE, 2)                                                                                     \
    X(SET, 4)
enum sim_fault_kind {
#define SIM_ENUM(name, weight) SIM_##name,
    SIM_FAULT_KINDS(SIM_ENUM)
#undef SIM_ENUM
        SIM_FAULT_COUNT
};

#define SIM_PHASES(X) X(first) X(forming) X(planning) X(sealed) X(ahead) X(go)
enum sim_phase {
#define SIM_ENUM(name) SIM_PHASE_##name,
    SIM_PHASES(SIM_ENUM)
#undef SIM_ENUM
        SIM_PHASE_COUNT
};

#define SIM_ROLES(X) X(leader) X(member) X(other)
enum sim_role {
#define SIM_ENUM(name) SIM_ROLE_##name,
    SIM_ROLES(SIM_ENUM)
#undef SIM_ENUM
        SIM_ROLE_COUNT
};

/* What a job looks like; all of it follows from the seed, unless it was given. Times in seconds.
 * X(name, what) */
#define SIM_SHAPE(X)                                                                               \
    X(n, "nodes")                                                                                  \
    X(min, "bounds")                                                                               \
    X(max, "bounds")                                                                               \
    X(budget, "restarts allowed; 4294967295: any number")                                          \
    X(window, "of the budget; 0: none")                                                            \
    X(replacement, "replacement_wait")                                                             \
    X(strikes, "0: nobody is set aside for failures")                                              \
    X(cooldown, "0: nobody is set aside")                                                          \
    X(loss_limit, "store_loss.limit; 0: none")                                                     \
    X(planned, "nodes can take part in planned changes")                                           \
    X(unable, "all but the first")                                                                 \
    X(vary, "nodes go on with fewer workers, and get them back")                                   \
    X(new_runs, "agents begin another run")                                                        \
    X(stubborn, "percent of workers that take very long to stop")                                  \
    X(prepare, "longest start of workers that are prepared")                                       \
    X(depart, "longest way to an agreed step")                                                     \
    X(spread, "agents start within")                                                               \
    X(interval, "between two grows")                                                               \
    X(focus, "phase that faults are aimed at; 6: none")                                            \
    X(patience, "that a fault waits for its moment; 0: 30")                                        \
    X(until, "when everything heals")
struct sim_shape {
#define SIM_FIELD(name, what) uint64_t name;
    SIM_SHAPE(SIM_FIELD)
#undef SIM_FIELD
};

/* Due at `at_us`; then as soon as the job is in `phase`, and somebody who has `role` feels it. When
 * that has not come after the shape's patience, it hits whoever feels it, wherever the job is. */
struct sim_fault {
    uint64_t at_us, amount;
    enum sim_fault_kind kind;
    enum sim_phase phase;
    enum sim_role role;
    unsigned victim; /* which of those that have the role */
    bool left_out;   /* while shrinking */
};

struct sim;

struct sim_node {
    struct sim *sim;
    int index;
    char id[16], label[16]; /* label: what it is called in a trace */
    struct er_store *client;
    struct er_driver *driver; /* NULL: down */
    struct er_rand rand;      /* its own, so that a shorter schedule changes little */
    uint64_t incarnation, boot, next_us;
    uint64_t spec; /* hash of the spec it was started with */
    bool dirty;    /* next_us is to be found out again */
    bool over, late_to_stop;
    enum er_new_run new_run; /* NO: by the shape */
    struct er_verdict verdict;
    bool set_known, set_busy; /* what is set above the spec: told, being changed */
    char set[32], set_wish[32], set_id[32];
    int drift_ppm;
    int64_t jump_us;
    /* its workers */
    uint64_t running, last_started; /* generation; 0 none */
    uint64_t nonce;                 /* of what runs: another store may have given the number too */
    bool preparing, reported;
    int has, offers;           /* workers: that run, that could */
    struct er_rand slots_rand; /* of them, apart: jobs in which they don't vary stay as they were */
    uint64_t more_us;          /* some more can; 0: none */
    struct er_farewell farewell;
    uint64_t farewell_us; /* its guard tells the store; 0: it doesn't */
    uint64_t restart_us, left_us, fail_us, ok_us, uncut_us, undeaf_us, ready_us; /* 0: none */
};

struct sim_sealed {
    uint64_t generation, nonce;
    uint32_t nnodes, world_size, restarts;
    int rank[SIM_NODES], first[SIM_NODES], size[SIM_NODES];
    uint64_t incarnation[SIM_NODES]; /* 0: not a member */
    bool ok[SIM_NODES];
    bool genuine; /* a worker failed by itself */
    char master[ER_HOST_TEXT_MAX];
};

struct sim {
    uint64_t seed, now_us, begun_us;
    struct er_rand rand;
    int n, slots[SIM_NODES];
    struct sim_shape shape;
    bool healed, finishing, broken;
    char why[256];
    uint64_t asides;
    uint64_t second, second_events; /* how many in the second under way */
    uint64_t events, seals, outage_us, incarnations, requests;
    uint64_t last_rev;
    unsigned specs; /* the newest one, which agents are started with */
    struct sim_node nodes[SIM_NODES];
    struct sim_fault faults[SIM_FAULTS];
    size_t fault_n;
    uint64_t fired; /* bits of faults, by 64 */
    bool done[SIM_FAULTS];
    struct er_store *observer;
    /* what the observer has seen */
    struct er_assign assign[SIM_NODES];
    bool assign_seen[SIM_NODES], registered[SIM_NODES];
    uint64_t spec_seen[SIM_NODES], incarnation_seen[SIM_NODES]; /* of its record */
    char fence[ER_FENCE_MAX];
    struct er_job_record world;
    bool has_world;
    uint64_t commit_step, commit_generation, commits;
    uint64_t set_seq; /* of what is set above the spec; 0: nothing is */
    char set[32], set_id[32];
    uint64_t watch;                       /* the observer's */
    unsigned wipes;                       /* of the store */
    struct sim_sealed former[SIM_FORMER]; /* newest generations of stores that were wiped */
    unsigned former_n;                    /* ever; a ring */
    struct sim_sealed gens[SIM_GENS];
};

/* Hits of every kind of fault in every phase on every role; summed over all seeds. */
extern uint64_t sim_hits[SIM_FAULT_COUNT][SIM_PHASE_COUNT][SIM_ROLE_COUNT];
extern bool sim_verbose;

/* sim.c */
uint64_t sim_below(struct er_rand *r, uint64_t n);
bool sim_chance(struct er_rand *r, unsigned percent);
uint64_t sim_soon(const struct sim *sim, struct er_rand *r, uint64_t max_us);
void sim_dirty(struct sim *sim);                     /* everybody may have something to do */
uint64_t sim_local_now(const struct sim_node *node); /* on its own clock */
bool sim_due(const struct sim *sim, uint64_t *at);   /* `at` has come; 0 then */
/* Runs one seed; `sim` has a shape and a schedule already when `keep`. True: nothing was violated.
 */
bool sim_run(struct sim *sim, uint64_t seed, bool keep);
/* A scenario, whose shape `sim` has: the steps of sim_golden.c instead of faults. */
bool sim_run_plain(struct sim *sim);

/* sim_agent.c */
void sim_turn(struct sim *sim, struct sim_node *node); /* what is due there, but for its driver */
void sim_down(struct sim_node *node);
void sim_report(struct sim_node *node, bool ok, bool uncounted);
void sim_tune(struct sim_node *node); /* by what it was told is set */

/* sim_check.c */
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_observe(struct sim *sim); /* from the first revision on */
void sim_look(struct sim *sim);    /* at what is new */
void sim_wipe(struct sim *sim);    /* the store is empty, and another one */
struct sim_sealed *sim_sealed(struct sim *sim, uint64_t generation); /* NULL: not known */
void sim_check_start(struct sim_node *node, const struct er_assignment *a);
void sim_check_prepare(struct sim_node *node, const struct er_assignment *a);
void sim_check_rest(struct sim *sim); /* after the faults everything runs, and nothing is left */
void sim_check_end(struct sim *sim);
bool sim_job_over(const struct er_job_record *w);

#define sim_require(sim, x, ...)                                                                   \
    do {                                                                                           \
        if (!(x))                                                                                  \
            sim_fail(sim, __VA_ARGS__);                                                            \
    } while (0)

/* sim_schedule.c */
void sim_pick_shape(struct sim *sim);
void sim_schedule(struct sim *sim);
uint64_t sim_next_fault(const struct sim *sim);
void sim_inject(struct sim *sim); /* what is due */
void sim_heal(struct sim *sim);
/* Why no fault of that kind can hit there; NULL: it can. */
const char *sim_impossible(enum sim_fault_kind kind, enum sim_phase phase, enum sim_role role);
void sim_print_impossible(void);

/* sim_fault.c: false: it changes nothing now. */
bool sim_act(struct sim *sim, struct sim_node *node, enum sim_fault_kind kind, uint64_t amount);

/* sim_text.c */
extern const char *const sim_fault_names[SIM_FAULT_COUNT],
    *const sim_phase_names[SIM_PHASE_COUNT], *const sim_role_names[SIM_ROLE_COUNT];
/* Seed, shape and schedule (without what is left out) as one line. */
void sim_print(const struct sim *sim);
/* A line of sim_print(); false: it is none. */
bool sim_parse(struct sim *sim, const char *line);

/* sim_tell.c */
extern FILE *sim_story;       /* NULL: nothing is told */
extern const char *sim_actor; /* whose turn it is */
void sim_tell(const struct sim *sim, const char *actor, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void sim_tell_store(const struct sim *sim, const struct er_store_event *events, size_t n);
void sim_tell_note(const struct sim *sim, const char *actor, const struct er_note *note);

/* sim_soak.c */
#define SIM_JOBS 256 /* processes */
struct sim_soak {
    uint64_t first, count; /* seeds */
    unsigned jobs;         /* processes */
    double limit_s;        /* 0: none */
    const char *hash;      /* of the binary, for a line of JSON; NULL: no such line */
    bool cells;            /* lines with all hits, and with sizes of jobs */
};
/* Runs them, says what they have covered. The exit status. */
int sim_soak(const struct sim_soak *opts);
/* Memory that forked processes share; zeroed, never freed. */
void *sim_share(size_t n);
/* `run` in so many processes; false: some (died[]) did not return. */
bool sim_jobs(unsigned jobs, void (*run)(void *arg, unsigned job), void *arg, bool died[SIM_JOBS]);

/* sim_bugs.c: hunts every planted bug so many times, from different seeds. The exit status. */
int sim_bugs(unsigned repeats, unsigned jobs);

/* sim_golden.c */
extern bool sim_plain; /* nothing is left to chance: every delay is the same, no clock drifts */
void sim_steps(struct sim *sim);
uint64_t sim_next_step(const struct sim *sim);
bool sim_starts_later(const struct sim_node *node);
/* Every scenario of the folder, compared with its trace (or its trace written). The exit status. */
int sim_golden(struct sim *sim, const char *folder, bool update);
