/* Lines of the ledger, and what they prove. Pure. */
#include "ckpt/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const KINDS[] = {
#define NAME(name, text) [ER_LEDGER_##name] = text,
    ER_LEDGER_KINDS(NAME)
#undef NAME
};
static const char *const SOURCES[] = {
#define NAME(name, text) [ER_LEDGER_FROM_##name] = text,
    ER_LEDGER_SOURCES(NAME)
#undef NAME
};

/* ---- lines ---- */

size_t er_ledger_format(const struct er_ledger_entry *e, char ret[ER_LEDGER_LINE_MAX])
{
    int n = snprintf(ret, ER_LEDGER_LINE_MAX, "%s g=%" PRIu64 " step=%" PRIu64, KINDS[e->kind],
                     e->generation, e->step);

    if (e->kind == ER_LEDGER_BEGIN)
        n += snprintf(ret + n, ER_LEDGER_LINE_MAX - (size_t)n,
                      " world=%" PRIu64 " samples=%" PRIu64 " batch=%" PRIu64 " seed=%" PRIu64
                      " shards=%" PRIu64 " from=%s run=%.*s",
                      e->world, e->plan.samples, e->plan.batch, e->plan.seed, e->plan.shards,
                      SOURCES[e->from], ER_LEDGER_RUN_MAX - 1, e->run);
    else if (e->kind == ER_LEDGER_END)
        n += snprintf(ret + n, ER_LEDGER_LINE_MAX - (size_t)n, " total=%" PRIu64, e->total);
    else if (e->poison)
        n += snprintf(ret + n, ER_LEDGER_LINE_MAX - (size_t)n, " why=poison");
    ret[n++] = '\n';
    ret[n] = '\0';
    return (size_t)n;
}

/* The next blank-separated word of *line; false: none. */
static bool next_word(const char **line, const char **ret, size_t *ret_n)
{
    *line += strspn(*line, " ");
    *ret = *line;
    *ret_n = strcspn(*line, " \n");
    *line += *ret_n;
    return *ret_n > 0;
}

static bool is_name(const char *word, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(word, name, n) == 0;
}

static int find(const char *const *names, int names_n, const char *word, size_t n)
{
    for (int i = 0; i < names_n; i++) {
        if (is_name(word, n, names[i]))
            return i;
    }
    return -1;
}

static bool number(const char *text, size_t n, uint64_t *ret)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned digit = (unsigned)(text[i] - '0');

        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret = value;
    return n > 0;
}

/* One "name=value". */
static bool take(struct er_ledger_entry *e, const char *word, size_t n)
{
    const struct {
        const char *name;
        uint64_t *to;
    } NUMBERS[] = {
        {"g", &e->generation},         {"step", &e->step},        {"world", &e->world},
        {"samples", &e->plan.samples}, {"batch", &e->plan.batch}, {"seed", &e->plan.seed},
        {"shards", &e->plan.shards},   {"total", &e->total},
    };
    const char *value = memchr(word, '=', n);
    size_t name_n, value_n;
    int i;

    if (!value)
        return false;
    value++;
    name_n = (size_t)(value - word) - 1;
    value_n = n - name_n - 1;
    for (size_t k = 0; k < sizeof(NUMBERS) / sizeof(NUMBERS[0]); k++) {
        if (is_name(word, name_n, NUMBERS[k].name))
            return number(value, value_n, NUMBERS[k].to);
    }
    if (is_name(word, name_n, "from")) {
        i = find(SOURCES, ER_LEDGER_SOURCE_COUNT, value, value_n);
        e->from = i < 0 ? ER_LEDGER_FROM_START : (enum er_ledger_source)i;
        return i >= 0;
    }
    if (is_name(word, name_n, "why"))
        e->poison = is_name(value, value_n, "poison");
    if (is_name(word, name_n, "run") && value_n < sizeof(e->run))
        memcpy(e->run, value, value_n);
    return true; /* a later release's words are no reason to stop */
}

int er_ledger_parse(const char *line, struct er_ledger_entry *ret)
{
    struct er_ledger_entry e = {0};
    const char *word;
    size_t n;
    int kind;

    if (!next_word(&line, &word, &n) || (kind = find(KINDS, ER_LEDGER_KIND_COUNT, word, n)) < 0)
        return -EINVAL;
    e.kind = (enum er_ledger_kind)kind;
    while (next_word(&line, &word, &n)) {
        if (!take(&e, word, n))
            return -EINVAL;
    }
    if (e.kind == ER_LEDGER_BEGIN && (e.plan.samples == 0 || e.plan.batch == 0 || e.world == 0))
        return -EINVAL;
    *ret = e;
    return 0;
}

/* ---- the audit ---- */

