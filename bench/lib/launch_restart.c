/*
 * SIGKILL of one of N workers until the last worker of the next generation runs its first
 * instruction, beside a bare loop that does the least: wait for the death, kill the others, reap
 * them, spawn N again. Turn by turn in one run.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/launch_parts.h"

static const double LIMIT_FACTOR = 1.3, LIMIT_PLUS_MS = 15;

enum { WORKERS_MAX = 16, WAIT_MS = 30000 };

/* What a worker says when it runs: one write to a pipe, never torn. */
struct hello {
    double at_ms;
    int pid;
};

extern char **environ;

static int hello_main(const char *fifo)
{
    struct hello hello = {.at_ms = bench_now_ms(), .pid = getpid()};
    int fd = open(fifo, O_WRONLY);

    if (fd < 0 || write(fd, &hello, sizeof(hello)) != (ssize_t)sizeof(hello))
        return 1;
    close(fd);
    for (;;)
        pause();
}

/* The moment the last of `n` came up; their pids. */
static double gather(int fd, size_t n, int pids[WORKERS_MAX])
{
    double last_ms = 0;

    for (size_t i = 0; i < n; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        struct hello hello;

        if (poll(&p, 1, WAIT_MS) != 1 || read(fd, &hello, sizeof(hello)) != (ssize_t)sizeof(hello))
            bench_fail("a worker did not come up");
        pids[i] = hello.pid;
        last_ms = hello.at_ms > last_ms ? hello.at_ms : last_ms;
    }
    return last_ms;
}

static void spawn_bare(size_t n, const char *fifo, pid_t pids[WORKERS_MAX])
{
    char *argv[] = {(char *)bench_bin("bench/bench_launch"), (char *)"hello", (char *)fifo, NULL};

    for (size_t i = 0; i < n; i++)
        if (posix_spawn(&pids[i], argv[0], NULL, NULL, argv, environ) != 0)
            bench_fail("cannot spawn a worker");
}

static double bare_turn(int fd, size_t n, const char *fifo, pid_t pids[WORKERS_MAX])
{
    int hellos[WORKERS_MAX];
    double start_ms = bench_now_ms();
    pid_t dead;

    kill(pids[0], SIGKILL);
    dead = waitpid(pids[0], NULL, 0);
    if (dead != pids[0])
        bench_fail("the killed worker is not there");
    for (size_t i = 1; i < n; i++)
        kill(pids[i], SIGTERM);
    for (size_t i = 1; i < n; i++)
        waitpid(pids[i], NULL, 0);
    spawn_bare(n, fifo, pids);
    return gather(fd, n, hellos) - start_ms;
}

/* elastic-run, or the peer's torchrun, with `n` workers that say when they run. */
static pid_t start_launcher(bool peer, const char *workers, const char *fifo)
{
    char launcher[4096], program[4096];
    char *argv[] = {launcher,         (char *)"--nproc-per-node",
                    (char *)workers,  (char *)"--max-restarts",
                    (char *)"100000", (char *)"--no-python",
                    program,          (char *)"hello",
                    (char *)fifo,     NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;

    if (peer)
        snprintf(launcher, sizeof(launcher), "%s/bin/torchrun", bench_peers());
    else
        snprintf(launcher, sizeof(launcher), "%s", bench_bin("elastic-run"));
    snprintf(program, sizeof(program), "%s", bench_bin("bench/bench_launch"));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0)
        bench_fail("cannot start '%s'", argv[0]);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static double launcher_turn(int fd, size_t n, int pids[WORKERS_MAX])
{
    double start_ms = bench_now_ms();

    kill(pids[0], SIGKILL);
    return gather(fd, n, pids) - start_ms;
}

static int open_fifo(const char *path)
{
    int fd;

    unlink(path);
    if (mkfifo(path, 0600) < 0 || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        bench_fail("cannot make '%s': %s", path, strerror(errno));
    return fd;
}

/* The peer's turns, on their own: its agent looks ten times a second, and would look at ours, too.
 */
static void measure_peer(size_t n, size_t runs, const char *workers, struct bench_series *ret)
{
    char fifo[64];
    int pids[WORKERS_MAX], fd;
    pid_t launcher;

    snprintf(fifo, sizeof(fifo), "/tmp/er-bench-launch-%d.p", (int)getpid());
    fd = open_fifo(fifo);
    launcher = start_launcher(true, workers, fifo);
    gather(fd, n, pids);
    for (size_t i = 0; i < runs; i++)
        bench_add(ret, launcher_turn(fd, n, pids));
    kill(launcher, SIGTERM);
    waitpid(launcher, NULL, 0);
    close(fd);
    unlink(fifo);
}

static void measure(size_t n, size_t runs)
{
    static struct bench_series elastic, bare, over, peer;
    char workers[8], ours[64], theirs[64], figure[64];
    int pids[WORKERS_MAX], our_fd, their_fd;
    pid_t bare_pids[WORKERS_MAX], agent;

    elastic.n = bare.n = over.n = peer.n = 0;
    snprintf(workers, sizeof(workers), "%zu", n);
    snprintf(ours, sizeof(ours), "/tmp/er-bench-launch-%d.a", (int)getpid());
    snprintf(theirs, sizeof(theirs), "/tmp/er-bench-launch-%d.b", (int)getpid());
    our_fd = open_fifo(ours);
    their_fd = open_fifo(theirs);
    agent = start_launcher(false, workers, ours);
    gather(our_fd, n, pids);
    spawn_bare(n, theirs, bare_pids);
    {
        int hellos[WORKERS_MAX];

        gather(their_fd, n, hellos);
    }
    for (size_t i = 0; i < runs + 1; i++) {
        double a = launcher_turn(our_fd, n, pids), b = bare_turn(their_fd, n, theirs, bare_pids);

        if (i == 0)
            continue; /* the first ones warm up */
        bench_add(&elastic, a);
        bench_add(&bare, b);
        bench_add(&over, a / (LIMIT_FACTOR * b + LIMIT_PLUS_MS));
    }
    for (size_t i = 0; i < n; i++) {
        kill(bare_pids[i], SIGKILL);
        waitpid(bare_pids[i], NULL, 0);
    }
    kill(agent, SIGTERM);
    waitpid(agent, NULL, 0);
    close(our_fd);
    close(their_fd);
    unlink(ours);
    unlink(theirs);
    snprintf(figure, sizeof(figure), "restart_n%s_ms", workers);
    if (bench_peers())
        measure_peer(n, bench_runs(10, 3), workers, &peer);
    if (peer.n > 0)
        bench_emit_peer(figure, &elastic, "torchrun", &peer);
    else
        bench_emit(figure, &elastic);
    snprintf(figure, sizeof(figure), "bare_restart_n%s_ms", workers);
    bench_emit(figure, &bare);
    snprintf(figure, sizeof(figure), "restart_n%s_over_limit", workers);
    bench_emit_value(figure,
                     bench_median(&elastic) / (LIMIT_FACTOR * bench_median(&bare) + LIMIT_PLUS_MS),
                     bench_spread(&over), runs);
}

void launch_restart(void)
{
    measure(2, bench_runs(60, 15));
    measure(16, bench_runs(40, 10));
}

int launch_role(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "hello") == 0)
        return hello_main(argv[2]);
    return launch_write(argc, argv);
}
