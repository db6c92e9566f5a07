#include "trainer/ps_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "trainer/ps_wire.h"

#define LOOK_MS      50 /* at the agent's notice, while waiting */
#define SOCKET_BYTES (4 << 20)

struct er_ps_client {
    const struct er_ctx *ctx; /* borrowed; may be NULL */
    uint32_t worker;
    uint64_t incarnation, seq;
    bool told; /* server 0, that the membership changes */
    int servers;
    struct {
        int fd;
        struct er_ps_extent extent;
    } * server; /* owned */
};

/* ---- bytes ---- */

static int gone(int server, struct er_error *err)
{
    return er_error_set(err, ER_E_PEER_LOST, "parameter server %d closed the connection", server);
}

/* 1: not yet. */
static int wait_once(const struct er_ps_client *c, int server, short events, struct er_error *err)
{
    struct pollfd p = {.fd = c->server[server].fd, .events = events};
    int rc = poll(&p, 1, LOOK_MS);

    if (rc > 0)
        return 0;
    if (rc < 0 && errno != EINTR)
        return er_error_errno(err, "wait for parameter server %d", server);
    if (c->ctx && er_notice(c->ctx) == ER_NOTICE_STOP)
        return er_error_set(err, ER_E_ABORTED, "the generation is over");
    return 1;
}

static int wait_for(const struct er_ps_client *c, int server, short events, struct er_error *err)
{
    int rc;

    do {
        rc = wait_once(c, server, events, err);
    } while (rc == 1);
    return rc;
}

/* 1: again; 0: it is a failure, told. */
static int after(const struct er_ps_client *c, int server, ssize_t n, short events,
                 struct er_error *err)
{
    if (n < 0 && errno == EINTR)
        return 0;
    if (n < 0 && errno == EAGAIN)
        return wait_for(c, server, events, err);
    return gone(server, err);
}

static int put(const struct er_ps_client *c, int server, const struct er_ps_frame *frame,
               const void *body, size_t bytes, struct er_error *err)
{
    size_t done = 0, head = sizeof(*frame);
    int rc = 0;

    while (rc == 0 && done < head + bytes) {
        size_t in_head = done < head ? head - done : 0, in_body = done > head ? done - head : 0;
        struct iovec parts[2] = {
            {(char *)(uintptr_t)frame + (head - in_head), in_head},
            {body ? (char *)(uintptr_t)body + in_body : NULL, bytes - in_body}};
        struct msghdr msg = {.msg_iov = parts, .msg_iovlen = bytes ? 2 : 1};
        ssize_t n = sendmsg(c->server[server].fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n > 0)
            done += (size_t)n;
        else
            rc = after(c, server, n, POLLOUT, err);
    }
    return rc;
}

static int get(const struct er_ps_client *c, int server, void *to, size_t bytes,
               struct er_error *err)
{
    size_t done = 0;
    int rc = 0;

    while (rc == 0 && done < bytes) {
        ssize_t n = recv(c->server[server].fd, (char *)to + done, bytes - done, MSG_DONTWAIT);

        if (n > 0)
            done += (size_t)n;
        else
            rc = after(c, server, n, POLLIN, err);
    }
    return rc;
}

static struct er_ps_frame frame_of(const struct er_ps_client *c, enum er_ps_frame_type type)
{
    return (struct er_ps_frame){.magic = ER_PS_MAGIC, .type = type, .worker = c->worker};
}

static int get_frame(const struct er_ps_client *c, int server, enum er_ps_frame_type type,
                     struct er_ps_frame *ret, struct er_error *err)
{
    int rc = get(c, server, ret, sizeof(*ret), err);

    if (rc == 0 && (ret->magic != ER_PS_MAGIC || ret->type != type))
        return er_error_set(err, ER_E_PROTOCOL, "parameter server %d sent something else", server);
    return rc;
}

/* ---- connecting ---- */

static int dial(struct er_ps_client *c, int server, const struct er_host_record *record,
                struct er_error *err)
{
    uint64_t host = er_host_id();
    int bytes = SOCKET_BYTES;

