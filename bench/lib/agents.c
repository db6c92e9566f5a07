#include "bench/lib/agents.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "bench/lib/bench.h"

#define PAUSE_NS 2000000
#define HUB      "10.77.0.254"

extern char **environ;

/* Namespaces of agents, and this process's own; -1: none. */
static struct {
    int hub, of[BENCH_AGENTS_MAX];
    char address[BENCH_AGENTS_MAX][24];
    bool own;
} net = {.hub = -1};

/* ---- namespaces ---- */

static bool ip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static bool ip(const char *fmt, ...)
{
    char line[256] = "ip ";
    va_list args;

    va_start(args, fmt);
    vsnprintf(line + strlen(line), sizeof(line) - strlen(line), fmt, args);
    va_end(args);
    snprintf(line + strlen(line), sizeof(line) - strlen(line), " >/dev/null 2>&1");
    return system(line) == 0;
}

static int current_namespace(void)
{
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

static void enter(int ns)
{
    if (setns(ns, CLONE_NEWNET) < 0)
        bench_fail("enter a network namespace: %s", strerror(errno));
}

/* A namespace of its own for agent `i`, wired to the bridge; this process ends up where it was. */
static bool wire(int i)
{
    bool fine;

    if (unshare(CLONE_NEWNET) < 0 || (net.of[i] = current_namespace()) < 0)
        return false;
    enter(net.hub);
    snprintf(net.address[i], sizeof(net.address[i]), "10.77.0.%d", i + 1);
    fine = ip("link add er%d type veth peer name eth0 netns /proc/%d/fd/%d", i, (int)getpid(),
              net.of[i]) &&
           ip("link set er%d master erbr up", i);
    enter(net.of[i]);
    fine = fine && ip("link set lo up") && ip("addr add %s/24 dev eth0", net.address[i]) &&
           ip("link set eth0 up");
    enter(net.hub);
    return fine;
}

bool bench_agents_isolate(int n)
{
    int before = current_namespace();
    bool fine = before >= 0 && geteuid() == 0 && unshare(CLONE_NEWNET) == 0 &&
                (net.hub = current_namespace()) >= 0 && ip("link set lo up") &&
                ip("link add erbr type bridge") && ip("addr add " HUB "/24 dev erbr") &&
                ip("link set erbr up");

    for (int i = 0; fine && i < n; i++)
        fine = wire(i);
    if (!fine) {
        fprintf(stderr, "bench: no network namespaces (they need root, `ip` and a bridge): the "
                        "agents share this host's loopback\n");
        if (net.hub >= 0)
            enter(before);
    }
    net.own = fine;
    if (before >= 0)
        close(before);
    return fine;
}

const char *bench_agents_address(int i)
{
    return net.own ? net.address[i] : "127.0.0.1";
}

const char *bench_agents_hub(void)
{
    return net.own ? HUB : "127.0.0.1";
}

const char *bench_agents_interface(void)
{
    return net.own ? "eth0" : "lo";
}

void bench_agents_enter(int i)
{
    if (net.own)
        enter(net.of[i]);
}

void bench_agents_cable(int i, bool on)
{
    if (!net.own || !ip("link set er%d %s", i, on ? "up" : "down"))
        bench_fail("cannot pull the cable of agent %d", i);
}

/* ---- processes ---- */

/* Those that have not been reaped: a benchmark that fails leaves none behind. */
static pid_t living[64];
static size_t living_n;

static void end_all(void)
{
    while (living_n > 0)
        kill(living[--living_n], SIGINT);
}

static void remember(pid_t pid)
{
    static bool told;

    if (!told)
        told = atexit(end_all) == 0;
    if (living_n == ER_ARRAY_N(living))
        bench_fail("more than %zu agents", ER_ARRAY_N(living));
    living[living_n++] = pid;
}

static void forget(pid_t pid)
{
    for (size_t i = 0; i < living_n; i++) {
        if (living[i] == pid)
            living[i] = living[--living_n];
    }
}

pid_t bench_agents_spawn(int i, const char *const argv[])
{
    posix_spawn_file_actions_t quiet;
    pid_t pid;
    int rc;

    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    if (!getenv("ER_BENCH_SHOW"))
        posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    if (net.own)
        enter(net.of[i]);
    rc = posix_spawnp(&pid, argv[0], &quiet, NULL, (char *const *)(uintptr_t)argv, environ);
    if (net.own)
        enter(net.hub);
    posix_spawn_file_actions_destroy(&quiet);
    if (rc != 0)
        bench_fail("cannot start '%s': %s", argv[0], strerror(rc));
    remember(pid);
    return pid;
}

pid_t bench_agents_child(pid_t guard)
{
    char path[64], text[32] = "";
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", guard, guard);
    f = fopen(path, "re");
    if (!f || !fgets(text, sizeof(text), f))
        bench_fail("a guard has no agent");
    fclose(f);
    return (pid_t)strtol(text, NULL, 10);
}

bool bench_agents_reaped(pid_t pid, double ms)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    double until = bench_now_ms() + ms;

    while (waitpid(pid, NULL, WNOHANG) != pid) {
        if (bench_now_ms() >= until)
            return false;
        nanosleep(&pause, NULL);
    }
    forget(pid);
    return true;
}

/* ---- what workers say ---- */

void bench_fifo_open(struct bench_fifo *fifo, const char *name)
{
    snprintf(fifo->dir, sizeof(fifo->dir), "/tmp/bench-%s-XXXXXX", name);
    if (!mkdtemp(fifo->dir))
        bench_fail("cannot make a folder");
    snprintf(fifo->path, sizeof(fifo->path), "%s/said", fifo->dir);
    if (mkfifo(fifo->path, 0600) < 0 || (fifo->fd = open(fifo->path, O_RDWR | O_CLOEXEC)) < 0)
        bench_fail("cannot make '%s'", fifo->path);
}

void bench_fifo_close(struct bench_fifo *fifo)
{
    close(fifo->fd);
    unlink(fifo->path);
    rmdir(fifo->dir);
}

bool bench_fifo_read(const struct bench_fifo *fifo, void *ret, size_t n, double until_ms)
{
    struct pollfd p = {.fd = fifo->fd, .events = POLLIN};
    double left = until_ms - bench_now_ms();

    return left > 0 && poll(&p, 1, (int)left + 1) == 1 && read(fifo->fd, ret, n) == (ssize_t)n;
}
