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

/* The bucket grows downwards: `span` must end where it begins. */
static bool fits(const struct er_bucket *bucket, const struct er_span *span, size_t element,
                 size_t bytes)
{
    return end_of(span, element) == (uintptr_t)bucket->ptr &&
           (bucket->count + span->count) * element <= bytes;
}

void er_bucket_plan_make(struct er_bucket_plan *plan, size_t first_bytes, size_t bucket_bytes)
{
    size_t limit = first_bytes ? first_bytes : ER_BUCKET_FIRST_BYTES;
    struct er_bucket *bucket = NULL;

    plan->buckets_n = 0;
    for (size_t i = plan->spans_n; i-- > 0;) {
        const struct er_span *span = &plan->spans[i];

        if (!bucket || !fits(bucket, span, plan->element, limit)) {
            if (bucket)
                limit = bucket_bytes ? bucket_bytes : ER_BUCKET_BYTES;
            bucket = &plan->buckets[plan->buckets_n++];
            *bucket = (struct er_bucket){0};
        }
        bucket->ptr = span->ptr;
        bucket->count += span->count;
        bucket->first = i;
        bucket->spans_n++;
        plan->bucket_of[i] = (uint32_t)(plan->buckets_n - 1);
    }
    er_bucket_reset(plan);
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
            const char *name = plan->spans[bucket->first + i].name;

            if (i > 0)
                put(&out, "+", 1);
            put(&out, name, strlen(name));
        }
    }
    if (cap > 0)
        text[out.length < cap ? out.length : cap - 1] = '\0';
    return out.length;
}
