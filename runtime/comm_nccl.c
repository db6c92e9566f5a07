/*
 * Backend `nccl`: operations on a device, and a companion host communicator that carries the vote,
 * the barrier and an agreement on every operation (a *shadow*: its descriptor without its data).
 *
 * The shadow is what NCCL lacks. It finds ranks that start different operations, peers that died,
 * the agent's stop and the deadline, each with the host backend's texts, while NCCL's kernels would
 * hang. It does not hold the launch up: it runs beside, on the companion's thread.
 *
 * NCCL's contract, kept here: one thread; nothing but the status while a call is in progress; after
 * a failure nothing but abort; an operation whose event was reached is a success only if no failure
 * was seen before.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/host_internal.h"
#include "runtime/nccl_internal.h"

enum {
    LAUNCH_SPIN_US = 2000, /* NCCL's launch thread needs some 50 us */
    WAIT_SPIN_US = 50,
    WAIT_SLEEP_US = 50,
    LOOK_US = 1000,          /* between looks at the companion's peers */
    WAIT_SLICE_US = 1000,    /* of waiting in the companion */
    LOST_GRACE_US = 10000,   /* a peer died: what it did before may still arrive */
    LEFT_GRACE_US = 1000000, /* a peer left after its part */
    WAITING_US = 200000,     /* stalled for so long: tell the peers */
    BROKEN_GRACE_US = 200000 /* NCCL failed: the companion finds out why */
};

static bool of_host(const struct er_op *op)
{
    return op->desc.kind == ER_OP_BARRIER || op->desc.kind == ER_OP_VOTE;
}

static size_t slot_of(const struct nccl *n, const struct er_op *op)
{
    return (size_t)(op - n->comm->ring);
}

static struct er_op *shadow_of(const struct nccl *n, const struct er_op *op)
{
    return er_comm_at(n->host, op->number + ER_COMM_OPENING_OPS);
}

/* ---- failure ---- */

/* The communicator fails, its peers are told, and everything outstanding ends with the failure. The
 * device may still be at it: until the abort. */
static void fail_now(struct nccl *n, int code, const struct er_error *why)
{
    struct er_op *first;
    int failed = er_comm_fail(n->comm, code, why);

    n->host->ops->fail(n->host, failed, &n->comm->failure);
    while ((first = er_comm_next(n->comm)) != NULL)
        er_comm_finish(n->comm, first, failed);
    n->launched = atomic_load_explicit(&n->comm->begun, memory_order_relaxed);
    n->launching = false;
}

/* ---- launching ---- */

static int start_shadow(struct nccl *n, const struct er_op *op, struct er_error *err)
{
    struct er_comm_call call = {.desc = er_op_shadow(&op->desc)};
    struct er_op *ignored;

    if (of_host(op)) {
        call.in = op->in;
        call.out = op->out;
    }
    return er_comm_start(n->host, &call, &ignored, err);
}

static int start_shadows(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    int rc = first->batch > 1 ? er_group_begin(n->host, err) : 0, end = 0;

    for (uint32_t i = 0; i < first->batch && rc == 0; i++)
        rc = start_shadow(n, er_comm_at(n->comm, first->number + i), err);
    if (first->batch > 1)
        end = er_group_end(n->host, rc ? NULL : err);
    return rc ? rc : end;
}

/* 0 launched, ER_IN_PROGRESS, negative failed. */
static int launch_batch(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    int rc = start_shadows(n, first, err);

    for (uint32_t i = 0; i < first->batch; i++) {
        const struct er_op *op = er_comm_at(n->comm, first->number + i);

        n->batch[i] = op;
        n->first[slot_of(n, op)] = (uint16_t)slot_of(n, first);
    }
    if (rc < 0 || of_host(first))
        return rc;
    return n->calls->launch(n->handle, n->stream->native, n->batch, (int)first->batch,
                            n->comm->rank, n->comm->size, err);
}

/* Launch what stands in the ring. Ends early when NCCL is in progress, or at an operation of the
 * host's that must wait for those before it. */
