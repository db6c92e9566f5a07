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
#include "base/rand.h"
#include "runtime/comm_ops.h"
#include "runtime/runtime_internal.h"

enum { CONNECT_SLICE_US = 50000 };

struct er_op *er_comm_at(struct er_comm *comm, uint64_t number)
{
    return &comm->ring[(number - 1) % ER_COMM_OPS_MAX];
}

struct er_op *er_comm_next(struct er_comm *comm)
{
    uint64_t finished = atomic_load_explicit(&comm->finished, memory_order_relaxed);

    if (finished == atomic_load_explicit(&comm->begun, memory_order_acquire))
        return NULL;
    return er_comm_at(comm, finished + 1);
}

static void finish_one(struct er_comm *comm, struct er_op *op, int rc)
{
    op->rc = rc;
    if (!rc && !er_op_is_pair(&op->desc))
        atomic_store_explicit(&comm->collectives_done, op->desc.seq, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->finished, 1, memory_order_release);
    if (atomic_exchange(&op->state, ER_OP_DONE) == ER_OP_AWAITED)
        syscall(SYS_futex, &op->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void er_comm_finish(struct er_comm *comm, struct er_op *first, int rc)
{
    uint64_t number = first->number;

    for (uint32_t i = first->batch; i > 0; i--)
        finish_one(comm, er_comm_at(comm, number++), rc);
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

int er_comm_check(const struct er_comm *comm, struct er_error *err)
{
    int failed = atomic_load_explicit(&comm->failed, memory_order_acquire);

    return failed ? er_error_set(err, failed, "%s", comm->failure.text) : 0;
}

static int resolve_transport(const struct er_comm_opts *opts, bool one_host, const char *host,
                             enum er_comm_transport *ret, struct er_error *err)
{
    const char *wanted = getenv("ELASTIC_COMM_TRANSPORT");

    *ret = opts->transport;
    if (*ret != ER_TRANSPORT_AUTO)
        return 0;
    if (one_host && !*host)
        *ret = ER_TRANSPORT_SHM;
    if (!wanted || !*wanted || strcmp(wanted, "auto") == 0)
        return 0;
    if (strcmp(wanted, "shm") != 0 && strcmp(wanted, "tcp") != 0)
        return er_error_set(err, ER_E_CONFIG,
                            "ELASTIC_COMM_TRANSPORT is '%s'; expected shm, tcp or auto", wanted);
    *ret = strcmp(wanted, "shm") == 0 ? ER_TRANSPORT_SHM : ER_TRANSPORT_TCP;
    return 0;
}

/* An option, or what the environment says in its place. */
static int take_text(char ret[ER_COMM_ADDRESS_MAX], const char *option, const char *variable,
                     const char *what, struct er_error *err)
{
    const char *text = option || !variable ? option : getenv(variable);

    if (text && strlen(text) >= ER_COMM_ADDRESS_MAX)
        return er_error_set(err, ER_E_USAGE, "communicator %s '%s': too long", what, text);
    snprintf(ret, ER_COMM_ADDRESS_MAX, "%s", text ? text : "");
    return 0;
}

static int configure(struct er_comm *comm, const struct er_comm_opts *opts, struct er_error *err)
{
    const struct er_world *world = er_world(comm->ctx);
    const char *name = opts->name ? opts->name : "world";
    int rc;

    if (world->size < 1 || world->size > ER_COMM_RANKS_MAX)
        return er_error_set(err, ER_E_LIMIT, "communicator of %d ranks; 1 to %d can be served",
                            world->size, ER_COMM_RANKS_MAX);
    if (!*name || strlen(name) >= sizeof(comm->name))
        return er_error_set(err, ER_E_USAGE, "communicator name '%s': 1 to %d bytes expected", name,
                            ER_COMM_NAME_MAX - 1);
    if (opts->backend == ER_COMM_SELF && world->size > 1)
        return er_error_set(err, ER_E_USAGE, "backend self in a world of %d ranks", world->size);
    snprintf(comm->name, sizeof(comm->name), "%s", name);
    rc = take_text(comm->address, opts->address, NULL, "address", err);
    if (!rc)
        rc = take_text(comm->interfaces, opts->interfaces, "ELASTIC_COMM_INTERFACE", "interfaces",
                       err);
    if (!rc)
        rc = take_text(comm->host, opts->host, "ELASTIC_COMM_HOST", "host", err);
    if (rc < 0)
        return rc;
    comm->rank = world->rank;
    comm->size = world->size;
    comm->generation = world->generation;
    comm->one_host = world->nnodes <= 1 || world->local_size == world->size;
    comm->page = er_ctx_page(comm->ctx);
    comm->open_timeout_us = opts->open_timeout_us ? opts->open_timeout_us : ER_COMM_OPEN_DEFAULT_US;
    comm->op_timeout_us = opts->op_timeout_us ? opts->op_timeout_us : ER_COMM_OP_DEFAULT_US;
    comm->pace_bytes_per_s = opts->pace_bytes_per_s;
    comm->abort_timeout_us =
        opts->abort_timeout_us ? opts->abort_timeout_us : ER_COMM_ABORT_DEFAULT_US;
    comm->device = opts->device;
    comm->shrink_from = opts->shrink_from;
    return resolve_transport(opts, comm->one_host, comm->host, &comm->transport, err);
}

static int allocate(struct er_comm *comm, struct er_error *err)
{
    size_t size = (size_t)comm->size;

    comm->votes = calloc(size, sizeof(*comm->votes));
    comm->busy = calloc(size, sizeof(*comm->busy));
    comm->sent = calloc(size, sizeof(*comm->sent));
    comm->received = calloc(size, sizeof(*comm->received));
    comm->offsets = calloc(ER_COMM_OPS_MAX * (size + 1), sizeof(*comm->offsets));
    if (!comm->votes || !comm->busy || !comm->sent || !comm->received || !comm->offsets)
        return er_error_set(err, -ENOMEM, "communicator: out of memory");
    return 0;
}

static const struct er_comm_ops *choose_backend(const struct er_comm *comm,
                                                enum er_comm_backend wanted)
{
    if (wanted == ER_COMM_NCCL)
        return &er_comm_nccl_ops;
    return comm->size == 1 && wanted != ER_COMM_HOST ? &er_comm_self_ops : &er_comm_host_ops;
}

ER_CLEANUP_FOR(er_comm_abort, struct er_comm)

int er_comm_open(struct er_comm **ret, struct er_ctx *ctx, const struct er_comm_opts *opts,
                 struct er_error *err)
{
    static const struct er_comm_opts defaults;
    ER_CLEANUP(er_comm_abort_cleanup) struct er_comm *comm = calloc(1, sizeof(*comm));
    int rc;

    if (!comm)
        return er_error_set(err, -ENOMEM, "communicator: out of memory");
    comm->ctx = ctx;
    rc = configure(comm, opts ? opts : &defaults, err);
    if (rc < 0)
        return rc;
    rc = allocate(comm, err);
    if (rc < 0)
        return rc;
    comm->ops = choose_backend(comm, opts ? opts->backend : ER_COMM_AUTO);
    snprintf(comm->describe, sizeof(comm->describe), "%s %d ranks", comm->ops->name, comm->size);
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
    free(comm->busy);
    free(comm->sent);
    free(comm->received);
    free(comm->offsets);
    free(comm);
    errno = saved;
}

void er_comm_abort_all(struct er_comm *const *comms, size_t n)
{
    struct er_comm *together[ER_COMMS_TOGETHER];
    size_t together_n = 0;

    for (size_t i = 0; i < n; i++) {
        if (comms[i] && comms[i]->ops->abort)
            together[together_n++] = comms[i];
        if (together_n > 0 && (together_n == ER_COMMS_TOGETHER || i + 1 == n)) {
            together[0]->ops->abort(together, together_n);
            together_n = 0;
        }
    }
    for (size_t i = 0; i < n; i++)
        er_comm_abort(comms[i]);
}

static void poll_backend(struct er_comm *comm)
{
    if (comm->ops->poll)
        comm->ops->poll(comm);
}

/* For the agent's ledger of time: communicators of later on belong to no start. */
static void report_connected(const struct er_comm *comm)
{
    struct er_page_progress *p = comm->page ? &comm->page->from_worker : NULL;

    if (p && p->first_step_us == 0)
        p->connected_us = er_now_us();
}

int er_comm_connect(struct er_comm *comm, uint64_t wait_us, struct er_error *err)
{
    struct er_error why = ER_ERROR_INIT;
    int rc = er_comm_check(comm, err);

    if (rc || comm->ready)
        return rc;
    rc = comm->ops->connect(comm, wait_us, &why);
    comm->ready = rc == 0;
    if (comm->ready)
        report_connected(comm);
    if (rc >= 0)
        return rc;
    er_error_wrap(&why, rc, "communicator '%s'", comm->name);
    er_comm_fail(comm, rc, &why);
    return er_comm_check(comm, err);
}

int er_comm_status(struct er_comm *comm, struct er_error *err)
{
    if (comm->ready)
        comm->ops->check(comm);
    return er_comm_connect(comm, 0, err);
}

/* All ranks wait for each other: whoever looks for the one that does not come sees that. */
int er_comm_wait_ready(struct er_comm *comm, struct er_error *err)
{
    struct er_page_progress *p = comm->page ? &comm->page->from_worker : NULL;
    uint64_t before = p ? atomic_exchange(&p->phase, ER_PHASE_COMMUNICATE) : 0;
    uint64_t during = ER_PHASE_COMMUNICATE;
    int rc;

    do {
        rc = er_comm_connect(comm, CONNECT_SLICE_US, err);
    } while (rc == ER_IN_PROGRESS);
    if (p) /* unless another thread has said something else */
        atomic_compare_exchange_strong(&p->phase, &during, before);
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

struct er_device *er_comm_device(const struct er_comm *comm)
{
    return comm->ops->after ? comm->device : NULL;
}

const char *er_comm_describe(const struct er_comm *comm)
{
    return comm->describe;
}

/* Whether one more operation can be taken. A slot is free only when its operation's state says so:
 * that is the last that is written of it. */
static int check_room(struct er_comm *comm, struct er_error *err)
{
    const struct er_op *slot = er_comm_at(comm, comm->staged + 1);
    int rc = er_comm_connect(comm, 0, err);
    uint64_t finished;

    if (rc == ER_IN_PROGRESS)
        return er_error_set(err, -ENOTCONN, "communicator '%s' is still connecting", comm->name);
    if (rc < 0)
        return rc;
    if (comm->staged - atomic_load(&comm->finished) >= ER_COMM_OPS_MAX)
        poll_backend(comm);
    finished = atomic_load_explicit(&comm->finished, memory_order_acquire);
    if (comm->staged - finished >= ER_COMM_OPS_MAX ||
        (slot->number && atomic_load_explicit(&slot->state, memory_order_acquire) != ER_OP_DONE &&
         slot->number <= finished))
        return er_error_set(err, -EAGAIN, "communicator '%s': %d operations are in flight",
                            comm->name, ER_COMM_OPS_MAX);
    return 0;
}

static uint64_t next_seq(struct er_comm *comm, const struct er_op_desc *desc)
{
    if (desc->kind == ER_OP_SEND)
        return ++comm->sent[desc->root];
    if (desc->kind == ER_OP_RECV)
        return ++comm->received[desc->root];
    return ++comm->collectives;
}

/* The slot's own copy of the counts, as sums, and what of them is agreed on. */
static const size_t *keep_counts(struct er_comm *comm, struct er_op *op, const size_t *counts)
{
    size_t slot = (size_t)(op - comm->ring), *offsets;

    offsets = comm->offsets + slot * ((size_t)comm->size + 1);
    offsets[0] = 0;
    op->desc.counts = 0;
    for (int i = 0; i < comm->size; i++) {
        offsets[i + 1] = offsets[i] + counts[i];
        op->desc.counts = er_rand_mix(op->desc.counts ^ counts[i]) | 1;
    }
    op->desc.n = offsets[comm->size];
    return offsets;
}

/* The next slot of the ring, filled in but not yet visible to the backend. */
static struct er_op *stage(struct er_comm *comm, const struct er_comm_call *call)
{
    struct er_op *op = er_comm_at(comm, ++comm->staged);

    op->comm = comm;
    op->number = comm->staged;
    op->batch = 0;
    op->desc = call->desc;
    op->desc.seq = next_seq(comm, &call->desc);
    op->in = call->in;
    op->out = call->out;
    op->offsets = call->counts ? keep_counts(comm, op, call->counts) : NULL;
    op->rc = 0;
    atomic_store_explicit(&op->state, ER_OP_PENDING, memory_order_relaxed);
    return op;
}

static void launch(struct er_comm *comm, bool async)
{
    uint64_t begun = atomic_load_explicit(&comm->begun, memory_order_relaxed);

    er_comm_at(comm, begun + 1)->batch = (uint32_t)(comm->staged - begun);
    atomic_store_explicit(&comm->begun, comm->staged, memory_order_release);
    comm->ops->post(comm, async);
}

int er_comm_start(struct er_comm *comm, const struct er_comm_call *call, struct er_op **ret,
                  struct er_error *err)
{
    int rc = check_room(comm, err);
    struct er_op *op;

    if (rc < 0)
        return rc;
    op = stage(comm, call);
    if (!comm->grouping)
        launch(comm, ret != NULL);
    if (!ret)
        return er_op_wait(op, ER_FOREVER, err);
    *ret = op;
    return 0;
}

int er_group_begin(struct er_comm *comm, struct er_error *err)
{
    if (comm->grouping)
        return er_error_set(err, ER_E_USAGE, "a group within a group");
    comm->grouping = true;
    return 0;
}

/* Take back what was staged, with its numbers: the peers may never hear of it. */
static void forget_group(struct er_comm *comm)
{
    uint64_t begun = atomic_load_explicit(&comm->begun, memory_order_relaxed);

    for (; comm->staged > begun; comm->staged--) {
        const struct er_op_desc *desc = &er_comm_at(comm, comm->staged)->desc;

        if (desc->kind == ER_OP_SEND)
            comm->sent[desc->root]--;
        else if (desc->kind == ER_OP_RECV)
            comm->received[desc->root]--;
        else
            comm->collectives--;
    }
}

int er_group_end(struct er_comm *comm, struct er_error *err)
{
    int rc = er_comm_check(comm, err);

    if (!comm->grouping)
        return er_error_set(err, ER_E_USAGE, "the end of a group that was not begun");
    comm->grouping = false;
    if (rc < 0)
        forget_group(comm);
    else if (comm->staged > atomic_load_explicit(&comm->begun, memory_order_relaxed))
        launch(comm, true);
    return rc;
}

int er_comm_after(struct er_comm *comm, struct er_stream *stream, struct er_error *err)
{
    int rc = er_comm_check(comm, err);

    return rc < 0 || !comm->ops->after ? rc : comm->ops->after(comm, stream, err);
}

int er_op_before(struct er_op *op, struct er_stream *stream, struct er_error *err)
{
    return op->comm->ops->before ? op->comm->ops->before(op, stream, err)
                                 : er_op_wait(op, ER_FOREVER, err);
}

int er_op_test(struct er_op *op, struct er_error *err)
{
    if (atomic_load_explicit(&op->state, memory_order_acquire) != ER_OP_DONE)
        poll_backend(op->comm);
    if (atomic_load_explicit(&op->state, memory_order_acquire) != ER_OP_DONE)
        return ER_IN_PROGRESS;
    if (op->rc)
        return er_error_set(err, op->rc, "%s", op->comm->failure.text);
    return 0;
}

int er_op_wait(struct er_op *op, uint64_t timeout_us, struct er_error *err)
{
    char text[ER_COMM_OP_TEXT_MAX];
    int rc;

    if (op->comm->ops->come)
        op->comm->ops->come(op->comm, op);
    rc = er_op_test(op, err);
    if (rc != ER_IN_PROGRESS)
        return rc;
    if (op->number > atomic_load_explicit(&op->comm->begun, memory_order_relaxed))
        return er_error_set(err, ER_E_USAGE, "%s has not begun: its group is open",
                            er_op_text(&op->desc, text));
    op->comm->ops->wait(op->comm, op, er_deadline_in(er_now_us(), timeout_us));
    rc = er_op_test(op, err);
    if (rc != ER_IN_PROGRESS)
        return rc;
    return er_error_set(err, -ETIMEDOUT, "%s is not done after %llu us; it goes on",
                        er_op_text(&op->desc, text), (unsigned long long)timeout_us);
}
