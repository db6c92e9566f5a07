#include "tests/lib/proc.h"

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

enum { CHUNK_BYTES = 65536, PATHS_N = 8 };

static void set_env(const char *const env[])
{
    for (size_t i = 0; env && env[i]; i++) {
        const char *eq = strchr(env[i], '=');
        if (!eq) {
            unsetenv(env[i]);
            continue;
        }
        char name[256];
        snprintf(name, sizeof(name), "%.*s", (int)(eq - env[i]), env[i]);
        setenv(name, eq + 1, 1);
    }
}

static _Noreturn void become(const char *const argv[], const char *const env[], int out, int err_fd)
{
    setpgid(0, 0);
    int in = open("/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err_fd, 2) < 0)
        _exit(127);
    set_env(env);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(2, "exec '%s': %s\n", argv[0], strerror(errno));
    _exit(127);
}

void er_test_start(struct er_test_proc *p, const char *const argv[], const char *const env[])
{
    int out[2], err_pipe[2];
    memset(p, 0, sizeof(*p));
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err_pipe, O_CLOEXEC) != 0)
        err(1, "pipe2");
    fflush(NULL);
    p->pid = fork();
    if (p->pid < 0)
        err(1, "fork");
    if (p->pid == 0)
        become(argv, env, out[1], err_pipe[1]);
    p->group = p->pid;
    setpgid(p->pid, p->group);
    close(out[1]);
    close(err_pipe[1]);
    p->fds[0] = out[0];
    p->fds[1] = err_pipe[0];
    fcntl(p->fds[0], F_SETFL, O_NONBLOCK);
    fcntl(p->fds[1], F_SETFL, O_NONBLOCK);
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (p->pidfd < 0)
        err(1, "pidfd_open");
}

static void append(struct er_test_text *t, const char *data, size_t n)
{
    char *grown = realloc(t->data, t->n + n + 1);
    if (!grown)
        err(1, "realloc");
    memcpy(grown + t->n, data, n);
    t->data = grown;
    t->n += n;
    t->data[t->n] = '\0';
}

/* Read what is there from one stream; closes it at end of file. */
static void drain(int *fd, struct er_test_text *t)
{
    char chunk[CHUNK_BYTES];
    while (*fd >= 0) {
        ssize_t got = read(*fd, chunk, sizeof(chunk));
        if (got > 0) {
            append(t, chunk, (size_t)got);
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        close(*fd);
        *fd = -1;
    }
}

static void drain_both(struct er_test_proc *p)
{
    drain(&p->fds[0], &p->out);
    drain(&p->fds[1], &p->err);
}

/* Waits for output or the end of the process; false at the deadline. */
static bool pump(struct er_test_proc *p, uint64_t deadline_ms)
{
    struct pollfd fds[3] = {
        {.fd = p->pid > 0 ? p->pidfd : -1, .events = POLLIN},
        {.fd = p->fds[0], .events = POLLIN},
        {.fd = p->fds[1], .events = POLLIN},
    };
    uint64_t now = er_test_now_ms();
    if (now >= deadline_ms || poll(fds, 3, (int)(deadline_ms - now)) == 0)
        return false;
    bool ended = fds[0].revents != 0;
    if (ended && waitpid(p->pid, &p->status, 0) == p->pid)
        p->pid = 0;
    drain_both(p);
    return true;
}

bool er_test_wait_exit(struct er_test_proc *p, uint32_t timeout_ms)
{
    uint64_t deadline = er_test_now_ms() + timeout_ms;
    while (p->pid > 0)
        if (!pump(p, deadline))
            return false;
    return true;
}

static bool wait_text(struct er_test_proc *p, const struct er_test_text *t, const int *fd,
                      const char *text, uint32_t timeout_ms)
{
    uint64_t deadline = er_test_now_ms() + timeout_ms;
    while (!t->data || !strstr(t->data, text))
        if (*fd < 0 || !pump(p, deadline))
            return false;
    return true;
}

bool er_test_wait_out(struct er_test_proc *p, const char *text, uint32_t timeout_ms)
{
    return wait_text(p, &p->out, &p->fds[0], text, timeout_ms);
}

bool er_test_wait_err(struct er_test_proc *p, const char *text, uint32_t timeout_ms)
{
    return wait_text(p, &p->err, &p->fds[1], text, timeout_ms);
}

/* State letter of /proc/<pid>/task/<tid>/stat; 0: it is gone. */
static char thread_state(pid_t pid, const char *tid)
{
    char path[300], text[256] = "";
    const char *end;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%.200s/stat", (int)pid, tid);
    f = fopen(path, "re");
    if (!f)
        return 0;
    (void)!fgets(text, sizeof(text), f);
    fclose(f);
    end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : 0;
}

static bool stands_still(void *user)
{
    pid_t pid = *(pid_t *)user;
    char path[64];
    struct dirent *entry;
    bool still = true;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    while (dir && still && (entry = readdir(dir)))
        still = entry->d_name[0] == '.' || strchr("TtZX", thread_state(pid, entry->d_name));
    if (dir)
        closedir(dir);
    return dir && still;
}

bool er_test_wait_stopped(pid_t pid)
{
    return er_test_wait_until(stands_still, &pid, ER_TEST_DEADLINE_MS);
}

bool er_test_stop(pid_t pid)
{
    return kill(pid, SIGSTOP) == 0 && er_test_wait_stopped(pid);
}

int er_test_exit_code(const struct er_test_proc *p)
{
    if (p->pid > 0)
        return -1;
    return WIFEXITED(p->status) ? WEXITSTATUS(p->status) : 128 + WTERMSIG(p->status);
}

int er_test_run(struct er_test_proc *p, const char *const argv[], const char *const env[],
                uint32_t timeout_ms)
{
    er_test_start(p, argv, env);
    if (!er_test_wait_exit(p, timeout_ms))
        kill(-p->group, SIGKILL);
    return er_test_exit_code(p);
}

void er_test_done(struct er_test_proc *p)
{
    if (p->group > 0)
        kill(-p->group, SIGKILL);
    if (p->pid > 0) {
        waitpid(p->pid, &p->status, 0);
        p->pid = 0;
    }
    for (size_t i = 0; i < 2; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    close(p->pidfd);
    free(p->out.data);
    free(p->err.data);
    memset(p, 0, sizeof(*p));
    p->fds[0] = p->fds[1] = p->pidfd = -1;
}

const char *er_test_out(const struct er_test_proc *p)
{
    return p->out.data ? p->out.data : "";
}

const char *er_test_err(const struct er_test_proc *p)
{
    return p->err.data ? p->err.data : "";
}

static const char *under(const char *variable, const char *fallback, const char *relative)
{
    static char paths[PATHS_N][ER_TEST_PATH_MAX];
    static size_t next;
    const char *base = getenv(variable);
    char *path = paths[next++ % PATHS_N];
    snprintf(path, ER_TEST_PATH_MAX, "%s/%s", base ? base : fallback, relative);
    return path;
}

const char *er_test_bin(const char *relative)
{
    return under("ER_TEST_BUILD", "build", relative);
}

const char *er_test_src(const char *relative)
{
    return under("ER_TEST_SOURCE", ".", relative);
}
