/* Backend `host`: opening a communicator and connecting it. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/host_hosts.h"
#include "runtime/host_internal.h"
#include "runtime/host_shm.h"
#include "runtime/host_tcp.h"

enum {
    CONNECT_SLICE_US = 5000,
    SLICE_NS = 100000, /* of the progress thread's CPU time, the least there is */
    THREAD_STACK_BYTES = 256 << 10
};

static uint64_t host_of(const struct er_comm *comm)
{
    return *comm->host ? er_host_id_of(comm->host) : er_host_id();
}

static int make_segment(const struct er_mesh *mesh)
{
    return er_mesh_transport(mesh) == ER_TRANSPORT_SHM ? er_shm_create(er_mesh_size(mesh))
                                                       : er_hosts_create(mesh);
}

int er_host_open(struct er_comm *comm, struct er_error *err)
{
    struct host *h = calloc(1, sizeof(*h));
    struct er_mesh_config config = {.ctx = comm->ctx,
                                    .rank = comm->rank,
                                    .size = comm->size,
                                    .generation = comm->generation,
                                    .name = comm->name,
                                    .listen = {.transport = comm->transport,
                                               .host = host_of(comm),
                                               .address = comm->address,
                                               .interfaces = comm->interfaces,
                                               .local = comm->one_host},
                                    .pace_bytes_per_s = comm->pace_bytes_per_s,
                                    .make_segment = make_segment};

    if (!h)
        return er_error_set(err, -ENOMEM, "out of memory");
    comm->impl = h;
    h->comm = comm;
    h->sent = calloc((size_t)comm->size, sizeof(*h->sent));
    h->received = calloc((size_t)comm->size, sizeof(*h->received));
    if (!h->sent || !h->received)
        return er_error_set(err, -ENOMEM, "out of memory");
    h->deadline_us = er_deadline_in(er_now_us(), comm->open_timeout_us);
    return er_mesh_open(&h->mesh, &config, err);
}

static int count_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/*
 * The progress thread works for microseconds at a time, between which its core computes. With a
 * short slice it runs when its bytes have come, instead of when the computation's slice
 * (milliseconds) is over. Source: sched(7) and sched_setattr(2), Linux 6.12 and newer; older ones
 * ignore it.
 */
static void ask_for_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice_ns, deadline_ns, period_ns;
    } attr = {.size = sizeof(attr), .slice_ns = SLICE_NS};

    if (sched_getscheduler(0) != SCHED_OTHER)
        return;
    attr.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *progress(void *arg)
{
    ask_for_short_slices();
    er_host_progress(arg);
    return NULL;
}

/* The progress thread takes no signals: they belong to the program. */
static int start_thread(struct host *h, struct er_error *err)
{
    pthread_attr_t attr;
    sigset_t all, before;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&h->thread, &attr, progress, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return er_error_set(err, -rc, "start the progress thread: %s", er_error_name(-rc));
    pthread_setname_np(h->thread, "er-progress");
    h->thread_runs = true;
    return 0;
}

static int become_ready(struct host *h, struct er_error *err)
{
    struct er_comm *comm = h->comm;
    enum er_comm_transport transport = er_mesh_transport(h->mesh);
    bool chain = transport != ER_TRANSPORT_SHM && er_hosts_useful(h->mesh);
    int rc;

    h->ops = transport == ER_TRANSPORT_SHM ? &er_host_shm_ops
             : chain                       ? &er_host_hosts_ops
                                           : &er_host_tcp_ops;
    rc = h->ops->open(&h->transport, comm, h->mesh, err);
    if (rc < 0)
        return rc;
    if (chain && transport == ER_TRANSPORT_AUTO)
        snprintf(comm->describe, sizeof(comm->describe), "host/shm+tcp %d ranks on %d hosts",
                 comm->size, er_hosts_count(h->mesh));
    else
        snprintf(comm->describe, sizeof(comm->describe), "host/%s %d ranks",
                 transport == ER_TRANSPORT_SHM ? "shm" : "tcp", comm->size);
    h->spin = er_world(h->comm->ctx)->local_size <= count_cpus();
    return start_thread(h, err);
}

int er_host_connect(struct er_comm *comm, uint64_t wait_us, struct er_error *err)
{
    struct host *h = comm->impl;
    uint64_t end_us = er_deadline_in(er_now_us(), wait_us), now;
    char missing[256];
    int rc;

    do {
        now = er_now_us();
        rc = er_mesh_step(h->mesh,
                          now >= end_us                     ? 0
                          : end_us - now < CONNECT_SLICE_US ? end_us - now
                                                            : CONNECT_SLICE_US,
                          err);
        if (rc == 0)
            rc = become_ready(h, err);
        else if (rc > 0 && er_host_told_to_stop(comm))
            rc = er_error_set(err, ER_E_ABORTED, "told by the agent to stop while connecting");
        now = er_now_us();
        if (rc > 0 && now >= h->deadline_us) {
            er_mesh_missing(h->mesh, missing, sizeof(missing));
            rc = er_error_set(err, -ETIMEDOUT, "%s within %.1f s (generation %llu)", missing,
                              (double)comm->open_timeout_us / 1e6,
                              (unsigned long long)comm->generation);
        }
    } while (rc > 0 && now < end_us);
    if (rc < 0)
        er_mesh_tell(h->mesh, ER_MESH_FAILED, rc, 0, err ? err->text : "connecting failed");
    return rc;
}
