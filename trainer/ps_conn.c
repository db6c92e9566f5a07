#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "trainer/ps_server_internal.h"

#define STRANGER_TIMEOUT_US (10 * ER_US_PER_S)
#define SOCKET_BYTES        (4 << 20)
#define CONNS_MAX           (4 * ER_PS_WORKERS_MAX)
#define STRANGERS_MAX       64 /* one more, and the oldest goes: descriptors are the program's */

/* ---- connections ---- */

struct er_ps_conn *er_ps_conn_new(struct er_ps_server *s, int fd, enum er_ps_conn_kind kind)
{
    struct er_ps_conn *conn = calloc(1, sizeof(*conn));
    int bytes = SOCKET_BYTES;

    if (!conn)
        return NULL;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    *conn =
        (struct er_ps_conn){.next = s->conns, .fd = fd, .kind = kind, .deadline_us = ER_FOREVER};
    s->conns = conn;
    return conn;
}

/* Has not proved to know the secret; what it has been sent is nothing. */
static bool is_stranger(const struct er_ps_conn *conn)
{
    return !conn->over && conn->kind == ER_PS_STRANGER && conn->deadline_us != ER_FOREVER &&
           conn->out_bytes == 0;
}

/* False: no room for one more. The list is by age, the newest first. */
static bool make_room(struct er_ps_server *s)
{
    struct er_ps_conn *oldest = NULL;
    size_t n = 0, strangers = 0;

    for (struct er_ps_conn *conn = s->conns; conn; conn = conn->next) {
        n++;
        if (!is_stranger(conn))
            continue;
        strangers++;
        oldest = conn;
    }
    if (strangers >= STRANGERS_MAX)
        er_ps_conn_close(s, oldest);
    return n < CONNS_MAX;
}

void er_ps_accept(struct er_ps_server *s, int listener, uint64_t now_us)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct er_ps_conn *conn = NULL;

    if (fd < 0)
        return;
    er_host_tune(fd, false, 0);
    if ((listener != s->listen_fd[0] || er_fd_peer_is_own(fd)) && make_room(s))
        conn = er_ps_conn_new(s, fd, ER_PS_STRANGER);
    if (conn)
        conn->deadline_us = now_us + STRANGER_TIMEOUT_US;
    else
        close(fd);
}

void er_ps_conn_close(struct er_ps_server *s, struct er_ps_conn *conn)
{
    if (conn->over)
        return;
    conn->over = true;
    er_cleanup_fd(&conn->fd);
    if (conn->kind == ER_PS_WORKER)
        er_ps_lost(s, conn->worker);
    else if (conn->kind == ER_PS_ASKED)
        er_ps_told(s, conn->worker, -1);
}

void er_ps_conn_sweep(struct er_ps_server *s)
{
    struct er_ps_conn **at = &s->conns;

    while (*at) {
        struct er_ps_conn *conn = *at;

        if (!conn->over) {
            at = &conn->next;
            continue;
        }
        *at = conn->next;
        er_cleanup_fd(&conn->fd);
        free(conn);
    }
}

bool er_ps_sending(const struct er_ps_server *s)
{
    for (const struct er_ps_conn *c = s->conns; c; c = c->next) {
        if (!c->over && c->out_bytes > 0 && c->out_body)
            return true;
    }
    return false;
}

/* ---- out ---- */

static void flush_out(struct er_ps_server *s, struct er_ps_conn *conn)
{
    while (conn->out_n < conn->out_bytes) {
        size_t head = sizeof(conn->out), n = conn->out_n, in_body = n > head ? n - head : 0;
        const char *body = conn->out_body;
        struct iovec parts[2] = {
            {(char *)&conn->out + (n < head ? n : head), n < head ? head - n : 0},
            {(void *)(uintptr_t)(body ? body + in_body : NULL), conn->out_bytes - head - in_body}};
        struct msghdr msg = {.msg_iov = parts, .msg_iovlen = conn->out_body ? 2 : 1};
        ssize_t sent = sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (sent < 0) {
            er_ps_conn_close(s, conn);
            return;
        }
        conn->out_n += (size_t)sent;
    }
    conn->out_bytes = conn->out_n = 0;
    conn->out_body = NULL;
}