    for (int i = 0; i < record->addr_n; i++) {
        int fd = -1, failed = 0, rc;
        socklen_t n = sizeof(failed);

        if (!er_host_reaches(record, i, host))
            continue;
        rc = er_host_dial(record, i, &fd);
        if (rc < 0)
            continue;
        c->server[server].fd = fd;
        if (rc == ER_IN_PROGRESS && (rc = wait_for(c, server, POLLOUT, err)) < 0)
            return rc;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n) == 0 && failed == 0) {
            er_host_tune(fd, record->host == host, 0);
            (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
            return 0;
        }
        er_cleanup_fd(&c->server[server].fd);
    }
    return er_error_set(err, ER_E_PEER_LOST, "parameter server %d cannot be reached", server);
}

static int greet(struct er_ps_client *c, int server, const struct er_flat *flat,
                 const struct er_host_record *record, struct er_error *err)
{
    struct er_ps_frame frame = frame_of(c, ER_PS_FRAME_HELLO);
    const struct er_ps_extent want = er_ps_extent_of(flat->total, server, c->servers);
    int rc;

    frame.a[0] = c->incarnation;
    frame.a[1] = flat->total;
    frame.a[2] = er_ps_layout(flat);
    rc = put(c, server, &frame, record->secret, sizeof(record->secret), err);
    if (rc == 0)
        rc = get_frame(c, server, ER_PS_FRAME_HELLO, &frame, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "greeting");
    c->server[server].extent = (struct er_ps_extent){frame.a[0], frame.a[1]};
    if (frame.a[0] != want.first || frame.a[1] != want.count)
        return er_error_set(err, ER_E_MISMATCH,
                            "parameter server %d holds %lu elements from %lu on, %zu from %zu on "
                            "are expected",
                            server, (unsigned long)frame.a[1], (unsigned long)frame.a[0],
                            want.count, want.first);
    return 0;
}

ER_CLEANUP_FOR(er_ps_client_close, struct er_ps_client)

int er_ps_client_open(struct er_ps_client **ret, const struct er_ctx *ctx, uint32_t worker,
                      const struct er_flat *flat, const struct er_host_record *records, int servers,
                      struct er_error *err)
{
    ER_CLEANUP(er_ps_client_close_cleanup) struct er_ps_client *c = calloc(1, sizeof(*c));
    int rc = 0;

    if (c)
        c->server = calloc((size_t)servers, sizeof(*c->server));
    if (!c || !c->server)
        return er_error_set(err, -ENOMEM, "parameter servers: out of memory");
    c->ctx = ctx;
    c->worker = worker;
    c->servers = servers;
    for (int i = 0; i < servers; i++)
        c->server[i].fd = -1;
    if (getrandom(&c->incarnation, sizeof(c->incarnation), 0) != (ssize_t)sizeof(c->incarnation))
        return er_error_errno(err, "random number");
    for (int i = 0; i < servers && rc == 0; i++) {
        rc = dial(c, i, &records[i], err);
        if (rc == 0)
            rc = greet(c, i, flat, &records[i], err);
    }
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(c);
    return 0;
}

void er_ps_client_close(struct er_ps_client *c)
{
    int saved = errno;

    if (c) {
        for (int i = 0; c->server && i < c->servers; i++)
            er_cleanup_fd(&c->server[i].fd);
        free(c->server);
        free(c);
    }
    errno = saved;
}

/* ---- work ---- */

/* Of a change of the membership, that is: at a STOP nothing is said any more. */
static bool is_told(const struct er_ps_client *c)
{
    enum er_notice notice = c->ctx ? er_notice(c->ctx) : ER_NOTICE_NONE;

    return notice == ER_NOTICE_REJOIN || notice == ER_NOTICE_DRAIN;
}

/* Until server 0 answers. A change that this worker learns of meanwhile is passed on: the answer
 * may depend on it. */
