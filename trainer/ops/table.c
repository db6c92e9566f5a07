#include "trainer/ops/ops.h"

const struct er_tape_op *const er_ops[ER_OP_ID_COUNT] = {
#define ER_OP_ENTRY(name) [ER_OP_ID_##name] = &er_op_##name,
    ER_OPS(ER_OP_ENTRY)
#undef ER_OP_ENTRY
};
