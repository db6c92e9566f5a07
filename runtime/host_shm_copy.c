#include "runtime/host_shm_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "runtime/host_algo.h"

enum {
    STREAM_FROM_BYTES = 8 << 10,
    DOUBTFUL_FROM_BYTES = 512 << 10,
    HOME_STREAM_FROM_BYTES = 8 << 20, /* of all that an operation brings home */
    DEAR_BYTES_PER_US = 4000,         /* a slot that is read at less is dear to read */
    DEAR_PIECES = 256                 /* for so long */
};

/*
 * A slot is read by other cores alone, and a line that lies changed in our cache is slow to come by
 * for them: 50 ns and more where the cores do not share a cache, one after the other (1 GB/s). So
 * lines of larger pieces go past the cache, to memory, whence they stream. A few lines are there
 * sooner when they do not; and the largest pieces leave the first caches by themselves, into one
 * that the cores may share: these are written as usual until a reader finds that dear.
 */
static bool wants_streaming(const struct er_transport *t, size_t bytes)
{
    bool dear = false;

    for (int i = 0; i < t->comm->size && bytes >= DOUBTFUL_FROM_BYTES; i++) {
        uint32_t since =
            t->base + t->next_in - atomic_load_explicit(&t->rank[i].dear, memory_order_relaxed);

        dear = dear || (i != t->comm->rank && since < DEAR_PIECES);
    }
    return bytes >= STREAM_FROM_BYTES && (bytes < DOUBTFUL_FROM_BYTES || dear);
}

static void post(const struct er_transport *t, char *slot, const char *from, size_t n)
{
    if (t->streaming)
        er_copy_streaming(slot, from, n);
    else
        memcpy(slot, from, n);
}

/* Two ranks move as many bytes if each reduces everything as if each reduces its half, and wait
 * once instead of twice; but 16-bit types take longer to reduce than to move. */
static bool goes_whole(const struct er_transport *t)
{
    return t->total <= ER_SMALL_BYTES / (size_t)t->comm->size ||
           (t->comm->size == 2 && er_dtype_size((enum er_dtype)t->op->desc.dtype) != 2);
}

void er_shm_plan(struct er_transport *t)
{
    const struct er_op *op = t->op;

    t->plan = PLAN_WHOLE;
    t->total = er_op_bytes(&op->desc);
    switch ((enum er_op_kind)op->desc.kind) {
    case ER_OP_ALL_REDUCE:
    case ER_OP_REDUCE:
        if (!goes_whole(t))
            t->plan = PLAN_PARTED;
        break;
    case ER_OP_REDUCE_SCATTER:
    case ER_OP_ALL_TO_ALL:
        t->plan = PLAN_SCATTERED;
        t->total = er_op_longest(op);
        break;
    case ER_OP_ALL_GATHER:
    case ER_OP_VOTE:
        t->total = er_op_longest(op);
        break;
    case ER_OP_BROADCAST:
    case ER_OP_BARRIER:
    case ER_OP_SEND:
    case ER_OP_RECV:
    case ER_OP_KIND_COUNT:
        break;
    }
    t->mailed = t->plan == PLAN_WHOLE && t->total <= sizeof(t->rank->mail->data);
    t->unit = t->plan == PLAN_SCATTERED ? t->region_bytes : t->piece_bytes;
}

/* The part of a piece that a rank reduces, in bytes from the beginning of the piece. */
static struct er_segment part(const struct er_transport *t, uint32_t piece, int owner)
{
    size_t width = er_dtype_size((enum er_dtype)t->op->desc.dtype);
    struct er_segment s = er_algo_segment(piece_length(t, piece) / width, t->comm->size, owner);

    return (struct er_segment){.begin = s.begin * width, .end = s.end * width};
}

static void copy_in_parted(struct er_transport *t, char *to)
{
    const char *from = (const char *)t->op->in + piece_begin(t, t->next_in);
    struct er_segment own = part(t, t->next_in, t->comm->rank);

    post(t, to, from, own.begin);
    post(t, to + own.end, from + own.end, piece_length(t, t->next_in) - own.end);
}

/* In the slot of `rank` what it has for another rank. */
static char *region_of(const struct er_transport *t, int rank, int other)
{
    size_t i = (size_t)(other < rank ? other : other - 1);

    return slot_of(t, rank, t->piece) + i * t->region_bytes;
}

