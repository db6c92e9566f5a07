#pragma once
/*
 * The life of one worker process, as a pure state machine.
 *
 *                execed         ready
 *     SPAWNING --------> UP --------> READY
 *        |               |              |
 *        +------ stop ---+---- stop ----+---> STOPPING --- grace over, kill ---> KILLING
 *        |               |              |        |                                 |
 *        +--- exited ----+--- exited ---+--------+----------- exited --------------+---> EXITED
 *
 * A worker that can live on in the next generation is not signalled but asked to leave this one: it
 * is STOPPING until it has left, then waits there without a deadline, and is UP again when it
 * rejoins.
 *
 *     SPAWNING, UP, READY --- ask, leave ---> STOPPING --- left, rejoin ---> UP
 *
 * (SPAWNING: what it says may be heard before it is known that its program runs.) Asked, it leaves
 * at the end of a step that all ranks agree on; told to leave, it does at once.
 *
 * `kill` leads from any living state to KILLING. Every step returns the actions to carry out, in
 * the order of their bits. Time comes in, nothing goes out: no I/O, no clock, no allocation.
 */
#include <stdbool.h>
#include <stdint.h>

/* Names as in the metric elastic_run_workers. X(ENUM, "text") */
/* clang-format off */
#define ER_WORKER_STATES(X)                                                                        \
    X(SPAWNING, "spawning")                                                                        \
    X(UP, "up")                                                                                    \
    X(READY, "ready")                                                                              \
    X(STOPPING, "stopping")                                                                        \
    X(KILLING, "killing")                                                                          \
    X(EXITED, "exited")
/* clang-format on */
enum er_worker_state {
#define ER_WORKER_STATE_ENUM(name, text) ER_WORKER_##name,
    ER_WORKER_STATES(ER_WORKER_STATE_ENUM)
#undef ER_WORKER_STATE_ENUM
        ER_WORKER_STATE_COUNT
};

enum er_worker_event_kind {
    ER_WORKER_EV_EXECED, /* the program runs */
    ER_WORKER_EV_READY,  /* the worker says it is set up */
    ER_WORKER_EV_STOP,   /* first rung of the ladder, with `grace_us` */
    ER_WORKER_EV_ASK,    /* the membership changes: to leave at a boundary, within `grace_us` */
    ER_WORKER_EV_LEAVE,  /* instead of STOP: the notice alone; KILL after `grace_us` */
    ER_WORKER_EV_LEFT,   /* the worker has left the generation, and waits for the next */
    ER_WORKER_EV_REJOIN, /* which is here */
    ER_WORKER_EV_HURRY,  /* the grace ends `grace_us` from now at the latest */
    ER_WORKER_EV_KILL,
    ER_WORKER_EV_TIME, /* the clock reached the deadline */
    ER_WORKER_EV_EXITED,
    ER_WORKER_EV_COUNT
};

struct er_worker_event {
    enum er_worker_event_kind kind;
    uint64_t now_us, grace_us;
};

/* Rungs of the stop ladder. */
enum er_worker_action {
    ER_WORKER_ACT_NOTICE = 1, /* the word STOP in the shared page */
    ER_WORKER_ACT_SIGNAL = 2, /* the stop signal, then CONT, to the process group */
    ER_WORKER_ACT_KILL = 4,   /* KILL to the process group */
    ER_WORKER_ACT_ASK = 8     /* the word REJOIN, or DRAIN */
};

struct er_worker_fsm {
    enum er_worker_state state;
    uint64_t deadline_us; /* ER_FOREVER unless STOPPING */
    bool stopped_by_us;   /* a stop, ask, leave or kill came before the exit */
    bool signaled;        /* the stop signal has been sent, or KILL */
};

void er_worker_fsm_init(struct er_worker_fsm *fsm);
/* Returns a set of er_worker_action. Events that mean nothing in a state are ignored. */
unsigned er_worker_fsm_step(struct er_worker_fsm *fsm, const struct er_worker_event *event);
bool er_worker_fsm_alive(const struct er_worker_fsm *fsm);
const char *er_worker_state_name(enum er_worker_state state);
