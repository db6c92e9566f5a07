/*
 * y (N, C) = table (V, C)[ids (N)]
 *   dtable[v] += sum of dy[i] over the i with ids[i] = v, in order of i
 * The positions are sorted by id (stable), and each row of the table is one segment of them: no two
 * writers to a row, so the order of a sum is fixed however the segments are divided up.
 * saved: the sorted positions, and room to sort.
 */
#include <errno.h>

#include "trainer/half.h"
#include "trainer/ops/ops_internal.h"

enum { PIECE = 512 }; /* elements of a row of 16 bits at a time */

#define DIGIT_BITS 8
#define DIGITS_N   (1u << DIGIT_BITS)

_Static_assert(sizeof(float) == sizeof(uint32_t), "positions are kept in `saved`");

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_tensor *table = node->in[0];
    const struct er_attr_embedding *attr = node->attr;
    size_t count;
    int rc = er_shape_check(&attr->shape, "ids", err);

    if (rc < 0)
        return er_error_wrap(err, rc, "embedding");
    count = er_shape_count(&attr->shape);
    if (table->shape.ndim != 2 || attr->shape.ndim >= ER_SHAPE_DIMS_MAX || count > UINT32_MAX)
        return er_op_misfit(node, "(V, C), and ids of at most 3 dimensions", err);
    for (size_t i = 0; i < count; i++) {
        if (attr->ids[i] < 0 || (size_t)attr->ids[i] >= table->shape.dim[0])
            return er_error_set(err, -EINVAL,
                                "embedding: id %d at position %zu is not a row of '%s': expected 0 "
                                "to %zu",
                                attr->ids[i], i, table->name, table->shape.dim[0] - 1);
    }
    *ret_out = attr->shape;
    ret_out->dim[ret_out->ndim++] = table->shape.dim[1];
    *ret_saved = 2 * count;
    return 0;
}

/* One pass of a radix sort: stable by digit `shift` of the id. */
static void sort_pass(const int32_t *ids, const uint32_t *from, uint32_t *to, size_t n,
                      uint32_t shift)
{
    uint32_t start[DIGITS_N + 1] = {0};

    for (size_t i = 0; i < n; i++)
        start[((uint32_t)ids[from[i]] >> shift) % DIGITS_N + 1]++;
    for (size_t d = 0; d < DIGITS_N; d++)
        start[d + 1] += start[d];
    for (size_t i = 0; i < n; i++)
        to[start[((uint32_t)ids[from[i]] >> shift) % DIGITS_N]++] = from[i];
}

const uint32_t *er_embedding_sort(const int32_t *ids, size_t n, size_t rows, uint32_t *room)
{
    uint32_t *from = room, *to = room + n;

    for (size_t i = 0; i < n; i++)
        from[i] = (uint32_t)i;
    for (uint32_t shift = 0; shift < 32 && (rows - 1) >> shift > 0; shift += DIGIT_BITS) {
        uint32_t *sorted = to;

        sort_pass(ids, from, to, n, shift);
        to = from;
        from = sorted;
    }
    return from;
}

static void forward(const struct er_node *node)
{
    const struct er_attr_embedding *attr = node->attr;
    size_t bytes = er_op_cols(node->out) * er_dtype_size(node->out->dtype);
    const char *table = (const char *)node->in[0]->value;
    char *out = (char *)node->out->value;

    for (size_t i = 0; i < er_op_rows(node->out); i++)
        memcpy(out + i * bytes, table + (size_t)attr->ids[i] * bytes, bytes);
}

ER_EACH_WIDTH static void add_rows(const uint32_t *positions, size_t n, const float *dy,
                                   float *restrict row, size_t cols)
{
    for (size_t i = 0; i < n; i++) {
        const float *restrict from = dy + positions[i] * cols;

        for (size_t j = 0; j < cols; j++)
            row[j] += from[j];
    }
}

/* The same for rows of other types, a piece of a row at a time: the sum is of float32, and rounded
 * once. */
static void add_pieces(const uint32_t *positions, size_t n, const struct er_tensor *out,
                       struct er_tensor *table, size_t row)
{
    const size_t cols = er_op_cols(out), size = er_dtype_size(out->grad_dtype);
    const size_t row_size = er_dtype_size(table->grad_dtype);
    float sum[PIECE], term[PIECE];

    for (size_t at = 0, part; at < cols; at += part) {
        char *place = (char *)table->grad + (row * cols + at) * row_size;

        part = cols - at < PIECE ? cols - at : PIECE;
        er_half_convert(table->grad_dtype, place, ER_F32, sum, part);
        for (size_t i = 0; i < n; i++) {
            const char *from = (const char *)out->grad + (positions[i] * cols + at) * size;

            er_half_convert(out->grad_dtype, from, ER_F32, term, part);
            for (size_t j = 0; j < part; j++)
                sum[j] += term[j];
        }
        er_half_convert(ER_F32, sum, table->grad_dtype, place, part);
    }
}

static void backward(const struct er_node *node, float beta)
{
    const struct er_attr_embedding *attr = node->attr;
    struct er_tensor *table = node->in[0], *out = node->out;
    bool wide = table->grad_dtype == ER_F32 && out->grad_dtype == ER_F32;
    size_t cols = er_op_cols(out), n = er_op_rows(out), end;
    const uint32_t *sorted =
        er_embedding_sort(attr->ids, n, table->shape.dim[0], (uint32_t *)node->saved);

    if (beta == 0.0f)
        memset(table->grad, 0, table->count * er_dtype_size(table->grad_dtype));
    for (size_t at = 0; at < n; at = end) {
        int32_t id = attr->ids[sorted[at]];

        for (end = at + 1; end < n && attr->ids[sorted[end]] == id; end++)
            ;
        if (wide)
            add_rows(sorted + at, end - at, out->grad, table->grad + (size_t)id * cols, cols);
        else
            add_pieces(sorted + at, end - at, out, table, (size_t)id);
    }
}

const struct er_tape_op er_op_embedding = {
    .name = "embedding",
    .inputs_n = 1,
    .attr_bytes = sizeof(struct er_attr_embedding),
    .infer = infer,
    .forward = forward,
    .backward = {backward},
    .of_any_type = true, /* a table is far larger than what is looked up in it */
};

int er_embedding(struct er_tape *tape, struct er_tensor *table, const int32_t *ids,
                 const struct er_shape *shape, struct er_tensor **ret, struct er_error *err)
{
    struct er_attr_embedding attr = {.ids = ids, .shape = *shape};

    return er_tape_apply(tape, &er_op_embedding, &table, &attr, ret, err);
}
