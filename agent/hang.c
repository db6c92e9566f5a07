#include "agent/hang.h"

#include "base/clock.h"

#define FIRST_OCTAVE    10 /* 1024 us */
#define LOOK_MIN_US     (10 * ER_US_PER_MS)
#define LOOK_MAX_US     (10 * ER_US_PER_S)
#define LOOKS_A_FLOOR   16                   /* at least */
#define ASLEEP_US       (500 * ER_US_PER_MS) /* a busy machine makes an agent late, but not so much */
#define STARTUP_SLACK   8                    /* nodes begin a generation at about the same time */
#define STEP_WEIGHT_MAX 64

/* ---- durations ---- */

static unsigned bucket_of(uint64_t us)
{
    unsigned octave, i;

    if (us < 1u << FIRST_OCTAVE)
        return 0;
    octave = 63u - (unsigned)__builtin_clzll(us);
    i = (octave - FIRST_OCTAVE) * 8 + (unsigned)((us >> (octave - 3)) & 7);
    return i < ER_HANG_BUCKETS ? i : ER_HANG_BUCKETS - 1;
}

/* The longest duration of a bucket. */
static uint64_t edge_of(unsigned i)
{
    return (9ull + i % 8) << (FIRST_OCTAVE - 3 + i / 8);
}

void er_hang_steps_add(struct er_hang_steps *s, uint64_t us, uint64_t n)
{
    uint32_t weight = n < STEP_WEIGHT_MAX ? (uint32_t)n : STEP_WEIGHT_MAX;

    s->counts[bucket_of(us)] += weight;
    s->n += weight;
    if (s->n <= ER_HANG_STEPS_MAX)
        return;
    s->n = 0;
    for (unsigned i = 0; i < ER_HANG_BUCKETS; i++) {
        s->counts[i] /= 2;
        s->n += s->counts[i];
    }
}

uint64_t er_hang_steps_p99(const struct er_hang_steps *s)
{
    uint32_t above = 0, allowed = s->n / 100;

    if (s->n == 0)
        return 0;
    for (unsigned i = ER_HANG_BUCKETS; i > 0; i--) {
        above += s->counts[i - 1];
        if (above > allowed)
            return edge_of(i - 1);
    }
    return 0;
}

/* ---- limits ---- */

static uint64_t step_limit(const struct er_hang *h)
{
    double us = h->limits.factor * (double)er_hang_steps_p99(&h->steps);

    if (h->limits.floor_us == ER_FOREVER || us >= 1e18)
        return ER_FOREVER;
    return us > (double)h->limits.floor_us ? (uint64_t)us : h->limits.floor_us;
}

uint64_t er_hang_limit(const struct er_hang *h, const struct er_hang_rank *r)
{
    if (!r->known)
        return ER_FOREVER;
    switch (r->kind) {
    case ER_HANG_STARTUP:
        return h->limits.startup_us;
    case ER_HANG_CHECKPOINT:
        return h->limits.checkpoint_us;
    case ER_HANG_EVALUATION:
        return h->limits.evaluation_us;
    case ER_HANG_STEP:
        return step_limit(h);
    case ER_HANG_NO_LIMIT:
        break;
    }
    return ER_FOREVER;
}

uint64_t er_hang_still_us(const struct er_hang_rank *r, uint64_t now_us)
{
    return r->known && now_us > r->since_us ? now_us - r->since_us : 0;
}

/* From when on it may be what others wait for: they were not seen to move at the same moment. */
static uint64_t still_limit(const struct er_hang *h, const struct er_hang_rank *r)
{
    uint64_t limit = er_hang_limit(h, r);

    switch (r->kind) {
    case ER_HANG_NO_LIMIT:
    case ER_HANG_STEP:
        return step_limit(h) / 2;
    case ER_HANG_STARTUP:
        return limit - limit / STARTUP_SLACK;
    case ER_HANG_CHECKPOINT:
    case ER_HANG_EVALUATION:
        break;
    }
    return limit;
}

