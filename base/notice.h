#pragma once
/*
 * The words of the page that an agent shares with a worker: what the worker says it is doing, and
 * what it is told. Numbers are part of the page's layout: new words go to the end. C and C++.
 */

/* Phases a worker reports; each names the deadline that applies to it. X(ENUM, "text") */
#define ER_PHASES(X)                                                                               \
    X(STARTUP, "startup")                                                                          \
    X(DATA, "data")                                                                                \
    X(FORWARD, "forward")                                                                          \
    X(BACKWARD, "backward")                                                                        \
    X(COMMUNICATE, "communicate")                                                                  \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(CHECKPOINT, "checkpoint")                                                                    \
    X(EVALUATION, "evaluation")                                                                    \
    X(IDLE, "idle")

enum er_phase {
#define ER_PHASE_ENUM(name, text) ER_PHASE_##name,
    ER_PHASES(ER_PHASE_ENUM)
#undef ER_PHASE_ENUM
};

/*
 * What a worker is told. X(ENUM, "text")
 *
 *   CHECKPOINT   write a checkpoint at the next boundary, go on
 *   REJOIN       membership changes: leave at a boundary that all ranks agree on, and rejoin
 *   DRAIN        this process leaves there for good: save, unless others keep the state
 *   STOP         the generation is over: abort communicators, stop stepping; er_rejoin() or exit
 */
#define ER_NOTICES(X)                                                                              \
    X(NONE, "none")                                                                                \
    X(CHECKPOINT, "checkpoint")                                                                    \
    X(REJOIN, "rejoin")                                                                            \
    X(DRAIN, "drain")                                                                              \
    X(STOP, "stop")

#define ER_NOTICE_KIND 0x3fu /* of the page's word, which has 8 bits below the generation */
#define ER_NOTICE_SAVE 0x40u /* with REJOIN: the state shall be on disk before anybody leaves */

enum er_notice {
#define ER_NOTICE_ENUM(name, text) ER_NOTICE_##name,
    ER_NOTICES(ER_NOTICE_ENUM)
#undef ER_NOTICE_ENUM
};
