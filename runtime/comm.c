#include "runtime/comm.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "runtime/comm_ops.h"
#include "runtime/host_algo.h"
#include "runtime/runtime_internal.h"

enum { CONNECT_SLICE_US = 50000 };

static const char *const kind_names[ER_OP_KIND_COUNT] = {
#define ER_OP_NAME(name, text) [ER_OP_##name] = text,
    ER_OP_KINDS(ER_OP_NAME)
#undef ER_OP_NAME
};
static const char *const dtype_names[ER_DTYPE_COUNT] = {
    [ER_F32] = "f32", [ER_F64] = "f64", [ER_I32] = "i32", [ER_I64] = "i64", [ER_U8] = "u8"};
static const char *const reduce_names[ER_REDUCE_COUNT] = {
    [ER_SUM] = "", [ER_MIN] = ", min", [ER_MAX] = ", max"};
static const char *const transport_names[] = {
    [ER_TRANSPORT_AUTO] = "auto", [ER_TRANSPORT_SHM] = "shm", [ER_TRANSPORT_TCP] = "tcp"};

const char *er_dtype_name(enum er_dtype dtype)
{
    return (unsigned)dtype < ER_DTYPE_COUNT ? dtype_names[dtype] : "?";
}

/* A peer's descriptor is not to be trusted with an index. */
static const char *name_of(const char *const *names, uint32_t i, uint32_t count)
{
    return i < count ? names[i] : "?";
}

const char *er_op_text(const struct er_op_desc *desc, char ret[ER_COMM_OP_TEXT_MAX])
{
    const char *kind = name_of(kind_names, desc->kind, ER_OP_KIND_COUNT);
    const char *dtype = name_of(dtype_names, desc->dtype, ER_DTYPE_COUNT);
    unsigned long long seq = desc->seq, n = desc->n;

    switch (desc->kind) {
    case ER_OP_ALL_REDUCE:
        snprintf(ret, ER_COMM_OP_TEXT_MAX, "%s #%llu (%s x %llu%s)", kind, seq, dtype, n,
                 name_of(reduce_names, desc->reduce, ER_REDUCE_COUNT));
        break;
    case ER_OP_BROADCAST:
        snprintf(ret, ER_COMM_OP_TEXT_MAX, "%s #%llu (%s x %llu, root %u)", kind, seq, dtype, n,
                 desc->root);
        break;
    case ER_OP_ALL_GATHER:
        snprintf(ret, ER_COMM_OP_TEXT_MAX, "%s #%llu (%s x %llu)", kind, seq, dtype, n);
        break;
    default:
        snprintf(ret, ER_COMM_OP_TEXT_MAX, "%s #%llu", kind, seq);
        break;
    }
    return ret;
}

int er_op_agree(const struct er_op_desc *mine, int my_rank, const struct er_op_desc *theirs,
                int their_rank, struct er_error *err)
{
    char a[ER_COMM_OP_TEXT_MAX], b[ER_COMM_OP_TEXT_MAX];

    if (memcmp(mine, theirs, sizeof(*mine)) == 0)
        return 0;
    return er_error_set(err, ER_E_MISMATCH, "rank %d is at %s, rank %d at %s", my_rank,
                        er_op_text(mine, a), their_rank, er_op_text(theirs, b));
}

size_t er_op_bytes(const struct er_op_desc *desc)
{
    return (size_t)desc->n * er_dtype_size((enum er_dtype)desc->dtype);
}

struct er_op *er_comm_next(struct er_comm *comm)
{
    uint64_t finished = atomic_load_explicit(&comm->finished, memory_order_relaxed);

    if (finished == atomic_load_explicit(&comm->begun, memory_order_acquire))
        return NULL;
    return &comm->ring[finished % ER_COMM_OPS_MAX];
}

