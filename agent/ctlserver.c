#include "agent/ctlserver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define BACKLOG        512
#define ACCEPT_WAIT_US (100 * ER_US_PER_MS)
#define PACKETS_A_TURN 16 /* of one connection, before the others get theirs */

struct er_ctlserver {
    struct er_loop *loop;
    int fd;
    struct er_loop_source *source;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    unsigned conn_n, conn_max;
    uint64_t accept_us; /* when to accept again; ER_FOREVER: we do */
    struct er_list conns;
    er_ctl_request_fn on_request;
    void *user;
};

struct packet {
    struct er_list node;
    size_t n;
    char data[];
};

struct er_ctlconn {
    struct er_list node;
    struct er_ctlserver *server;
    int fd;
    struct er_loop_source *source;
    struct er_ctl_peer peer;
    struct er_list tickets; /* unanswered */
    unsigned ticket_n;
    struct er_list out; /* of struct packet, waiting for a slow reader */
    bool in_use, dead;  /* dead: close when no caller is inside */
};

/* One loop, one thread: one buffer for what comes and one for what goes. */
static char in_packet[ER_CTL_PACKET_MAX], out_packet[ER_CTL_PACKET_MAX];

static void close_conn(struct er_ctlconn *c)
{
    if (c->in_use) {
        c->dead = true;
        return;
    }
    er_list_for_each_safe (node, &c->tickets) {
        struct er_ticket *ticket = ER_LIST_ITEM(node, struct er_ticket, node);

        er_list_remove(&ticket->node);
        ticket->conn = NULL;
        if (ticket->gone)
            ticket->gone(ticket);
    }
    er_list_for_each_safe (node, &c->out) {
        struct packet *packet = ER_LIST_ITEM(node, struct packet, node);

        er_list_remove(&packet->node);
        free(packet);
    }
    er_list_remove(&c->node);
    c->server->conn_n--;
    er_loop_source_free(c->source);
    close(c->fd);
    free(c);
}

static void update_events(struct er_ctlconn *c)
{
    uint32_t events = 0;

    if (!er_list_empty(&c->out))
        events |= EPOLLOUT;
    else if (c->ticket_n < ER_CTL_TICKETS_MAX)
        events |= EPOLLIN;
    if (er_loop_source_set_events(c->source, events) < 0)
        c->dead = true;
}

/* 0 sent, 1 the peer must read first, negative: it has gone. */
static int send_packet(struct er_ctlconn *c, const char *data, size_t n)
{
    ssize_t done = send(c->fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (done >= 0)
        return 0;
    return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 1 : -errno;
}

static void queue_packet(struct er_ctlconn *c, size_t n)
{
    struct packet *packet = malloc(sizeof(*packet) + n);

    if (!packet) {
        c->dead = true;
        return;
    }
    packet->n = n;
    memcpy(packet->data, out_packet, n);
    er_list_init(&packet->node);
    er_list_push_back(&c->out, &packet->node);
}

static void send_msg(struct er_ctlconn *c, const struct er_ctl_msg *msg)
{
    int n = er_ctl_encode(msg, out_packet, sizeof(out_packet)), rc;

    if (n < 0 || c->dead) {
        c->dead = true;
        return;
    }
    rc = er_list_empty(&c->out) ? send_packet(c, out_packet, (size_t)n) : 1;
    if (rc < 0)
        c->dead = true;
    else if (rc > 0)
        queue_packet(c, (size_t)n);
    update_events(c);
}

static void flush(struct er_ctlconn *c)
{
    er_list_for_each_safe (node, &c->out) {
        struct packet *packet = ER_LIST_ITEM(node, struct packet, node);
        int rc = send_packet(c, packet->data, packet->n);

        if (rc > 0)
            break;
        if (rc < 0) {
            c->dead = true;
            break;
        }
        er_list_remove(&packet->node);
        free(packet);
    }
    update_events(c);
}

/* False: no more packets now. */
static bool read_one(struct er_ctlconn *c)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctl_msg msg = {0}; /* of a malformed packet not even the number is known */
    ssize_t n = recv(c->fd, in_packet, sizeof(in_packet), MSG_DONTWAIT | MSG_TRUNC);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0 || (size_t)n > sizeof(in_packet)) {
        c->dead = true; /* gone, or longer than any message */
        return false;
    }
    if (er_ctl_decode(&msg, in_packet, (size_t)n, &err)) {
        er_ctlconn_status(c, msg.seq, ER_E_PROTOCOL, err.text);
        c->dead = true;
        return false;
    }
    c->server->on_request(c->server->user, c, &msg);
    return !c->dead && er_list_empty(&c->out) && c->ticket_n < ER_CTL_TICKETS_MAX;
}

static void on_conn(void *user, uint32_t events)
{
    struct er_ctlconn *c = user;

    c->in_use = true;
    if (events & EPOLLOUT)
        flush(c);
    if (events & EPOLLIN) {
        for (int i = 0; i < PACKETS_A_TURN && read_one(c); i++)
            ;
        if (!c->dead)
            update_events(c);
    } else if (events & (EPOLLHUP | EPOLLERR)) {
        c->dead = true;
    }
    c->in_use = false;
    if (c->dead)
        close_conn(c);
}

static struct er_ctlconn *new_conn(struct er_ctlserver *s, int fd)
{
    struct er_ctlconn *c = calloc(1, sizeof(*c));
    struct ucred cred = {0};
    socklen_t n = sizeof(cred);

    if (!c)
        return NULL;
    er_list_init(&c->node);
    er_list_init(&c->tickets);
    er_list_init(&c->out);
    c->server = s;
    c->fd = fd;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n);
    c->peer = (struct er_ctl_peer){.pid = cred.pid, .local_rank = -1};
    if (er_loop_io(s->loop, fd, EPOLLIN, ER_PRIORITY_IO, on_conn, c, &c->source, NULL)) {
        free(c);
        return NULL;
    }
    return c;
}

