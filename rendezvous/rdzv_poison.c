#include "rendezvous/rdzv_internal.h"

#include <string.h>

/* Failures that follow a step, and not a node. A later failure says that earlier steps got through;
 * one before them, after a way back to a checkpoint, says nothing about them. */

uint32_t rdzv_poison_add(struct er_poison *p, uint64_t step)
{
    uint32_t passed = 0;

    while (passed < p->n && p->steps[passed].step < step)
        passed++;
    p->n -= passed;
    memmove(p->steps, p->steps + passed, p->n * sizeof(p->steps[0]));
    if (p->n > 0 && p->steps[0].step == step)
        return ++p->steps[0].failures;
    if (p->n == ER_POISON_MAX)
        p->n--; /* the one that is furthest away */
    memmove(p->steps + 1, p->steps, p->n * sizeof(p->steps[0]));
    p->n++;
    p->steps[0] = (struct er_poison_step){step, 1};
    return 1;
}

bool rdzv_skips_has(const struct er_skips *s, uint64_t step)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->steps[i] == step)
            return true;
    }
    return false;
}

void rdzv_skips_add(struct er_skips *s, uint64_t step)
{
    uint32_t at = s->n;

    if (s->n == ER_SKIPS_MAX || rdzv_skips_has(s, step))
        return;
    for (; at > 0 && s->steps[at - 1] > step; at--)
        s->steps[at] = s->steps[at - 1];
    s->steps[at] = step;
    s->n++;
}