static void copy_in_scattered(struct er_transport *t, char *to)
{
    const char *in = t->op->in;

    for (int i = 0; i < t->comm->size; i++) {
        size_t n = clipped(t, block_n(t->op, i), t->next_in);

        if (i != t->comm->rank && n > 0)
            post(t, to + (size_t)(i < t->comm->rank ? i : i - 1) * t->region_bytes,
                 in + er_op_block(t->op, i) + piece_begin(t, t->next_in), n);
    }
}

/* Bytes that a rank contributes when contributions go as they are. */
static size_t contribution(const struct er_transport *t, int rank)
{
    switch (t->op->desc.kind) {
    case ER_OP_ALL_GATHER:
    case ER_OP_VOTE:
        return block_n(t->op, rank);
    case ER_OP_BROADCAST:
        return t->op->desc.root == (uint32_t)rank ? t->total : 0;
    default:
        return t->total;
    }
}

void er_shm_copy_in(struct er_transport *t)
{
    char *to = slot_of(t, t->comm->rank, t->next_in);
    size_t regions = t->plan == PLAN_SCATTERED ? (size_t)t->comm->size : 1;

    t->streaming = wants_streaming(t, regions * piece_length(t, t->next_in));
    mail_of(t, t->comm->rank, t->next_in)->streamed = t->streaming;
    if (t->plan == PLAN_PARTED) {
        copy_in_parted(t, to);
    } else if (t->plan == PLAN_SCATTERED) {
        copy_in_scattered(t, to);
    } else {
        size_t n = clipped(t, contribution(t, t->comm->rank), t->next_in);

        if (n > 0)
            post(t, to, (const char *)t->op->in + piece_begin(t, t->next_in), n);
    }
}

/* n bytes at `at` of what every slot has for us, our own contribution at `own`, into dst. */
static void reduce_from_slots(struct er_transport *t, char *dst, size_t at, size_t n,
                              const char *own)
{
    enum er_dtype dtype = (enum er_dtype)t->op->desc.dtype;
    bool scattered = t->plan == PLAN_SCATTERED;

    for (int i = 0; i < t->comm->size; i++)
        t->src[i] = i == t->comm->rank ? own
                    : scattered        ? region_of(t, i, t->comm->rank) + at
                                       : slot_of(t, i, t->piece) + at;
    er_algo_reduce(dst, t->src, t->comm->size, n / er_dtype_size(dtype), dtype,
                   (enum er_reduce)t->op->desc.reduce);
}

/* Much of it would push everything else out of the caches, itself too, and each of its lines would
 * be read before it is overwritten. */
static bool brings_much(const struct er_transport *t)
{
    bool blocks = t->op->desc.kind == ER_OP_ALL_GATHER || t->op->desc.kind == ER_OP_ALL_TO_ALL;

    return (blocks ? er_op_block(t->op, t->comm->size) : t->total) >= HOME_STREAM_FROM_BYTES;
}

static void take_home(const struct er_transport *t, char *to, const char *from, size_t n)
{
    if (brings_much(t))
        er_copy_streaming(to, from, n);
    else
        memcpy(to, from, n);
}

/*
 * n bytes at `at` of what every slot has for us, our own contribution at `own`, reduced home to
 * `out` (NULL: nowhere) and to `slot`, where peers fetch it (NULL: none do), while they are in the
 * first cache.
 */
static void reduce_home(struct er_transport *t, char *out, const char *own, size_t at, size_t n,
                        char *slot)
{
    bool stream = out && out != own && brings_much(t);
    /* In place our contribution must last until its turn, which is at once for ranks 0 and 1. */
    bool aside = !out || stream || (out == own && t->comm->rank > 1);

    for (size_t k = 0; k < n; k += HOME_BYTES) {
        size_t some = n - k < HOME_BYTES ? n - k : HOME_BYTES;
        char *result = aside ? t->aside : out + k;

        reduce_from_slots(t, result, at + k, some, own + k);
        if (slot)
            post(t, slot + k, result, some);
        if (stream)
            er_copy_streaming(out + k, result, some);
        else if (out && aside)
            memcpy(out + k, result, some);
    }
}

static void reduce_part(struct er_transport *t)
{
    struct er_segment own = part(t, t->piece, t->comm->rank);
    size_t at = piece_begin(t, t->piece) + own.begin;

    reduce_home(t, t->op->out ? (char *)t->op->out + at : NULL, (const char *)t->op->in + at,
                own.begin, own.end - own.begin, slot_of(t, t->comm->rank, t->piece) + own.begin);
}

