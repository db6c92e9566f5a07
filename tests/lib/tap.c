#include "tests/lib/tap.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/jobs.h"

enum {
    CASE_TIMEOUT_S = 150,
    EXIT_FAILED = 1,
    EXIT_SKIPPED = 77,
    ENVIRON_MAX = 64 << 10,
    SWEEPS_MAX = 50 /* a process that is killed may just have started another one */
};

static int failures_n; /* of the running case */

int er_tap_check_(int held, const char *file, int line, const char *text)
{
    if (!held) {
        failures_n++;
        printf("# %s:%d: not true: %s\n", file, line, text);
        fflush(stdout);
    }
    return held;
}

int er_tap_failures(void)
{
    return failures_n;
}

void er_tap_require_(int held, const char *file, int line, const char *text)
{
    if (!er_tap_check_(held, file, line, text))
        exit(EXIT_FAILED);
}

void er_tap_skip(const char *reason)
{
    printf("# skip: %s\n", reason);
    exit(EXIT_SKIPPED);
}

void er_tap_note(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    printf("# ");
    vprintf(fmt, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
}

static bool wanted(int argc, char **argv, const char *name)
{
    if (argc < 2)
        return true;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return false;
}

/* In the environment of all that a case starts; the value names the case. */
#define MARK "ER_TEST_CASE"

static bool has_mark(pid_t pid, const char *mark)
{
    static char text[ENVIRON_MAX];
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text));
    close(fd);
    return n > 0 && memmem(text, (size_t)n, mark, strlen(mark) + 1);
}

/* Kills the case's processes. Returns how many it found. */
static int sweep(const char *mark)
{
    DIR *d = opendir("/proc");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        pid_t pid = (pid_t)atoi(e->d_name);
        if (pid > 0 && pid != getpid() && has_mark(pid, mark))
            n += kill(pid, SIGKILL) == 0;
    }
    if (d)
        closedir(d);
    return n;
}

/* A case that failed had no time to end what it started in sessions of their own: agents would go
 * on beside all the cases after it. Those that are killed with their guards leave their folders. */
static void sweep_all(pid_t pid, size_t number)
{
    char mark[64];
    snprintf(mark, sizeof(mark), MARK "=%d-%zu", (int)getpid(), number);
    for (int i = 0; i < SWEEPS_MAX && sweep(mark) > 0; i++)
        poll(NULL, 0, 10);
    er_test_remove_jobs(pid);
}

/* The case leads a process group of its own: what it leaves behind is killed with it. */
static pid_t start_case(const struct er_tap_case *c, size_t number)
{
    pid_t runner = getpid();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char name[32];
        snprintf(name, sizeof(name), "%d-%zu", (int)runner, number);
        setenv(MARK, name, 1);
        setpgid(0, 0);
        c->run();
        exit(failures_n > 0 ? EXIT_FAILED : 0);
    }
    return pid;
}

/* How many times slower than usual: tools that watch every access. */
static unsigned patience(void)
{
    const char *text = getenv("ER_TEST_PATIENCE");
    int factor = text ? atoi(text) : 1;

    return factor > 1 ? (unsigned)factor : 1;
}

static bool exits_in_time(pid_t pid, unsigned timeout_s)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return true;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int rc = poll(&p, 1, (int)timeout_s * 1000);
    close(fd);
    return rc != 0;
}

/* Prints the result line; true unless the case failed. */
static bool run_case(const struct er_tap_case *c, size_t number)
{
    unsigned timeout_s = (c->timeout_s > 0 ? c->timeout_s : CASE_TIMEOUT_S) * patience();
    int status = 0;
    pid_t pid = start_case(c, number);
    bool in_time = pid > 0 && exits_in_time(pid, timeout_s);
    if (pid > 0) {
        kill(-pid, SIGKILL);
        if (!in_time)
            kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    if (!in_time)
        printf("# not finished within %u s\n", timeout_s);
    else if (WIFSIGNALED(status))
        printf("# died by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    bool skipped = in_time && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED;
    bool ok = in_time && WIFEXITED(status) && (skipped || WEXITSTATUS(status) == 0);
    if (!ok)
        sweep_all(pid, number);
    printf("%s %zu - %s%s\n", ok ? "ok" : "not ok", number, c->name, skipped ? " # SKIP" : "");
    fflush(stdout);
    return ok;
}

int er_tap_main(int argc, char **argv, const struct er_tap_case *cases, size_t cases_n)
{
    bool in_process = argc > 1 && strcmp(argv[1], "--no-fork") == 0;
    size_t wanted_n = 0, failed_n = 0, number = 0;

    for (size_t i = 0; i < cases_n; i++)
        wanted_n += wanted(argc, argv, cases[i].name);
    printf("1..%zu\n", wanted_n);
    for (size_t i = 0; i < cases_n; i++) {
        if (!wanted(argc, argv, cases[i].name))
            continue;
        if (in_process) {
            cases[i].run();
            return failures_n > 0;
        }
        failed_n += !run_case(&cases[i], ++number);
    }
    return failed_n > 0;
}
