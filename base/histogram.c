#include "base/histogram.h"

const struct er_bounds er_bounds_recovery = {{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, 11};
const struct er_bounds er_bounds_fine = {
    {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, 15};

size_t er_histogram_bucket(const struct er_bounds *bounds, double value)
{
    size_t i = 0;

    while (i < bounds->n && value > bounds->of[i])
        i++;
    return i;
}

void er_histogram_add(struct er_histogram *histogram, const struct er_bounds *bounds, double value)
{
    histogram->counts[er_histogram_bucket(bounds, value)]++;
    histogram->sum += value;
}
