#pragma once
/*
 * How long each local rank has not moved, and how long it may. Pure: pages come in as samples, time
 * as an argument.
 *
 * A rank moves when its phase, its step or the number of its last collective changes. What applies
 * to it:
 *
 *   until its first step in the generation, and until this node has seen how
 *   long steps take                                               startup, since the generation
 *   checkpoint, evaluation                                        their own, since the phase began
 *   idle                                                          none
 *   else                           max(floor, factor x p99 of the steps seen), since it moved last
 *
 * Only a rank that reports has a limit. Time in which the agent itself did not run (a stopped or
 * frozen node, a suspended machine) is nobody's fault and does not count.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/notice.h"

struct er_hang_limits {
    uint64_t floor_us, startup_us, checkpoint_us, evaluation_us; /* ER_FOREVER: none */
    double factor;
};

/* What a rank's page says now. */
struct er_hang_sample {
    bool reports; /* it is alive, wanted, and has reported progress, or its like has before */
    uint64_t first_step, first_us; /* the first one it finished in this generation; 0: none */
    uint64_t phase, step, collective;
    uint64_t reported_us; /* its last report; 0: none */
    uint64_t begun_us;    /* its start in this generation */
};

/* Observed durations of steps, 8 buckets an octave from 1 ms on: the 99th percentile is at most an
 * eighth too long. Old ones fade: beyond ER_HANG_STEPS_MAX every count is halved. */
#define ER_HANG_BUCKETS   256
#define ER_HANG_STEPS_MAX 4096u
struct er_hang_steps {
    uint32_t counts[ER_HANG_BUCKETS], n;
};
void er_hang_steps_add(struct er_hang_steps *s, uint64_t us, uint64_t n);
uint64_t er_hang_steps_p99(const struct er_hang_steps *s); /* 0: none seen */

enum er_hang_kind { /* which limit applies */
                    ER_HANG_NO_LIMIT,
                    ER_HANG_STARTUP,
                    ER_HANG_CHECKPOINT,
                    ER_HANG_EVALUATION,
                    ER_HANG_STEP
};

enum er_hang_state {
    ER_HANG_MOVING,  /* or nothing is known of it */
    ER_HANG_PATIENT, /* it does not move, and has more time than a step has */
    ER_HANG_STILL,   /* it has not moved for so long that it may be what others wait for */
    ER_HANG_LATE     /* its time is over */
};

struct er_hang_rank {
    bool known, mixed; /* mixed: what goes on since the last step is not only a step */
    enum er_hang_kind kind;
    uint64_t phase, step, collective;
    uint64_t since_us;   /* when its clock began */
    uint64_t stepped_us; /* end of the last step that was seen; 0: none */
    uint64_t told_us;    /* its lateness was dealt with; 0: not */
};

struct er_hang {
    struct er_hang_limits limits;
    struct er_hang_steps steps;
    uint64_t looked_us, due_us;
};

/* A generation begins: its ranks are zeroed by the caller; steps that were seen stay known. */
void er_hang_begin(struct er_hang *h, uint64_t now_us);
/* One rank, at a look. */
void er_hang_look(struct er_hang *h, struct er_hang_rank *r, const struct er_hang_sample *s,
                  uint64_t now_us);
/* The end of a look at `n` ranks: when the next one is due, at the next limit or before steps that
 * matter could be missed. */
void er_hang_looked(struct er_hang *h, const struct er_hang_rank *ranks, int n, uint64_t now_us);
/* Before a look that was due earlier: had the agent slept? Then clocks go on from there. Returns
 * the time that does not count. */
uint64_t er_hang_awake(struct er_hang *h, struct er_hang_rank *ranks, int n, uint64_t now_us);

/* How long it may stand still; ER_FOREVER: no limit. */
uint64_t er_hang_limit(const struct er_hang *h, const struct er_hang_rank *r);
uint64_t er_hang_still_us(const struct er_hang_rank *r, uint64_t now_us);
enum er_hang_state er_hang_state(const struct er_hang *h, const struct er_hang_rank *r,
                                 uint64_t now_us);
/* Late, and not dealt with for as long again. */
bool er_hang_alarms(const struct er_hang *h, const struct er_hang_rank *r, uint64_t now_us);
