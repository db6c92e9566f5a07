#pragma once
/* A job for bench_elastic: a worker with 100 MB of state (parameters and optimizer) in a pool, that
 * takes 20 ms for a step and says in a FIFO when it has applied one. */
#include <stddef.h>
#include <stdint.h>

#define ELASTIC_JOB_STATE_BYTES 100000000u
#define ELASTIC_JOB_PACE_US     20000u

/* One write to the FIFO, never torn. */
struct elastic_job_step {
    double at_ms;
    uint64_t step, generation;
    int rank, size, pid;
};

/* The worker's whole process. `newcomers`: "copy", "slices", "auto". */
int elastic_job_worker(const char *fifo, const char *newcomers);
