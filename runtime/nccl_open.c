/*
 * Backend `nccl`: connecting. The companion first; over it the ranks agree on NCCL's version, on
 * who has which GPU, and on whether to start from an earlier communicator; rank 0's fresh id
 * travels with that, so that it is as secret and as bound to the generation as the companion is.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rand.h"
#include "runtime/host_addr.h"
#include "runtime/host_internal.h"
#include "runtime/nccl_internal.h"

enum {
    POLL_US = 200,
    SHRINK_SHARE = 8, /* of the time for opening: then afresh */
    LOOK_SLICE_US = 5000,
    RAS_PORT_FIRST = 28100, /* NCCL's default is 28028 */
    RAS_PORTS_N = 1900,
    SAME_GPU_FROM = 23003, /* NCCL_MULTI_RANK_GPU_ENABLE */
    ID_SHOWN = ER_DEVICE_NAME_MAX
};

struct nccl_hello {
    uint32_t bytes; /* of this record: another build of the library */
    int32_t version;
    int32_t parent_rank; /* -1: start afresh */
    int32_t parent_size;
    uint64_t parent_generation, host;
    char device[ID_SHOWN];
    unsigned char id[ER_NCCL_ID_BYTES]; /* rank 0's */
};

/* One address of NCCL's RAS per job, the same on all ranks: with the default, any process of any
 * job on the host may answer. Read by NCCL when its first communicator is made. */
static void name_ras(const struct er_comm *comm)
{
    const struct er_world *w = er_world(comm->ctx);
    char address[32];
    uint64_t hash = 0;

    for (const char *p = w->job; p && *p; p++)
        hash = er_rand_mix(hash ^ (uint64_t)*p);
    for (const char *p = w->run; p && *p; p++)
        hash = er_rand_mix(hash ^ (uint64_t)*p);
    snprintf(address, sizeof(address), "127.0.0.1:%u",
             RAS_PORT_FIRST + (unsigned)(hash % RAS_PORTS_N));
    if (hash)
        setenv("NCCL_RAS_ADDR", address, 0);
}

static void tell_agent(void *ctx, const char *why)
{
    er_fail(ctx, "%s", why);
}

/* A loss of the device ends the process in the middle of a call: unless the program has its own way
 * to say so, the job's summary gets the reason through this communicator's context. */
void er_nccl_report(struct nccl *n)
{
    struct er_device_opts *opts = &n->comm->device->opts;

    if (opts->on_lost && opts->on_lost != tell_agent)
        return;
    opts->on_lost = tell_agent;
    opts->arg = n->comm->ctx;
    n->comm->device->reporters_n++;
    n->reports = true;
}

void er_nccl_report_end(struct nccl *n)
{
    if (n->reports && --n->comm->device->reporters_n == 0)
        n->comm->device->opts.on_lost = NULL;
    n->reports = false;
}

static int open_companion(struct nccl *n, struct er_error *err)
{
    struct er_comm *comm = n->comm;
    char name[ER_COMM_NAME_MAX + 8];
    struct er_comm_opts opts = {.backend = ER_COMM_HOST,
                                .transport = comm->transport,
                                .open_timeout_us = comm->open_timeout_us,
                                .op_timeout_us = comm->op_timeout_us,
                                .name = name,
                                .address = *comm->address ? comm->address : NULL,
                                .interfaces = *comm->interfaces ? comm->interfaces : NULL,
                                .host = *comm->host ? comm->host : NULL};
    int rc;

    snprintf(name, sizeof(name), "%s.nccl", comm->name);
    rc = er_comm_open(&n->host, comm->ctx, &opts, err);
    if (rc == 0)
        n->host->hidden = ER_COMM_OPENING_OPS;
    return rc;
}

static int make_events(struct nccl *n, struct er_error *err)
{
    struct er_device *device = n->comm->device;
    int rc = er_stream_new(&n->stream, device, ER_STREAM_HIGH, err);

    if (rc == 0)
        rc = er_event_new(&n->after, device, false, err);
    for (size_t i = 0; i < ER_COMM_OPS_MAX && rc == 0; i++)
        rc = er_event_new(&n->done[i], device, false, err);
    return rc;
}