static int launch_all(struct nccl *n, struct er_error *err)
{
    uint64_t begun = atomic_load_explicit(&n->comm->begun, memory_order_relaxed);
    int rc;

    while (n->launched < begun) {
        const struct er_op *first = er_comm_at(n->comm, n->launched + 1);

        if (n->launching) {
            rc = n->calls->status(n->handle, &n->broken);
            n->broken_us = rc < 0 ? er_now_us() : 0;
            if (rc < 0)
                return ER_IN_PROGRESS;
        } else {
            if (of_host(first) && atomic_load(&n->comm->finished) < n->launched)
                return 0;
            rc = launch_batch(n, first, err);
        }
        n->launching = rc == ER_IN_PROGRESS;
        if (rc != 0)
            return rc;
        if (!of_host(first))
            rc = er_event_record(n->done[slot_of(n, first)], n->stream, err);
        if (rc < 0)
            return rc;
        n->launched += first->batch;
    }
    return 0;
}

/* ---- finishing ---- */

/* All ranks have started the batch: 0, ER_IN_PROGRESS, or why they never will. */
static int test_shadows(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    for (uint32_t i = 0; i < first->batch; i++) {
        int rc = er_op_test(shadow_of(n, er_comm_at(n->comm, first->number + i)), err);

        if (rc != 0)
            return rc;
    }
    return 0;
}

/* A batch whose event was reached is done only if NCCL says so too. */
static int test_device(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    int rc = er_event_test(n->done[slot_of(n, first)], err);

    return rc ? rc : n->calls->status(n->handle, err);
}

/* All ranks have started the batch, but the device is not through. Who hangs is who does not say to
 * wait here too. */
static int find_stall(struct nccl *n, const struct er_op *first, uint64_t now, struct er_error *err)
{
    uint64_t shadow = first->number + ER_COMM_OPENING_OPS, limit_us = n->comm->op_timeout_us;
    char text[ER_COMM_OP_TEXT_MAX];
    const char *ras = getenv("NCCL_RAS_ADDR");

    if (!n->stalled_us) {
        n->stalled_us = now;
        n->said_waiting = false;
    }
    if (!n->said_waiting &&
        now >=
            er_deadline_in(n->stalled_us, limit_us / 2 < WAITING_US ? limit_us / 2 : WAITING_US)) {
        n->host->ops->say_waiting(n->host, shadow, first->batch);
        n->said_waiting = true;
    }
    if (now < er_deadline_in(n->stalled_us, limit_us))
        return 0;
    return er_error_set(err, -ETIMEDOUT,
                        "rank %d made no progress for %.1f s during %s, which all ranks have "
                        "started (NCCL's own view: `ncclras` at %s)",
                        n->host->ops->find_silent(n->host, shadow, first->batch),
                        (double)limit_us / 1e6, er_op_text(&first->desc, text),
                        ras ? ras : "localhost:28028");
}

/* Peers that are gone while the device works, and the agent's word. */
static int find_loss(struct nccl *n, const struct er_op *first, uint64_t now, struct er_error *err)
{
    char text[ER_COMM_OP_TEXT_MAX];
    bool left = false;
    int rc;

    if (now < n->looked_us + LOOK_US)
        return 0;
    n->looked_us = now;
    er_op_text(&first->desc, text);
    if (er_host_told_to_stop(n->comm))
        return er_error_set(err, ER_E_ABORTED, "rank %d was told by its agent to stop during %s",
                            n->comm->rank, text);
    rc = n->host->ops->look(n->host, &left, err);
    if (rc == 0)
        n->lost_us = 0;
    else if (!n->lost_us)
        n->lost_us = now;
    if (rc == 0 || now < n->lost_us + (left ? LEFT_GRACE_US : LOST_GRACE_US))
        return 0;
    return er_error_wrap(err, rc, "during %s", text);
}

/* NCCL knows that something broke; the companion, in a moment, which rank it was. */
static int find_cause(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    uint64_t now = er_now_us();
    char text[ER_COMM_OP_TEXT_MAX];
    int rc = test_shadows(n, first, err);

    if (rc >= 0)
        rc = find_loss(n, first, now, err);
    if (rc < 0)
        return rc;
    if (now < n->broken_us + BROKEN_GRACE_US)
        return ER_IN_PROGRESS;
    *err = n->broken;
    return er_error_wrap(err, n->broken.code, "during %s", er_op_text(&first->desc, text));
}