void er_ps_answer(struct er_ps_conn *conn, enum er_ps_frame_type type, const uint64_t *a, size_t n,
                  const void *body, size_t bytes)
{
    conn->out = (struct er_ps_frame){.magic = ER_PS_MAGIC, .type = type, .worker = conn->worker};
    memcpy(conn->out.a, a, n * sizeof(*a));
    conn->out_body = bytes ? body : NULL;
    conn->out_n = 0;
    conn->out_bytes = sizeof(conn->out) + bytes;
}

/* ---- frames ---- */

/* What follows the frame's head: where it goes. false: not a frame that may come now. */
typedef bool (*begin_fn)(struct er_ps_server *s, struct er_ps_conn *conn);
/* The frame is here, with all that follows. */
typedef void (*end_fn)(struct er_ps_server *s, struct er_ps_conn *conn);

static bool begin_secret(struct er_ps_server *s, struct er_ps_conn *conn)
{
    conn->body = conn->secret;
    conn->body_bytes = sizeof(conn->secret);
    return conn->kind == ER_PS_STRANGER;
}

static bool knows_secret(const struct er_ps_server *s, const struct er_ps_conn *conn)
{
    unsigned difference = 0;

    for (size_t i = 0; i < sizeof(conn->secret); i++)
        difference |= (unsigned)(conn->secret[i] ^ s->self.secret[i]);
    return difference == 0;
}

/* A new incarnation takes the worker's place once it is settled what became of the old one's push.
 */
static void end_hello(struct er_ps_server *s, struct er_ps_conn *conn)
{
    const struct er_ps_frame *f = &conn->in;
    struct er_ps_worker *w = &s->workers[f->worker % ER_PS_WORKERS_MAX];
    const uint64_t extent[2] = {s->extent.first, s->extent.count};

    if (!knows_secret(s, conn) || f->worker >= ER_PS_WORKERS_MAX ||
        f->a[1] != s->opts.flat->total || f->a[2] != s->layout) {
        er_ps_conn_close(s, conn);
        return;
    }
    if (w->conn)
        er_ps_conn_close(s, w->conn);
    if (w->state != ER_PS_IDLE) {
        conn->deadline_us = ER_FOREVER; /* er_ps_conn_step() comes back to it */
        return;
    }
    if (w->known && w->incarnation != f->a[0]) {
        w->old_incarnation = w->incarnation;
        w->old_committed = w->committed;
        w->committed = 0;
    }
    w->known = true;
    w->incarnation = f->a[0];
    w->conn = conn;
    conn->kind = ER_PS_WORKER;
    conn->worker = f->worker;
    conn->deadline_us = ER_FOREVER;
    conn->in_n = conn->body_n = 0;
    er_ps_answer(conn, ER_PS_FRAME_HELLO, extent, 2, NULL, 0);
}

static bool begin_plain(struct er_ps_server *s, struct er_ps_conn *conn)
{
    return conn->kind == ER_PS_WORKER && conn->out_bytes == 0;
}

static void end_lease(struct er_ps_server *s, struct er_ps_conn *conn)
{
    if (s->opts.index != 0 ||
        s->table.worker[conn->worker].held) { /* it is not done with its last */
        er_ps_conn_close(s, conn);
        return;
    }
    if (conn->in.a[0] != 0)
        er_ps_table_told(&s->table, conn->worker);
    conn->wants_lease = true;
}

/* Beside what it waits for. */
static bool begin_told(struct er_ps_server *s, struct er_ps_conn *conn)
{
    return conn->kind == ER_PS_WORKER && s->opts.index == 0;
}

static void end_told(struct er_ps_server *s, struct er_ps_conn *conn)
{
    er_ps_table_told(&s->table, conn->worker);
}

static void end_pull(struct er_ps_server *s, struct er_ps_conn *conn)
{
    conn->wants_pull = true;
}

