#include "agent/straggler.h"

#include "base/clock.h"

#define SLICE_MIN_US ER_US_PER_MS

static uint64_t slice_us(const struct er_straggler *s)
{
    uint64_t us = s->for_us / ER_STRAGGLER_SLICES;

    return us > SLICE_MIN_US ? us : SLICE_MIN_US;
}

static void forget(struct er_straggler_rank *r)
{
    r->slow = 0;
    r->steps = r->own_us = r->others_us = 0;
}

/* What a rank did in the slice; false: nothing that could be compared. */
static bool progress_of(const struct er_straggler_rank *r, const struct er_straggler_sample *now,
                        struct er_straggler_sample *ret)
{
    if (!r->known || !now->reports || now->step <= r->from.step ||
        now->busy_us <= r->from.busy_us || now->median_us < r->from.median_us)
        return false;
    *ret = (struct er_straggler_sample){.step = now->step - r->from.step,
                                        .busy_us = now->busy_us - r->from.busy_us,
                                        .median_us = now->median_us - r->from.median_us};
    return true;
}

/* The k-th smallest busy time of a step, of ranks that have one: few ranks, and seldom. */
static uint64_t local_median(const struct er_straggler_rank *ranks,
                             const struct er_straggler_sample *samples, int n)
{
    struct er_straggler_sample a, b;
    int known = 0;

    for (int i = 0; i < n; i++)
        known += progress_of(&ranks[i], &samples[i], &a);
    if (known < ER_STRAGGLER_PEERS)
        return 0;
    for (int i = 0; i < n; i++) {
        int below = 0, equal = 0;

        if (!progress_of(&ranks[i], &samples[i], &a))
            continue;
        for (int j = 0; j < n; j++) {
            if (!progress_of(&ranks[j], &samples[j], &b))
                continue;
            below += b.busy_us / b.step < a.busy_us / a.step;
            equal += b.busy_us / b.step == a.busy_us / a.step;
        }
        if (below <= (known - 1) / 2 && below + equal > (known - 1) / 2)
            return a.busy_us / a.step;
    }
    return 0;
}

/* One rank at the end of a slice; true: a straggler. */
static bool judge(const struct er_straggler *s, struct er_straggler_rank *r,
                  const struct er_straggler_sample *now, uint64_t local_us)
{
    struct er_straggler_sample did;
    uint64_t others_us;

    if (!progress_of(r, now, &did)) {
        forget(r);
        return false;
    }
    others_us = did.median_us ? did.median_us : local_us * did.step;
    if (!others_us || (double)others_us >= s->threshold * (double)did.busy_us) {
        forget(r);
        return false;
    }
    r->slow++;
    r->steps += did.step;
    r->own_us += did.busy_us;
    r->others_us += others_us;
    if (r->slow < ER_STRAGGLER_SLICES)
        return false;
    r->ratio = (double)r->others_us / (double)r->own_us;
    r->cost_ms = (double)(r->own_us - r->others_us) / (double)r->steps / 1e3;
    forget(r);
    return true;
}

int er_straggler_look(struct er_straggler *s, struct er_straggler_rank *ranks,
                      const struct er_straggler_sample *samples, int n, uint64_t now_us,
                      int *ret_who)
{
    uint64_t local_us;
    int who_n = 0;

    if (s->threshold <= 0 || s->for_us == ER_FOREVER ||
        (s->slice_end_us && now_us < s->slice_end_us))
        return 0;
    local_us = local_median(ranks, samples, n);
    for (int i = 0; i < n; i++) {
        if (s->slice_end_us && judge(s, &ranks[i], &samples[i], local_us))
            ret_who[who_n++] = i;
    }
    for (int i = 0; i < n; i++) {
        ranks[i].known = samples[i].reports;
        ranks[i].from = samples[i];
    }
    s->slice_end_us = now_us + slice_us(s);
    return who_n;
}

uint64_t er_straggler_due(const struct er_straggler *s, uint64_t now_us)
{
    if (s->threshold <= 0 || s->for_us == ER_FOREVER)
        return ER_FOREVER;
    return s->slice_end_us ? s->slice_end_us : now_us;
}
