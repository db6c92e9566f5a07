#include "agent/keeper_child.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define LOG_MAX       (8 * 1024 * 1024)
#define TAIL_BYTES    16384
#define TAIL_LINES    6
#define EXEC_FAILED   127
#define SIGNALS_COUNT 65

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
