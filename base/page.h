#pragma once
/*
 * The shared page between an agent and one worker: a memfd of ER_PAGE_BYTES that the worker finds
 * through ELASTIC_PAGE_FD. Reports go one way and notices the other, by plain atomic stores: no
 * system call on either side. A worker that ignores the page costs nothing.
 *
 *   agent  -> worker   notice      generation << 8 | kind; only grows in generation
 *   worker -> agent    everything else; between two generations of one process, while it waits for
 *                      the next, the agent sets first_step, first_step_us and connected_us back to
 * 0
 *
 * Layout is version 1; new fields go to the end of a side, existing ones never move.
 */
#include <stdint.h>

#include "base/histogram.h"
#include "base/notice.h"

#define ER_PAGE_BYTES   4096
#define ER_PAGE_MAGIC   0x45525047u /* "ERPG" */
#define ER_PAGE_VERSION 1u

#define ER_PAGE_STEP_TIMES 16 /* ER_HISTOGRAM_BOUNDS + 1, for ever */

struct er_page_notice {
    _Atomic uint64_t word; /* generation << 8 | enum er_notice */
};

struct er_page_progress {
    _Atomic uint64_t phase;      /* enum er_phase */
    _Atomic uint64_t step;       /* last finished step; 0: none yet */
    _Atomic uint64_t step_us;    /* CLOCK_MONOTONIC of the last report */
    _Atomic uint64_t first_step; /* first step finished by this process in its current generation */
    _Atomic uint64_t first_step_us; /* and when */
    _Atomic uint64_t collective;    /* sequence number of the last collective begun */
    _Atomic uint64_t samples;       /* samples finished by this rank */
    _Atomic uint64_t loss_bits;     /* last loss, bits of a double */
    _Atomic uint64_t total_steps;   /* steps this run wants; 0: not known */
    _Atomic uint64_t tokens;        /* as samples; 0: not reported */
    _Atomic uint64_t samples_per_s; /* of all ranks in the last second or step; 0: not known */
    _Atomic uint64_t tokens_per_s;
    /* Where this process's steps spent their time, all together. */
    _Atomic uint64_t data_us, forward_us, backward_us, communicate_us, optimizer_us;
    /* How long steps took, from one to the next: by er_bounds_fine, and all together. */
    _Atomic uint64_t steps_by_time[ER_PAGE_STEP_TIMES], steps_time_us;
    /* When the last communicator stood that was opened before the first step of this generation. */
    _Atomic uint64_t connected_us;
    /* As data_us to optimizer_us without communicate_us, the median of all ranks; 0: not known. */
    _Atomic uint64_t median_busy_us;
    /* 1: this process can live on in another generation, and has said so before it is READY. */
    _Atomic uint64_t rejoins;
};

struct er_page {
    uint32_t magic, version;
    uint32_t pad[14];
    struct er_page_notice to_worker; /* its own cache line */
    uint64_t pad1[7];
    struct er_page_progress from_worker;
};

_Static_assert(ER_PAGE_STEP_TIMES == ER_HISTOGRAM_BOUNDS + 1, "page layout");
_Static_assert(sizeof(struct er_page) <= ER_PAGE_BYTES, "page layout");