static int wait_for_lease(struct er_ps_client *c, struct er_error *err)
{
    const struct er_ps_frame told = frame_of(c, ER_PS_FRAME_TOLD);
    int rc;

    do {
        bool news = !c->told && is_told(c);

        c->told = c->told || news;
        rc = news ? put(c, 0, &told, NULL, 0, err) : 0;
        if (rc == 0)
            rc = wait_once(c, 0, POLLIN, err);
    } while (rc == 1);
    return rc;
}

int er_ps_client_lease(struct er_ps_client *c, enum er_ps_answer *ret, uint64_t *ret_number,
                       struct er_error *err)
{
    struct er_ps_frame frame = frame_of(c, ER_PS_FRAME_LEASE);
    int rc;

    if (c->ctx && er_notice(c->ctx) == ER_NOTICE_STOP) /* also when nothing is waited for */
        return er_error_set(err, ER_E_ABORTED, "the generation is over");
    c->told = is_told(c);
    frame.a[0] = c->told;
    rc = put(c, 0, &frame, NULL, 0, err);
    if (rc == 0)
        rc = wait_for_lease(c, err);
    if (rc == 0)
        rc = get_frame(c, 0, ER_PS_FRAME_LEASE, &frame, err);
    if (rc < 0)
        return rc;
    if (frame.a[0] > ER_PS_DONE)
        return er_error_set(err, ER_E_PROTOCOL, "parameter server 0 sent something else");
    *ret = (enum er_ps_answer)frame.a[0];
    *ret_number = frame.a[1];
    return 0;
}

/* Asked of all at once, so that they send side by side. */
int er_ps_client_pull(struct er_ps_client *c, float *values, uint64_t steps, struct er_error *err)
{
    struct er_ps_frame frame = frame_of(c, ER_PS_FRAME_PULL);
    int rc = 0;

    frame.a[0] = steps;
    for (int i = 0; i < c->servers && rc == 0; i++)
        rc = put(c, i, &frame, NULL, 0, err);
    for (int i = 0; i < c->servers && rc == 0; i++) {
        const struct er_ps_extent *extent = &c->server[i].extent;

        rc = get_frame(c, i, ER_PS_FRAME_PULL, &frame, err);
        if (rc == 0)
            rc = get(c, i, values + extent->first, extent->count * sizeof(float), err);
    }
    return rc < 0 ? er_error_wrap(err, rc, "pull") : 0;
}

/* One round: a frame to every server, each with its part of `grads` when there are any, then an
 * answer from every server. */
static int round_of(struct er_ps_client *c, const struct er_ps_frame *frame, const float *grads,
                    struct er_error *err)
{
    struct er_ps_frame answer;
    int rc = 0;

    for (int i = 0; i < c->servers && rc == 0; i++) {
        const struct er_ps_extent *extent = &c->server[i].extent;

        rc = put(c, i, frame, grads ? grads + extent->first : NULL,
                 grads ? extent->count * sizeof(float) : 0, err);
    }
    for (int i = 0; i < c->servers && rc == 0; i++)
        rc = get_frame(c, i, frame->type, &answer, err);
    return rc;
}

int er_ps_client_stage(struct er_ps_client *c, const float *grads, const struct er_ps_push *push,
                       struct er_error *err)
{
    struct er_ps_frame frame = frame_of(c, ER_PS_FRAME_STAGE);
    int rc;

    frame.a[0] = ++c->seq;
    frame.a[1] = push->part;
    memcpy(&frame.a[2], &push->weight, sizeof(push->weight));
    frame.a[3] = push->sees;
    rc = round_of(c, &frame, grads, err);
    return rc < 0 ? er_error_wrap(err, rc, "push") : 0;
}

int er_ps_client_commit(struct er_ps_client *c, struct er_error *err)
{
    struct er_ps_frame frame = frame_of(c, ER_PS_FRAME_COMMIT);
    int rc;

    frame.a[0] = c->seq;
    rc = round_of(c, &frame, NULL, err);
    return rc < 0 ? er_error_wrap(err, rc, "commit") : 0;
}