void er_shm_fetch_parts(struct er_transport *t)
{
    char *home = (char *)t->op->out + piece_begin(t, t->piece);

    for (int i = 0; i < t->comm->size && t->op->out; i++) {
        struct er_segment s = part(t, t->piece, i);

        if (i == t->comm->rank || s.end == s.begin)
            continue;
        if (t->op->in != t->op->out)
            take_home(t, home + s.begin, slot_of(t, i, t->piece) + s.begin, s.end - s.begin);
        else /* its lines are in the cache since they were copied in */
            memcpy(home + s.begin, slot_of(t, i, t->piece) + s.begin, s.end - s.begin);
    }
}

/* What others have brought comes from their slots, our own from where it is. */
static void fetch_gathered(struct er_transport *t)
{
    for (int i = 0; i < t->comm->size; i++) {
        size_t n = clipped(t, block_n(t->op, i), t->piece), at = piece_begin(t, t->piece);
        char *to = (char *)t->op->out + er_op_block(t->op, i) + at;
        const char *own = (const char *)t->op->in + at;
        const char *from = i == t->comm->rank ? own : slot_of(t, i, t->piece);

        if (n > 0 && to != from)
            take_home(t, to, from, n);
    }
}

static void fetch_region(struct er_transport *t)
{
    size_t n = clipped(t, block_n(t->op, t->comm->rank), t->piece);
    const char *own =
        (const char *)t->op->in + er_op_block(t->op, t->comm->rank) + piece_begin(t, t->piece);
    char *out = (char *)t->op->out + piece_begin(t, t->piece);

    if (n == 0)
        return;
    if (t->op->desc.kind == ER_OP_REDUCE_SCATTER) {
        reduce_home(t, out, own, 0, n, NULL);
        return;
    }
    for (int i = 0; i < t->comm->size; i++)
        take_home(t, out + er_op_block(t->op, i),
                  i == t->comm->rank ? own : region_of(t, i, t->comm->rank), n);
}

static void fetch_reduced(struct er_transport *t)
{
    size_t at = piece_begin(t, t->piece);

    if (t->op->out)
        reduce_home(t, (char *)t->op->out + at, (const char *)t->op->in + at, 0,
                    piece_length(t, t->piece), NULL);
}

static void fetch_from_root(struct er_transport *t)
{
    size_t n = piece_length(t, t->piece);
    int root = (int)t->op->desc.root;

    if (n > 0 && (root != t->comm->rank || t->op->in != t->op->out))
        take_home(t, (char *)t->op->out + piece_begin(t, t->piece), slot_of(t, root, t->piece), n);
}

static void fetch(struct er_transport *t)
{
    switch ((enum er_op_kind)t->op->desc.kind) {
    case ER_OP_ALL_REDUCE:
    case ER_OP_REDUCE:
        t->plan == PLAN_PARTED ? reduce_part(t) : fetch_reduced(t);
        break;
    case ER_OP_BROADCAST:
        fetch_from_root(t);
        break;
    case ER_OP_ALL_GATHER:
    case ER_OP_VOTE:
        fetch_gathered(t);
        break;
    case ER_OP_REDUCE_SCATTER:
    case ER_OP_ALL_TO_ALL:
        fetch_region(t);
        break;
    case ER_OP_BARRIER:
    case ER_OP_SEND:
    case ER_OP_RECV:
    case ER_OP_KIND_COUNT:
        break;
    }
}

/* Whether it lies in the caches of others, where it may be dear to read. */
static bool is_doubtful(const struct er_transport *t)
{
    bool doubtful = false;

    for (int i = 0; i < t->comm->size && piece_length(t, t->piece) >= DOUBTFUL_FROM_BYTES; i++)
        doubtful = doubtful || (i != t->comm->rank && !mail_of(t, i, t->piece)->streamed);
    return doubtful;
}

/* A rank that was interrupted once is not a sign: two pieces in a row are. Where ranks share CPUs
 * they are interrupted all the time, and find what they share in the same cache. */
static void weigh(struct er_transport *t, uint64_t us)
{
    size_t n = piece_length(t, t->piece) * ((size_t)t->comm->size - 1);

    if (t->plan == PLAN_PARTED)
        n /= (size_t)t->comm->size;
    t->dear_n = n < us * DEAR_BYTES_PER_US ? t->dear_n + 1 : 0;
    if (t->dear_n > 1)
        atomic_store_explicit(&t->rank[t->comm->rank].dear, t->base + t->piece,
                              memory_order_relaxed);
}

void er_shm_fetch(struct er_transport *t)
{
    bool doubtful = is_doubtful(t) && er_shm_roomy(t);
    uint64_t began_us = doubtful ? er_now_us() : 0;

    fetch(t);
    if (doubtful)
        weigh(t, er_now_us() - began_us);
}