void er_comm_finish(struct er_comm *comm, struct er_op *op, int rc)
{
    op->rc = rc;
    atomic_fetch_add_explicit(&comm->finished, 1, memory_order_release);
    if (atomic_exchange(&op->state, ER_OP_DONE) == ER_OP_AWAITED)
        syscall(SYS_futex, &op->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int er_comm_fail(struct er_comm *comm, int code, const struct er_error *err)
{
    int failed = atomic_load_explicit(&comm->failed, memory_order_acquire);

    if (failed)
        return failed;
    comm->failure = *err;
    comm->failure.code = code;
    atomic_store_explicit(&comm->failed, code, memory_order_release);
    return code;
}

/* 0, or the failure of the communicator as this call's error. */
static int check_failed(const struct er_comm *comm, struct er_error *err)
{
    int failed = atomic_load_explicit(&comm->failed, memory_order_acquire);

    return failed ? er_error_set(err, failed, "%s", comm->failure.text) : 0;
}

static int resolve_transport(const struct er_comm_opts *opts, bool one_host,
                             enum er_comm_transport *ret, struct er_error *err)
{
    const char *wanted = getenv("ELASTIC_COMM_TRANSPORT");

    *ret = opts->transport;
    if (*ret != ER_TRANSPORT_AUTO)
        return 0;
    *ret = one_host ? ER_TRANSPORT_SHM : ER_TRANSPORT_TCP;
    if (!wanted || !*wanted || strcmp(wanted, "auto") == 0)
        return 0;
    if (strcmp(wanted, "shm") != 0 && strcmp(wanted, "tcp") != 0)
        return er_error_set(err, ER_E_CONFIG,
                            "ELASTIC_COMM_TRANSPORT is '%s'; expected shm, tcp or auto", wanted);
    *ret = strcmp(wanted, "shm") == 0 ? ER_TRANSPORT_SHM : ER_TRANSPORT_TCP;
    return 0;
}

static int configure(struct er_comm *comm, const struct er_comm_opts *opts, struct er_error *err)
{
    const struct er_world *world = er_world(comm->ctx);
    const char *name = opts->name ? opts->name : "world";
    const char *address = opts->address ? opts->address : "";

    if (world->size < 1 || world->size > ER_COMM_RANKS_MAX)
        return er_error_set(err, ER_E_LIMIT, "communicator of %d ranks; 1 to %d can be served",
                            world->size, ER_COMM_RANKS_MAX);
    if (!*name || strlen(name) >= sizeof(comm->name))
        return er_error_set(err, ER_E_USAGE, "communicator name '%s': 1 to %d bytes expected", name,
                            ER_COMM_NAME_MAX - 1);
    if (strlen(address) >= sizeof(comm->address))
        return er_error_set(err, ER_E_USAGE, "communicator address '%s': too long", address);
    if (opts->backend == ER_COMM_SELF && world->size > 1)
        return er_error_set(err, ER_E_USAGE, "backend self in a world of %d ranks", world->size);
    snprintf(comm->name, sizeof(comm->name), "%s", name);
    snprintf(comm->address, sizeof(comm->address), "%s", address);
    comm->rank = world->rank;
    comm->size = world->size;
    comm->generation = world->generation;
    comm->one_host = world->nnodes <= 1 || world->local_size == world->size;
    comm->page = er_ctx_page(comm->ctx);
    comm->open_timeout_us = opts->open_timeout_us ? opts->open_timeout_us : ER_COMM_OPEN_DEFAULT_US;
    comm->op_timeout_us = opts->op_timeout_us ? opts->op_timeout_us : ER_COMM_OP_DEFAULT_US;
    comm->pace_bytes_per_s = opts->pace_bytes_per_s;
    return resolve_transport(opts, comm->one_host, &comm->transport, err);
}

static void describe(struct er_comm *comm, bool self)
{
    if (self)
        snprintf(comm->describe, sizeof(comm->describe), "self");
    else
        snprintf(comm->describe, sizeof(comm->describe), "host/%s %d ranks",
                 transport_names[comm->transport], comm->size);
}

ER_CLEANUP_FOR(er_comm_abort, struct er_comm)

int er_comm_open(struct er_comm **ret, struct er_ctx *ctx, const struct er_comm_opts *opts,
                 struct er_error *err)
{
    static const struct er_comm_opts defaults;
    ER_CLEANUP(er_comm_abort_cleanup) struct er_comm *comm = calloc(1, sizeof(*comm));
    bool self;
    int rc;

    if (!comm)
        return er_error_set(err, -ENOMEM, "communicator: out of memory");
    comm->ctx = ctx;
    rc = configure(comm, opts ? opts : &defaults, err);
    if (rc < 0)
        return rc;
    comm->votes = calloc((size_t)comm->size, sizeof(*comm->votes));
    if (!comm->votes)
        return er_error_set(err, -ENOMEM, "communicator: out of memory");
    self = comm->size == 1 && (!opts || opts->backend != ER_COMM_HOST);
    describe(comm, self);
    comm->ops = self ? &er_comm_self_ops : &er_comm_host_ops;
    rc = comm->ops->open(comm, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "communicator '%s'", comm->name);
    *ret = ER_TAKE(comm);
    return 0;
}

void er_comm_abort(struct er_comm *comm)
{
    int saved = errno;

    if (!comm)
        return;
    if (comm->ops)
        comm->ops->close(comm);
    free(comm->votes);
    free(comm);
    errno = saved;
}

static int connect_for(struct er_comm *comm, uint64_t wait_us, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc = check_failed(comm, err);

    if (rc || comm->ready)
        return rc;
    rc = comm->ops->connect(comm, wait_us, &why);
    comm->ready = rc == 0;
    if (rc >= 0)
        return rc;
    er_error_wrap(&why, rc, "communicator '%s'", comm->name);
    er_comm_fail(comm, rc, &why);
    return check_failed(comm, err);
}

int er_comm_status(struct er_comm *comm, struct er_error *err)
{
    if (comm->ready)
        comm->ops->check(comm);
    return connect_for(comm, 0, err);
}

int er_comm_wait_ready(struct er_comm *comm, struct er_error *err)
{
    int rc;

    do {
        rc = connect_for(comm, CONNECT_SLICE_US, err);
    } while (rc == ER_IN_PROGRESS);
    return rc;
}

int er_comm_rank(const struct er_comm *comm)
{
    return comm->rank;
}

int er_comm_size(const struct er_comm *comm)
{
    return comm->size;
}

const char *er_comm_describe(const struct er_comm *comm)
{
    return comm->describe;
}

/* A slot of the ring for the operation, filled in but not yet visible to the backend. */
static int take_slot(struct er_comm *comm, const struct er_op_desc *desc, void *buf,
                     const void *mine, struct er_op **ret, struct er_error *err)
{
    uint64_t begun = atomic_load_explicit(&comm->begun, memory_order_relaxed);
    uint64_t finished = atomic_load_explicit(&comm->finished, memory_order_acquire);
    struct er_op *op = &comm->ring[begun % ER_COMM_OPS_MAX];
    int rc = connect_for(comm, 0, err);

    if (rc == ER_IN_PROGRESS)
        return er_error_set(err, -ENOTCONN, "communicator '%s' is still connecting", comm->name);
    if (rc < 0)
        return rc;
    if (begun - finished >= ER_COMM_OPS_MAX)
        return er_error_set(err, -EAGAIN, "communicator '%s': %d operations are in flight",
                            comm->name, ER_COMM_OPS_MAX);
    op->comm = comm;
    op->desc = *desc;
    op->desc.seq = begun + 1;
    op->buf = buf;
    op->mine = mine;
    op->rc = 0;
    atomic_store_explicit(&op->state, ER_OP_PENDING, memory_order_relaxed);
    *ret = op;
    return 0;
}

static int start(struct er_comm *comm, const struct er_op_desc *desc, void *buf, const void *mine,
                 struct er_op **ret, struct er_error *err)
{
    struct er_op *op = NULL;
    int rc = take_slot(comm, desc, buf, mine, &op, err);

    if (rc < 0)
        return rc;
    atomic_store_explicit(&comm->begun, op->desc.seq, memory_order_release);
    comm->ops->post(comm, op, ret != NULL);
    if (ret)
        *ret = op;
    else
        rc = er_op_wait(op, ER_FOREVER, err);
    return rc;
}

static int check_array(const void *buf, size_t n, enum er_dtype dtype, struct er_error *err)
{
    size_t width = er_dtype_size(dtype);

    if (!width)
        return er_error_set(err, ER_E_USAGE, "unknown element type %d", (int)dtype);
    if (!buf && n > 0)
        return er_error_set(err, ER_E_USAGE, "NULL for %zu elements", n);
    if (n > SIZE_MAX / 2 / width)
        return er_error_set(err, ER_E_USAGE, "%zu elements: larger than any memory", n);
    if ((uintptr_t)buf % width)
        return er_error_set(err, ER_E_USAGE, "buffer %p is not aligned for %s", buf,
                            er_dtype_name(dtype));
    return 0;
}

static int check_ret(struct er_op **ret, struct er_error *err)
{
    return ret ? 0 : er_error_set(err, ER_E_USAGE, "no place for the operation's handle");
}

int er_all_reduce(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype,
                  enum er_reduce reduce, struct er_op **ret, struct er_error *err)
{
    struct er_op_desc desc = {
        .kind = ER_OP_ALL_REDUCE, .n = n, .dtype = (uint32_t)dtype, .reduce = (uint32_t)reduce};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_array(buf, n, dtype, err);
    if (!rc && (unsigned)reduce >= ER_REDUCE_COUNT)
        rc = er_error_set(err, ER_E_USAGE, "unknown reduction %d", (int)reduce);
    return rc ? rc : start(comm, &desc, buf, NULL, ret, err);
}

int er_broadcast(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int root,
                 struct er_op **ret, struct er_error *err)
{
    struct er_op_desc desc = {
        .kind = ER_OP_BROADCAST, .n = n, .dtype = (uint32_t)dtype, .root = (uint32_t)root};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_array(buf, n, dtype, err);
    if (!rc && (root < 0 || root >= comm->size))
        rc = er_error_set(err, ER_E_USAGE, "root %d of %d ranks", root, comm->size);
    return rc ? rc : start(comm, &desc, buf, NULL, ret, err);
}

int er_all_gather(struct er_comm *comm, const void *mine, size_t n, void *all, struct er_op **ret,
                  struct er_error *err)
{
    struct er_op_desc desc = {.kind = ER_OP_ALL_GATHER, .n = n, .dtype = ER_U8};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_array(mine, n, ER_U8, err);
    if (!rc)
        rc = check_array(all, n, ER_U8, err);
    if (!rc && n > SIZE_MAX / 2 / (size_t)comm->size)
        rc = er_error_set(err, ER_E_USAGE, "%zu bytes of each of %d ranks: larger than any memory",
                          n, comm->size);
    return rc ? rc : start(comm, &desc, all, mine, ret, err);
}

int er_comm_barrier(struct er_comm *comm, struct er_error *err)
{
    struct er_op_desc desc = {.kind = ER_OP_BARRIER, .dtype = ER_U8};

    return start(comm, &desc, NULL, NULL, NULL, err);
}

int er_op_test(struct er_op *op, struct er_error *err)
{
    if (atomic_load_explicit(&op->state, memory_order_acquire) != ER_OP_DONE)
        return ER_IN_PROGRESS;
    if (op->rc)
        return er_error_set(err, op->rc, "%s", op->comm->failure.text);
    return 0;
}

int er_op_wait(struct er_op *op, uint64_t timeout_us, struct er_error *err)
{
    char text[ER_COMM_OP_TEXT_MAX];
    int rc = er_op_test(op, err);

    if (rc != ER_IN_PROGRESS)
        return rc;
    op->comm->ops->wait(op->comm, op, er_deadline_in(er_now_us(), timeout_us));
    rc = er_op_test(op, err);
    if (rc != ER_IN_PROGRESS)
        return rc;
    return er_error_set(err, -ETIMEDOUT, "%s is not done after %llu us; it goes on",
                        er_op_text(&op->desc, text), (unsigned long long)timeout_us);
}

/* 0, or ER_E_MISMATCH naming the first rank that differs from rank 0: the same on all ranks. */
static int check_votes(const struct er_comm *comm, struct er_error *err)
{
    const struct er_vote *first = &comm->votes[0];

    for (int i = 1; i < comm->size; i++) {
        const struct er_vote *v = &comm->votes[i];

        if (v->step != first->step)
            return er_error_set(err, ER_E_MISMATCH, "vote: rank 0 is at step %llu, rank %d at %llu",
                                (unsigned long long)first->step, i, (unsigned long long)v->step);
        if (v->order_hash != first->order_hash)
            return er_error_set(err, ER_E_MISMATCH,
                                "vote at step %llu: rank %d reduced in another order than rank 0 "
                                "(hash %016llx, not %016llx)",
                                (unsigned long long)v->step, i, (unsigned long long)v->order_hash,
                                (unsigned long long)first->order_hash);
    }
    return 0;
}

int er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err)
{
    struct er_op_desc desc = {.kind = ER_OP_VOTE, .n = sizeof(*inout), .dtype = ER_U8};
    struct er_error why = ER_ERROR_INIT;
    uint64_t unfinished = atomic_load_explicit(&comm->begun, memory_order_relaxed) -
                          atomic_load_explicit(&comm->finished, memory_order_acquire);
    int rc;

    if (unfinished)
        return er_error_set(err, -EBUSY,
                            "vote at step %llu: %llu operations of this rank are unfinished",
                            (unsigned long long)inout->step, (unsigned long long)unfinished);
    rc = start(comm, &desc, comm->votes, inout, NULL, err);
    if (rc < 0)
        return rc;
    rc = check_votes(comm, &why);
    if (rc < 0) {
        er_comm_fail(comm, rc, &why);
        return check_failed(comm, err);
    }
    for (int i = 1; i < comm->size; i++)
        er_algo_vote(&comm->votes[0], &comm->votes[i]);
    *inout = comm->votes[0];
    return 0;
}
