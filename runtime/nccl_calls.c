/*
 * NCCL's calls, translated: operations, types, results. Part of er_nccl.so. What may be called when
 * is comm_nccl.c's business.
 */
#include <errno.h>
#include <nccl.h>
#include <stdbool.h>
#include <string.h>

#include "runtime/gpu_parts_internal.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 3)
#error "NCCL 2.27.3 or newer is needed (ncclCommShrink)"
#endif

_Static_assert(sizeof(ncclUniqueId) == ER_NCCL_ID_BYTES, "size of NCCL's id");

static const ncclDataType_t dtypes[ER_DTYPE_COUNT] = {
    [ER_F32] = ncclFloat32, [ER_F64] = ncclFloat64, [ER_I32] = ncclInt32,    [ER_I64] = ncclInt64,
    [ER_U8] = ncclUint8,    [ER_F16] = ncclFloat16, [ER_BF16] = ncclBfloat16};
static const ncclRedOp_t reductions[ER_REDUCE_COUNT] = {
    [ER_SUM] = ncclSum, [ER_MIN] = ncclMin, [ER_MAX] = ncclMax, [ER_AVG] = ncclAvg};

/* 0, ER_IN_PROGRESS or a failure. */
static int check(ncclResult_t result, const char *what, struct er_error *err)
{
    int code = ER_E_PEER_LOST;
    const char *more;

    if (result == ncclSuccess)
        return 0;
    if (result == ncclInProgress)
        return ER_IN_PROGRESS;
    if (result == ncclInvalidArgument || result == ncclInvalidUsage)
        code = ER_E_USAGE;
    else if (result == ncclUnhandledCudaError || result == ncclInternalError)
        code = -EIO;
    more = ncclGetLastError(NULL);
    return er_error_set(err, code, "NCCL: %s: %s%s%s", what, ncclGetErrorString(result),
                        more && *more ? ": " : "", more && *more ? more : "");
}

static int get_version(int *ret, struct er_error *err)
{
    return check(ncclGetVersion(ret), "ncclGetVersion", err);
}

static int make_id(unsigned char ret[ER_NCCL_ID_BYTES], struct er_error *err)
{
    ncclUniqueId id;
    int rc = check(ncclGetUniqueId(&id), "ncclGetUniqueId", err);

    if (rc == 0)
        memcpy(ret, &id, sizeof(id));
    return rc;
}

static ncclConfig_t make_config(const char *name)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    config.commName = name;
    return config;
}

static int begin(void **ret, const struct er_nccl_init *init, struct er_error *err)
{
    ncclConfig_t config = make_config(init->name);
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    int rc;

    memcpy(&id, init->id, sizeof(id));
    rc = check(ncclCommInitRankConfig(&comm, init->size, id, init->rank, &config),
               "ncclCommInitRankConfig", err);
    *ret = comm;
    return rc;
}

static int get_status(void *nccl, struct er_error *err)
{
    ncclResult_t state = ncclSuccess;
    int rc = check(ncclCommGetAsyncError(nccl, &state), "ncclCommGetAsyncError", err);

    return rc ? rc : check(state, "communicator", err);
}

/* ---- operations ---- */

struct launch {
    ncclComm_t comm;
    cudaStream_t stream;
    int rank, size;
};

static ncclResult_t all_to_all(const struct launch *l, const struct er_op *op, size_t width)
{
    size_t n = (size_t)op->desc.n;
    ncclDataType_t dtype = dtypes[op->desc.dtype];
    ncclResult_t rc = ncclSuccess;

    for (int i = 0; i < l->size && rc == ncclSuccess; i++) {
        const char *in = (const char *)op->in + (size_t)i * n * width;
        char *out = (char *)op->out + (size_t)i * n * width;

        rc = ncclSend(in, n, dtype, i, l->comm, l->stream);
        if (rc == ncclSuccess)
            rc = ncclRecv(out, n, dtype, i, l->comm, l->stream);
    }
    return rc;
}

/* Uneven blocks: each one its owner's broadcast. */
static ncclResult_t all_gather_v(const struct launch *l, const struct er_op *op, size_t width)
{
    ncclResult_t rc = ncclSuccess;

    for (int i = 0; i < l->size && rc == ncclSuccess; i++) {
        size_t n = op->offsets[i + 1] - op->offsets[i];
        char *out = (char *)op->out + op->offsets[i] * width;

        if (n > 0)
            rc = ncclBroadcast(i == l->rank ? op->in : out, out, n, dtypes[op->desc.dtype], i,
                               l->comm, l->stream);
    }
    return rc;
}