static bool begin_stage(struct er_ps_server *s, struct er_ps_conn *conn)
{
    struct er_ps_worker *w = &s->workers[conn->worker];
    float **stage = &s->stage[conn->worker];
    double weight;

    memcpy(&weight, &conn->in.a[2], sizeof(weight));
    if (!begin_plain(s, conn) || w->state != ER_PS_IDLE || conn->in.a[0] <= w->committed ||
        conn->in.a[1] >= s->opts.steps * s->opts.parts || !isfinite(weight) || weight < 0)
        return false;
    if (er_ps_lock_step(s) && er_ps_part_step(&s->table, conn->in.a[1]) != s->applied_steps + 1)
        return false;
    if (!*stage)
        *stage = aligned_alloc(ER_FLAT_ALIGN, s->extent.count * sizeof(float) + ER_FLAT_ALIGN);
    if (!*stage)
        return false;
    w->seq = conn->in.a[0];
    w->part = conn->in.a[1];
    w->weight = weight;
    w->sees = conn->in.a[3];
    w->state = ER_PS_STAGING;
    conn->body = *stage;
    conn->body_bytes = s->extent.count * sizeof(float);
    return true;
}

static void end_stage(struct er_ps_server *s, struct er_ps_conn *conn)
{
    s->workers[conn->worker].state = ER_PS_STAGED;
    er_ps_answer(conn, ER_PS_FRAME_STAGE, conn->in.a, 1, NULL, 0);
}

static void end_commit(struct er_ps_server *s, struct er_ps_conn *conn)
{
    struct er_ps_worker *w = &s->workers[conn->worker];

    if (w->state == ER_PS_STAGED && w->seq == conn->in.a[0])
        w->state = ER_PS_DUE;
    else
        er_ps_conn_close(s, conn);
}

/* The answer follows when it is known: er_ps_conn_step(). */
static void end_ask(struct er_ps_server *s, struct er_ps_conn *conn)
{
    if (!knows_secret(s, conn) || conn->in.worker >= ER_PS_WORKERS_MAX) {
        er_ps_conn_close(s, conn);
        return;
    }
    conn->kind = ER_PS_ASKING;
    conn->worker = conn->in.worker;
    conn->deadline_us = er_now_us() + s->opts.lost_timeout_us;
}

static const struct {
    begin_fn begin;
    end_fn end;
} frames[ER_PS_FRAME_COUNT] = {
    [ER_PS_FRAME_HELLO] = {begin_secret, end_hello},
    [ER_PS_FRAME_LEASE] = {begin_plain, end_lease},
    [ER_PS_FRAME_PULL] = {begin_plain, end_pull},
    [ER_PS_FRAME_STAGE] = {begin_stage, end_stage},
    [ER_PS_FRAME_COMMIT] = {begin_plain, end_commit},
    [ER_PS_FRAME_ASK] = {begin_secret, end_ask},
    [ER_PS_FRAME_TOLD] = {begin_told, end_told},
};

/* A head is here. */
static bool begin_frame(struct er_ps_server *s, struct er_ps_conn *conn)
{
    conn->body = NULL;
    conn->body_n = conn->body_bytes = 0;
    if (conn->in.magic != ER_PS_MAGIC)
        return false;
    if (conn->kind == ER_PS_ASKED) /* the answer to ours */
        return conn->in.type == ER_PS_FRAME_ASK;
    return conn->in.type < ER_PS_FRAME_COUNT && frames[conn->in.type].begin(s, conn);
}

static void end_frame(struct er_ps_server *s, struct er_ps_conn *conn)
{
    conn->in_n = 0;
    if (conn->kind == ER_PS_ASKED) {
        uint32_t worker = conn->worker;

        conn->kind = ER_PS_STRANGER; /* it has told what there is to tell */
        er_ps_conn_close(s, conn);
        er_ps_told(s, worker, conn->in.a[0] != 0);
        return;
    }
    frames[conn->in.type].end(s, conn);
}

