#include "bench/lib/coll_peers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_MAX = 4096 };

/* Both allocate a buffer for each operation: without these, fresh pages are most of their time. */
#define KEEP_MEMORY "env MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=4000000000 "

static const char *const names[] = {
#define COLL_PEER_TEXT(name, text) [COLL_PEER_##name] = text,
    COLL_PEERS(COLL_PEER_TEXT)
#undef COLL_PEER_TEXT
};

static const char *const programs[COLL_PEER_COUNT] = {
    [COLL_PEER_GLOO] = "bench/peer_gloo", [COLL_PEER_OPEN_MPI] = "bench/peer_mpi"};

const char *coll_peer_name(enum coll_peer peer)
{
    return names[peer];
}

bool coll_peer_there(enum coll_peer peer)
{
    if (!programs[peer] || access(bench_bin(programs[peer]), X_OK) == 0)
        return true;
    fprintf(stderr, "bench: %s is not measured: it was not there when %s should have been built\n",
            names[peer], programs[peer]);
    return false;
}

/* The beginning of the command, up to the sizes. */
static size_t command_of(enum coll_peer peer, const struct coll_setting *setting,
                         char command[COMMAND_MAX])
{
    int n = 0;

    switch (peer) {
    case COLL_PEER_GLOO:
        n = snprintf(command, COMMAND_MAX, KEEP_MEMORY "%s %d", bench_bin(programs[peer]),
                     setting->ranks);
        break;
    case COLL_PEER_TORCH_GLOO:
        n = snprintf(command, COMMAND_MAX, KEEP_MEMORY "%s/bin/python %s/peers_collectives.py %d",
                     bench_peers(), ER_BENCH_SOURCE, setting->ranks);
        break;
    case COLL_PEER_OPEN_MPI:
        n = snprintf(command, COMMAND_MAX,
                     KEEP_MEMORY "mpirun --allow-run-as-root --oversubscribe -np %d --mca btl %s "
                                 "--mca pml ob1 %s",
                     setting->ranks, setting->mpi, bench_bin(programs[peer]));
        break;
    case COLL_PEER_COUNT:
        break;
    }
    return (size_t)n;
}

static void read_points(FILE *out, struct coll_point *points, size_t n)
{
    struct coll_point fresh = {.runs = 1};

    while (fscanf(out, "%zu %lf %lf", &fresh.bytes, &fresh.p50_us, &fresh.p99_us) == 3)
        for (size_t i = 0; i < n; i++)
            if (points[i].bytes == fresh.bytes)
                coll_keep_better(&points[i], &fresh);
}

void coll_peer_sweep(enum coll_peer peer, const struct coll_setting *setting,
                     struct coll_point points[COLL_SIZES_MAX])
{
    size_t bytes[COLL_SIZES_MAX], n = coll_sizes(setting, bytes);
    char command[COMMAND_MAX];
    size_t at = command_of(peer, setting, command);
    FILE *out;

    for (size_t i = 0; i < n && at < sizeof(command); i++) {
        points[i].bytes = bytes[i];
        at += (size_t)snprintf(command + at, sizeof(command) - at, " %zu:%zu", bytes[i],
                               coll_runs(setting, bytes[i]));
    }
    if (at + sizeof(" 2>/dev/null") > sizeof(command))
        bench_fail("the command of %s is too long", names[peer]);
    strcat(command, " 2>/dev/null");
    out = popen(command, "r");
    if (out)
        read_points(out, points, n);
    if (!out || pclose(out) != 0)
        bench_fail("%s: %s", names[peer], command);
    for (size_t i = 0; i < n; i++)
        if (points[i].runs == 0)
            bench_fail("%s said nothing of %zu bytes", names[peer], bytes[i]);
}
