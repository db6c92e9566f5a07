#include "runtime/host_tcp.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "runtime/host_algo.h"
#include "runtime/host_tcp_internal.h"

static void close_tcp(struct er_transport *t)
{
    if (!t)
        return;
    er_pool_free(t->pool);
    free(t->lane);
    free(t->poll);
    free(t->src);
    free(t);
}

ER_CLEANUP_FOR(close_tcp, struct er_transport)

static int open_tcp(struct er_transport **ret, struct er_comm *comm, struct er_mesh *mesh,
                    struct er_error *err)
{
    ER_CLEANUP(close_tcp_cleanup) struct er_transport *t = calloc(1, sizeof(*t));
    size_t size = (size_t)comm->size;
    int rc;

    if (!t)
        return er_error_set(err, -ENOMEM, "TCP: out of memory");
    t->comm = comm;
    t->mesh = mesh;
    t->lane = calloc(size, sizeof(*t->lane));
    t->poll = calloc(2 * size, sizeof(*t->poll));
    t->src = calloc(size, sizeof(*t->src));
    if (!t->lane || !t->poll || !t->src)
        return er_error_set(err, -ENOMEM, "TCP: out of memory");
    rc = er_pool_new(&t->pool, size * RING_BYTES + GRAIN_BYTES, err);
    if (rc < 0)
        return rc;
    t->block = er_pool_alloc(t->pool, GRAIN_BYTES, 4096);
    for (int i = 0; i < comm->size; i++) {
        t->lane[i].ring = er_pool_alloc(t->pool, RING_BYTES, 4096);
        t->lane[i].fd = i == comm->rank ? -1 : er_mesh_fd(mesh, i, ER_MESH_DATA);
    }
    *ret = ER_TAKE(t);
    return 0;
}

static void begin_tcp(struct er_transport *t, struct er_op *const *ops, int ops_n)
{
    t->ops = ops;
    t->ops_n = ops_n;
    t->op = er_op_is_pair(&ops[0]->desc) ? NULL : ops[0];
    t->width = er_dtype_size((enum er_dtype)ops[0]->desc.dtype);
    t->part_n = t->reduced = 0;
    t->part_to = -1;
    t->whole = NULL;
    for (int i = 0; i < t->comm->size; i++) {
        struct lane *l = &t->lane[i];
        struct lane fresh = {
            .fd = l->fd, .closed = l->closed, .ring = l->ring, .out = t->op, .in = t->op};

        *l = fresh;
        if (!t->op) {
            er_tcp_load_out(t, l);
            er_tcp_load_in(t, l);
        }
    }
    if (t->op)
        er_tcp_plan(t);
}

static size_t out_total(const struct lane *l)
{
    return l->out ? DESC_BYTES + l->out_first_n + l->out_second_n : 0;
}

static size_t in_total(const struct lane *l)
{
    return l->in ? DESC_BYTES + l->in_first_n + l->in_second_n : 0;
}

/* How far we may send: the second stream only as far as it is reduced. */
static size_t out_limit(const struct er_transport *t, const struct lane *l)
{
    return l->out ? DESC_BYTES + l->out_first_n + smaller(l->out_second_n, t->reduced) : 0;
}

/* How far we may receive: the ring holds RING_BYTES that are not yet reduced. */
static size_t in_limit(const struct er_transport *t, const struct lane *l)
{
    if (!l->in || l->in_first || l->in_first_n <= t->reduced + RING_BYTES)
        return in_total(l);
    return DESC_BYTES + t->reduced + RING_BYTES;
}

static void add_iov(struct iovec *iov, int *n, const char *base, size_t from, size_t to)
{
    if (to > from) {
        iov[(*n)++] = (struct iovec){.iov_base = (void *)(uintptr_t)(base + from),
                                     .iov_len = smaller(to - from, CALL_BYTES)};
    }
}

