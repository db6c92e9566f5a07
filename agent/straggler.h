#pragma once
/*
 * Ranks that are slower than the others, for long. Pure: pages come in as samples, time as an
 * argument.
 *
 * In lock-step training all ranks make the same number of steps in a second. What differs is how
 * long each works for a step and how long it waits for others: the time that counts is that of the
 * phases data, forward, backward and optimizer, and a rank's own rate is one step per such time. It
 * is compared with the median of all ranks, which the step vote brings to every page; where no vote
 * does, with the median of this node's ranks, if at least ER_STRAGGLER_PEERS of them report.
 *
 * `for_us` is looked at in ER_STRAGGLER_SLICES parts: a straggler is too slow in each of them.
 */
#include <stdbool.h>
#include <stdint.h>

#define ER_STRAGGLER_SLICES 5
#define ER_STRAGGLER_PEERS  3

struct er_straggler_sample {
    bool reports;
    uint64_t step, busy_us, median_us; /* totals of the process; median_us 0: not known */
};

struct er_straggler_rank {
    bool known;
    unsigned slow;                     /* slices in a row */
    uint64_t steps, own_us, others_us; /* in those */
    struct er_straggler_sample from;   /* at the beginning of the slice */
    double ratio;                      /* own rate / median, over `slow` slices */
    double cost_ms;                    /* how much longer a step of its own takes than the median */
};

struct er_straggler {
    double threshold; /* 0: nobody is looked at */
    uint64_t for_us;
    uint64_t slice_end_us; /* 0: none has begun */
};

/* A look at all `n` local ranks; `samples` as many. Returns how many are stragglers now, in
 * ret_who, which has room for n: each is told again after every further `for_us`. */
int er_straggler_look(struct er_straggler *s, struct er_straggler_rank *ranks,
                      const struct er_straggler_sample *samples, int n, uint64_t now_us,
                      int *ret_who);
/* When it wants to look; ER_FOREVER: never. */
uint64_t er_straggler_due(const struct er_straggler *s, uint64_t now_us);
