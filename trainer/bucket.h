#pragma once
/*
 * Which gradients travel together, and when a bucket is full. Pure: the memory is the caller's.
 *
 *   spans in forward order    w0 b0 w1 b1 w2 b2
 *   buckets in departure order   |b2 w2| |b1 w1 b0| |w0|
 *
 * Spans are taken in the order in which they become final: at first the reverse of their use,
 * because backward finishes the last layer first; later as it was seen. As many as a bucket may
 * hold are a group. A bucket is one contiguous piece of memory (a view, nothing is copied), so a
 * group is one bucket, or as many as it has pieces, ordered by their last span. A span larger than
 * a bucket travels alone. Towards the end groups become smaller, half of what is left each but at
 * least ER_BUCKET_LAST_BYTES: there is no computation behind which the last ones could hide.
 */
#include <stddef.h>
#include <stdint.h>

#include "trainer/ddp.h"

#define ER_BUCKET_FIRST_BYTES ((size_t)1 << 20)
#define ER_BUCKET_BYTES       ((size_t)25 << 20)
#define ER_BUCKET_LAST_BYTES  ((size_t)256 << 10)
#define ER_BUCKET_SPANS_MAX   ((size_t)16384)

struct er_bucket {
    float *ptr; /* the caller's gradients */
    size_t count;
    size_t first, spans_n; /* members [first, first + spans_n), in order of memory */
    size_t last;           /* place of its last span in the order of becoming final */
    size_t before;         /* elements in the buckets before it */
    size_t waiting;        /* spans not final yet in this step */
};

struct er_bucket_plan {
    const struct er_span *spans; /* borrowed */
    size_t spans_n;
    size_t element;            /* bytes of one */
    struct er_bucket *buckets; /* the caller's, room for spans_n; in order of departure */
    size_t buckets_n;
    uint32_t *members;   /* the caller's, spans_n: spans, bucket by bucket */
    uint32_t *bucket_of; /* the caller's, spans_n: span -> bucket */
    bool *final;         /* the caller's, spans_n: marked in this step */
};

/* ER_E_USAGE: a span without name or elements, a name with '+', '|' or a control character, a name
 * used twice, memory that overlaps or is not aligned, too many spans. `element`: bytes of one. */
int er_bucket_check(const struct er_span *spans, size_t n, size_t element, struct er_error *err);

/* Fills buckets, members and bucket_of from spans; 0 bytes stand for the defaults. `order`: spans_n
 * spans in the order in which they become final; NULL: the last one first. Ends with a reset. */
void er_bucket_plan_make(struct er_bucket_plan *plan, const uint32_t *order, size_t first_bytes,
                         size_t bucket_bytes);
/* Each of the n spans once? `seen`: n, overwritten. */
bool er_bucket_order_valid(const uint32_t *order, size_t n, bool *seen);

/* Nothing is final: the next step. */
void er_bucket_reset(struct er_bucket_plan *plan);

#define ER_BUCKET_TWICE 1
/* Span is final. ER_BUCKET_TWICE: it was already, nothing changed. span < spans_n. */
int er_bucket_mark(struct er_bucket_plan *plan, size_t span);
/* The rest is final as it is (unused parameters, a rank without samples). */
void er_bucket_mark_rest(struct er_bucket_plan *plan);
bool er_bucket_full(const struct er_bucket_plan *plan, size_t bucket);

/* "name+name|name": buckets in order of departure, spans in order of memory. Returns the length
 * without the NUL, the same for every plan of these spans; writes at most `cap` bytes with it. */
size_t er_bucket_layout(const struct er_bucket_plan *plan, char *text, size_t cap);
