#include "ckpt/retain.h"

size_t er_retain(const uint64_t *steps, size_t n, uint64_t current, uint32_t keep_last,
                 uint64_t *ret_remove)
{
    size_t below = 0, removed = 0;
    while (below < n && steps[below] < current)
        below++;
    if (keep_last == 0 || below < keep_last)
        return 0;
    for (size_t i = 0; i < below - (keep_last - 1); i++)
        ret_remove[removed++] = steps[i];
    return removed;
}

/* How many of the candidates (up to `current`) are better than item `i`. */
static size_t better_than(const struct er_retain_item *items, size_t n, size_t i,
                          bool more_is_better)
{
    size_t better = 0;
    for (size_t j = 0; j < n; j++) {
        double a = more_is_better ? items[j].metric : -items[j].metric;
        double b = more_is_better ? items[i].metric : -items[i].metric;
        better += j != i && items[j].has_metric && (a > b || (!(a < b) && j > i));
    }
    return better;
}

/* Steps of one span end with a multiple of `every`. Whether the last one of a span is at that
 * multiple does not matter: checkpoints are also made by the clock. */
static uint64_t span_of(uint64_t step, uint64_t every)
{
    return step / every + (step % every != 0);
}

size_t er_retain_by(const struct er_retain_item *items, size_t n, uint64_t current,
                    const struct er_retain_rules *rules, uint64_t *ret_remove)
{
    size_t below = 0, upto, removed = 0;
    if (rules->keep_last == 0)
        return 0;
    while (below < n && items[below].step < current)
        below++;
    upto = below < n && items[below].step == current ? below + 1 : below;
    for (size_t i = 0; i < below; i++) {
        bool last = below - i < rules->keep_last;
        bool every = rules->keep_every > 0 &&
                     (i + 1 >= upto || span_of(items[i].step, rules->keep_every) !=
                                           span_of(items[i + 1].step, rules->keep_every));
        bool best = rules->keep_best > 0 && items[i].has_metric &&
                    better_than(items, upto, i, rules->more_is_better) < rules->keep_best;
        if (!last && !every && !best)
            ret_remove[removed++] = items[i].step;
    }
    return removed;
}