/* Bytes [from, to) of a range that begins at `start`, relative to it. */
static size_t inside(size_t at, size_t start, size_t n)
{
    return at <= start ? 0 : smaller(at - start, n);
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* Out of our own ring, when the part is only passed on. */
static void add_out_second(struct iovec *iov, int *iov_n, const struct er_transport *t,
                           const struct lane *l, size_t to)
{
    size_t from = inside(l->sent, DESC_BYTES + l->out_first_n, l->out_second_n);

    if (t->part_to < 0) {
        add_iov(iov, iov_n, l->out_second, from, to);
    } else if (to > from) {
        size_t at = from % RING_BYTES;

        add_iov(iov, iov_n, l->out_second + at, 0, smaller(to - from, RING_BYTES - at));
    }
}

static bool send_some(struct er_transport *t, struct lane *l)
{
    size_t to = out_limit(t, l), second = DESC_BYTES + l->out_first_n;
    struct iovec iov[3];
    struct msghdr msg = {.msg_iov = iov};
    int iov_n = 0;
    ssize_t n;

    if (l->fd < 0 || l->closed || l->sent >= to)
        return false;
    add_iov(iov, &iov_n, (const char *)&l->out->desc, inside(l->sent, 0, DESC_BYTES), DESC_BYTES);
    add_iov(iov, &iov_n, l->out_first, inside(l->sent, DESC_BYTES, l->out_first_n), l->out_first_n);
    if (iov_n == 0 || l->out_first_n <= CALL_BYTES) /* what was cut must come before the second */
        add_out_second(iov, &iov_n, t, l, to - second);
    msg.msg_iovlen = (size_t)iov_n;
    n = sendmsg(l->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) {
        l->closed |= n < 0 && !would_block();
        return false;
    }
    l->sent += (size_t)n;
    if (!t->op && l->sent == out_total(l))
        er_tcp_load_out(t, l);
    return true;
}

/* Where bytes of the first stream go: in place, or the free stretch of the ring. */
static void add_in_first(struct iovec *iov, int *iov_n, const struct lane *l, size_t to)
{
    size_t from = inside(l->got, DESC_BYTES, l->in_first_n);

    if (l->in_first) {
        add_iov(iov, iov_n, l->in_first, from, to);
    } else {
        size_t at = from % RING_BYTES, room = RING_BYTES - at;

        add_iov(iov, iov_n, l->ring + at, 0, smaller(to - from, room));
    }
}

static int compare(struct er_transport *t, struct lane *l, struct er_error *err)
{
    l->checked = true;
    return er_op_agree(&l->in->desc, t->comm->rank, &l->desc, (int)(l - t->lane), err);
}

static int receive_some(struct er_transport *t, struct lane *l, bool *moved, struct er_error *err)
{
    size_t to = in_limit(t, l), second = DESC_BYTES + l->in_first_n;
    struct iovec iov[2];
    struct msghdr msg = {.msg_iov = iov};
    int iov_n = 0;
    ssize_t n;
    int rc;

    if (l->fd < 0 || l->closed || l->got >= to)
        return 0;
    add_iov(iov, &iov_n, (const char *)&l->desc, inside(l->got, 0, DESC_BYTES), DESC_BYTES);
    if (l->got < second)
        add_in_first(iov, &iov_n, l, smaller(to, second) - DESC_BYTES);
    else
        add_iov(iov, &iov_n, l->in_second, l->got - second, to - second);
    msg.msg_iovlen = (size_t)iov_n;
    n = recvmsg(l->fd, &msg, MSG_DONTWAIT);
    if (n <= 0) {
        l->closed |= n == 0 || !would_block();
        return 0;
    }
    l->got += (size_t)n;
    *moved = true;
    rc = !l->checked && l->got >= DESC_BYTES ? compare(t, l, err) : 0;
    if (rc == 0 && !t->op && l->got == in_total(l))
        er_tcp_load_in(t, l);
    return rc;
}

/* Our own contribution at `own`, the peers' in their rings. */
static void reduce_block(struct er_transport *t, const char *own, char *home, size_t ring_at,
                         size_t n)
{
    bool aside = home == own && t->comm->rank > 1;

    for (int i = 0; i < t->comm->size; i++)
        t->src[i] = i == t->comm->rank ? own : t->lane[i].ring + ring_at;
    /* In place our contribution must last until its turn, which is at once for ranks 0 and 1. */
    er_algo_reduce(aside ? t->block : home, t->src, t->comm->size, n / t->width,
                   (enum er_dtype)t->op->desc.dtype, (enum er_reduce)t->op->desc.reduce);
    if (aside)
        memcpy(home, t->block, n);
}

/* What has come from all peers, in whole elements. */
static size_t contributed(const struct er_transport *t)
{
    size_t n = t->part_n;

    for (int i = 0; i < t->comm->size; i++)
        if (i != t->comm->rank)
            n = smaller(n, inside(t->lane[i].got, DESC_BYTES, t->part_n));
    return n / t->width * t->width;
}

/* Of our part, how much has gone to the rank that wants it. */
static size_t passed_on(const struct er_transport *t)
{
    const struct lane *l = &t->lane[t->part_to];

    return inside(l->sent, DESC_BYTES + l->out_first_n, l->out_second_n);
}

static bool reduce_some(struct er_transport *t)
{
    size_t to = contributed(t), from = t->reduced;

    if (t->part_to >= 0) /* what is not yet sent stays in the ring */
        to = smaller(to, passed_on(t) + RING_BYTES);
    if (to < t->part_n)
        to -= to % GRAIN_BYTES;
    while (t->reduced < to) {
        size_t n = smaller(to - t->reduced, GRAIN_BYTES - t->reduced % GRAIN_BYTES);
        size_t at = t->reduced % RING_BYTES;

        reduce_block(t, t->own + t->reduced, t->part + (t->part_to < 0 ? t->reduced : at), at, n);
        t->reduced += n;
    }
    return t->reduced > from;
}

static void reduce_whole(struct er_transport *t)
{
    size_t bytes = er_op_bytes(&t->op->desc);

    for (size_t at = 0; at < bytes; at += GRAIN_BYTES)
        reduce_block(t, t->whole + at, (char *)t->op->out + at, at,
                     smaller(bytes - at, GRAIN_BYTES));
    t->whole = NULL;
}

static bool lane_done(const struct lane *l)
{
    return l->fd < 0 || (l->sent == out_total(l) && l->got == in_total(l));
}

static int step_tcp(struct er_transport *t, struct er_error *err)
{
    bool moved = false, lanes_done = true;

    for (int i = 0; i < t->comm->size; i++)
        moved |= send_some(t, &t->lane[i]);
    for (int i = 0; i < t->comm->size; i++) {
        int rc = receive_some(t, &t->lane[i], &moved, err);

        if (rc < 0)
            return rc;
        lanes_done = lanes_done && lane_done(&t->lane[i]);
    }
    if (t->part_n > 0)
        moved |= reduce_some(t);
    if (lanes_done && t->reduced == t->part_n) {
        if (t->whole)
            reduce_whole(t);
        return 0;
    }
    return moved ? ER_STEP_MOVED : ER_STEP_BLOCKED;
}

static bool needs_tcp(const struct er_transport *t, int peer)
{
    return !lane_done(&t->lane[peer]);
}

static bool broken_tcp(const struct er_transport *t, int peer)
{
    return t->lane[peer].closed;
}

static const struct er_op *sending_tcp(const struct er_transport *t, int peer)
{
    return t->lane[peer].out;
}

static const struct er_op *receiving_tcp(const struct er_transport *t, int peer)
{
    return t->lane[peer].in;
}

/* So many bytes make a socket readable. 1 but during a wait: others wait for the socket too. */
static void set_low_water(int fd, size_t bytes)
{
    int value = (int)bytes;

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value));
}