int er_nccl_open_begin(struct nccl *n, struct er_error *err)
{
    int rc;

    n->open_deadline_us = er_deadline_in(er_now_us(), n->comm->open_timeout_us);
    n->mine = calloc(1, sizeof(*n->mine));
    n->all = calloc((size_t)n->comm->size, sizeof(*n->all));
    n->all_connected = calloc((size_t)n->comm->size, 1);
    if (!n->mine || !n->all || !n->all_connected)
        return er_error_set(err, -ENOMEM, "out of memory");
    name_ras(n->comm);
    rc = er_watchdog_new(&n->dog, err);
    if (rc == 0)
        rc = make_events(n, err);
    return rc ? rc : open_companion(n, err);
}

/* ---- HELLO ---- */

/* What tells hosts apart for NCCL: NCCL_HOSTID, if it is set, alone. */
static uint64_t nccl_host(void)
{
    const char *text = getenv("NCCL_HOSTID");

    return text && *text ? er_host_id_of(text) : er_host_id();
}

static int say_hello(struct nccl *n, struct er_error *err)
{
    const struct er_comm *comm = n->comm, *parent = comm->shrink_from;
    const struct nccl *old = parent ? parent->impl : NULL;
    bool usable = old && parent->ops == comm->ops && old->handle && parent->ready;
    int version = 0, rc;

    *n->mine = (struct nccl_hello){.bytes = sizeof(*n->mine),
                                   .parent_rank = usable ? parent->rank : -1,
                                   .parent_size = usable ? parent->size : 0,
                                   .parent_generation = usable ? parent->generation : 0,
                                   .host = nccl_host()};
    snprintf(n->mine->device, sizeof(n->mine->device), "%s", er_device_info(comm->device)->id);
    rc = n->calls->version(&version, err);
    n->mine->version = version;
    if (rc == 0 && comm->rank == 0)
        rc = n->calls->make_id(n->mine->id, err);
    if (rc == 0)
        rc = er_all_gather(n->host, n->mine, sizeof(*n->mine), n->all, &n->step, err);
    return rc;
}

static int check_versions(const struct nccl *n, struct er_error *err)
{
    for (int i = 1; i < n->comm->size; i++) {
        int a = n->all[0].version, b = n->all[i].version;

        if (n->all[i].bytes != n->all[0].bytes)
            return er_error_set(err, ER_E_PROTOCOL,
                                "rank %d has another version of libelastic "
                                "than rank 0",
                                i);
        if (a != b)
            return er_error_set(err, ER_E_MISMATCH,
                                "rank %d has NCCL %d.%d.%d, rank 0 has %d.%d.%d: all ranks need "
                                "the same",
                                i, b / 10000, b / 100 % 100, b % 100, a / 10000, a / 100 % 100,
                                a % 100);
    }
    return 0;
}

/* NCCL would say the same, but to some ranks only. */
static int check_devices(const struct nccl *n, struct er_error *err)
{
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");

    if (several && *several == '1' && n->mine->version >= SAME_GPU_FROM)
        return 0;
    for (int i = 1; i < n->comm->size; i++)
        for (int k = 0; k < i; k++)
            if (n->all[i].host == n->all[k].host &&
                strncmp(n->all[i].device, n->all[k].device, ID_SHOWN) == 0)
                return er_error_set(err, ER_E_CONFIG,
                                    "ranks %d and %d use the same GPU (%.*s); NCCL wants one rank "
                                    "a GPU",
                                    k, i, ID_SHOWN - 1, n->all[i].device);
    return 0;
}

/*
 * Whether all ranks come from one communicator, in the same order, with at least one rank gone: the
 * only case that ncclCommShrink serves. The same answer on all ranks. 0 and `left_out` filled in,
 * or not.
 */