struct walk {
    struct er_ledger_audit *a;
    struct er_ledger_part *parts;
    bool ended;       /* the last part's end is known ... */
    uint64_t end;     /* ... to be here */
    uint64_t reached; /* newest step that is known to have been applied */
};

static void object(struct walk *w, const char *what, uint64_t generation, uint64_t from,
                   uint64_t to)
{
    if (w->a->problem[0])
        return;
    snprintf(w->a->problem, sizeof(w->a->problem),
             "generation %" PRIu64 ": %s (steps %" PRIu64 " to %" PRIu64 ")", generation, what,
             from, to);
}

static void begin(struct walk *w, const struct er_ledger_entry *e)
{
    struct er_ledger_audit *a = w->a;

    if (a->generations++ == 0)
        a->plan = e->plan;
    else if (memcmp(&a->plan, &e->plan, sizeof(a->plan)) != 0)
        object(w, "it has another plan (samples, batch, seed or shards)", e->generation,
               e->step + 1, e->step + 1);
    if (w->ended && e->step > w->end)
        object(w, "it begins behind the end of the one before; nobody used", e->generation,
               w->end + 1, e->step);
    if (w->reached > e->step)
        a->repeated += w->reached - e->step;
    while (a->parts_n > 0 && w->parts[a->parts_n - 1].first >= e->step)
        a->parts_n--; /* it was of no consequence */
    if (a->parts_n > 0)
        w->parts[a->parts_n - 1].last = e->step;
    else if (e->step > 0)
        object(w, "no generation before it is known; nobody used", e->generation, 1, e->step);
    w->parts[a->parts_n++] = (struct er_ledger_part){.generation = e->generation,
                                                     .first = e->step,
                                                     .last = e->step,
                                                     .world = e->world,
                                                     .from = e->from};
    w->ended = false;
    w->reached = e->step;
}

static void end(struct walk *w, const struct er_ledger_entry *e)
{
    struct er_ledger_audit *a = w->a;

    if (a->parts_n == 0 || w->parts[a->parts_n - 1].generation != e->generation) {
        object(w, "it ends, and never began", e->generation, e->step, e->step);
        return;
    }
    if (e->step < w->parts[a->parts_n - 1].first)
        object(w, "it ends before it began", e->generation, e->step,
               w->parts[a->parts_n - 1].first);
    w->ended = true;
    w->end = w->reached = e->step;
    a->total = e->total;
    w->parts[a->parts_n - 1].last = e->step;
}

/* Insertion: the file is in order but for a writer that was paused. */
static void sort(struct er_ledger_entry *entries, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct er_ledger_entry e = entries[i];
        size_t at = i;

        for (; at > 0 && entries[at - 1].generation > e.generation; at--)
            entries[at] = entries[at - 1];
        entries[at] = e;
    }
}

static void count_skip(struct er_ledger_audit *a, const struct er_ledger_entry *e)
{
    if (!e->poison) {
        a->skipped++;
        return;
    }
    if (a->left_out < ER_LEDGER_LEFT_OUT_MAX)
        a->left_out_steps[a->left_out] = e->step;
    a->left_out++;
}

/* Of the steps that count, those whose gradients were dropped in the part that they belong to. */
static void count_skips(struct walk *w, const struct er_ledger_entry *entries, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t p = 0; entries[i].kind == ER_LEDGER_SKIP && p < w->a->parts_n; p++) {
            const struct er_ledger_part *part = &w->parts[p];

            if (part->generation == entries[i].generation && entries[i].step > part->first &&
                entries[i].step <= part->last)
                count_skip(w->a, &entries[i]);
        }
    }
}

void er_ledger_audit(struct er_ledger_entry *entries, size_t n, uint64_t saved,
                     struct er_ledger_part *parts, struct er_ledger_audit *ret)
{
    struct walk w = {.a = ret, .parts = parts};

    *ret = (struct er_ledger_audit){0};
    sort(entries, n);
    for (size_t i = 0; i < n; i++) {
        if (entries[i].kind == ER_LEDGER_BEGIN)
            begin(&w, &entries[i]);
        else if (entries[i].kind == ER_LEDGER_END)
            end(&w, &entries[i]);
    }
    if (ret->parts_n == 0) {
        object(&w, "no generation has begun", 0, 0, 0);
        return;
    }
    if (!w.ended && saved > parts[ret->parts_n - 1].last)
        parts[ret->parts_n - 1].last = saved;
    if (w.ended && saved > w.end)
        object(&w, "a checkpoint lies behind its end; nobody used",
               parts[ret->parts_n - 1].generation, w.end + 1, saved);
    ret->steps = parts[ret->parts_n - 1].last;
    count_skips(&w, entries, n);
    ret->ok = !ret->problem[0];
}
