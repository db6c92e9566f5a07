#include "agent/hang_judge.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define VERSION 1

const char *er_phase_name(uint64_t phase)
{
    static const char *const NAMES[] = {
#define PHASE(name, text) text,
        ER_PHASES(PHASE)
#undef PHASE
    };
    return phase < ER_ARRAY_N(NAMES) ? NAMES[phase] : "unknown";
}

/* How far a phase is within a step; the last finished step counts by its number. */
static int place_of(enum er_phase phase)
{
    switch (phase) {
    case ER_PHASE_STARTUP:
    case ER_PHASE_IDLE:
    case ER_PHASE_CHECKPOINT:
    case ER_PHASE_EVALUATION:
        return 0;
    case ER_PHASE_DATA:
        return 1;
    case ER_PHASE_FORWARD:
        return 2;
    case ER_PHASE_BACKWARD:
        return 3;
    case ER_PHASE_COMMUNICATE:
        return 4;
    case ER_PHASE_OPTIMIZER:
        return 5;
    }
    return 0;
}

/* < 0: a is behind b. */
static int compare(const struct er_hang_fact *a, const struct er_hang_fact *b)
{
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    if (a->collective != b->collective)
        return a->collective < b->collective ? -1 : 1;
    if (place_of(a->phase) != place_of(b->phase))
        return place_of(a->phase) - place_of(b->phase);
    return a->waits - b->waits;
}

static bool stands(const struct er_hang_fact *f)
{
    return f->state != ER_HANG_MOVING;
}

/* Its own time is over, or as good as over while others' is. */
static bool is_due(const struct er_hang_fact *f)
{
    return f->state == ER_HANG_LATE || f->state == ER_HANG_STILL;
}

static bool is_held(const struct er_hang_fact *f)
{
    return stands(f) && (f->stopped || f->traced);
}

struct survey {
    bool late;
    size_t standing, held;
    const struct er_hang_fact *last, *first; /* of those that stand: furthest behind, ahead */
};

static void survey(const struct er_hang_fact *facts, size_t n, struct survey *ret)
{
    *ret = (struct survey){0};
    for (size_t i = 0; i < n; i++) {
        const struct er_hang_fact *f = &facts[i];

        ret->late |= f->state == ER_HANG_LATE;
        ret->held += is_held(f);
        if (!stands(f))
            continue;
        ret->standing++;
        if (!ret->last || compare(f, ret->last) < 0)
            ret->last = f;
        if (!ret->first || compare(f, ret->first) > 0)
            ret->first = f;
    }
}

static void name(struct er_hang_verdict *v, const struct er_hang_fact *f)
{
    if (v->n < ER_HANG_NAMED_MAX)
        v->who[v->n++] = *f;
}

/* Those behind; false: the time of one of them is not over. */
static bool name_those_behind(const struct er_hang_fact *facts, size_t n, const struct survey *s,
                              struct er_hang_verdict *v)
{
    for (size_t i = 0; i < n; i++) {
        if (!stands(&facts[i]) || compare(&facts[i], s->last) != 0 || is_due(&facts[i]))
            continue;
        name(v, &facts[i]);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (stands(&facts[i]) && compare(&facts[i], s->last) == 0)
            name(v, &facts[i]);
    }
    return true;
}

static void name_lowest(const struct er_hang_fact *facts, size_t n, struct er_hang_verdict *v)
{
    const struct er_hang_fact *lowest = NULL;

    for (size_t i = 0; i < n; i++) {
        if (is_due(&facts[i]) && (!lowest || facts[i].rank < lowest->rank))
            lowest = &facts[i];
    }
    if (lowest)
        name(v, lowest);
}

static enum er_hang_why judge(const struct er_hang_fact *facts, size_t n, bool complete,
                              struct er_hang_verdict *v)
{
    struct survey s;

