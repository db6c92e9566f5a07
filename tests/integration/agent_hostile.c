/* What others on the host can do to the agent's sockets, the workers' and its own: nothing, when
 * they are another user; and whatever is sent, the job goes on, and both answer. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/ctl.h"
#include "tests/integration/agent_case.h"

enum { CONNECTIONS = 1000, OTHER_UID = 65534 };

static char sockets[2][256]; /* of the workers, of the agent */

static int dial(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc;

    er_tap_require(fd >= 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", path);
    do {
        rc = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
    } while (rc < 0 && (errno == EINTR || errno == EAGAIN));
    er_tap_require(rc == 0);
    return fd;
}

static size_t hello(char packet[ER_CTL_PACKET_MAX])
{
    struct er_ctl_msg m = {.type = ER_CTL_HELLO, .seq = 1};
    int n;

    er_ctl_num(&m, ER_CTL_PROTOCOL);
    er_ctl_num(&m, 1);
    n = er_ctl_encode(&m, packet, ER_CTL_PACKET_MAX);
    er_tap_require(n > 0);
    return (size_t)n;
}

static bool hangs_up(int fd)
{
    char answer[1024];
    struct pollfd p = {.fd = fd, .events = POLLIN};

    while (poll(&p, 1, ER_TEST_DEADLINE_MS) == 1) {
        if (recv(fd, answer, sizeof(answer), 0) <= 0)
            return true;
    }
    return false;
}

/* The agent's own socket tells its status. */
static bool answers(const char *path)
{
    struct er_ctl_msg m = {.type = ER_CTL_STATUS, .seq = 7}, reply;
    static char packet[ER_CTL_PACKET_MAX];
    int n = er_ctl_encode(&m, packet, sizeof(packet)), fd = dial(path);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    bool fine = send(fd, packet, (size_t)n, MSG_NOSIGNAL) == n;
    ssize_t got =
        fine && poll(&p, 1, ER_TEST_DEADLINE_MS) == 1 ? recv(fd, packet, sizeof(packet), 0) : -1;

    fine = got > 0 && er_ctl_decode(&reply, packet, (size_t)got, NULL) == 0 && reply.seq == 7 &&
           reply.status == 0;
    close(fd);
    return fine;
}

static void begin(struct agent_case *c)
{
    const char *text;
    char *slash;

    case_begin(c);
    case_start(c, ARGS(SH("echo \"<$ELASTIC_SOCKET>\"; exec sleep 1000")));
    er_tap_require(er_test_wait_out(&c->p, ">\n", ER_TEST_DEADLINE_MS));
    text = strchr(er_test_out(&c->p), '<');
    er_tap_require(text != NULL);
    snprintf(sockets[0], sizeof(sockets[0]), "%.*s", (int)strcspn(text + 1, ">"), text + 1);
    snprintf(sockets[1], sizeof(sockets[1]), "%s", sockets[0]);
    slash = strrchr(sockets[1], '/');
    er_tap_require(slash != NULL);
    snprintf(slash + 1, sizeof(sockets[1]) - (size_t)(slash + 1 - sockets[1]), "agent.sock");
}

/* Whatever happened: the status is told, and a signal still stops the job. */
static void end(struct agent_case *c)
{
    er_tap_check(answers(sockets[1]));
    kill(c->p.pid, SIGTERM);
    er_tap_check(case_finish(c) == 75);
    case_note(er_test_err(&c->p));
    case_end(c);
}

/* 0: connected; else the error. */
static int try_as_other(const char *path)
{
    int status = 0;
    pid_t pid = fork();

    er_tap_require(pid >= 0);
    if (pid == 0) {
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

        snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", path);
        if (setgid(OTHER_UID) < 0 || setuid(OTHER_UID) < 0)
            _exit(255);
        _exit(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? errno : 0);
    }
    er_tap_require(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void others_are_kept_out(void)
{
    struct agent_case c = {0};

    begin(&c);
    for (int i = 0; i < 2; i++) {
        char folder[sizeof(sockets[0])];
        struct stat st;

        er_tap_check(stat(sockets[i], &st) == 0 && (st.st_mode & 0777) == 0600);
        memcpy(folder, sockets[i], sizeof(folder));
        *strrchr(folder, '/') = '\0';
        er_tap_check(stat(folder, &st) == 0 && (st.st_mode & 0777) == 0700);
        if (geteuid() == 0)
            er_tap_check(try_as_other(sockets[i]) == EACCES);
    }
    end(&c);
}

/* Should folder and socket ever be open, the kernel's word for who connects remains. */
static void others_are_hung_up_on(void)
{
    struct agent_case c = {0};
    char folder[sizeof(sockets[0])];

    /* A /run of this case's own, which other jobs' folders are not in. */
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", "/run", "tmpfs", 0, "mode=755") < 0)
        er_tap_skip("needs root to be another user");
    begin(&c);
    memcpy(folder, sockets[0], sizeof(folder));
    for (int up = 0; up < 2; up++) {
        *strrchr(folder, '/') = '\0';
        er_tap_require(chmod(folder, 0755) == 0);
    }
    for (int i = 0; i < 2; i++) {
        int status = 0;
        pid_t pid;

        er_tap_require(chmod(sockets[i], 0666) == 0);
        pid = fork();
        er_tap_require(pid >= 0);
        if (pid == 0) {
            char data[ER_CTL_PACKET_MAX];
            struct er_ctl_msg m = {.type = ER_CTL_STATUS, .seq = 7};
            int n = er_ctl_encode(&m, data, sizeof(data)), fd;

            if (setgid(OTHER_UID) < 0 || setuid(OTHER_UID) < 0)
                _exit(2);
            fd = dial(sockets[i]);
            (void)send(fd, data, (size_t)n, MSG_NOSIGNAL);
            _exit(recv(fd, data, sizeof(data), 0) > 0 ? 1 : 0);
        }
        er_tap_require(waitpid(pid, &status, 0) == pid);
        er_tap_check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    end(&c);
}

static void send_and_hang_up(const char *path, const char *data, size_t n)
{
    int fd = dial(path);

    (void)send(fd, data, n, MSG_NOSIGNAL);
    close(fd);
}

static void bad_packets_end_their_connection_alone(void)
{
    static char data[2 * ER_CTL_PACKET_MAX];
    struct agent_case c = {0};
    size_t n = hello(data);

    begin(&c);
    for (int i = 0; i < 2; i++) {
        int decent = dial(sockets[i]);

        for (size_t half = 0; half < n; half++) { /* 0 bytes: an empty packet */
            int fd = dial(sockets[i]);

            er_tap_require(send(fd, data, half, MSG_NOSIGNAL) == (ssize_t)half);
            er_tap_check(hangs_up(fd));
            close(fd);
            send_and_hang_up(sockets[i], data, half);
        }
        for (unsigned k = 0; k < 300; k++) {
            static char garbage[5000];

            for (size_t b = 0; b < sizeof(garbage); b++)
                garbage[b] = (char)(b * 131 + k * 29 + (b * k >> 3));
            send_and_hang_up(sockets[i], garbage, 1 + k * 16);
        }
        send_and_hang_up(sockets[i], data, sizeof(data)); /* longer than any message */
        er_tap_check(recv(decent, data + n, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
        close(decent);
        n = hello(data);
    }
    end(&c);
}

/* More connections than are served: those that came first are closed, so that whoever means it
 * still gets in, the other socket answers meanwhile, and when they have gone all is as before. */
static void a_thousand_connections_wedge_nothing(void)
{
    static int fds[CONNECTIONS];
    struct agent_case c = {0};
    struct rlimit files;

    er_tap_require(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    er_tap_require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    begin(&c);
    for (int i = 0; i < 2; i++) {
        int closed = 0;

        for (int k = 0; k < CONNECTIONS; k++)
            fds[k] = dial(sockets[i]);
        er_tap_check(answers(sockets[1]));
        er_tap_check(hangs_up(fds[0]));
        for (int k = 0; k < CONNECTIONS; k++) {
            closed += recv(fds[k], &(char){0}, 1, MSG_DONTWAIT) == 0;
            close(fds[k]);
        }
        er_tap_note("%d of %d were closed", closed, CONNECTIONS);
        er_tap_check(closed > 0 && closed < CONNECTIONS);
    }
    end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"others_are_kept_out", others_are_kept_out, 0},
        {"others_are_hung_up_on", others_are_hung_up_on, 0},
        {"bad_packets_end_their_connection_alone", bad_packets_end_their_connection_alone, 120},
        {"a_thousand_connections_wedge_nothing", a_thousand_connections_wedge_nothing, 120},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