static int plan_shrink(struct nccl *n, struct er_error *err)
{
    const struct nccl_hello *all = n->all;
    int size = n->comm->size, old_n = all[0].parent_size, before = -1;

    for (int i = 0; i < size; i++) {
        if (all[i].parent_rank <= before || all[i].parent_rank >= old_n ||
            all[i].parent_size != old_n || all[i].parent_generation != all[0].parent_generation)
            return 0;
        before = all[i].parent_rank;
    }
    if (old_n <= size || old_n > ER_COMM_RANKS_MAX)
        return 0;
    n->left_out = calloc((size_t)old_n, sizeof(*n->left_out));
    if (!n->left_out)
        return er_error_set(err, -ENOMEM, "out of memory");
    for (int rank = 0, i = 0; rank < old_n; rank++) {
        if (i < size && all[i].parent_rank == rank)
            i++;
        else
            n->left_out[n->left_out_n++] = rank;
    }
    return 0;
}

/* ---- INIT ---- */

static int begin_nccl(struct nccl *n, struct er_error *err)
{
    struct nccl_init_text {
        char name[ER_COMM_NAME_MAX * 2];
    } text;
    struct er_nccl_init init = {.rank = n->comm->rank, .size = n->comm->size, .name = text.name};
    struct nccl *old;
    int rc = n->comm->device->ops->use(n->comm->device, err);

    if (rc < 0)
        return rc;
    snprintf(text.name, sizeof(text.name), "%.60s/g%llu/%s", er_world(n->comm->ctx)->job,
             (unsigned long long)n->comm->generation, n->comm->name);
    n->shrunk = n->left_out && n->phase == NCCL_PHASE_HELLO;
    if (n->shrunk) {
        old = n->comm->shrink_from->impl;
        n->shrink_deadline_us =
            er_deadline_in(er_now_us(), n->comm->open_timeout_us / SHRINK_SHARE);
        return n->calls->shrink(&n->handle, old->handle, n->left_out, n->left_out_n, text.name,
                                err);
    }
    memcpy(init.id, n->all[0].id, sizeof(init.id));
    return n->calls->begin(&n->handle, &init, err);
}

static int hear_hello(struct nccl *n, struct er_error *err)
{
    int rc = check_versions(n, err);

    if (rc == 0)
        rc = check_devices(n, err);
    if (rc == 0)
        rc = plan_shrink(n, err);
    if (rc == 0)
        rc = begin_nccl(n, err);
    return n->handle || n->shrunk ? 0 : rc; /* INIT asks how it went */
}

static int wait_init(struct nccl *n, uint64_t wait_us, struct er_error *err)
{
    struct timespec ts = {.tv_nsec = POLL_US * 1000};
    uint64_t end_us = er_deadline_in(er_now_us(), wait_us);
    int rc;

    while (n->handle) {
        rc = n->calls->status(n->handle, err);
        if (rc != ER_IN_PROGRESS || er_now_us() >= end_us)
            return rc;
        nanosleep(&ts, NULL);
    }
    return er_error_set(err, -EIO, "NCCL has not begun to connect");
}

/* A shrink may fail on some ranks only; then all start afresh, with the id that they have. */
static int say_connected(struct nccl *n, int rc, struct er_error *err)
{
    if (rc < 0 && !n->shrunk)
        return rc;
    n->connected = rc == 0;
    return er_all_gather(n->host, &n->connected, 1, n->all_connected, &n->step, err);
}

static int hear_connected(struct nccl *n, struct er_error *err)
{
    int rc;

    if (memchr(n->all_connected, 0, (size_t)n->comm->size) == NULL)
        return 0;
    if (n->handle)
        n->calls->abort(&n->handle, 1);
    n->handle = NULL;
    rc = begin_nccl(n, err);
    return n->handle ? 0 : rc; /* AFRESH asks how it went */
}

static int start_barrier(struct nccl *n, struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_BARRIER, .dtype = ER_U8}};

    return er_comm_start(n->host, &call, &n->step, err);
}

/* ---- the phases ---- */