/* Uneven blocks: each one reduced to its owner. */
static ncclResult_t reduce_scatter_v(const struct launch *l, const struct er_op *op, size_t width)
{
    ncclResult_t rc = ncclSuccess;

    for (int i = 0; i < l->size && rc == ncclSuccess; i++) {
        size_t n = op->offsets[i + 1] - op->offsets[i];
        const char *in = (const char *)op->in + op->offsets[i] * width;

        if (n > 0)
            rc = ncclReduce(in, i == l->rank ? op->out : NULL, n, dtypes[op->desc.dtype],
                            reductions[op->desc.reduce], i, l->comm, l->stream);
    }
    return rc;
}

static ncclResult_t start_one(const struct launch *l, const struct er_op *op)
{
    const struct er_op_desc *d = &op->desc;
    ncclDataType_t dtype = dtypes[d->dtype];
    ncclRedOp_t reduce = reductions[d->reduce];
    size_t n = (size_t)d->n, width = er_dtype_size((enum er_dtype)d->dtype);
    int root = (int)d->root;

    if (n == 0)
        return ncclSuccess;
    switch ((enum er_op_kind)d->kind) {
    case ER_OP_ALL_REDUCE:
        return ncclAllReduce(op->in, op->out, n, dtype, reduce, l->comm, l->stream);
    case ER_OP_REDUCE:
        return ncclReduce(op->in, op->out, n, dtype, reduce, root, l->comm, l->stream);
    case ER_OP_BROADCAST:
        return ncclBroadcast(op->in, op->out, n, dtype, root, l->comm, l->stream);
    case ER_OP_ALL_GATHER:
        return op->offsets ? all_gather_v(l, op, width)
                           : ncclAllGather(op->in, op->out, n, dtype, l->comm, l->stream);
    case ER_OP_REDUCE_SCATTER:
        return op->offsets
                   ? reduce_scatter_v(l, op, width)
                   : ncclReduceScatter(op->in, op->out, n, dtype, reduce, l->comm, l->stream);
    case ER_OP_ALL_TO_ALL:
        return all_to_all(l, op, width);
    case ER_OP_SEND:
        return ncclSend(op->in, n, dtype, root, l->comm, l->stream);
    case ER_OP_RECV:
        return ncclRecv(op->out, n, dtype, root, l->comm, l->stream);
    case ER_OP_BARRIER:
    case ER_OP_VOTE:
    case ER_OP_KIND_COUNT:
        break;
    }
    return ncclInvalidUsage; /* the host's */
}

static int launch_ops(void *nccl, void *stream, const struct er_op *const *ops, int ops_n, int rank,
                      int size, struct er_error *err)
{
    struct launch l = {.comm = nccl, .stream = stream, .rank = rank, .size = size};
    char text[ER_COMM_OP_TEXT_MAX];
    ncclResult_t rc = ncclGroupStart(), end;
    int failed = 0;

    for (int i = 0; i < ops_n && (rc == ncclSuccess || rc == ncclInProgress); i++) {
        rc = start_one(&l, ops[i]);
        failed = i;
    }
    end = ncclGroupEnd(); /* also after a failure: the group must not stay open */
    if (rc == ncclSuccess || rc == ncclInProgress)
        rc = end;
    return check(rc, er_op_text(&ops[failed]->desc, text), err);
}

static int shrink(void **ret, void *parent, int *left_out, int left_out_n, const char *name,
                  struct er_error *err)
{
    ncclConfig_t config = make_config(name);
    ncclComm_t comm = NULL;
    int rc = check(ncclCommShrink(parent, left_out, left_out_n, &comm, &config, NCCL_SHRINK_ABORT),
                   "ncclCommShrink", err);

    *ret = comm;
    return rc;
}

static void abort_all(void *const *nccl, int n)
{
    bool group = ncclGroupStart() == ncclSuccess;

    for (int i = 0; i < n; i++)
        ncclCommAbort(nccl[i]);
    if (group)
        ncclGroupEnd();
}

const struct er_nccl_ops er_nccl_calls_ops = {
    .version = get_version,
    .make_id = make_id,
    .begin = begin,
    .status = get_status,
    .launch = launch_ops,
    .shrink = shrink,
    .abort = abort_all,
};
