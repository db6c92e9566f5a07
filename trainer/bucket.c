#include "trainer/bucket.h"

#include <assert.h>
#include <string.h>

static int check_name(const struct er_span *span, size_t i, struct er_error *err)
{
    if (!span->name || !span->name[0])
        return er_error_set(err, ER_E_USAGE, "gradient %zu has no name", i);
    for (const char *c = span->name; *c; c++) {
        if (*c == '+' || *c == '|' || (unsigned char)*c < 0x20 || *c == 0x7f)
            return er_error_set(err, ER_E_USAGE,
                                "gradient '%s': '+', '|' and control characters are not allowed",
                                span->name);
    }
    return 0;
}

static int check_memory(const struct er_span *span, size_t element, struct er_error *err)
{
    if (!span->ptr || !span->count)
        return er_error_set(err, ER_E_USAGE, "gradient '%s' has no elements", span->name);
    if ((uintptr_t)span->ptr % element)
        return er_error_set(err, ER_E_USAGE, "gradient '%s' is not aligned", span->name);
    if (span->count > SIZE_MAX / element - (uintptr_t)span->ptr / element)
        return er_error_set(err, ER_E_USAGE, "gradient '%s': %zu elements end beyond memory",
                            span->name, span->count);
    return 0;
}

static uintptr_t end_of(const struct er_span *span, size_t element)
{
    return (uintptr_t)span->ptr + span->count * element;
}

static int check_pair(const struct er_span *a, const struct er_span *b, size_t element,
                      struct er_error *err)
{
    if (strcmp(a->name, b->name) == 0)
        return er_error_set(err, ER_E_USAGE, "two gradients are called '%s'", a->name);
    if ((uintptr_t)a->ptr < end_of(b, element) && (uintptr_t)b->ptr < end_of(a, element))
        return er_error_set(err, ER_E_USAGE, "gradients '%s' and '%s' overlap in memory", a->name,
                            b->name);
    return 0;
}