/* Of a companion's operation: 0 done, ER_IN_PROGRESS, negative failed. */
static int wait_step(struct nccl *n, uint64_t wait_us, struct er_error *err)
{
    er_op_wait(n->step, wait_us, NULL);
    return er_op_test(n->step, err);
}

static void become_ready(struct nccl *n)
{
    int v = n->mine->version;

    snprintf(n->comm->describe, sizeof(n->comm->describe), "nccl %d.%d.%d %d ranks%s", v / 10000,
             v / 100 % 100, v % 100, n->comm->size, n->shrunk ? " (shrunk)" : "");
    n->comm->shrink_from = NULL;
}

/* What a phase waits for, and what begins the next. */
static int step_phase(struct nccl *n, uint64_t wait_us, struct er_error *err)
{
    int rc = 0;

    switch (n->phase) {
    case NCCL_PHASE_HOST:
        rc = er_comm_connect(n->host, wait_us, err);
        if (rc == 0)
            rc = say_hello(n, err);
        break;
    case NCCL_PHASE_HELLO:
        rc = wait_step(n, wait_us, err);
        if (rc == 0)
            rc = hear_hello(n, err);
        break;
    case NCCL_PHASE_INIT:
        rc = wait_init(n, wait_us, err);
        if (rc == ER_IN_PROGRESS && n->shrunk && er_now_us() >= n->shrink_deadline_us)
            rc = -ETIMEDOUT; /* it may have failed elsewhere */
        if (rc != ER_IN_PROGRESS)
            rc = say_connected(n, rc, err);
        break;
    case NCCL_PHASE_AGREE:
        rc = wait_step(n, wait_us, err);
        if (rc == 0)
            rc = hear_connected(n, err);
        break;
    case NCCL_PHASE_AFRESH:
        rc = wait_init(n, wait_us, err);
        if (rc == 0)
            rc = start_barrier(n, err);
        break;
    case NCCL_PHASE_SETTLE:
        rc = wait_step(n, wait_us, err);
        if (rc == 0)
            become_ready(n);
        break;
    case NCCL_PHASE_READY:
        return 0;
    }
    if (rc != 0)
        return rc;
    n->phase++;
    return n->phase == NCCL_PHASE_READY ? 0 : ER_IN_PROGRESS;
}

/* While NCCL connects: peers, agent, deadline. */
static int look_around(struct nccl *n, struct er_error *err)
{
    if (n->phase == NCCL_PHASE_HOST)
        return 0; /* the companion looks itself */
    if (er_host_told_to_stop(n->comm))
        return er_error_set(err, ER_E_ABORTED, "told by the agent to stop while connecting");
    if (er_now_us() >= n->open_deadline_us)
        return er_error_set(err, -ETIMEDOUT,
                            "NCCL has not connected within %.1f s (generation %llu), though all "
                            "ranks are there: NCCL_DEBUG=INFO tells more",
                            (double)n->comm->open_timeout_us / 1e6,
                            (unsigned long long)n->comm->generation);
    return n->phase == NCCL_PHASE_INIT || n->phase == NCCL_PHASE_AFRESH
               ? er_comm_status(n->host, err)
               : 0;
}

int er_nccl_open_step(struct nccl *n, uint64_t wait_us, struct er_error *err)
{
    uint64_t end_us = er_deadline_in(er_now_us(), wait_us), now;
    struct er_error why = ER_ERROR_INIT;
    int rc;

    do {
        now = er_now_us();
        rc = step_phase(n,
                        now >= end_us                  ? 0
                        : end_us - now < LOOK_SLICE_US ? end_us - now
                                                       : LOOK_SLICE_US,
                        &why);
        if (rc == ER_IN_PROGRESS) {
            int looked = look_around(n, &why);

            rc = looked < 0 ? looked : rc;
        }
    } while (rc == ER_IN_PROGRESS && er_now_us() < end_us);
    if (rc < 0) {
        n->host->ops->fail(n->host, rc, &why);
        return er_error_set(err, rc, "%s", why.text);
    }
    return rc;
}
