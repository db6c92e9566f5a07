#pragma once
/*
 * The shared page between an agent and one worker: a memfd of ER_PAGE_BYTES that the worker finds
 * through ELASTIC_PAGE_FD. Reports go one way and notices the other, by plain atomic stores: no
 * system call on either side. A worker that ignores the page costs nothing.
 *
 *   agent  -> worker   notice      generation << 8 | kind; only grows in generation
 *   worker -> agent    everything else; between two generations of one process, while it waits for
 *                      the next, the agent sets first_step and first_step_us back to 0
 *
 * Layout is version 1; new fields go to the end of a side, existing ones never move.
 */
#include <stdint.h>

#include "base/notice.h"

#define ER_PAGE_BYTES   4096
#define ER_PAGE_MAGIC   0x45525047u /* "ERPG" */
#define ER_PAGE_VERSION 1u

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
};

struct er_page {
    uint32_t magic, version;
    uint32_t pad[14];
    struct er_page_notice to_worker; /* its own cache line */
    uint64_t pad1[7];
    struct er_page_progress from_worker;
};

_Static_assert(sizeof(struct er_page) <= ER_PAGE_BYTES, "page layout");
