/* NCCL's operations as the double has them: what each means, told to fake_nccl.c. */
#include "tests/fakecuda/fake.h"
#include "tests/fakecuda/fake_nccl.h"

static enum er_dtype dtype_of(ncclDataType_t dtype)
{
    switch ((int)dtype) {
    case ncclFloat32:
        return ER_F32;
    case ncclFloat64:
        return ER_F64;
    case ncclInt32:
        return ER_I32;
    case ncclInt64:
        return ER_I64;
    case ncclUint8:
        return ER_U8;
    case ncclFloat16:
        return ER_F16;
    case ncclBfloat16:
        return ER_BF16;
    default:
        fake_fail("type %d", (int)dtype);
    }
}

static enum er_reduce reduce_of(ncclRedOp_t op)
{
    switch ((int)op) {
    case ncclSum:
        return ER_SUM;
    case ncclMin:
        return ER_MIN;
    case ncclMax:
        return ER_MAX;
    case ncclAvg:
        return ER_AVG;
    default:
        fake_fail("reduction %d", (int)op);
    }
}

FAKE_API ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t dtype,
                                    ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
    struct ring_op op = {.kind = ER_OP_ALL_REDUCE,
                         .in = in,
                         .out = out,
                         .n = n,
                         .dtype = dtype_of(dtype),
                         .reduce = reduce_of(reduce)};

    return fake_nccl_add(&op, comm, stream);
}

FAKE_API ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t dtype,
                                 ncclRedOp_t reduce, int root, ncclComm_t comm, cudaStream_t stream)
{
    struct ring_op op = {.kind = ER_OP_REDUCE,
                         .in = in,
                         .out = out,
                         .n = n,
                         .dtype = dtype_of(dtype),
                         .reduce = reduce_of(reduce),
                         .root = root};

    return fake_nccl_add(&op, comm, stream);
}

FAKE_API ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t dtype,
                                        ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
    struct ring_op op = {.kind = ER_OP_REDUCE_SCATTER,
                         .in = in,
                         .out = out,
                         .n = n,
                         .dtype = dtype_of(dtype),
                         .reduce = reduce_of(reduce)};

    return fake_nccl_add(&op, comm, stream);
}

FAKE_API ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t dtype,
                                    ncclComm_t comm, cudaStream_t stream)
{
    struct ring_op op = {
        .kind = ER_OP_ALL_GATHER, .in = in, .out = out, .n = n, .dtype = dtype_of(dtype)};

    return fake_nccl_add(&op, comm, stream);
}

FAKE_API ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t dtype,
                                    int root, ncclComm_t comm, cudaStream_t stream)
{
    struct ring_op op = {.kind = ER_OP_BROADCAST,
                         .in = in,
                         .out = out,
                         .n = n,
                         .dtype = dtype_of(dtype),
                         .root = root};

    return fake_nccl_add(&op, comm, stream);
}

FAKE_API ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t dtype, int peer,
                               ncclComm_t comm, cudaStream_t stream)
{
    struct ring_op op = {
        .kind = ER_OP_SEND, .in = in, .n = n, .dtype = dtype_of(dtype), .root = peer};

    return fake_nccl_add(&op, comm, stream);
}

FAKE_API ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t dtype, int peer, ncclComm_t comm,
                               cudaStream_t stream)
{
    struct ring_op op = {
        .kind = ER_OP_RECV, .out = out, .n = n, .dtype = dtype_of(dtype), .root = peer};

    return fake_nccl_add(&op, comm, stream);
}
