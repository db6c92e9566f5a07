#pragma once
/*
 * Where the time of this node went: every microsecond since the agent's start is in one state. What
 * happened is often learned later than it happened (a death is seen when it is reaped, a first step
 * when the pages are looked at), so every entry brings its own time. Pure.
 *
 *   rendezvous -> start -> (comm_init -> restore -> replay ->) useful -> detect -> stop ->
 * rendezvous
 */
#include <stdint.h>

/* States, as the label of elastic_run_time_seconds_total. X(ENUM, "text") */
/* clang-format off */
#define ER_TIMES(X)                                                                                \
    X(USEFUL, "useful")         /* steps that count */                                             \
    X(DETECT, "detect")         /* a failure that nobody knows of yet */                           \
    X(STOP, "stop")             /* workers are being stopped */                                    \
    X(RENDEZVOUS, "rendezvous") /* no generation */                                                \
    X(START, "start")           /* from the spawn until the program speaks */                      \
    X(COMM_INIT, "comm_init")   /* until its communicator stands */                                \
    X(RESTORE, "restore")       /* until its state is there */                                     \
    X(REPLAY, "replay")         /* steps that are done again */                                    \
    X(IDLE, "idle")             /* nothing to do here: a spare, a node that is over */
/* clang-format on */
enum er_time {
#define ER_TIME_ENUM(name, text) ER_TIME_##name,
    ER_TIMES(ER_TIME_ENUM)
#undef ER_TIME_ENUM
        ER_TIME_COUNT
};
const char *er_time_name(enum er_time time);

struct er_goodput {
    enum er_time now;
    uint64_t since_us;
    uint64_t spent_us[ER_TIME_COUNT]; /* without what `now` has so far */
};

void er_goodput_init(struct er_goodput *g, uint64_t now_us);
/* From `at_us` on it is `state`. An earlier time than the last entry's counts as that. */
void er_goodput_enter(struct er_goodput *g, enum er_time state, uint64_t at_us);
uint64_t er_goodput_spent(const struct er_goodput *g, enum er_time state, uint64_t now_us);
/* Useful time over all, idle time left out; 1 before anything was. */
double er_goodput_ratio(const struct er_goodput *g, uint64_t now_us);