/* Bytes for the head, then for the body. 0: no more for now, or over. */
static size_t receive(struct er_ps_server *s, struct er_ps_conn *conn)
{
    size_t head = sizeof(conn->in);
    bool in_head = conn->in_n < head;
    char *to = in_head ? (char *)&conn->in + conn->in_n : (char *)conn->body + conn->body_n;
    size_t room = in_head ? head - conn->in_n : conn->body_bytes - conn->body_n;
    ssize_t n = recv(conn->fd, to, room, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        er_ps_conn_close(s, conn);
        return 0;
    }
    *(in_head ? &conn->in_n : &conn->body_n) += (size_t)n;
    if (in_head && conn->in_n == head && !begin_frame(s, conn))
        er_ps_conn_close(s, conn);
    return (size_t)n;
}

static bool is_waiting(const struct er_ps_conn *conn)
{
    return conn->wants_lease || conn->wants_pull || conn->kind == ER_PS_ASKING;
}

void er_ps_conn_io(struct er_ps_server *s, struct er_ps_conn *conn, short revents, uint64_t now_us)
{
    conn->dialing = conn->dialing && !(revents & (POLLOUT | POLLERR | POLLHUP));
    if (revents & POLLOUT)
        flush_out(s, conn);
    while (!conn->over && revents & (POLLIN | POLLHUP | POLLERR) && receive(s, conn) > 0) {
        if (!conn->over && conn->in_n == sizeof(conn->in) && conn->body_n == conn->body_bytes)
            end_frame(s, conn);
    }
    /* One that waits for us has nothing to say: this is its end. */
    if (!conn->over && is_waiting(conn) && revents & (POLLHUP | POLLERR))
        er_ps_conn_close(s, conn);
}

/* ---- answers that had to wait ---- */

static void step_lease(struct er_ps_server *s, struct er_ps_conn *conn)
{
    uint64_t number = 0;
    enum er_ps_answer answer = er_ps_table_lease(&s->table, conn->worker, &number);

    if (answer == ER_PS_WAIT)
        return;
    conn->wants_lease = false;
    er_ps_answer(conn, ER_PS_FRAME_LEASE, (const uint64_t[]){answer, number}, 2, NULL, 0);
}

static bool apply_is_due(const struct er_ps_server *s)
{
    for (uint32_t w = 0; w < ER_PS_WORKERS_MAX; w++) {
        if (s->workers[w].state == ER_PS_DUE)
            return true;
    }
    return s->applied_steps < s->table.done_steps;
}

/* Not while an update waits for those that are being sent: it would wait for ever. */
static void step_pull(struct er_ps_server *s, struct er_ps_conn *conn)
{
    if (s->applied_steps < conn->in.a[0] || apply_is_due(s))
        return;
    conn->wants_pull = false;
    er_ps_answer(conn, ER_PS_FRAME_PULL, &s->applied_steps, 1, s->value,
                 s->extent.count * sizeof(float));
}

static void step_ask(struct er_ps_server *s, struct er_ps_conn *conn, uint64_t now_us)
{
    int told = er_ps_committed(s, conn->worker, conn->in.a[0], conn->in.a[1]);

    if (told < 0 && now_us >= conn->deadline_us && s->workers[conn->worker].conn) {
        er_ps_conn_close(s, s->workers[conn->worker].conn); /* it has had its time */
        told = er_ps_committed(s, conn->worker, conn->in.a[0], conn->in.a[1]);
    }
    if (told < 0)
        return;
    conn->kind = ER_PS_STRANGER;
    conn->deadline_us = now_us + STRANGER_TIMEOUT_US;
    er_ps_answer(conn, ER_PS_FRAME_ASK, (const uint64_t[]){(uint64_t)told}, 1, NULL, 0);
}

void er_ps_conn_step(struct er_ps_server *s, struct er_ps_conn *conn, uint64_t now_us)
{
    if (conn->over)
        return;
    if (conn->kind == ER_PS_STRANGER && conn->deadline_us == ER_FOREVER)
        end_hello(s, conn);
    else if (conn->kind == ER_PS_STRANGER && now_us >= conn->deadline_us)
        er_ps_conn_close(s, conn);
    if (conn->wants_lease)
        step_lease(s, conn);
    if (conn->wants_pull)
        step_pull(s, conn);
    if (conn->kind == ER_PS_ASKING)
        step_ask(s, conn, now_us);
    if (!conn->over && conn->out_bytes > 0 && !conn->dialing)
        flush_out(s, conn);
}
