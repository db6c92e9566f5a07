#include "tests/lib/fake_comm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An operation is its place in the list of calls. */
struct er_op {
    struct er_comm *comm;
};

struct er_comm {
    int rank, size;
    size_t calls_n, ring, fail_call;
    int fail_code, spoiled;
    uint32_t refusals;
    struct er_fake_call calls[ER_FAKE_CALLS_MAX];
    struct er_op ops[ER_FAKE_CALLS_MAX];
};

struct er_comm *er_fake_comm_new(int rank, int size)
{
    struct er_comm *comm = calloc(1, sizeof(*comm));

    assert(comm);
    comm->rank = rank;
    comm->size = size;
    comm->ring = ER_COMM_OPS_MAX;
    comm->fail_call = SIZE_MAX;
    comm->spoiled = -1;
    return comm;
}

size_t er_fake_calls(const struct er_comm *comm, const struct er_fake_call **ret)
{
    *ret = comm->calls;
    return comm->calls_n;
}

void er_fake_ring(struct er_comm *comm, size_t n)
{
    comm->ring = n;
}

void er_fake_fail(struct er_comm *comm, size_t call, int code)
{
    comm->fail_call = call;
    comm->fail_code = code;
}

void er_fake_spoil_gather(struct er_comm *comm, int rank)
{
    comm->spoiled = rank;
}

void er_fake_refusals(struct er_comm *comm, uint32_t n)
{
    comm->refusals = n;
}

static void complete(const struct er_comm *comm, struct er_fake_call *call)
{
    if (call->kind == ER_FAKE_REDUCE && !call->done) {
        assert(call->dtype == ER_F32);
        for (size_t i = 0; i < call->n; i++)
            ((float *)call->buf)[i] *= (float)comm->size;
    }
    call->done = true;
}

bool er_fake_complete_one(struct er_comm *comm)
{
    for (size_t i = 0; i < comm->calls_n; i++) {
        if (!comm->calls[i].done) {
            complete(comm, &comm->calls[i]);
            return true;
        }
    }
    return false;
}

static size_t under_way(const struct er_comm *comm)
{
    size_t n = 0;

    for (size_t i = 0; i < comm->calls_n; i++)
        n += !comm->calls[i].done;
    return n;
}

static int begin(struct er_comm *comm, struct er_fake_call call, struct er_op **ret,
                 struct er_error *err)
{
    struct er_op *op = &comm->ops[comm->calls_n];

    if (under_way(comm) >= comm->ring)
        return er_error_set(err, -EAGAIN, "ring is full");
    assert(comm->calls_n < ER_FAKE_CALLS_MAX);
    comm->calls[comm->calls_n++] = call;
    op->comm = comm;
    *ret = op;
    return 0;
}

int er_all_reduce(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype,
                  enum er_reduce reduce, struct er_op **ret, struct er_error *err)
{
    assert(reduce == ER_SUM);
    return begin(comm, (struct er_fake_call){ER_FAKE_REDUCE, buf, n, dtype, false}, ret, err);
}

int er_comm_after(struct er_comm *comm, struct er_stream *stream, struct er_error *err)
{
    return 0;
}

int er_broadcast(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int root,
                 struct er_op **ret, struct er_error *err)
{
    assert(root == 0);
    return begin(comm, (struct er_fake_call){ER_FAKE_BROADCAST, buf, n, dtype, false}, ret, err);
}

/* Messages between ranks are not played here. */
int er_send(struct er_comm *comm, const void *buf, size_t n, enum er_dtype dtype, int to,
            struct er_op **ret, struct er_error *err)
{
    return er_error_set(err, ER_E_UNSUPPORTED, "fake communicator: send");
}

int er_recv(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int from,
            struct er_op **ret, struct er_error *err)
{
    return er_error_set(err, ER_E_UNSUPPORTED, "fake communicator: receive");
}

int er_all_gather(struct er_comm *comm, const void *mine, size_t n, void *all, struct er_op **ret,
                  struct er_error *err)
{
    for (int rank = 0; rank < comm->size; rank++)
        memcpy((char *)all + (size_t)rank * n, mine, n);
    if (comm->spoiled >= 0)
        ((char *)all)[(size_t)comm->spoiled * n] ^= 1;
    return begin(comm, (struct er_fake_call){ER_FAKE_GATHER, all, n, ER_U8, false}, ret, err);
}

static int outcome(const struct er_op *op, struct er_error *err)
{
    size_t index = (size_t)(op - op->comm->ops);

    if (index == op->comm->fail_call)
        return er_error_set(err, op->comm->fail_code, "call %zu fails as asked", index);
    return 0;
}

int er_op_wait(struct er_op *op, uint64_t timeout_us, struct er_error *err)
{
    int rc = outcome(op, err);

    if (rc == 0)
        complete(op->comm, &op->comm->calls[op - op->comm->ops]);
    return rc;
}

int er_op_test(struct er_op *op, struct er_error *err)
{
    int rc = outcome(op, err);

    if (rc < 0)
        return rc;
    return op->comm->calls[op - op->comm->ops].done ? 0 : ER_IN_PROGRESS;
}

int er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err)
{
    struct er_op *op;
    uint32_t size = (uint32_t)comm->size;
    int rc;

    if (under_way(comm) > 0)
        return er_error_set(err, -EBUSY, "vote while an operation is unfinished");
    rc = begin(comm, (struct er_fake_call){ER_FAKE_VOTE, NULL, 0, ER_U8, true}, &op, err);
    if (rc == 0)
        rc = outcome(op, err);
    if (rc < 0)
        return rc;
    inout->ok = inout->ok * size - comm->refusals;
    inout->loss *= size;
    inout->weight *= size;
    inout->nonfinite *= size;
    return 0;
}

void er_fake_be(struct er_comm *comm, int rank)
{
    comm->rank = rank;
}

int er_comm_rank(const struct er_comm *comm)
{
    return comm->rank;
}

int er_comm_size(const struct er_comm *comm)
{
    return comm->size;
}

void er_comm_abort(struct er_comm *comm)
{
    free(comm);
}

size_t er_dtype_size(enum er_dtype dtype)
{
    static const size_t sizes[ER_DTYPE_COUNT] = {
        [ER_F32] = 4, [ER_F64] = 8, [ER_I32] = 4, [ER_I64] = 8, [ER_U8] = 1};

    return sizes[dtype];
}

const char *er_dtype_name(enum er_dtype dtype)
{
    static const char *const names[ER_DTYPE_COUNT] = {[ER_F32] = "float32",
                                                      [ER_F64] = "float64",
                                                      [ER_I32] = "int32",
                                                      [ER_I64] = "int64",
                                                      [ER_U8] = "uint8"};

    return names[dtype];
}
