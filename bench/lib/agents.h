#pragma once
/*
 * Agents for benchmarks: processes whose output goes nowhere, a FIFO in which workers say what they
 * have done, and, where this process may make them, a network namespace for each agent, all on one
 * bridge. With ER_BENCH_SHOW=1 the agents' stderr is this program's. Any failure ends the program.
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define BENCH_AGENTS_MAX 8

/*
 * From now on each of `n` agents has a network of its own (10.77.0.1 ...), and so has this process
 * (10.77.0.254): etcd is started here. All of it ends with the program. False, with a word on
 * stderr: that needs root and `ip`; they share loopback then. Call it first, once.
 */
bool bench_agents_isolate(int n);
/* Where agent `i`, and this process, are reached. */
const char *bench_agents_address(int i);
const char *bench_agents_hub(void);
/* The interface that agent `i` has. */
const char *bench_agents_interface(void);
/* Cut agent `i` off, or connect it again; only with a network of its own. */
void bench_agents_cable(int i, bool on);

/* This process, a child that was forked for it, goes where agent `i` is. */
void bench_agents_enter(int i);
/* Starts `argv` (looked up in PATH) where agent `i` is; told to end (INT) when this program does.
 */
pid_t bench_agents_spawn(int i, const char *const argv[]);
/* The agent itself: its guard's first child. */
pid_t bench_agents_child(pid_t guard);
/* Whether the child `pid` has ended within so many milliseconds, and is reaped. */
bool bench_agents_reaped(pid_t pid, double ms);

struct bench_fifo {
    char dir[64], path[80]; /* a folder of its own below /tmp, and the FIFO in it */
    int fd;
};
void bench_fifo_open(struct bench_fifo *fifo, const char *name);
void bench_fifo_close(struct bench_fifo *fifo); /* removes both */
/* One message of `n` bytes, written in one piece; false: none until `until_ms` (bench_now_ms()). */
bool bench_fifo_read(const struct bench_fifo *fifo, void *ret, size_t n, double until_ms);
