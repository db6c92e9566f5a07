#include "runtime/ctlclient.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

static int lost(struct er_error *err)
{
    return er_error_set(err, ER_E_PEER_LOST, "the agent closed the control socket");
}

int er_ctl_client_open(struct er_ctl_client *client, const char *path, struct er_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(addr.sun_path))
        return er_error_set(err, -ENAMETOOLONG, "control socket '%s': path too long", path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    ER_CLEANUP(er_cleanup_fd) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return er_error_errno(err, "control socket");
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
        return er_error_errno(err, "connect to the agent at '%s'", path);
    client->fd = ER_TAKE_FD(fd);
    client->seq = 0;
    return 0;
}

void er_ctl_client_close(struct er_ctl_client *client)
{
    er_cleanup_fd(&client->fd);
    client->fd = -1;
}

static int send_request(struct er_ctl_client *client, const struct er_ctl_msg *request,
                        struct er_error *err)
{
    int n = er_ctl_encode(request, client->packet, sizeof(client->packet));
    if (n < 0)
        return er_error_set(err, n, "%s request is too long", er_ctl_type_name(request->type));
    ssize_t sent;
    do
        sent = send(client->fd, client->packet, (size_t)n, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return lost(err);
    return sent < 0 ? er_error_errno(err, "send to the agent") : 0;
}

/* One packet, or -ETIMEDOUT. */
static int receive(struct er_ctl_client *client, uint64_t deadline_us, struct er_ctl_msg *ret,
                   struct er_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = client->fd, .events = POLLIN};
        int rc = poll(&p, 1, er_poll_ms(er_now_us(), deadline_us));
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc < 0)
            return er_error_errno(err, "wait for the agent");
        if (rc == 0)
            return er_error_set(err, -ETIMEDOUT, "the agent did not answer in time");
        ssize_t n = recv(client->fd, client->packet, sizeof(client->packet), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return lost(err);
        if (n < 0)
            return er_error_errno(err, "receive from the agent");
        return er_ctl_decode(ret, client->packet, (size_t)n, err);
    }
}

int er_ctl_client_call(struct er_ctl_client *client, struct er_ctl_msg *request,
                       uint64_t timeout_us, struct er_ctl_msg *ret, struct er_error *err)
{
    if (client->fd < 0)
        return lost(err);
    request->seq = ++client->seq;
    if (request->seq == 0) /* 0 is not a request's number */
        request->seq = ++client->seq;
    int rc = send_request(client, request, err);
    uint64_t deadline_us = er_deadline_in(er_now_us(), timeout_us);
    while (rc == 0) {
        rc = receive(client, deadline_us, ret, err);
        if (rc == 0 && ret->seq == request->seq)
            return 0;
    }
    return rc;
}
