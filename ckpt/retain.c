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