enum er_hang_state er_hang_state(const struct er_hang *h, const struct er_hang_rank *r,
                                 uint64_t now_us)
{
    uint64_t still = er_hang_still_us(r, now_us);

    if (!r->known)
        return ER_HANG_MOVING;
    if (still >= er_hang_limit(h, r))
        return ER_HANG_LATE;
    if (still >= still_limit(h, r))
        return ER_HANG_STILL;
    return r->kind != ER_HANG_STEP && still >= step_limit(h) / 2 ? ER_HANG_PATIENT : ER_HANG_MOVING;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t alarm_us(const struct er_hang *h, const struct er_hang_rank *r)
{
    return er_deadline_in(later(r->since_us, r->told_us), er_hang_limit(h, r));
}

bool er_hang_alarms(const struct er_hang *h, const struct er_hang_rank *r, uint64_t now_us)
{
    return r->known && now_us >= alarm_us(h, r);
}

/* ---- looks ---- */

static enum er_hang_kind kind_of(const struct er_hang *h, const struct er_hang_sample *s)
{
    if (s->phase == ER_PHASE_CHECKPOINT)
        return ER_HANG_CHECKPOINT;
    if (s->phase == ER_PHASE_EVALUATION)
        return ER_HANG_EVALUATION;
    if (!s->first_us || h->steps.n == 0)
        return ER_HANG_STARTUP;
    return s->phase == ER_PHASE_IDLE ? ER_HANG_NO_LIMIT : ER_HANG_STEP;
}

static bool is_long(enum er_hang_kind kind)
{
    return kind == ER_HANG_CHECKPOINT || kind == ER_HANG_EVALUATION;
}

/* Steps that ended since the last look took that long each, on average; the ones that matter are
 * longer than the time between two looks, and are seen one by one. */
static void see_steps(struct er_hang *h, struct er_hang_rank *r, const struct er_hang_sample *s)
{
    uint64_t n = s->step - r->step;

    if (s->step == r->step)
        return;
    if (s->step > r->step && r->stepped_us && !r->mixed && s->reported_us > r->stepped_us)
        er_hang_steps_add(&h->steps, (s->reported_us - r->stepped_us) / n, n);
    r->stepped_us = s->first_us && s->step > r->step ? s->reported_us : 0;
    r->mixed = false;
}

/* Until one was seen to end, the page itself says how long they take. */
static void see_first_steps(struct er_hang *h, const struct er_hang_sample *s)
{
    uint64_t n = s->step - s->first_step;

    if (h->steps.n == 0 && s->first_us && s->step > s->first_step && s->reported_us > s->first_us)
        er_hang_steps_add(&h->steps, (s->reported_us - s->first_us) / n, n);
}

static void restart_clock(struct er_hang *h, struct er_hang_rank *r, const struct er_hang_sample *s,
                          enum er_hang_kind kind, uint64_t now_us)
{
    /* A collective leaves no time: it began after the last look. */
    uint64_t moved_us = later(later(s->reported_us, h->looked_us), r->since_us);

    if (kind == ER_HANG_STARTUP)
        moved_us = s->begun_us;
    r->since_us = moved_us < now_us ? moved_us : now_us;
    r->told_us = 0;
}

void er_hang_look(struct er_hang *h, struct er_hang_rank *r, const struct er_hang_sample *s,
                  uint64_t now_us)
{
    enum er_hang_kind kind;
    bool moved, first = !r->known;

    if (!s->reports) {
        *r = (struct er_hang_rank){0};
        return;
    }
    if (!first)
        see_steps(h, r, s);
    see_first_steps(h, s);
    kind = kind_of(h, s);
    moved = first || s->phase != r->phase || s->step != r->step || s->collective != r->collective;
    /* A start, a checkpoint, an evaluation as a whole has its time. */
    if (first || kind != r->kind || (moved && (kind == ER_HANG_STEP || kind == ER_HANG_NO_LIMIT)))
        restart_clock(h, r, s, kind, now_us);
    r->known = true;
    r->kind = kind;
    r->phase = s->phase;
    r->step = s->step;
    r->collective = s->collective;
    r->mixed |= is_long(kind);
}

/* Steps that are shorter than floor / factor do not change the limit. */
static uint64_t look_every(const struct er_hang *h)
{
    double matters = (double)h->limits.floor_us / (h->limits.factor > 1 ? h->limits.factor : 1) / 2;
    uint64_t us = h->limits.floor_us / LOOKS_A_FLOOR;

    if (h->limits.floor_us == ER_FOREVER)
        return LOOK_MAX_US;
    us = matters < (double)us ? (uint64_t)matters : us;
    return us < LOOK_MIN_US ? LOOK_MIN_US : us > LOOK_MAX_US ? LOOK_MAX_US : us;
}

void er_hang_looked(struct er_hang *h, const struct er_hang_rank *ranks, int n, uint64_t now_us)
{
    h->looked_us = now_us;
    h->due_us = now_us + look_every(h);
    for (int i = 0; i < n; i++) {
        uint64_t at = ranks[i].known ? alarm_us(h, &ranks[i]) : ER_FOREVER;

        if (at > now_us && at < h->due_us)
            h->due_us = at;
    }
}

uint64_t er_hang_awake(struct er_hang *h, struct er_hang_rank *ranks, int n, uint64_t now_us)
{
    uint64_t late_us = now_us > h->due_us ? now_us - h->due_us : 0;

    if (h->due_us == ER_FOREVER || late_us < ASLEEP_US)
        return 0;
    for (int i = 0; i < n; i++) {
        if (ranks[i].known)
            ranks[i].since_us += late_us;
        ranks[i].mixed = true;
    }
    h->looked_us = now_us - LOOK_MIN_US;
    return late_us;
}

void er_hang_begin(struct er_hang *h, uint64_t now_us)
{
    h->looked_us = h->due_us = now_us;
}