int er_bucket_check(const struct er_span *spans, size_t n, size_t element, struct er_error *err)
{
    if (n > ER_BUCKET_SPANS_MAX)
        return er_error_set(err, ER_E_USAGE, "%zu gradients, at most %zu", n, ER_BUCKET_SPANS_MAX);
    for (size_t i = 0; i < n; i++) {
        int rc = check_name(&spans[i], i, err);

        if (rc == 0)
            rc = check_memory(&spans[i], element, err);
        for (size_t j = 0; rc == 0 && j < i; j++)
            rc = check_pair(&spans[j], &spans[i], element, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Members [first, end) in order of memory. They come in nearly sorted: each has a short way. */
static void sort_members(const struct er_bucket_plan *plan, size_t first, size_t end)
{
    uint32_t *members = plan->members;

    for (size_t i = first + 1; i < end; i++) {
        uint32_t one = members[i];
        size_t at = i;

        for (; at > first && plan->spans[members[at - 1]].ptr > plan->spans[one].ptr; at--)
            members[at] = members[at - 1];
        members[at] = one;
    }
}

static bool adjacent(const struct er_bucket_plan *plan, size_t member)
{
    const struct er_span *low = &plan->spans[plan->members[member]];
    const struct er_span *high = &plan->spans[plan->members[member + 1]];

    return end_of(low, plan->element) == (uintptr_t)high->ptr;
}

/* Among the buckets from `first` on, by their last span. */
static void insert_bucket(struct er_bucket_plan *plan, size_t first, const struct er_bucket *bucket)
{
    size_t at = plan->buckets_n++;

    for (; at > first && plan->buckets[at - 1].last > bucket->last; at--)
        plan->buckets[at] = plan->buckets[at - 1];
    plan->buckets[at] = *bucket;
}

/* Members [first, end), one piece of memory. bucket_of[] still holds places in the order. */
static struct er_bucket bucket_of_piece(const struct er_bucket_plan *plan, size_t first, size_t end)
{
    struct er_bucket bucket = {
        .ptr = plan->spans[plan->members[first]].ptr, .first = first, .spans_n = end - first};

    for (size_t i = first; i < end; i++) {
        size_t place = plan->bucket_of[plan->members[i]];

        bucket.count += plan->spans[plan->members[i]].count;
        bucket.last = place > bucket.last ? place : bucket.last;
    }
    return bucket;
}

static uint32_t span_at(const struct er_bucket_plan *plan, const uint32_t *order, size_t place)
{
    return order ? order[place] : (uint32_t)(plan->spans_n - 1 - place);
}

/* The spans at places [first, end) of the order become buckets. */
static void plan_group(struct er_bucket_plan *plan, const uint32_t *order, size_t first, size_t end)
{
    size_t buckets_first = plan->buckets_n;

    for (size_t place = first; place < end; place++) {
        uint32_t span = span_at(plan, order, place);

        plan->members[end - 1 - (place - first)] = span; /* backwards: nearly sorted */
        plan->bucket_of[span] = (uint32_t)place;
    }
    sort_members(plan, first, end);
    for (size_t high = end, low; high > first; high = low) {
        struct er_bucket bucket;

        for (low = high - 1; low > first && adjacent(plan, low - 1);)
            low--;
        bucket = bucket_of_piece(plan, low, high);
        insert_bucket(plan, buckets_first, &bucket);
    }
    for (size_t b = buckets_first; b < plan->buckets_n; b++) {
        for (size_t i = 0; i < plan->buckets[b].spans_n; i++)
            plan->bucket_of[plan->members[plan->buckets[b].first + i]] = (uint32_t)b;
    }
}

static size_t bytes_at(const struct er_bucket_plan *plan, const uint32_t *order, size_t place)
{
    return plan->spans[span_at(plan, order, place)].count * plan->element;
}

/* Nothing hides the last bucket: with `left` bytes to go a bucket takes half of them at most. */
static size_t limit_near_end(size_t limit, size_t left)
{
    size_t half = left / 2 > ER_BUCKET_LAST_BYTES ? left / 2 : ER_BUCKET_LAST_BYTES;

    return limit < half ? limit : half;
}

void er_bucket_plan_make(struct er_bucket_plan *plan, const uint32_t *order, size_t first_bytes,
                         size_t bucket_bytes)
{
    size_t limit = first_bytes ? first_bytes : ER_BUCKET_FIRST_BYTES, left = 0;

    plan->buckets_n = 0;
    for (size_t place = 0; place < plan->spans_n; place++)
        left += bytes_at(plan, order, place);
    for (size_t first = 0, end; first < plan->spans_n; first = end) {
        size_t bytes = bytes_at(plan, order, first), most = limit_near_end(limit, left);

        for (end = first + 1; end < plan->spans_n; end++) {
            size_t more = bytes_at(plan, order, end);

            if (bytes + more > most)
                break;
            bytes += more;
        }
        plan_group(plan, order, first, end);
        left -= bytes;
        limit = bucket_bytes ? bucket_bytes : ER_BUCKET_BYTES;
    }
    for (size_t b = 1; b < plan->buckets_n; b++)
        plan->buckets[b].before = plan->buckets[b - 1].before + plan->buckets[b - 1].count;
    er_bucket_reset(plan);
}

bool er_bucket_order_valid(const uint32_t *order, size_t n, bool *seen)
{
    for (size_t i = 0; i < n; i++)
        seen[i] = false;
    for (size_t i = 0; i < n; i++) {
        if (order[i] >= n || seen[order[i]])
            return false;
        seen[order[i]] = true;
    }
    return true;
}

void er_bucket_reset(struct er_bucket_plan *plan)
{
    for (size_t i = 0; i < plan->spans_n; i++)
        plan->final[i] = false;
    for (size_t b = 0; b < plan->buckets_n; b++)
        plan->buckets[b].waiting = plan->buckets[b].spans_n;
}

int er_bucket_mark(struct er_bucket_plan *plan, size_t span)
{
    assert(span < plan->spans_n);
    if (plan->final[span])
        return ER_BUCKET_TWICE;
    plan->final[span] = true;
    plan->buckets[plan->bucket_of[span]].waiting--;
    return 0;
}

void er_bucket_mark_rest(struct er_bucket_plan *plan)
{
    for (size_t i = 0; i < plan->spans_n; i++)
        plan->final[i] = true;
    for (size_t b = 0; b < plan->buckets_n; b++)
        plan->buckets[b].waiting = 0;
}

bool er_bucket_full(const struct er_bucket_plan *plan, size_t bucket)
{
    assert(bucket < plan->buckets_n);
    return plan->buckets[bucket].waiting == 0;
}

/* Text that may be longer than its place: `length` counts on. */
struct bounded {
    char *text;
    size_t cap, length;
};

static void put(struct bounded *out, const char *part, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (out->length + 1 < out->cap)
            out->text[out->length] = part[i];
        out->length++;
    }
}

size_t er_bucket_layout(const struct er_bucket_plan *plan, char *text, size_t cap)
{
    struct bounded out = {.text = text, .cap = cap};

    for (size_t b = 0; b < plan->buckets_n; b++) {
        const struct er_bucket *bucket = &plan->buckets[b];

        if (b > 0)
            put(&out, "|", 1);
        for (size_t i = 0; i < bucket->spans_n; i++) {
            const char *name = plan->spans[plan->members[bucket->first + i]].name;

            if (i > 0)
                put(&out, "+", 1);
            put(&out, name, strlen(name));
        }
    }
    if (cap > 0)
        text[out.length < cap ? out.length : cap - 1] = '\0';
    return out.length;
}
