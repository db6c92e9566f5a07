/* How the bytes of an operation of our own lie. */
#include "runtime/comm_ops.h"

size_t er_op_bytes(const struct er_op_desc *desc)
{
    return (size_t)desc->n * er_dtype_size((enum er_dtype)desc->dtype);
}

size_t er_op_block(const struct er_op *op, int rank)
{
    if (op->offsets)
        return op->offsets[rank] * er_dtype_size((enum er_dtype)op->desc.dtype);
    return (size_t)rank * er_op_bytes(&op->desc);
}

size_t er_op_longest(const struct er_op *op)
{
    size_t longest = 0;

    if (!op->offsets)
        return er_op_bytes(&op->desc);
    for (int i = 0; i < op->comm->size; i++) {
        size_t n = er_op_block(op, i + 1) - er_op_block(op, i);

        longest = n > longest ? n : longest;
    }
    return longest;
}
