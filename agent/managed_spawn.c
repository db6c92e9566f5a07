#include "agent/managed_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define KEEPER_FD     3
#define SIGNALS_COUNT 65
#define EXEC_FAILED   127
#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#define ZFS_SUPER_MAGIC 0x2fc12fc1

static bool keeper_in(const char *folder, char ret[ER_KEEPER_PATH_MAX])
{
    int n = snprintf(ret, ER_KEEPER_PATH_MAX, "%s/" ER_KEEPER_PROGRAM, folder);

    return n < ER_KEEPER_PATH_MAX && access(ret, X_OK) == 0;
}

int er_managed_find_keeper(char ret[ER_KEEPER_PATH_MAX], struct er_error *err)
{
    char folder[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    char *slash = n > 0 ? strrchr(folder, '/') : NULL;

    if (slash)
        *slash = '\0';
    if ((slash && keeper_in(folder, ret)) || keeper_in(ER_LIBEXEC_DIR, ret))
        return 0;
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "rendezvous.backend: managed: this installation is incomplete: "
                        "no " ER_KEEPER_PROGRAM " in '%s' or '" ER_LIBEXEC_DIR "'",
                        folder);
}

static void free_args(char *args[ER_KEEPER_ARGS_MAX + 3])
{
    for (size_t i = 2; args[i]; i++)
        free(args[i]);
}

static int make_args(const char *keeper, const char *verb, const struct er_keeper_opts *opts,
                     char *args[ER_KEEPER_ARGS_MAX + 3], struct er_error *err)
{
    int n = er_keeper_opts_format(opts, args + 2, err);

    args[0] = (char *)(uintptr_t)keeper;
    args[1] = (char *)(uintptr_t)verb;
    args[n < 0 ? 2 : n + 2] = NULL;
    return n < 0 ? n : 0;
}

