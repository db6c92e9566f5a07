#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#define DEFAULT_PATH      "/usr/local/bin:/usr/bin:/bin"
#define EXEC_FAILED_CODE  127
#define RUN_FAILED_CODE   1
#define OLD_KERNEL_FD_MAX 1024 /* where close_range(2) cannot mark, walk this far */

static _Noreturn void fail(const struct er_spawn_opts *o, enum er_spawn_step step)
{
    struct er_spawn_failure failure = {.index = o->index, .step = (int32_t)step, .error = errno};

    if (write(o->report_fd, &failure, sizeof(failure)) < 0)
        _exit(EXEC_FAILED_CODE); /* the exit status says it too */
    _exit(EXEC_FAILED_CODE);
}

/* What our caller had ignored, and we ignore ourselves, stays ignored over an exec, unlike
 * handlers; asked for once, since nothing changes it later. */
static uint64_t ignored_signals(void)
{
    static uint64_t known;
    static bool asked;

    for (int sig = 1; !asked && sig < NSIG; sig++) {
        struct sigaction now;

        if (sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
            known |= 1ull << (sig - 1);
    }
    asked = true;
    return known;
}

static void reset_signals(uint64_t ignored)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;

    for (int sig = 1; sig < NSIG; sig++) {
        if (ignored >> (sig - 1) & 1)
            sigaction(sig, &plain, NULL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static struct rlimit workers_files; /* rlim_max 0: as ours */

void er_spawn_lift_limits(void)
{
    struct rlimit now, lifted;

    if (getrlimit(RLIMIT_NOFILE, &now) < 0)
        return;
    lifted = (struct rlimit){.rlim_cur = now.rlim_max, .rlim_max = now.rlim_max};
    if (now.rlim_cur < now.rlim_max && setrlimit(RLIMIT_NOFILE, &lifted) == 0)
        workers_files = now;
}

static void close_others(const struct er_spawn_opts *o)
{
    if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0) {
        for (int fd = 3; fd < OLD_KERNEL_FD_MAX; fd++)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (o->keep_fd >= 0)
        fcntl(o->keep_fd, F_SETFD, 0);
}

static _Noreturn void child_main(const struct er_spawn_opts *o, pid_t agent, uint64_t ignored)
{
    if (setsid() < 0)
        fail(o, ER_SPAWN_SESSION);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent)
        _exit(EXEC_FAILED_CODE); /* it died before the line above: nobody reads a report */
    for (int i = 0; i < 3; i++) {
        if (o->stdio[i] != i && dup2(o->stdio[i], i) < 0)
            fail(o, ER_SPAWN_STDIO);
    }
    close_others(o);
    if (workers_files.rlim_max)
        setrlimit(RLIMIT_NOFILE, &workers_files);
    reset_signals(ignored);
    if (o->cpus && syscall(SYS_sched_setaffinity, 0, sizeof(o->cpus->bits), o->cpus->bits) < 0)
        fail(o, ER_SPAWN_BINDING);
    if (o->run)
        _exit(o->run(1) ? RUN_FAILED_CODE : 0);
    if (chdir(o->workdir) < 0)
        fail(o, ER_SPAWN_WORKDIR);
    execve(o->path, o->argv, o->envp);
    fail(o, ER_SPAWN_EXEC);
}

/* clone3(2), which gives the pidfd and enters the cgroup in one step. */
static pid_t clone_child(int cgroup_fd, int *ret_pidfd)
{
    struct clone_args args = {.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
                              .exit_signal = SIGCHLD,
                              .pidfd = (uint64_t)(uintptr_t)ret_pidfd};

    if (cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)cgroup_fd;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/* Kernels before 5.7, and sandboxes that refuse clone3. */
static pid_t fork_child(int *ret_pidfd)
{
    pid_t pid = fork();

    if (pid > 0) {
        *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (*ret_pidfd < 0) {
            ER_CLEANUP(er_cleanup_child) pid_t unwatched = pid;
            return -1;
        }
        fcntl(*ret_pidfd, F_SETFD, FD_CLOEXEC);
    }
    return pid;
}

int er_spawn_child(const struct er_spawn_opts *opts, pid_t *ret_pid, int *ret_pidfd,
                   struct er_error *err)
{
    pid_t agent = getpid(), pid;
    uint64_t ignored = ignored_signals();
    int pidfd = -1;

    /* What runs on in the child needs the C library's own fork, which leaves its locks free. */
    pid = opts->run ? fork_child(&pidfd) : clone_child(opts->cgroup_fd, &pidfd);
    if (pid < 0 && !opts->run && (errno == ENOSYS || errno == EPERM || errno == EINVAL))
        pid = fork_child(&pidfd);
    if (pid < 0)
        return er_error_errno(err, "start a process for '%s'", opts->path ? opts->path : "a probe");
    if (pid == 0)
        child_main(opts, agent, ignored);
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    return 0;
}

/* 0, -ENOENT, or -EACCES for what is there but cannot be run. */
static int probe(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return errno == EACCES ? -EACCES : -ENOENT;
    if (!S_ISREG(st.st_mode) || access(path, X_OK) < 0)
        return -EACCES;
    return 0;
}

static int find_by_path(const char *program, const char *workdir, char **ret_path,
                        struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *full = NULL;
    int rc;

    if (program[0] == '/')
        full = strdup(program);
    else if (asprintf(&full, "%s/%s", workdir, program) < 0)
        full = NULL;
    if (!full)
        return er_error_set(err, -ENOMEM, "find '%s': out of memory", program);
    rc = probe(full);
    if (rc == -ENOENT)
        return er_error_set(err, rc, "program '%s' not found", full);
    if (rc)
        return er_error_set(err, rc, "program '%s' is not an executable file", full);
    *ret_path = ER_TAKE(full);
    return 0;
}

int er_spawn_find(const char *program, const char *path_list, const char *workdir, char **ret_path,
                  struct er_error *err)
{
    const char *at = path_list ? path_list : DEFAULT_PATH;
    char denied[4096] = "", full[4096];

    if (strchr(program, '/'))
        return find_by_path(program, workdir, ret_path, err);
    for (bool more = program[0] != '\0'; more;) {
        size_t n = strcspn(at, ":");
        const char *dir = n ? at : ".";
        int rc;

        if (dir[0] == '/')
            rc = snprintf(full, sizeof(full), "%.*s/%s", (int)n, dir, program);
        else
            rc = snprintf(full, sizeof(full), "%s/%.*s/%s", workdir, n ? (int)n : 1, dir, program);
        rc = rc < (int)sizeof(full) ? probe(full) : -ENOENT;
        if (rc == 0) {
            *ret_path = strdup(full);
            return *ret_path ? 0 : er_error_set(err, -ENOMEM, "find '%s': out of memory", program);
        }
        if (rc == -EACCES && !denied[0])
            strcpy(denied, full);
        more = at[n] == ':';
        at += n + 1;
    }
    if (denied[0])
        return er_error_set(err, -EACCES, "program '%s' is not an executable file", denied);
    return er_error_set(err, -ENOENT, "program '%s' not found in PATH", program);
}

const char *er_spawn_step_text(int step)
{
    static const char *const TEXTS[] = {
        [ER_SPAWN_SESSION] = "start a session",
        [ER_SPAWN_STDIO] = "set up standard input and output",
        [ER_SPAWN_BINDING] = "bind to its CPUs, to run",
        [ER_SPAWN_WORKDIR] = "enter the working directory",
        [ER_SPAWN_EXEC] = "run the program",
    };
    return step >= 0 && (size_t)step < ER_ARRAY_N(TEXTS) ? TEXTS[step] : "start";
}
