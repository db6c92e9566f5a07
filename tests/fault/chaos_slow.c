/* A program whose disk is slow: chaos_slow ORDERS PROGRAM [ARGUMENT]...
 *
 * Each fsync(2) and fdatasync(2) of the program is late by what ORDERS says at the time
 * (chaos_orders.h: sync_delay_us), one after the other, as on a disk. Made with a seccomp filter
 * whose calls a helper is told of, for a program in Go does not go through the C library. The
 * program keeps the pid; the helper ends with it.
 * Source: seccomp_unotify(2). */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/chaos_orders.h"

#define FAILED 89

static int fail(const char *what)
{
    fprintf(stderr, "chaos_slow: %s: %s\n", what, strerror(errno));
    return FAILED;
}

static struct chaos_orders *map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *data =
        fd < 0 ? MAP_FAILED
               : mmap(NULL, sizeof(struct chaos_orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0)
        close(fd);
    return data == MAP_FAILED ? NULL : data;
}

static int install(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                        &program);
}

static void wait_us(uint64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

    nanosleep(&ts, NULL);
}

/* Until nobody is left who has the filter. */
static void serve(int listener, struct chaos_orders *orders)
{
    for (;;) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        struct seccomp_notif call = {0};
        struct seccomp_notif_resp answer = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        uint64_t delay_us;

        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            return;
        if (p.revents & POLLHUP)
            return;
        if (!(p.revents & POLLIN) || ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
            continue;
        delay_us = __atomic_load_n(&orders->sync_delay_us, __ATOMIC_ACQUIRE);
        if (delay_us) {
            wait_us(delay_us);
            __atomic_fetch_add(&orders->syncs, 1, __ATOMIC_ACQ_REL);
        }
        answer.id = call.id;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

/* The listener comes through a socket: it exists only when the filter does. */
static int take(int from)
{
    char room[CMSG_SPACE(sizeof(int))], byte;
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    struct cmsghdr *c;
    int fd = -1;

    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) == 1 && (c = CMSG_FIRSTHDR(&m)) != NULL)
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

static int give(int to, int fd)
{
    char room[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return sendmsg(to, &m, 0) == 1 ? 0 : -1;
}

/* A grandchild, so that the program has no child that it does not know of. */
static int start_helper(int from, int to, struct chaos_orders *orders)
{
    pid_t pid = fork();

    if (pid < 0)
        return -1;
    if (pid == 0) {
        pid = fork();
        if (pid == 0) {
            int listener;

            close(to);
            listener = take(from);
            close(from);
            if (listener >= 0)
                serve(listener, orders);
        }
        _exit(pid < 0 ? 1 : 0);
    }
    return waitpid(pid, NULL, 0) < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct chaos_orders *orders;
    int pair[2], listener;

    if (argc < 3)
        return fail("chaos_slow ORDERS PROGRAM [ARGUMENT]...");
    orders = map(argv[1]);
    if (!orders || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return fail(argv[1]);
    if (start_helper(pair[0], pair[1], orders) < 0)
        return fail("fork");
    listener = install();
    if (listener < 0 || give(pair[1], listener) < 0)
        return fail("seccomp");
    close(listener);
    close(pair[0]);
    close(pair[1]);
    execvp(argv[2], argv + 2);
    return fail(argv[2]);
}
