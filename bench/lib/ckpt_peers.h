#pragma once
/* The same work by others' libraries, as bench/peers_ckpt.py measures it. */
#include <stddef.h>

#include "bench/lib/bench.h"

enum { LIBRARIES_MAX = 8 };

/* Of one kind of work: a series for each library. */
struct bench_peer {
    const char *what;
    size_t n;
    char names[LIBRARIES_MAX][64];
    struct bench_series ms[LIBRARIES_MAX];
};

/* Fills those whose `what` the script names. */
void bench_run_peers(struct bench_peer *peers, size_t n);
/* The figure beside the fastest library, or alone (`peer` NULL or empty). */
void bench_emit_beside(const char *figure, const struct bench_series *s,
                       const struct bench_peer *peer);