/* The next batch: 0 done, ER_IN_PROGRESS, negative failed. */
static int test_batch(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    uint64_t now;
    int rc = test_shadows(n, first, err), device;

    if (rc < 0 || of_host(first))
        return rc;
    device = test_device(n, first, &n->broken);
    if (device == 0 && rc == 0)
        return 0;
    now = er_now_us();
    if (device < 0) {
        n->broken_us = now;
        return ER_IN_PROGRESS;
    }
    if (rc == ER_IN_PROGRESS) { /* the companion watches */
        n->stalled_us = 0;
        return rc;
    }
    rc = find_loss(n, first, now, err);
    if (rc == 0)
        rc = find_stall(n, first, now, err);
    return rc < 0 ? rc : ER_IN_PROGRESS;
}

static int test_first(struct nccl *n, const struct er_op *first, struct er_error *err)
{
    int rc;

    if (n->broken_us)
        return find_cause(n, first, err);
    if (first->number <= n->launched)
        return test_batch(n, first, err);
    rc = test_shadows(n, first, err); /* no event yet: NCCL may wait for a peer */
    if (rc >= 0)
        rc = find_loss(n, first, er_now_us(), err);
    return rc < 0 ? rc : ER_IN_PROGRESS;
}

/* Launch and finish what can be. */
static void advance(struct nccl *n)
{
    struct er_error why = ER_ERROR_INIT;
    struct er_op *first;
    int rc;

    if (!n->comm->ready || n->phase != NCCL_PHASE_READY)
        return;
    do {
        rc = atomic_load(&n->comm->failed);
        if (rc == 0 && !n->broken_us)
            rc = launch_all(n, &why);
        first = er_comm_next(n->comm);
        if (rc >= 0 && !first)
            return;
        if (rc >= 0)
            rc = test_first(n, first, &why);
        if (rc < 0) {
            fail_now(n, rc, &why);
            return;
        }
        if (rc == 0) {
            n->stalled_us = n->lost_us = 0;
            er_comm_finish(n->comm, first, 0);
        }
    } while (rc == 0);
}

/* Until NCCL has taken what stands in the ring: then its stream may be used. */
static int settle(struct nccl *n, uint64_t timeout_us, struct er_error *err)
{
    uint64_t end_us = er_deadline_in(er_now_us(), timeout_us);

    do {
        advance(n);
    } while (n->launching && er_now_us() < end_us);
    return n->launching ? er_error_set(err, -ETIMEDOUT,
                                       "NCCL has not launched an operation in "
                                       "time")
                        : er_comm_check(n->comm, err);
}

/* ---- the backend ---- */

static int open_nccl(struct er_comm *comm, struct er_error *err)
{
    struct nccl *n;

    if (!comm->device || !comm->device->gpu)
        return er_error_set(err, ER_E_USAGE,
                            "backend nccl needs a GPU (struct er_comm_opts, "
                            "device)");
    n = calloc(1, sizeof(*n));
    if (!n)
        return er_error_set(err, -ENOMEM, "out of memory");
    comm->impl = n;
    n->comm = comm;
    n->calls = comm->device->gpu->nccl;
    er_nccl_report(n);
    return er_nccl_open_begin(n, err);
}

static int connect_nccl(struct er_comm *comm, uint64_t wait_us, struct er_error *err)
{
    return er_nccl_open_step(comm->impl, wait_us, err);
}

static void post_nccl(struct er_comm *comm, bool async)
{
    settle(comm->impl, LAUNCH_SPIN_US, NULL);
}

static void poll_nccl(struct er_comm *comm)
{
    if (comm->impl)
        advance(comm->impl);
}

static uint64_t slice(uint64_t deadline_us, uint64_t most_us)
{
    uint64_t now = er_now_us(), left_us = deadline_us > now ? deadline_us - now : 0;

    return left_us < most_us ? left_us : most_us;
}

