#include "trainer/ps_table.h"

#include <assert.h>
#include <string.h>

void er_ps_table_init(struct er_ps_table *t, uint32_t parts, uint64_t steps, uint64_t staleness,
                      const uint64_t pause_steps[2], uint64_t done_steps)
{
    assert(parts >= 1 && parts <= ER_PS_WORKERS_MAX);
    memset(t, 0, sizeof(*t));
    t->parts = parts;
    t->steps = steps;
    t->staleness = staleness;
    t->pause_steps[0] = pause_steps[0];
    t->pause_steps[1] = pause_steps[1];
    t->done_steps = done_steps;
    t->next = done_steps * parts;
    for (uint32_t w = 0; w < ER_PS_WORKERS_MAX; w++)
        t->worker[w].paused = done_steps;
}

uint64_t er_ps_part_step(const struct er_ps_table *t, uint64_t part)
{
    return part / t->parts + 1;
}

uint64_t er_ps_table_needs(const struct er_ps_table *t, uint64_t step)
{
    return step - 1 > t->staleness ? step - 1 - t->staleness : 0;
}

/* The first step after `step` at which all meet; the last step is one. */
static uint64_t boundary(const struct er_ps_table *t, uint64_t step)
{
    uint64_t first = t->steps;

    for (int i = 0; i < 2; i++) {
        uint64_t n = t->pause_steps[i], at = n ? step / n * n + n : t->steps;

        first = at < first ? at : first;
    }
    return first;
}

static bool may_give(const struct er_ps_table *t, uint64_t part)
{
    return part - t->done_steps * t->parts < ER_PS_WINDOW &&
           er_ps_table_needs(t, er_ps_part_step(t, part)) <= t->done_steps;
}

static enum er_ps_answer give(struct er_ps_table *t, uint32_t worker, uint64_t part, uint64_t *ret)
{
    t->worker[worker].held = true;
    t->worker[worker].part = part;
    *ret = part;
    return ER_PS_PART;
}

/* Parts that came back go first: they hold up the rest. */
static enum er_ps_answer give_returned(struct er_ps_table *t, uint32_t worker, uint64_t *ret)
{
    size_t oldest = 0;
    uint64_t part;

    for (size_t i = 1; i < t->returned_n; i++)
        oldest = t->returned[i] < t->returned[oldest] ? i : oldest;
    part = t->returned[oldest];
    t->returned[oldest] = t->returned[--t->returned_n];
    return give(t, worker, part, ret);
}

/* When all are at the meeting there is nothing left to call for. */
static void called(struct er_ps_table *t, uint32_t worker)
{
    t->called_n += !t->worker[worker].called;
    t->worker[worker].called = true;
    if (t->called_n < t->workers)
        return;
    t->calling = false;
    t->told_n = t->called_n = 0;
    for (uint32_t w = 0; w < ER_PS_WORKERS_MAX; w++)
        t->worker[w].told = t->worker[w].called = false;
}

void er_ps_table_told(struct er_ps_table *t, uint32_t worker)
{
    assert(worker < ER_PS_WORKERS_MAX);
    if (t->workers == 0 || t->calling || t->worker[worker].told)
        return;
    t->worker[worker].told = true;
    t->told_n++;
    if (t->told_n < t->workers)
        return;
    t->calling = true;
    t->call = t->next > t->done_steps * t->parts ? er_ps_part_step(t, t->next - 1) : t->done_steps;
}

enum er_ps_answer er_ps_table_lease(struct er_ps_table *t, uint32_t worker, uint64_t *ret)
{
    uint64_t meet;

    assert(worker < ER_PS_WORKERS_MAX && !t->worker[worker].held);
    if (t->returned_n > 0)
        return give_returned(t, worker, ret);
    meet = boundary(t, t->worker[worker].paused);
    if (t->calling && !t->worker[worker].called && t->call < meet)
        meet = t->call;
    if (t->worker[worker].paused >= t->steps)
        return ER_PS_DONE;
    if (t->next < t->steps * t->parts && er_ps_part_step(t, t->next) <= meet)
        return may_give(t, t->next) ? give(t, worker, t->next++, ret) : ER_PS_WAIT;
    if (t->done_steps < meet)
        return ER_PS_WAIT;
    t->worker[worker].paused = meet;
    if (t->calling && meet == t->call)
        called(t, worker);
    *ret = meet;
    return ER_PS_PAUSE;
}

static bool test_bit(const struct er_ps_table *t, uint64_t part)
{
    uint64_t i = part % ER_PS_WINDOW;

    return t->bits[i / 64] >> (i % 64) & 1;
}

static void put_bit(struct er_ps_table *t, uint64_t part, bool value)
{
    uint64_t i = part % ER_PS_WINDOW, bit = 1ull << (i % 64);

    t->bits[i / 64] = value ? t->bits[i / 64] | bit : t->bits[i / 64] & ~bit;
}

static bool whole_step(const struct er_ps_table *t, uint64_t first)
{
    for (uint32_t i = 0; i < t->parts; i++) {
        if (!test_bit(t, first + i))
            return false;
    }
    return true;
}

bool er_ps_table_commit(struct er_ps_table *t, uint64_t part)
{
    uint64_t first = t->done_steps * t->parts;

    if (part < first || part - first >= ER_PS_WINDOW || test_bit(t, part))
        return false;
    put_bit(t, part, true);
    for (uint32_t w = 0; w < ER_PS_WORKERS_MAX; w++) {
        if (t->worker[w].held && t->worker[w].part == part)
            t->worker[w].held = false;
    }
    while (t->done_steps < t->steps && whole_step(t, t->done_steps * t->parts)) {
        for (uint32_t i = 0; i < t->parts; i++)
            put_bit(t, t->done_steps * t->parts + i, false);
        t->done_steps++;
    }
    return true;
}

void er_ps_table_lost(struct er_ps_table *t, uint32_t worker)
{
    assert(worker < ER_PS_WORKERS_MAX);
    if (!t->worker[worker].held)
        return;
    t->worker[worker].held = false;
    t->returned[t->returned_n++] = t->worker[worker].part;
}

bool er_ps_table_resume(struct er_ps_table *t, const uint64_t bits[ER_PS_WINDOW / 64])
{
    uint64_t first = t->done_steps * t->parts, end = first;

    memcpy(t->bits, bits, sizeof(t->bits));
    for (uint64_t i = 0; i < ER_PS_WINDOW; i++) {
        if (test_bit(t, first + i))
            end = first + i + 1;
    }
    if (end > t->steps * t->parts || (end > first && whole_step(t, first)))
        return false;
    for (t->next = first; t->next < end; t->next++) {
        if (test_bit(t, t->next))
            continue;
        if (t->returned_n == ER_PS_WORKERS_MAX)
            return false;
        t->returned[t->returned_n++] = t->next;
    }
    return true;
}
