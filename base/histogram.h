#pragma once
/*
 * Histograms of durations, in the two sets of bounds that metrics use. Pure.
 */
#include <stddef.h>
#include <stdint.h>

#define ER_HISTOGRAM_BOUNDS 15 /* at most */

struct er_histogram {
    uint64_t counts[ER_HISTOGRAM_BOUNDS + 1]; /* of each bucket alone; the last one has no bound */
    double sum;
};

/* Upper bounds in seconds, rising. */
struct er_bounds {
    double of[ER_HISTOGRAM_BOUNDS];
    size_t n;
};
extern const struct er_bounds er_bounds_recovery; /* 50 ms to 5 min: recoveries, checkpoints */
extern const struct er_bounds er_bounds_fine;     /* 1 ms to 1 min: steps, requests */

/* Into which bucket `value` belongs: 0 .. bounds->n. */
size_t er_histogram_bucket(const struct er_bounds *bounds, double value);
void er_histogram_add(struct er_histogram *histogram, const struct er_bounds *bounds, double value);