/* All places are taken: who came first of those that nobody knows and that wait for nothing goes.
 * Without one, whoever comes now. */
static bool make_room(struct er_ctlserver *s)
{
    if (s->conn_n < s->conn_max)
        return true;
    er_list_for_each (node, &s->conns) {
        struct er_ctlconn *c = ER_LIST_ITEM(node, struct er_ctlconn, node);

        if (c->peer.local_rank < 0 && c->ticket_n == 0 && !c->in_use) {
            close_conn(c);
            return true;
        }
    }
    return false;
}

static void on_accept(void *user, uint32_t events)
{
    struct er_ctlserver *s = user;
    int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    bool wanted = fd >= 0 && er_fd_peer_is_own(fd) && make_room(s);
    struct er_ctlconn *c = wanted ? new_conn(s, fd) : NULL;

    /* No descriptors, no memory: they stay in the queue, and would wake us at once again. */
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) &&
        er_loop_source_set_events(s->source, 0) == 0)
        s->accept_us = er_deadline_in(er_now_us(), ACCEPT_WAIT_US);
    if (!c) {
        er_cleanup_fd(&fd);
        return;
    }
    s->conn_n++;
    er_list_push_back(&s->conns, &c->node);
}

static int listen_at(struct er_ctlserver *s, struct er_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    memcpy(addr.sun_path, s->path, sizeof(addr.sun_path));
    s->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        return er_error_errno(err, "make socket '%s'", s->path);
    unlink(s->path);
    if (bind(s->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
        return er_error_errno(err, "bind socket '%s'", s->path);
    if (chmod(s->path, 0600) < 0 || listen(s->fd, BACKLOG) < 0)
        return er_error_errno(err, "listen at '%s'", s->path);
    return er_loop_io(s->loop, s->fd, EPOLLIN, ER_PRIORITY_IO, on_accept, s, &s->source, err);
}

int er_ctlserver_new(struct er_ctlserver **ret, struct er_loop *loop, const char *path,
                     unsigned conn_max, er_ctl_request_fn on_request, void *user,
                     struct er_error *err)
{
    struct er_ctlserver *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return er_error_set(err, -ENOMEM, "socket '%s': out of memory", path);
    *s = (struct er_ctlserver){.loop = loop,
                               .fd = -1,
                               .conn_max = conn_max,
                               .accept_us = ER_FOREVER,
                               .on_request = on_request,
                               .user = user};
    er_list_init(&s->conns);
    if ((size_t)snprintf(s->path, sizeof(s->path), "%s", path) >= sizeof(s->path)) {
        free(s);
        return er_error_set(err, -ENAMETOOLONG, "socket path '%s' is too long", path);
    }
    rc = listen_at(s, err);
    if (rc) {
        er_ctlserver_free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void er_ctlserver_free(struct er_ctlserver *s)
{
    if (!s)
        return;
    er_list_for_each_safe (node, &s->conns)
        close_conn(ER_LIST_ITEM(node, struct er_ctlconn, node));
    er_loop_source_free(s->source);
    if (s->fd >= 0) {
        close(s->fd);
        unlink(s->path);
    }
    free(s);
}

void er_ctlserver_broadcast(struct er_ctlserver *s, const struct er_ctl_msg *msg)
{
    int n = er_ctl_encode(msg, out_packet, sizeof(out_packet));

    if (n < 0)
        return;
    er_list_for_each (node, &s->conns)
        (void)send_packet(ER_LIST_ITEM(node, struct er_ctlconn, node), out_packet, (size_t)n);
}

uint64_t er_ctlserver_deadline(const struct er_ctlserver *s)
{
    return s->accept_us;
}

void er_ctlserver_step(struct er_ctlserver *s, uint64_t now_us)
{
    if (now_us >= s->accept_us && er_loop_source_set_events(s->source, EPOLLIN) == 0)
        s->accept_us = ER_FOREVER;
}

struct er_ctl_peer *er_ctlconn_peer(struct er_ctlconn *conn)
{
    return &conn->peer;
}

void er_ctlconn_answer(struct er_ctlconn *conn, uint32_t seq, struct er_ctl_msg *reply)
{
    if (reply->type == ER_CTL_NONE)
        reply->type = ER_CTL_REPLY;
    reply->seq = seq;
    send_msg(conn, reply);
    if (conn->dead && !conn->in_use)
        close_conn(conn);
}

void er_ctlconn_status(struct er_ctlconn *conn, uint32_t seq, int status, const char *text)
{
    struct er_ctl_msg reply = {.type = ER_CTL_REPLY, .status = status};

    if (status < 0)
        er_ctl_str(&reply, text ? text : er_error_name(status));
    er_ctlconn_answer(conn, seq, &reply);
}

void er_ticket_init(struct er_ticket *ticket, struct er_ctlconn *conn, uint32_t seq,
                    void (*gone)(struct er_ticket *ticket))
{
    *ticket = (struct er_ticket){.conn = conn, .seq = seq, .gone = gone};
    er_list_init(&ticket->node);
    er_list_push_back(&conn->tickets, &ticket->node);
    conn->ticket_n++;
}

void er_ticket_answer(struct er_ticket *ticket, struct er_ctl_msg *reply)
{
    struct er_ctlconn *conn = ticket->conn;

    if (!conn)
        return;
    er_list_remove(&ticket->node);
    ticket->conn = NULL;
    conn->ticket_n--;
    er_ctlconn_answer(conn, ticket->seq, reply);
}
