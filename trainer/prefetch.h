#pragma once
/*
 * Batches made ahead of their steps by a pool of threads. What a step's batch is, is a function of
 * the step: threads fill the next ones while the model computes, and when the order of steps
 * changes (a resume, another world size) what was made ahead is dropped and made again.
 *
 *     er_prefetch_open(&prefetch, &(struct er_prefetch_opts){.fill = read_rows, .bytes = n},
 *                      1, err);
 *     for (step = 1; step <= last; step++)
 *         er_prefetch_get(prefetch, step, &batch, err);     what was got before is free again
 *
 * With `fill` a thread makes a whole batch. With `decode` the threads are a pool of decoders: they
 * share the samples of a batch, the earliest one first, so that one batch comes as fast as all of
 * them can make it (images, compressed records).
 */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_PREFETCH_THREADS_MAX 64
#define ER_PREFETCH_AHEAD_MAX   256

struct er_prefetch; /* opaque */

/* Makes the batch of `step` in `memory` (opts.bytes, aligned to 64). Called by several threads at
 * once, for different steps. A failure is told by the er_prefetch_get() of that step. */
typedef int (*er_prefetch_fill_fn)(void *user, uint64_t step, void *memory, struct er_error *err);

/* Makes sample `i` of the batch of `step`, at its place in `memory` (opts.bytes, aligned to 64).
 * Called by several threads at once, for different samples. After a failure the batch's other
 * samples may be left out; the er_prefetch_get() tells one of the failures. */
typedef int (*er_prefetch_decode_fn)(void *user, uint64_t step, uint64_t i, void *memory,
                                     struct er_error *err);
/* Samples in the batch of `step`; may be 0. */
typedef uint64_t (*er_prefetch_count_fn)(void *user, uint64_t step);

struct er_prefetch_opts {
    er_prefetch_fill_fn fill; /* this one, or the next two */
    er_prefetch_decode_fn decode;
    er_prefetch_count_fn count;
    void *user;
    size_t bytes;       /* of one batch */
    uint32_t threads;   /* 0: 1 */
    uint32_t ahead;     /* batches made ahead of the one in use; 0: as many as threads */
    uint64_t last_step; /* none is made behind it */
};

/* Threads begin with `first_step`. ER_E_USAGE: a limit, or no bytes; -ENOMEM, -EAGAIN. */
int er_prefetch_open(struct er_prefetch **ret, const struct er_prefetch_opts *opts,
                     uint64_t first_step, struct er_error *err);
/* Waits for the threads, each of which ends the batch it is at. NULL is fine. */
void er_prefetch_close(struct er_prefetch *prefetch);
/* The batch of `step`, valid until the next call. Waits while it is being made. A step other than
 * the next one begins there anew. Errors: fill's; ER_E_USAGE: a step behind the last. */
int er_prefetch_get(struct er_prefetch *prefetch, uint64_t step, void **ret, struct er_error *err);

struct er_prefetch_stats {
    uint64_t got, waited, dropped; /* batches given out; of them not ready yet; made for nothing */
    uint64_t wait_us;
};
struct er_prefetch_stats er_prefetch_stats(const struct er_prefetch *prefetch);

#ifdef __cplusplus
}
#endif
