#pragma once
/*
 * What the status page draws: generations on a time axis, and steps and losses over time. Both are
 * short: the newest entries stay. Times are Unix time in milliseconds. Pure.
 */
#include <stdint.h>

#include "base/buf.h"

#define ER_HISTORY_GENERATIONS 64
#define ER_HISTORY_POINTS      600

struct er_history {
    struct {
        double at_ms;
        uint64_t generation;
        int world_size;
        char reason[24];
    } generations[ER_HISTORY_GENERATIONS]; /* a ring: entry i is at i % SIZE */
    uint64_t generations_n;
    struct {
        double at_ms, loss;
        uint64_t step, samples;
    } points[ER_HISTORY_POINTS];
    uint64_t points_n;
};

/* Does nothing for a generation that is the newest already. */
void er_history_generation(struct er_history *h, double at_ms, uint64_t generation, int world_size,
                           const char *reason);
/* Does nothing while `step` stands still. */
void er_history_point(struct er_history *h, double at_ms, uint64_t step, uint64_t samples,
                      double loss);
/* {"generations":[{at_ms, generation, world_size, reason}],"points":[[at_ms, step, samples, loss]]}
 * -ENOBUFS, -ENOMEM. */
int er_history_json(const struct er_history *h, struct er_buf *buf);