    survey(facts, n, &s);
    if (!s.late)
        return ER_HANG_WHY_NOBODY;
    if (s.held) {
        for (size_t i = 0; i < n; i++) {
            if (is_held(&facts[i]))
                name(v, &facts[i]);
        }
        return ER_HANG_WHY_STOPPED;
    }
    if (compare(s.last, s.first) < 0 || s.standing == 1) {
        if (!complete && place_of(s.last->phase) == place_of(ER_PHASE_COMMUNICATE))
            return ER_HANG_WHY_UNKNOWN;
        return name_those_behind(facts, n, &s, v) ? ER_HANG_WHY_BEHIND : ER_HANG_WHY_PATIENT;
    }
    if (!complete)
        return ER_HANG_WHY_UNKNOWN;
    name_lowest(facts, n, v);
    return ER_HANG_WHY_ALIKE;
}

static bool is_named(const struct er_hang_verdict *v, int rank)
{
    for (int i = 0; i < v->n; i++) {
        if (v->who[i].rank == rank)
            return true;
    }
    return false;
}

void er_hang_judge(const struct er_hang_fact *facts, size_t n, const bool *answered, int nodes,
                   struct er_hang_verdict *ret)
{
    memset(ret, 0, sizeof(*ret));
    for (int i = 0; i < nodes; i++) {
        if (answered[i])
            continue;
        if (ret->missing_n < ER_HANG_NAMED_MAX)
            ret->missing[ret->missing_n] = i;
        ret->missing_n++;
    }
    ret->why = judge(facts, n, ret->missing_n == 0, ret);
    for (size_t i = 0; i < n; i++) {
        if (!stands(&facts[i]) || is_named(ret, facts[i].rank))
            continue;
        if (ret->waiting_n < ER_HANG_WAITED_MAX)
            ret->waiting[ret->waiting_n++] = facts[i].rank;
        ret->waiting_all++;
    }
}

bool er_hang_is_hang(const struct er_hang_verdict *v)
{
    return v->why == ER_HANG_WHY_STOPPED || v->why == ER_HANG_WHY_BEHIND ||
           v->why == ER_HANG_WHY_ALIKE;
}

/* ---- bytes: little-endian ---- */

struct writer {
    unsigned char *at;
};

static void put(struct writer *w, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *w->at++ = (unsigned char)(v >> (8 * i));
}

struct reader {
    const unsigned char *at, *end;
    bool bad;
};

static uint64_t get(struct reader *r, unsigned bytes)
{
    uint64_t v = 0;

    if ((size_t)(r->end - r->at) < bytes) {
        r->bad = true;
        return 0;
    }
    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)*r->at++ << (8 * i);
    return v;
}

/* A number of at most `max`. */
static int get_int(struct reader *r, unsigned bytes, int max)
{
    uint64_t v = get(r, bytes);

    r->bad |= v > (uint64_t)max;
    return r->bad ? 0 : (int)v;
}

static void put_fact(struct writer *w, const struct er_hang_fact *f)
{
    put(w, (uint64_t)f->rank, 4);
    put(w, (uint64_t)f->node_rank, 4);
    put(w, (uint64_t)(f->state | f->stopped << 4 | f->traced << 5 | f->waits << 6), 1);
    put(w, (uint64_t)f->phase, 1);
    put(w, f->step, 8);
    put(w, f->collective, 8);
    put(w, f->still_us / ER_US_PER_MS, 6);
    put(w, f->left_us == ER_FOREVER ? 0xffffffffffffull : f->left_us / ER_US_PER_MS, 6);
}

static void get_fact(struct reader *r, struct er_hang_fact *ret)
{
    uint64_t flags, left_ms;

    ret->rank = get_int(r, 4, INT32_MAX);
    ret->node_rank = get_int(r, 4, INT32_MAX);
    flags = get(r, 1);
    r->bad |= (flags & 15) > ER_HANG_LATE || flags > 127;
    ret->state = (enum er_hang_state)(r->bad ? 0 : flags & 15);
    ret->stopped = flags & 16;
    ret->traced = flags & 32;
    ret->waits = flags & 64;
    ret->phase = (enum er_phase)get_int(r, 1, ER_PHASE_IDLE);
    ret->step = get(r, 8);
    ret->collective = get(r, 8);
    ret->still_us = get(r, 6) * ER_US_PER_MS;
    left_ms = get(r, 6);
    ret->left_us = left_ms == 0xffffffffffffull ? ER_FOREVER : left_ms * ER_US_PER_MS;
}

