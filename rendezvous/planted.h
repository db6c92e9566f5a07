#pragma once
/*
 * Bugs that the simulation must find. Each one breaks a rule of the protocol. They exist only where
 * ER_PLANT_BUGS is defined, which the simulation's own build of the core does; everywhere else the
 * switches are constants and nothing of them is left.
 */
#include <stdbool.h>

/* X(NAME, "what is broken") */
#define ER_BUGS(X)                                                                                 \
    X(RESULT_NOT_FENCED, "results do not compare the fence")                                       \
    X(COMMIT_NOT_FENCED, "commits and keys check the fence, then write")                           \
    X(START_AGAIN, "a generation that has left is started again")                                  \
    X(LEFT_WITHOUT_STOP, "'left' is said while workers run")                                       \
    X(LEFT_OUT_IS_READY, "a node that was left out counts as ready while it runs")                 \
    X(INCARNATION_IGNORED, "a new incarnation adopts the old one's assignment")                    \
    X(NUMBER_REUSED, "a plan is made again under the same number")                                 \
    X(UNGUARDED, "a leader's transactions compare nothing")                                        \
    X(CHARGED_EARLY, "a lost node's victims are charged")                                          \
    X(SEAL_UNREADY, "the seal does not wait for who still runs")                                   \
    X(NO_REREGISTER, "a node that lost its lease stays away")                                      \
    X(NEVER_CLEANED, "old generations' keys stay")                                                 \
    X(REQUEST_AGAIN, "a request stays after it was acted on")                                      \
    X(SLOTS_MOVE, "a planned change is sealed though a node goes on with other workers")

enum er_bug {
    ER_BUG_NONE,
#define ER_BUG_ENUM(name, text) ER_BUG_##name,
    ER_BUGS(ER_BUG_ENUM)
#undef ER_BUG_ENUM
        ER_BUG_COUNT
};

#ifdef ER_PLANT_BUGS
extern enum er_bug er_planted; /* the simulation's */
#define er_bug(name) (er_planted == ER_BUG_##name)
#define er_simulated true /* what is kept is compared with what it is kept of */
#else
#define er_bug(name) false
#define er_simulated false
#endif
