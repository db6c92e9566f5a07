#include "agent/keeper_child.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define LOG_MAX       (8 * 1024 * 1024)
#define TAIL_BYTES    16384
#define TAIL_LINES    6
#define EXEC_FAILED   127
#define PORT_LOOK_NS  (50 * 1000 * 1000)
#define SIGNALS_COUNT 65
#define CLIENT_REMEDY "give the endpoint another port"
#define PEER_REMEDY   "set rendezvous.managed.peer_port to another one on all nodes"

static int bind_once(const char *host, uint16_t port, const char *remedy, struct er_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    struct addrinfo *at = NULL;
    char service[8];
    int rc = 0;

    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &at) != 0)
        return er_error_set(err, -EINVAL, "'%s' is no address", host);
    fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, 1) < 0)
        rc = errno == EADDRINUSE
                 ? er_error_set(err, -EADDRINUSE,
                                "port %u of %s is in use by another program (`ss -ltnp 'sport = "
                                ":%u'` names it); stop that, or %s",
                                port, host, port, remedy)
                 : er_error_errno(err, "listen on port %u of %s", port, host);
    freeaddrinfo(at);
    return rc;
}

static int bind_patiently(const char *host, uint16_t port, const char *remedy, uint64_t until_us,
                          struct er_error *err)
{
    int rc;

    while ((rc = bind_once(host, port, remedy, err)) == -EADDRINUSE && er_now_us() < until_us)
        nanosleep(&(struct timespec){.tv_nsec = PORT_LOOK_NS}, NULL);
    return rc;
}

int er_keeper_ports_free(const struct er_managed_plan *plan, uint32_t index,
                         const struct er_managed_listen *listen, uint64_t wait_us,
                         struct er_error *err)
{
    const struct er_managed_member *m = &plan->members[index];
    uint64_t until_us = er_deadline_in(er_now_us(), wait_us);
    int rc = 0;

    if (listen->all) {
        rc = bind_patiently("0.0.0.0", m->at.port, CLIENT_REMEDY, until_us, err);
        if (!rc && plan->n > 1)
            rc = bind_patiently("0.0.0.0", m->peer_port, PEER_REMEDY, until_us, err);
    }
    for (size_t i = 0; !rc && i < listen->n; i++) {
        rc = bind_patiently(listen->addresses[i], m->at.port, CLIENT_REMEDY, until_us, err);
        if (!rc && plan->n > 1)
            rc = bind_patiently(listen->addresses[i], m->peer_port, PEER_REMEDY, until_us, err);
    }
    return rc;
}

/* etcd takes options from ETCD_*; what is meant for another one must not reach ours. */
static void clean_environment(void)
{
    extern char **environ;
    size_t kept = 0;

    for (size_t i = 0; environ[i]; i++) {
        if (strncmp(environ[i], "ETCD_", 5) != 0)
            environ[kept++] = environ[i];
    }
    environ[kept] = NULL;
    setenv("GOGC", "400", 0); /* a quarter less CPU, for memory; a value of the user's stays */
#if defined(__aarch64__)
    setenv("ETCD_UNSUPPORTED_ARCH", "arm64", 1); /* 3.4 does not start there without */
#endif
}

static _Noreturn void become_etcd(const struct er_keeper_argv *argv, const char *home, pid_t parent,
                                  int log)
{
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || null < 0 || chdir(home) < 0 || dup2(null, 0) < 0 ||
        dup2(log, 1) < 0 || dup2(log, 2) < 0)
        _exit(EXEC_FAILED);
    syscall(SYS_close_range, 3, ~0u, 0);
    for (int sig = 1; sig < SIGNALS_COUNT; sig++)
        signal(sig, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    clean_environment();
    execv(argv->argv[0], argv->argv);
    dprintf(2, "cannot run '%s': %s\n", argv->argv[0], strerror(errno));
    _exit(EXEC_FAILED);
}

static void log_path(const char *home, char ret[ER_KEEPER_HOME_MAX + 16])
{
    snprintf(ret, ER_KEEPER_HOME_MAX + 16, "%s/" ER_KEEPER_LOG, home);
}

int er_keeper_etcd_start(const struct er_keeper_argv *argv, const char *home, pid_t *ret_pid,
                         int *ret_pidfd, struct er_error *err)
{
    char path[ER_KEEPER_HOME_MAX + 16];
    ER_CLEANUP(er_cleanup_fd) int log = -1;
    ER_CLEANUP(er_cleanup_child) pid_t pid = -1;
    pid_t parent = getpid();

    log_path(home, path);
    log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log < 0)
        return er_error_errno(err, "open '%s'", path);
    pid = fork();
    if (pid < 0)
        return er_error_errno(err, "start etcd");
    if (pid == 0)
        become_etcd(argv, home, parent, log);
    *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (*ret_pidfd < 0)
        return er_error_errno(err, "watch etcd");
    *ret_pid = pid;
    pid = -1;
    return 0;
}

/* Lines that are not etcd's JSON are shown as they are. */
static void add_line(struct er_buf *ret, const char *line)
{
    json_t *root = json_loads(line, 0, NULL);
    const char *msg = json_string_value(json_object_get(root, "msg"));
    const char *error = json_string_value(json_object_get(root, "error"));

    if (msg)
        (void)er_buf_printf(ret, "%s%s%s\n", msg, error ? ": " : "", error ? error : "");
    else
        (void)er_buf_printf(ret, "%.400s\n", line);
    json_decref(root);
}

void er_keeper_log_tail(const char *home, struct er_buf *ret)
{
    char path[ER_KEEPER_HOME_MAX + 16], text[TAIL_BYTES + 1], *lines[TAIL_LINES], *save = NULL;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    size_t n = 0;
    ssize_t got;
    off_t end;

    log_path(home, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (end <= 0)
        return;
    got = pread(fd, text, TAIL_BYTES, end > TAIL_BYTES ? end - TAIL_BYTES : 0);
    text[got > 0 ? got : 0] = '\0';
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (n == TAIL_LINES)
            memmove(lines, lines + 1, (--n) * sizeof(*lines));
        lines[n++] = line;
    }
    for (size_t i = 0; i < n; i++)
        add_line(ret, lines[i]);
}

void er_keeper_log_trim(const char *home)
{
    char path[ER_KEEPER_HOME_MAX + 16];
    struct stat st;

    log_path(home, path);
    if (stat(path, &st) == 0 && st.st_size > LOG_MAX)
        (void)!truncate(path, 0); /* etcd appends */
}
