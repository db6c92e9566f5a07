#pragma once
/* The parts of bench_rendezvous: each emits its figures. */
#include "bench/lib/bench.h"
#include "bench/lib/etcd_server.h"
#include "bench/lib/sim_nodes.h"

/* bench_rendezvous_scale.c */
void bench_formation(
    void); /* 100 to 10,000 nodes: first formation, re-formation, takeover, slopes */
void bench_connections(void); /* a connection per node */
void bench_disk(void);        /* formation with etcd's data on disk */
void bench_steady(void);      /* requests of a job that runs */

/* bench_rendezvous_agents.c */
void bench_agents(void);                   /* three real agents */
int bench_agents_worker(const char *fifo); /* what such a worker does */

/* bench_rendezvous_peer.c */
void bench_small(void); /* 8, 32 and 128 nodes, beside torch's c10d rendezvous */

/* bench_rendezvous_faults.c */
void bench_node_cut(void);     /* nodes without power */
void bench_etcd_killed(void);  /* the leader of three members */
void bench_etcd_stopped(void); /* SIGSTOP for longer than any lease */
void bench_first_write(void);  /* from exec to the node's record */