/* Sleep until something may have changed: in the companion while ranks are missing. */
static void doze(struct nccl *n, uint64_t began_us, uint64_t deadline_us)
{
    struct er_op *first = er_comm_next(n->comm);
    struct timespec ts = {.tv_nsec = (long)slice(deadline_us, WAIT_SLEEP_US) * 1000};

    if (first && first->number <= n->launched && test_shadows(n, first, NULL) == ER_IN_PROGRESS) {
        for (uint32_t i = 0; i < first->batch; i++)
            er_op_wait(shadow_of(n, er_comm_at(n->comm, first->number + i)),
                       slice(deadline_us, WAIT_SLICE_US), NULL);
        return;
    }
    if (er_now_us() > began_us + WAIT_SPIN_US)
        nanosleep(&ts, NULL);
}

static void wait_nccl(struct er_comm *comm, struct er_op *op, uint64_t deadline_us)
{
    uint64_t began_us = er_now_us();

    for (;;) {
        advance(comm->impl);
        if (atomic_load_explicit(&op->state, memory_order_acquire) == ER_OP_DONE ||
            er_now_us() >= deadline_us)
            return;
        doze(comm->impl, began_us, deadline_us);
    }
}

static void check_nccl(struct er_comm *comm)
{
    struct nccl *n = comm->impl;
    struct er_error why = ER_ERROR_INIT;
    int rc = 0;

    advance(n);
    if (atomic_load(&comm->failed) || er_comm_next(comm))
        return;
    rc = er_comm_status(n->host, &why);
    if (rc == 0 && n->calls->status(n->handle, &n->broken) < 0) {
        n->broken_us = n->broken_us ? n->broken_us : er_now_us();
        why = n->broken;
        rc = er_now_us() < n->broken_us + BROKEN_GRACE_US ? 0 : why.code;
    }
    if (rc < 0)
        fail_now(n, rc, &why);
}

static int after_nccl(struct er_comm *comm, struct er_stream *stream, struct er_error *err)
{
    struct nccl *n = comm->impl;
    int rc = settle(n, comm->op_timeout_us, err);

    if (rc == 0)
        rc = er_event_record(n->after, stream, err);
    return rc ? rc : er_stream_wait(n->stream, n->after, err);
}

static int before_nccl(struct er_op *op, struct er_stream *stream, struct er_error *err)
{
    struct nccl *n = op->comm->impl;
    int rc = settle(n, op->comm->op_timeout_us, err);

    if (rc < 0)
        return rc;
    if (op->number > n->launched || of_host(op))
        return er_error_set(err, ER_E_USAGE, "an operation that is not on the device yet");
    return er_stream_wait(stream, n->done[n->first[slot_of(n, op)]], err);
}

static void abort_nccl(struct er_comm *const *comms, size_t count)
{
    void *handles[ER_COMMS_TOGETHER];
    struct nccl *n = NULL;
    size_t handles_n = 0;

    for (size_t i = 0; i < count; i++) {
        struct nccl *at = comms[i]->impl;

        if (!at || !at->handle)
            continue;
        n = at;
        handles[handles_n++] = at->handle;
        at->handle = NULL;
        at->launching = false;
    }
    if (!n)
        return;
    er_watchdog_arm(n->dog, n->comm->abort_timeout_us, ER_WORKER_EXIT_STUCK,
                    "aborting NCCL communicators did not end in time; the process ends, since "
                    "nobody can use the GPU from it any more");
    n->calls->abort(handles, (int)handles_n);
    er_watchdog_disarm(n->dog);
}

static void close_nccl(struct er_comm *comm)
{
    struct nccl *n = comm->impl;

    if (!n)
        return;
    abort_nccl(&comm, 1);
    er_nccl_report_end(n);
    er_event_free(n->after);
    for (size_t i = 0; i < ER_COMM_OPS_MAX; i++)
        er_event_free(n->done[i]);
    er_stream_free(n->stream);
    er_comm_abort(n->host);
    er_watchdog_free(n->dog);
    free(n->mine);
    free(n->all);
    free(n->left_out);
    free(n->all_connected);
    free(n);
    comm->impl = NULL;
}

const struct er_comm_ops er_comm_nccl_ops = {
    .name = "nccl",
    .open = open_nccl,
    .connect = connect_nccl,
    .post = post_nccl,
    .wait = wait_nccl,
    .check = check_nccl,
    .close = close_nccl,
    .poll = poll_nccl,
    .after = after_nccl,
    .before = before_nccl,
    .abort = abort_nccl,
};
