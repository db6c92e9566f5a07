/*
 * Rendezvous at scale and under faults: the production core, driver and etcd client, many nodes in
 * one process, on private etcds set up as docs/several-nodes.md says for large jobs. Arguments name
 * the parts to run; without any, all.
 */
#include "bench/bench_rendezvous.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"agents", bench_agents},
    {"small", bench_small},
    {"formation", bench_formation},
    {"connections", bench_connections},
    {"disk", bench_disk},
    {"steady", bench_steady},
    {"node_cut", bench_node_cut},
    {"etcd_killed", bench_etcd_killed},
    {"etcd_stopped", bench_etcd_stopped},
    {"first_write", bench_first_write},
};

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return argc == 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0)
        return bench_agents_worker(argv[2]);
    /* A node's room for a view is fresh pages that only a leader touches. Without a fixed threshold
     * malloc soon recycles them, and clears them for every node. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    if (!bench_etcd_there())
        bench_fail("no etcd in PATH (Debian: etcd-server), and ER_ETCD_BIN names none");
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        double start = bench_now_ms();

        if (!wanted(parts[i].name, argc, argv))
            continue;
        parts[i].run();
        fflush(stdout);
        fprintf(stderr, "bench: %s: %.1f s\n", parts[i].name, (bench_now_ms() - start) / 1e3);
    }
    return 0;
}
