/* What an operation is called, and which two agree: a peer's descriptor is read here. */
#include "runtime/comm_ops.h"

#include <stdio.h>
#include <string.h>

static const char *const kind_names[ER_OP_KIND_COUNT] = {
#define ER_OP_NAME(name, text) [ER_OP_##name] = text,
    ER_OP_KINDS(ER_OP_NAME)
#undef ER_OP_NAME
};
static const char *const dtype_names[ER_DTYPE_COUNT] = {
    [ER_F32] = "f32", [ER_F64] = "f64", [ER_I32] = "i32",  [ER_I64] = "i64",
    [ER_U8] = "u8",   [ER_F16] = "f16", [ER_BF16] = "bf16"};
static const char *const reduce_names[ER_REDUCE_COUNT] = {
    [ER_SUM] = "", [ER_MIN] = ", min", [ER_MAX] = ", max", [ER_AVG] = ", avg"};

/* What else than kind and number a text names. */
enum { SHOW_ARRAY = 1, SHOW_REDUCE = 2, SHOW_ROOT = 4, SHOW_PEER = 8 };

static const unsigned shown[ER_OP_KIND_COUNT] = {
    [ER_OP_ALL_REDUCE] = SHOW_ARRAY | SHOW_REDUCE,
    [ER_OP_BROADCAST] = SHOW_ARRAY | SHOW_ROOT,
    [ER_OP_ALL_GATHER] = SHOW_ARRAY,
    [ER_OP_REDUCE] = SHOW_ARRAY | SHOW_REDUCE | SHOW_ROOT,
    [ER_OP_REDUCE_SCATTER] = SHOW_ARRAY | SHOW_REDUCE,
    [ER_OP_ALL_TO_ALL] = SHOW_ARRAY,
    [ER_OP_SEND] = SHOW_ARRAY | SHOW_PEER,
    [ER_OP_RECV] = SHOW_ARRAY | SHOW_PEER,
};

const char *er_dtype_name(enum er_dtype dtype)
{
    return (unsigned)dtype < ER_DTYPE_COUNT ? dtype_names[dtype] : "?";
}

/* A peer's descriptor is not to be trusted with an index. */
static const char *name_of(const char *const *names, uint32_t i, uint32_t count)
{
    return i < count ? names[i] : "?";
}

bool er_op_is_pair(const struct er_op_desc *desc)
{
    return desc->kind == ER_OP_SEND || desc->kind == ER_OP_RECV;
}

static void append(char ret[ER_COMM_OP_TEXT_MAX], int *at, const char *fmt, const char *a,
                   unsigned long long n)
{
    if (*at < ER_COMM_OP_TEXT_MAX)
        *at += snprintf(ret + *at, (size_t)(ER_COMM_OP_TEXT_MAX - *at), fmt, a, n);
}

/*
 * A shadow's fields: `reduce` has the original's reduction, its kind + 1 from bit 8 and counts from
 * bit 16; `dtype` more of the counts from bit 8; `counts` its number of elements.
 */
enum { KIND_SHIFT = 8, COUNTS_SHIFT = 16, LOW_BITS = 0xff };

struct er_op_desc er_op_shadow(const struct er_op_desc *desc)
{
    struct er_op_desc shadow = *desc;
    uint32_t kind = er_op_is_pair(desc) ? ER_OP_SEND : desc->kind; /* both ends say the same */

    shadow.reduce =
        desc->reduce | (kind + 1) << KIND_SHIFT | (uint32_t)(desc->counts & 0xffff) << COUNTS_SHIFT;
    if (desc->kind == ER_OP_BARRIER || desc->kind == ER_OP_VOTE)
        return shadow;
    shadow.kind = er_op_is_pair(desc) ? desc->kind : ER_OP_BARRIER;
    shadow.dtype = desc->dtype | (uint32_t)(desc->counts >> 16) << KIND_SHIFT;
    shadow.counts = desc->n;
    shadow.n = 0;
    return shadow;
}

static struct er_op_desc original(const struct er_op_desc *desc)
{
    struct er_op_desc o = *desc;
    uint32_t kind = desc->reduce >> KIND_SHIFT & LOW_BITS;

    if (kind == 0)
        return o;
    if (!er_op_is_pair(desc))
        o.kind = kind - 1;
    if (!er_op_is_pair(&o))
        o.seq -= ER_COMM_OPENING_OPS;
    o.reduce = desc->reduce & LOW_BITS;
    if (desc->kind == o.kind && !er_op_is_pair(&o))
        return o;
    o.dtype = desc->dtype & LOW_BITS;
    o.n = desc->counts;
    o.counts = desc->reduce >> COUNTS_SHIFT;
    return o;
}

const char *er_op_text(const struct er_op_desc *told, char ret[ER_COMM_OP_TEXT_MAX])
{
    const struct er_op_desc o = original(told), *desc = &o;
    unsigned show = desc->kind < ER_OP_KIND_COUNT ? shown[desc->kind] : 0;
    int at = 0;

    append(ret, &at, "%s #%llu", name_of(kind_names, desc->kind, ER_OP_KIND_COUNT), desc->seq);
    if (show & SHOW_PEER)
        append(ret, &at, " %s rank %llu", desc->kind == ER_OP_SEND ? "to" : "from", desc->root);
    if (show & SHOW_ARRAY)
        append(ret, &at, " (%s x %llu", name_of(dtype_names, desc->dtype, ER_DTYPE_COUNT), desc->n);
    if (desc->counts) /* sums of counts may be equal where counts are not */
        append(ret, &at, "%s %04llx", ", counts", desc->counts & 0xffff);
    if (show & SHOW_REDUCE)
        append(ret, &at, "%s", name_of(reduce_names, desc->reduce, ER_REDUCE_COUNT), 0);
    if (show & SHOW_ROOT)
        append(ret, &at, "%s %llu", ", root", desc->root);
    if (show & SHOW_ARRAY)
        append(ret, &at, "%s", ")", 0);
    return ret;
}

int er_op_differ(const struct er_op_desc *mine, int my_rank, const struct er_op_desc *theirs,
                 int their_rank, struct er_error *err)
{
    char a[ER_COMM_OP_TEXT_MAX], b[ER_COMM_OP_TEXT_MAX];

    return er_error_set(err, ER_E_MISMATCH, "rank %d is at %s, rank %d at %s", my_rank,
                        er_op_text(mine, a), their_rank, er_op_text(theirs, b));
}

int er_op_agree(const struct er_op_desc *mine, int my_rank, const struct er_op_desc *theirs,
                int their_rank, struct er_error *err)
{
    struct er_op_desc wanted = *mine;

    if (mine->kind == ER_OP_RECV) {
        wanted.kind = ER_OP_SEND;
        wanted.root = (uint32_t)my_rank;
    }
    if (memcmp(&wanted, theirs, sizeof(wanted)) == 0)
        return 0;
    return er_op_differ(mine, my_rank, theirs, their_rank, err);
}
