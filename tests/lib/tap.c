#include "tests/lib/tap.h"

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

enum { CASE_TIMEOUT_S = 150, EXIT_FAILED = 1, EXIT_SKIPPED = 77 };

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

/* The case leads a process group of its own: what it leaves behind is killed with it. */
static pid_t start_case(const struct er_tap_case *c)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
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
    pid_t pid = start_case(c);
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
