#pragma once
/*
 * Private etcds for benchmarks, on loopback ports that were free, set up as
 * docs/several-nodes.md says for large jobs, else with its defaults. They die with the
 * program. ER_ETCD_BIN names another etcd than the one in PATH. Any failure ends the program.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_ETCD_MEMBERS_MAX 3

struct bench_etcd {
    char dir[256]; /* data, one folder a member */
    int n;
    pid_t pids[BENCH_ETCD_MEMBERS_MAX]; /* 0: not running */
    int client_ports[BENCH_ETCD_MEMBERS_MAX], peer_ports[BENCH_ETCD_MEMBERS_MAX];
    const char *host; /* where others reach it */
    char endpoints[256];
};

enum bench_etcd_place { BENCH_ETCD_MEMORY, BENCH_ETCD_DISK }; /* tmpfs; where temporary files are */

int bench_free_port(void);   /* of loopback, just now */
bool bench_etcd_there(void); /* is there an etcd to run? */
/* Starts 1 or 3 members with etcd's default timings and waits until they serve. */
void bench_etcd_start(struct bench_etcd *e, int n, enum bench_etcd_place place);
/* The same, reached at `host` too, an address of this host; borrowed. */
void bench_etcd_start_at(struct bench_etcd *e, int n, enum bench_etcd_place place,
                         const char *host);
void bench_etcd_stop(struct bench_etcd *e); /* kills, and removes the data */
void bench_etcd_kill(struct bench_etcd *e, int i);
void bench_etcd_restart(struct bench_etcd *e, int i); /* a killed one */
void bench_etcd_signal(struct bench_etcd *e, int i, int sig);
int bench_etcd_leader(struct bench_etcd *e);                 /* -1: none */
double bench_etcd_cpu_ms(const struct bench_etcd *e, int i); /* used so far */
/* A metric of member `i`, summed over its labels; `label`: only lines that contain it (NULL: all).
 */
double bench_etcd_metric(const struct bench_etcd *e, int i, const char *name, const char *label);