/* What comes without our doing. Not both streams at once: a peer's second one needs its first ones,
 * ours among them, and ours needs the peer's. */
static size_t low_water(const struct er_transport *t, const struct lane *l)
{
    size_t to = in_limit(t, l), second = DESC_BYTES + l->in_first_n;

    return smaller((l->got < second ? smaller(to, second) : to) - l->got, BULK_BYTES);
}

static void wait_tcp(struct er_transport *t, uint64_t us, bool bulk)
{
    nfds_t n = 0;

    for (int i = 0; i < t->comm->size; i++) {
        const struct lane *l = &t->lane[i];
        short events = 0;

        if (l->fd < 0)
            continue;
        if (l->sent < out_limit(t, l))
            events |= POLLOUT;
        if (l->got < in_limit(t, l))
            events |= POLLIN;
        if (bulk && events & POLLIN && !l->closed)
            set_low_water(l->fd, low_water(t, l));
        if (!l->closed && events)
            t->poll[n++] = (struct pollfd){.fd = l->fd, .events = events};
        if (er_mesh_peer(t->mesh, i)->life == ER_MESH_ALIVE)
            t->poll[n++] =
                (struct pollfd){.fd = er_mesh_fd(t->mesh, i, ER_MESH_CONTROL), .events = POLLIN};
    }
    poll(t->poll, n, er_poll_ms(0, us));
    for (nfds_t i = 0; bulk && i < n; i++)
        if (t->poll[i].events & POLLIN)
            set_low_water(t->poll[i].fd, 1);
}

const struct er_transport_ops er_host_tcp_ops = {
    .open = open_tcp,
    .begin = begin_tcp,
    .step = step_tcp,
    .needs = needs_tcp,
    .broken = broken_tcp,
    .sending = sending_tcp,
    .receiving = receiving_tcp,
    .eager_bytes = ER_TCP_EAGER_BYTES,
    .wait = wait_tcp,
    .close = close_tcp,
};