static int checked(const struct reader *r, struct er_error *err)
{
    if (r->bad || r->at != r->end)
        return er_error_set(err, ER_E_CORRUPT, "what a node tells of its ranks is damaged");
    return 0;
}

size_t er_hang_facts_encode(const struct er_hang_fact *facts, size_t n, void *ret)
{
    struct writer w = {ret};

    put(&w, VERSION, 1);
    put(&w, 'f', 1);
    for (size_t i = 0; i < n && i < ER_HANG_FACTS_MAX; i++)
        put_fact(&w, &facts[i]);
    return (size_t)(w.at - (unsigned char *)ret);
}

int er_hang_facts_parse(const void *bytes, size_t n, struct er_hang_fact *ret, size_t *ret_n,
                        struct er_error *err)
{
    struct reader r = {bytes, (const unsigned char *)bytes + n, false};
    size_t facts_n = n < 2 ? 0 : (n - 2) / ER_HANG_FACT_BYTES;

    r.bad = get(&r, 1) != VERSION || get(&r, 1) != 'f' || facts_n > ER_HANG_FACTS_MAX;
    for (size_t i = 0; i < facts_n && !r.bad; i++)
        get_fact(&r, &ret[i]);
    if (checked(&r, err))
        return ER_E_CORRUPT;
    *ret_n = facts_n;
    return 0;
}

size_t er_hang_verdict_encode(const struct er_hang_verdict *v, void *ret)
{
    int missing_n = v->missing_n < ER_HANG_NAMED_MAX ? v->missing_n : ER_HANG_NAMED_MAX;
    struct writer w = {ret};

    put(&w, VERSION, 1);
    put(&w, 'v', 1);
    put(&w, (uint64_t)v->why, 1);
    put(&w, (uint64_t)v->n, 1);
    put(&w, (uint64_t)v->waiting_n, 1);
    put(&w, (uint64_t)v->waiting_all, 4);
    put(&w, (uint64_t)v->missing_n, 4);
    for (int i = 0; i < v->n; i++)
        put_fact(&w, &v->who[i]);
    for (int i = 0; i < v->waiting_n; i++)
        put(&w, (uint64_t)v->waiting[i], 4);
    for (int i = 0; i < missing_n; i++)
        put(&w, (uint64_t)v->missing[i], 4);
    return (size_t)(w.at - (unsigned char *)ret);
}

int er_hang_verdict_parse(const void *bytes, size_t n, struct er_hang_verdict *ret,
                          struct er_error *err)
{
    struct reader r = {bytes, (const unsigned char *)bytes + n, false};
    struct er_hang_verdict v = {0};

    r.bad = get(&r, 1) != VERSION || get(&r, 1) != 'v';
    v.why = (enum er_hang_why)get_int(&r, 1, ER_HANG_WHY_COUNT - 1);
    v.n = get_int(&r, 1, ER_HANG_NAMED_MAX);
    v.waiting_n = get_int(&r, 1, ER_HANG_WAITED_MAX);
    v.waiting_all = get_int(&r, 4, INT32_MAX);
    v.missing_n = get_int(&r, 4, INT32_MAX);
    for (int i = 0; i < v.n && !r.bad; i++)
        get_fact(&r, &v.who[i]);
    for (int i = 0; i < v.waiting_n && !r.bad; i++)
        v.waiting[i] = get_int(&r, 4, INT32_MAX);
    for (int i = 0; i < v.missing_n && i < ER_HANG_NAMED_MAX && !r.bad; i++)
        v.missing[i] = get_int(&r, 4, INT32_MAX);
    if (checked(&r, err))
        return ER_E_CORRUPT;
    *ret = v;
    return 0;
}
