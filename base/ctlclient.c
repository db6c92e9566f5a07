#include "base/ctlclient.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"

static int lost(struct er_error *err)
{
    return er_error_set(err, ER_E_PEER_LOST, "the agent closed the control socket");
}

static int no_answer(struct er_error *err)
{
    return er_error_set(err, -ETIMEDOUT, "the agent did not answer in time");
}

/* A Unix socket has no poll() event for "room in the other's queue of connections": connect()
 * itself waits for it, for as long as sending may. */
static int limit_connect(int fd, uint64_t deadline_us)
{
    uint64_t now_us = er_now_us(), left_us = deadline_us > now_us ? deadline_us - now_us : 0;
    struct timeval limit = {0}; /* no limit */

    if (deadline_us == ER_FOREVER)
        return 0;
    limit.tv_sec = (time_t)(left_us / ER_US_PER_S);
    limit.tv_usec = (suseconds_t)(left_us % ER_US_PER_S);
    if (left_us == 0)
        limit.tv_usec = 1; /* 0 would be no limit */
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

int er_ctl_client_open(struct er_ctl_client *client, const char *path, uint64_t timeout_us,
                       struct er_error *err)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), timeout_us);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    int rc;

    client->fd = -1;
    client->later = (struct er_ctl_later){0};
    if (strlen(path) >= sizeof(addr.sun_path))
        return er_error_set(err, -ENAMETOOLONG, "control socket '%s': path too long", path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return er_error_errno(err, "control socket");
    do {
        if (limit_connect(fd, deadline_us) < 0)
            return er_error_errno(err, "control socket");
        rc = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
    } while (rc < 0 && errno == EINTR);
    if (rc < 0 && errno == EAGAIN)
        return er_error_set(err, -ETIMEDOUT, "the agent at '%s' accepts no connection", path);
    if (rc < 0)
        return er_error_errno(err, "connect to the agent at '%s'", path);
    client->fd = ER_TAKE_FD(fd);
    client->seq = 0;
    return 0;
}

void er_ctl_client_close(struct er_ctl_client *client)
{
    er_cleanup_fd(&client->fd);
}

/* 0 once the socket is ready for `events` (or has failed, which the next call on it tells). */
static int wait_for(const struct er_ctl_client *client, short events, uint64_t deadline_us,
                    struct er_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = client->fd, .events = events};
        int rc = poll(&p, 1, er_poll_ms(er_now_us(), deadline_us));

        if (rc > 0)
            return 0;
        if (rc == 0 && er_now_us() >= deadline_us)
            return no_answer(err);
        if (rc < 0 && errno != EINTR)
            return er_error_errno(err, "wait for the agent");
    }
}

static int send_request(struct er_ctl_client *client, const struct er_ctl_msg *request,
                        uint64_t deadline_us, struct er_error *err)
{
    int n = er_ctl_encode(request, client->packet, sizeof(client->packet)), rc = 0;

    if (n < 0)
        return er_error_set(err, n, "%s request is too long", er_ctl_type_name(request->type));
    while (rc == 0) {
        if (send(client->fd, client->packet, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return 0;
        if (errno == EPIPE || errno == ECONNRESET)
            return lost(err);
        if (errno == EAGAIN)
            rc = wait_for(client, POLLOUT, deadline_us, err);
        else if (errno != EINTR)
            rc = er_error_errno(err, "send to the agent");
    }
    return rc;
}

static int receive(struct er_ctl_client *client, uint64_t deadline_us, struct er_ctl_msg *ret,
                   struct er_error *err)
{
    int rc = 0;

    while (rc == 0) {
        ssize_t n = recv(client->fd, client->packet, sizeof(client->packet), MSG_DONTWAIT);

        if (n > 0)
            return er_ctl_decode(ret, client->packet, (size_t)n, err);
        if (n == 0 || errno == ECONNRESET)
            return lost(err);
        if (errno == EAGAIN)
            rc = wait_for(client, POLLIN, deadline_us, err);
        else if (errno != EINTR)
            rc = er_error_errno(err, "receive from the agent");
    }
    return rc;
}

int er_ctl_client_hear(struct er_ctl_client *client, uint64_t timeout_us, struct er_ctl_msg *ret,
                       struct er_error *err)
{
    if (client->fd < 0)
        return lost(err);
    return receive(client, er_deadline_in(er_now_us(), timeout_us), ret, err);
}

static void number(struct er_ctl_client *client, struct er_ctl_msg *request)
{
    request->seq = ++client->seq;
    if (request->seq == 0) /* 0 is not a request's number */
        request->seq = ++client->seq;
}

/* Whatever comes may be what is waited for elsewhere. */
static void note_later(struct er_ctl_client *client, const struct er_ctl_msg *msg)
{
    struct er_ctl_later *later = &client->later;
    struct er_ctl_str text = {"", 0};

    if (later->seq == 0 || later->answered || msg->seq != later->seq)
        return;
    if (msg->str_n > 0)
        text = msg->str[msg->str_n - 1];
    if (text.len >= sizeof(later->text))
        text.len = sizeof(later->text) - 1;
    later->answered = true;
    later->type = msg->type;
    later->status = msg->status;
    memcpy(later->text, text.data, text.len);
    later->text[text.len] = '\0';
}

int er_ctl_client_call(struct er_ctl_client *client, struct er_ctl_msg *request,
                       uint64_t timeout_us, struct er_ctl_msg *ret, struct er_error *err)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), timeout_us);
    int rc;

    if (client->fd < 0)
        return lost(err);
    number(client, request);
    rc = send_request(client, request, deadline_us, err);
    while (rc == 0) {
        rc = receive(client, deadline_us, ret, err);
        if (rc == 0 && ret->seq == request->seq)
            return 0;
        if (rc == 0)
            note_later(client, ret);
        if (rc == 0 && er_now_us() >= deadline_us) /* nothing but answers to older requests */
            rc = no_answer(err);
    }
    return rc;
}

int er_ctl_client_ask(struct er_ctl_client *client, struct er_ctl_msg *request, uint64_t timeout_us,
                      struct er_error *err)
{
    int rc;

    client->later = (struct er_ctl_later){0};
    if (client->fd < 0)
        return lost(err);
    number(client, request);
    rc = send_request(client, request, er_deadline_in(er_now_us(), timeout_us), err);
    if (rc == 0)
        client->later.seq = request->seq;
    return rc;
}

int er_ctl_client_answer(struct er_ctl_client *client, uint64_t wait_us, struct er_error *err)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), wait_us);
    struct er_ctl_msg msg;
    int rc;

    if (client->later.seq == 0)
        return er_error_set(err, -ENOENT, "no request is to be answered later");
    while (!client->later.answered) {
        rc = client->fd < 0 ? lost(err) : receive(client, deadline_us, &msg, err);
        if (rc < 0)
            return rc == -ETIMEDOUT ? ER_CTL_UNANSWERED : rc;
        note_later(client, &msg);
    }
    return 0;
}