/* Between fork and exec: system calls only. */
static void reset_process(int fd0, int fd1, int fd2)
{
    sigset_t none;

    dup2(fd0, 0);
    dup2(fd1, 1);
    dup2(fd2, 2);
    for (int sig = 1; sig < SIGNALS_COUNT; sig++)
        signal(sig, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void become_keeper(char *const args[], int null, int sock)
{
    static const char failed[] = "failed cannot run " ER_KEEPER_PROGRAM;

    setsid();
    reset_process(null, null, null);
    if (sock == KEEPER_FD)
        fcntl(sock, F_SETFD, 0);
    else
        dup2(sock, KEEPER_FD);
    syscall(SYS_close_range, KEEPER_FD + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    (void)!chdir("/");
    execv(args[0], args);
    (void)send(KEEPER_FD, failed, strlen(failed), MSG_NOSIGNAL);
    _exit(EXEC_FAILED);
}

int er_managed_spawn_keeper(const char *keeper, const struct er_keeper_opts *opts, pid_t *ret_pid,
                            int *ret_fd, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    ER_CLEANUP(er_cleanup_fd) int ours = -1;
    ER_CLEANUP(er_cleanup_fd) int theirs = -1;
    struct er_keeper_opts o = *opts;
    char *args[ER_KEEPER_ARGS_MAX + 3] = {NULL};
    int pair[2], rc;
    pid_t pid;

    if (null < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return er_error_errno(err, "make a socket pair for " ER_KEEPER_PROGRAM);
    ours = pair[0];
    theirs = pair[1];
    o.fd = KEEPER_FD;
    rc = make_args(keeper, "keep", &o, args, err);
    if (rc)
        return rc;
    /* A child of our parent: neither our end nor our sweeps are its business. */
    pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        become_keeper(args, null, theirs);
    free_args(args);
    if (pid < 0)
        return er_error_errno(err, "start " ER_KEEPER_PROGRAM);
    er_cgroup_stand_apart(pid);
    er_fd_nonblock(ours);
    *ret_pid = pid;
    *ret_fd = ER_TAKE_FD(ours);
    return 0;
}

static void read_text(int fd, struct er_buf *ret)
{
    char piece[512];
    ssize_t n;

    while ((n = read(fd, piece, sizeof(piece))) > 0 || (n < 0 && errno == EINTR))
        (void)er_buf_add(ret, piece, n > 0 ? (size_t)n : 0);
    while (ret->len && ret->data[ret->len - 1] == '\n')
        ret->data[--ret->len] = '\0';
}

int er_managed_make_tls(const char *keeper, const struct er_keeper_opts *opts, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    char *args[ER_KEEPER_ARGS_MAX + 3] = {NULL};
    struct er_buf text;
    int fds[2], status = 0, rc;
    pid_t pid;

    if (null < 0 || pipe2(fds, O_CLOEXEC) < 0)
        return er_error_errno(err, "start " ER_KEEPER_PROGRAM);
    rc = make_args(keeper, "tls", opts, args, err);
    pid = rc ? -1 : fork();
    if (pid == 0) {
        reset_process(null, null, fds[1]);
        execv(args[0], args);
        dprintf(2, "cannot run '%s': %s", args[0], strerror(errno));
        _exit(EXEC_FAILED);
    }
    close(fds[1]);
    free_args(args);
    er_buf_init(&text, ER_ERROR_TEXT_MAX - 1);
    if (pid > 0) {
        read_text(fds[0], &text);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    close(fds[0]);
    if (!rc && pid < 0)
        rc = er_error_errno(err, "start " ER_KEEPER_PROGRAM);
    else if (!rc && status != 0)
        rc = er_error_set(err, ER_E_CONFIG, "%s",
                          text.len ? er_buf_str(&text) : ER_KEEPER_PROGRAM " failed");
    er_buf_done(&text);
    return rc;
}

/* etcd waits for the disk in each write: seconds on a loaded network file system. What is not known
 * is taken for one. */
static bool is_local(const char *path)
{
    static const long LOCAL[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,       BTRFS_SUPER_MAGIC,
                                 TMPFS_MAGIC,      OVERLAYFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
                                 ZFS_SUPER_MAGIC};
    char at[ER_KEEPER_PATH_MAX];
    struct statfs fs;

    snprintf(at, sizeof(at), "%s", path);
    while (statfs(at, &fs) < 0) {
        char *slash = strrchr(at, '/');

        if (!slash || slash == at)
            return false;
        *slash = '\0';
    }
    for (size_t i = 0; i < ER_ARRAY_N(LOCAL); i++) {
        if ((long)fs.f_type == LOCAL[i])
            return true;
    }
    return false;
}

/* "": none that would do. */
static void state_base(char ret[ER_KEEPER_PATH_MAX])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;

    if (geteuid() == 0)
        n = snprintf(ret, ER_KEEPER_PATH_MAX, "/var/lib/elastic-run");
    else if (state && state[0] == '/')
        n = snprintf(ret, ER_KEEPER_PATH_MAX, "%s/elastic-run", state);
    else if (home && home[0] == '/')
        n = snprintf(ret, ER_KEEPER_PATH_MAX, "%s/.local/state/elastic-run", home);
    else
        n = ER_KEEPER_PATH_MAX;
    if (n > ER_KEEPER_PATH_MAX - 100 || !is_local(ret))
        ret[0] = '\0';
}

void er_managed_data_dir(const char *named, const char *name, size_t index, const char *home,
                         char ret[ER_KEEPER_PATH_MAX])
{
    char base[ER_KEEPER_PATH_MAX];

    if (named) {
        snprintf(ret, ER_KEEPER_PATH_MAX, "%.400s/%.63s-%zu", named, name, index);
        return;
    }
    state_base(base);
    if (base[0])
        snprintf(ret, ER_KEEPER_PATH_MAX, "%.400s/%.63s/etcd-%zu", base, name, index);
    else
        snprintf(ret, ER_KEEPER_PATH_MAX, "%.*s/data", ER_KEEPER_HOME_MAX - 1, home);
}
