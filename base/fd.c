#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

bool er_fd_peer_is_own(int fd)
{
    struct ucred cred;
    socklen_t n = sizeof(cred);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0 &&
           (cred.uid == geteuid() || cred.uid == 0);
}

int er_fd_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    return 0;
}

int er_fd_cloexec(int fd, int on)
{
    int flags = fcntl(fd, F_GETFD);

    if (flags < 0)
        return -errno;
    flags = on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC;
    return fcntl(fd, F_SETFD, flags) < 0 ? -errno : 0;
}

int er_memfd(const char *name, size_t bytes)
{
    ER_CLEANUP(er_cleanup_fd) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) < 0)
        return -errno;
    /* Whoever maps it may then touch every page without fear of SIGBUS from a peer's ftruncate().
     */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        return -errno;
    return ER_TAKE_FD(fd);
}

int er_write_all(int fd, const void *data, size_t n)
{
    const char *at = data;

    while (n > 0) {
        ssize_t done = write(fd, at, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += done;
        n -= (size_t)done;
    }
    return 0;
}

int er_read_all(int fd, void *data, size_t n)
{
    char *at = data;

    while (n > 0) {
        ssize_t done = read(fd, at, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -ENODATA;
        at += done;
        n -= (size_t)done;
    }
    return 0;
}

int er_pwrite_all(int fd, const void *data, size_t n, off_t offset)
{
    const char *at = data;

    while (n > 0) {
        ssize_t done = pwrite(fd, at, n, offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += done;
        offset += done;
        n -= (size_t)done;
    }
    return 0;
}

int er_pread_all(int fd, void *data, size_t n, off_t offset)
{
    char *at = data;

    while (n > 0) {
        ssize_t done = pread(fd, at, n, offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -ENODATA;
        at += done;
        offset += done;
        n -= (size_t)done;
    }
    return 0;
}

/* Room for exactly one descriptor; the union aligns it as a cmsghdr wants. */
int er_fd_own_output(int fd)
{
    char path[32];
    struct stat st;
    int own = -1;

    if (fstat(fd, &st) < 0)
        return -errno;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))
        own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own < 0) /* also a terminal of another user, which may not be opened anew */
        own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return own < 0 ? -errno : own;
}

/* One attempt. A descriptor that could not be made non-blocking is asked first, and given little.
 */
static ssize_t write_now(int fd, const char *data, size_t n)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    ssize_t done = send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (done >= 0 || errno != ENOTSOCK)
        return done;
    if (poll(&p, 1, 0) != 1) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, data, n < PIPE_BUF ? n : PIPE_BUF);
}

ssize_t er_write_some(int fd, const void *data, size_t n, uint64_t wait_us)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), wait_us);
    size_t sent = 0;

    while (sent < n) {
        ssize_t done = write_now(fd, (const char *)data + sent, n - sent);
        struct pollfd p = {.fd = fd, .events = POLLOUT};

        if (done > 0)
            sent += (size_t)done;
        else if (done < 0 && errno != EAGAIN && errno != EINTR)
            return sent > 0 ? (ssize_t)sent : -errno;
        else if (er_now_us() >= deadline_us)
            break;
        else
            (void)poll(&p, 1, er_poll_ms(er_now_us(), deadline_us));
    }
    return (ssize_t)sent;
}

union fd_control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

int er_send_fd(int sock, int fd)
{
    union fd_control control = {0};
    char byte = 0;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    ssize_t done;

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    do {
        done = sendmsg(sock, &msg, MSG_NOSIGNAL);
    } while (done < 0 && errno == EINTR);
    return done < 0 ? -errno : 0;
}

int er_recv_fd(int sock)
{
    union fd_control control = {0};
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    /* CMSG_LEN, not CMSG_SPACE: the padding would have room for a second descriptor, which would
     * leak. */
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = CMSG_LEN(sizeof(int))};
    struct cmsghdr *header;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    ssize_t done;

    do {
        done = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    } while (done < 0 && errno == EINTR);
    if (done < 0)
        return -errno;
    header = CMSG_FIRSTHDR(&msg);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(header), sizeof(int));
    if (done == 0)
        return -ENODATA;
    if (msg.msg_flags & MSG_CTRUNC)
        return -EMSGSIZE;
    return fd < 0 ? -EBADMSG : ER_TAKE_FD(fd);
}
