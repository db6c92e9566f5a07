#pragma once
/*
 * Collectives between ranks of this host, float32, over a range of sizes: what bench_collectives.c
 * reports, and in which settings the peers are asked for the same.
 */
#include "bench/lib/bench.h"
#include "runtime/comm.h"

enum { COLL_KIB = 1 << 10, COLL_MIB = 1 << 20, COLL_SIZES_MAX = 16 };

enum coll_place { COLL_IN_PLACE, COLL_OUT_OF_PLACE, COLL_PLACE_COUNT };

/* Time of one operation. */
struct coll_point {
    size_t bytes, runs; /* runs 0: not measured */
    double p50_us, p99_us, spread;
};

struct coll_setting {
    const char *name; /* within the names of figures */
    enum er_comm_transport transport;
    int ranks;
    const char *mpi; /* how Open MPI goes the same way: its btl */
    size_t largest, quick_largest;
};

struct coll_result {
    struct coll_point all_reduce[COLL_PLACE_COUNT][COLL_SIZES_MAX];
    struct coll_point reduce_scatter, all_gather; /* of one size */
    /* Their bus bandwidth over that of an all-reduce of this size just before, run by run. */
    struct bench_series reduce_scatter_over, all_gather_over;
    struct coll_point vote;
};

/* The sizes of a setting into `ret`, smallest first: how many. */
size_t coll_sizes(const struct coll_setting *setting, size_t ret[COLL_SIZES_MAX]);
/* How often a size is measured. */
size_t coll_runs(const struct coll_setting *setting, size_t bytes);
/* Keep the better of two measurements of one thing: other people's work on a machine only adds. */
void coll_keep_better(struct coll_point *kept, const struct coll_point *fresh);
/* The same of all points; ratios are collected. */
void coll_keep_better_result(struct coll_result *kept, const struct coll_result *fresh);
/* Measure everything. Ends the program on failure. */
void coll_sweep(const struct coll_setting *setting, struct coll_result *result);
